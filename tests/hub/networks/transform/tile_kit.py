"""Networks in bfloat16 for a CPU with tile registers, and what their programs compute."""

from typing import Any

import ml_dtypes
import numpy as np
import torch
import tvm
from relax_kit import build, linked, relax_of
from tchub.hub.device.host_facts import read_host_facts
from tchub.hub.device.tile_registers import with_tile_registers
from tchub.hub.networks.tasks import TuningTask, network_tasks
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.networks.transform.tile_products import rule_of_tiles
from tchub.hub.networks.transform.tile_schedules import tile_product
from tchub.hub.search.candidates import random_candidates
from tvm.s_tir import Schedule
from tvm.target import Target

X86 = {"kind": "llvm", "mcpu": "sapphirerapids", "mtriple": "x86_64-linux-gnu"}
XEON = Target(X86 | {"num-cores": 2, "opt-level": 0})
RUNS = "amx_bf16" in read_host_facts().flags


def lowered(module: torch.nn.Module, *inputs: torch.Tensor) -> Any:
    """Return the tensor functions of a network in bfloat16."""
    return lower(for_inference(relax_of(module, *inputs), precision="bfloat16"))


def compiled(mod: Any, target: Target = XEON) -> tuple[Any, str]:
    """Return a scheduled program's library and its assembly."""
    code = tvm.tirx.build(with_tile_registers(mod), target=target)
    return linked(code), code.inspect_source("s")


def outputs(library: Any, task: TuningTask) -> np.ndarray:
    """Return what a program computes of random numbers."""
    random = np.random.default_rng(0)
    args = []
    for param in task.mod["main"].params:
        values = random.standard_normal([int(n) for n in param.ty.shape]).astype(np.float32)
        dtype = str(param.ty.dtype)
        args.append(tvm.runtime.empty(values.shape, dtype))
        args[-1].copyfrom(values.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else values)
    library["main"](*args)
    return np.asarray(args[-1].numpy(), dtype=np.float32)


def checked_programs(task: TuningTask, count: int, off: float) -> list[str]:
    """Check what programs compute, up to this share of the largest number; return their assembly."""
    plain = outputs(build(task.mod), task)
    programs = [compiled(candidate.mod) for candidate in random_candidates(task, XEON, count)]
    for library, _ in programs if RUNS else ():
        np.testing.assert_allclose(outputs(library, task), plain, atol=off * np.abs(plain).max())
    return [assembly for _, assembly in programs]


def dtypes(task: TuningTask) -> list[str]:
    """Return the types of the arguments of a task."""
    return [str(param.ty.dtype) for param in task.mod["main"].params]


def tile_tasks(mod: Any) -> list[TuningTask]:
    """Return the tasks of a network that are products of tiles."""
    return [task for task in network_tasks(mod, XEON, "network") if "tile_product" in task.name]


def program(task: TuningTask, decisions: list[list[int]]) -> Any:
    """Return the program of a product with these numbers of tiles, outside and inside: of rows, of columns."""
    for seed in range(1, 100):
        schedule: Any = Schedule(task.mod, seed=7919 * seed)  # the first draws of small seeds are alike
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        (space,) = tile_product(schedule, next(one for one in blocks if rule_of_tiles(schedule.get(one))))
        if [list(map(int, one)) for one in space.trace.decisions.values()] == decisions:
            return space.mod
    raise AssertionError(decisions)

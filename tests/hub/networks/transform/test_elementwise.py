"""Functions that move or combine elements have spaces of their own; without a schedule, loops are still parallel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tchub.hub.networks.library import build_library
from tchub.hub.networks.tasks import TuningTask, make_task
from tchub.hub.networks.transform.default_schedules import default_schedules
from tchub.hub.networks.transform.elementwise import RULE, cheapest_first
from tchub.hub.networks.transform.prepare import own_spaces
from tchub.hub.search.candidates import tune_context
from torch import nn
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import ForKind
from tvm_ffi import structural_equal

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
X86 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})  # MetaSchedule has other rules for it


def task_of(*tensors: Any) -> TuningTask:
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    return make_task(own_spaces()(tvm.IRModule({"main": func})), "task")


def spaces(task: TuningTask, target: Any = TARGET) -> list[Any]:
    return list(tune_context(task, target, ms.search_strategy.ReplayTrace(), 0).generate_design_space())


def of(shape: tuple[int, ...], function: Callable[[Any], Any]) -> list[Any]:
    x = te.placeholder(shape, name="x")
    return [x, function(x)]


def added() -> list[Any]:
    x, y = te.placeholder((7, 56, 40), name="x"), te.placeholder((40,), name="y")
    return [x, y, topi.nn.relu(topi.add(x, y))]


PADDED = of((48, 61), lambda x: topi.nn.pad(topi.transpose(x, (1, 0)), [0, 0], [3, 0]))
ODD = of((5, 61), lambda x: topi.add(x, x))
LARGE = of((1, 300, 384), lambda x: topi.transpose(x, (0, 2, 1)))
SINGLE = of((1 << 18,), lambda x: topi.add(x, x))
HEADS = of((1, 48, 4, 32), lambda x: topi.transpose(x, (0, 2, 1, 3)))
CHANNELS_LAST = of((1, 3, 32, 32), lambda x: topi.transpose(x, (0, 2, 3, 1)))


@pytest.mark.parametrize(
    ("tensors", "programs"),
    [(PADDED, 3), (added(), 4), (ODD, 1), (LARGE, 2), (SINGLE, 1)],
    ids=["permuted and padded", "added", "odd", "large", "single"],
)
def test_every_program_computes_the_same(tensors: list[Any], programs: int, result_of: Any) -> None:
    task = task_of(*tensors)
    designs, expected = spaces(task), result_of(task.mod)
    assert expected.std() > 0
    assert len({space.mod.script() for space in designs}) == len(designs) == programs
    for space in designs:
        np.testing.assert_array_equal(result_of(space.mod), expected)
        replayed = tvm.s_tir.Schedule(task.mod)
        space.trace.apply_to_schedule(replayed, remove_postproc=True)
        assert structural_equal(replayed.mod, space.mod)


@pytest.mark.parametrize(
    ("tensors", "innermost"),
    [(HEADS, 32), (added(), 40), (LARGE, 300), (CHANNELS_LAST, 3)],
    ids=["heads", "added", "large", "channels last"],
)
def test_the_first_program_writes_what_lies_side_by_side(tensors: list[Any], innermost: int) -> None:
    """It is the one that is taken where nothing is measured: whole rows, and no scattered vectors."""
    task = task_of(*tensors)
    for target in (TARGET, X86):
        first, *others = cheapest_first(task.mod, spaces(task, target))
        assert others
        loops = [first.get(loop) for loop in first.get_loops(first.get_child_blocks(first.get_sblock("root"))[-1])]
        lanes = next(lanes for lanes in (16, 8, 1) if innermost % lanes == 0)
        vectors = [loop for loop in loops if loop.kind == ForKind.VECTORIZED]
        assert [int(loop.extent) for loop in vectors] == [lanes] * (lanes > 1)


def test_small_functions_do_not_wake_other_threads() -> None:
    for tensors, parallel in ((added(), False), (LARGE, True), (SINGLE, True)):
        assert all(("T.parallel" in space.mod.script()) == parallel for space in spaces(task_of(*tensors)))


def test_functions_with_reductions_keep_the_spaces_of_metaschedule() -> None:
    a, b = te.placeholder((16, 16), name="a"), te.placeholder((16, 16), name="b")
    assert RULE not in task_of(a, b, topi.nn.relu(topi.matmul(a, b))).mod.script()
    assert RULE not in task_of(a, topi.sum(a, axis=1)).mod.script()
    assert RULE in task_of(a, topi.nn.relu(a)).mod.script()


CONVOLUTION = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU())
NETWORKS = {
    "rows that lanes divide": (nn.Sequential(nn.Linear(48, 96), nn.ReLU()), (24, 48)),
    "a prime number of columns": (nn.Linear(48, 37), (24, 48)),
    "a convolution with what follows it": (CONVOLUTION, (1, 3, 12, 12)),
    "a norm and a softmax": (nn.Sequential(nn.LayerNorm(64), nn.Softmax(-1)), (2, 160, 64)),
    "maxima": (nn.MaxPool2d(3, 2, 1), (1, 8, 40, 40)),
}


@pytest.mark.parametrize(("module", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_a_network_computes_the_same(
    module: nn.Module, shape: tuple[int, ...], prepared: Any, run_library: Any, tmp_path: Any
) -> None:
    x = torch.randn(shape)
    mod = prepared(module, x)
    kernels = [f for f in default_schedules(mod).functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert any("T.parallel" in one.script() for one in kernels)
    build_library(mod, tvm.target.Target("llvm"), None, tmp_path / "network.so")
    (output,) = run_library(tmp_path / "network.so", x)
    torch.testing.assert_close(torch.from_numpy(output), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_function_that_a_search_has_scheduled_stays(small_task: Any) -> None:
    scheduled = Schedule(small_task.mod).mod["main"].with_attr("tirx.is_scheduled", True)
    mod = tvm.IRModule({"main": scheduled})
    assert structural_equal(default_schedules(mod), mod)
    assert not structural_equal(default_schedules(small_task.mod), small_task.mod)

"""Tuning tasks: the subgraphs of a network, each with its shapes, weight, operator class and identity."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tvm import DataType, IRModule, relax
from tvm.relax.analysis import has_reshape_pattern
from tvm.s_tir.meta_schedule import relax_integration
from tvm.s_tir.meta_schedule.arg_info import ArgInfo

from ...zoo.corpus.canonical import renamed_module
from ...zoo.corpus.tir import flops_of, operator_class, task_id
from ..device.build_jobs import weight_arguments
from ..device.candidate import WEIGHTS
from .errors import NetworkLoadError
from .transform.relax_graph import READ_WEIGHTS, bound_values, constant_address, operator_name


@dataclass(frozen=True)
class TuningTask:
    """One subgraph with its shapes.

    Attributes:
        task_id: 16 hex digits of TVM's structural hash; equal ids are the same computation.
        name: TVM's name, readable but not unique.
        op: operator class, see `operator_class`.
        weight: how often the network runs it.
        mod: the unscheduled TIR module with canonical names: equal tasks are equal to the letter.
        flops: floating-point operations of one run (0 where TVM cannot count them).
        networks: occurrences by network, when tasks of several networks were merged.
    """

    task_id: str
    name: str
    op: str
    weight: int
    mod: IRModule
    flops: float
    networks: dict[str, int] = field(default_factory=dict)


def make_task(mod: IRModule, name: str, weight: int = 1) -> TuningTask:
    """Describe one TIR module as a task; its module has canonical names, see `renamed_module`."""
    mod, _ = renamed_module(mod)
    return TuningTask(task_id(mod), name, operator_class(mod), weight, mod, flops_of(mod))


def merged_variants(tasks: Iterable[list[TuningTask]]) -> list[TuningTask]:
    """Merge the tasks of the variants of one network, heaviest first."""
    return sorted(merge(task for some in tasks for task in some), key=_heaviest_first)


def _heaviest_first(task: TuningTask) -> tuple[float, str]:
    return -task.flops * task.weight, task.name


def extracted_tasks(mod: IRModule, target: Any) -> list[tuple[str, Any]]:
    """Return MetaSchedule's `ExtractedTask`s of a lowered network by task id, without those that only reshape."""
    extracted = relax_integration.extract_tasks(mod, target)
    tunable = [one for one in extracted if not has_reshape_pattern(one.dispatched[0]["main"])]
    return [(task_id(one.dispatched[0]), one) for one in tunable]


def network_tasks(
    mod: IRModule, target: Any, network: str, known: Mapping[str, TuningTask] | None = None
) -> list[TuningTask]:
    """Return the tasks of one network, heaviest first.

    Args:
        mod: as `prepare.lower` gives it.
        target: a `tvm.target.Target`.
        known: tasks by id that were described before, e.g. of the same network lowered otherwise.

    Raises:
        NetworkLoadError: there are none.
    """
    known, tasks = known or {}, []
    for identity, one in extracted_tasks(mod, target):
        task = known.get(identity) or make_task(one.dispatched[0], one.task_name)
        weight = int(one.weight)
        tasks.append(replace(task, name=one.task_name, weight=weight, networks={network: weight}))
    if not tasks:
        raise NetworkLoadError(f"{network} holds nothing to tune", remedy="does it compute anything?", network=network)
    return sorted(tasks, key=_heaviest_first)


def argument_bytes(mod: IRModule) -> list[int]:
    """Return the bytes of each argument of a task."""
    infos: Any = ArgInfo.from_entry_func(mod, remove_preproc=False)
    return [_bytes(info) for info in infos]


def _bytes(tensor: Any) -> int:
    return prod(map(int, tensor.shape)) * max(1, int(DataType(str(tensor.dtype)).bits) // 8)


def weight_bytes(mod: IRModule) -> int:
    """Return the bytes of weights that a lowered network has.

    One that several calls read, as the steps of a recurrent layer do, is in the caches from the second on.
    """
    sizes: dict[int, int] = {}
    functions = [function for _, function in mod.functions_items() if isinstance(function, relax.Function)]
    for call in (value for function in functions for value in bound_values(function).values()):
        if isinstance(call, relax.Call) and operator_name(call) == "call_tir":
            callee: Any = call.args[0]
            arguments: Any = call.args[1]
            attrs = mod[callee].attrs or {}
            for position in (*attrs.get(WEIGHTS, ()), *attrs.get(READ_WEIGHTS, ())):
                weight = arguments.fields[int(position)]
                if (address := constant_address(weight)) is not None:
                    sizes[address] = _bytes(weight.value)
    return sum(sizes.values())


def constant_bytes(mod: IRModule) -> int:
    """Return the bytes of a task's arguments that are constants of its network."""
    sizes = argument_bytes(mod)
    return sum(sizes[position] for position in weight_arguments(mod))


def merge(tasks: Iterable[TuningTask]) -> list[TuningTask]:
    """Merge tasks of one id; occurrences by network are kept, weights added."""
    merged: dict[str, TuningTask] = {}
    for task in tasks:
        old = merged.get(task.task_id)
        if old is None:
            merged[task.task_id] = task
            continue
        networks = dict(old.networks)
        for name, weight in task.networks.items():
            networks[name] = networks.get(name, 0) + weight
        merged[task.task_id] = replace(old, weight=old.weight + task.weight, networks=networks)
    return list(merged.values())

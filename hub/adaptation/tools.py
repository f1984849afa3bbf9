"""What an adaptation needs of the machine: detection, tasks, candidates, measuring, the registry. Replaceable."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.corpus.tir import computation_of_module
from ..api import CheckpointChoice as Base
from ..api import choose_checkpoint as find_base
from ..device.device_choice import ChosenDevice, choose_device, fitting_checkpoint

if TYPE_CHECKING:
    from ..device.candidate import Candidate
    from ..device.detect import LocalDevice
    from ..networks.network import Network
    from ..networks.tasks import TuningTask
    from ..registry import Entry
    from .pool import PoolEntry


def detect(device: str, threads: int | None) -> LocalDevice:
    """A device, with a target of so many threads; see `choose_device`.

    Raises:
        UnknownDeviceChoiceError: neither `local` nor an RPC address.
    """
    return choose_device(device, threads).facts


def check_workload(workload: str) -> None:
    """Refuse what is neither a workload's name nor a file, which takes no TVM to tell.

    Raises:
        UnknownNetworkError: it is neither.
    """
    from ..networks.sources import open_network
    from ..networks.tasks import workload_names

    if workload not in workload_names() and not Path(workload).exists():
        open_network(workload)


def extract_tasks(workload: str, target: dict[str, Any]) -> list[TuningTask]:
    """The tasks of a network, an operator or a suite by name, or of a network's file as `tchub tune` takes it."""
    import tvm

    from ..device.tvm_import import import_tensor_intrinsics
    from ..networks.sources import open_network
    from ..networks.tasks import extract, tasks_of, workload_names

    import_tensor_intrinsics()
    where = tvm.target.Target(target)
    return tasks_of(workload, where) if workload in workload_names() else extract(open_network(workload), where)


def make_candidates(task: TuningTask, target: dict[str, Any], count: int, seed: int) -> list[Candidate]:
    """Random schedules of a task."""
    import tvm

    from ..search.candidates import random_candidates

    return random_candidates(task, tvm.target.Target(target), count, seed)


def rebuild(task: TuningTask, entry: PoolEntry) -> Candidate:
    """The measurable form of a candidate: its trace, applied to the task's module."""
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Trace

    from ..device.candidate import Candidate

    schedule = Schedule(task.mod)
    Trace.apply_json_to_schedule(json.loads(entry.trace), schedule)
    # Of the scheduled module, not of the task's: a schedule may lay out an argument anew.
    infos: Any = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
    args = tuple((tuple(int(d) for d in info.shape), str(info.dtype)) for info in infos)
    return Candidate(task.task_id, entry.key, entry.trace, entry.strategy, schedule.mod, args)


def workload_text(task: TuningTask) -> str:
    """The task's module as a corpus keeps it."""
    import tvm

    return tvm.ir.save_json(task.mod)


def computation(task: TuningTask) -> str:
    """What the task computes, in the words that all corpora share."""
    return computation_of_module(task.mod)


def open_measurer(target: dict[str, Any], threads: int, note: Callable[[str], None]) -> AbstractContextManager[Any]:
    """The measurer of this machine; `note` is told once when it is busy."""
    from ..device.measure import MeasureConfig, Measurer

    return Measurer(target, MeasureConfig(threads=threads), note)


def open_journal(path: Path, scope: dict[str, Any]) -> AbstractContextManager[Any]:
    """The journal of paid measurements, which later tuning runs may begin with."""
    from ..records.history import open_sharing_journal

    return open_sharing_journal(path, scope)


def register(name: str, save: Callable[[Path, str], None], base: Entry, **facts: Any) -> tuple[Entry, Path]:
    """Store an adapted checkpoint as the next version of its name; `facts` are fields of its entry."""
    from ..registry import Registry

    registry = Registry.default()
    entry = registry.register_local(name, save, base, **facts)
    return entry, registry.home.path(entry)


def tvm_version() -> str:
    """Version of the installed TVM, without importing it."""
    return version("apache-tvm")


@dataclass(frozen=True)
class Tools:
    """The functions above; tests put others in their place."""

    find_base: Callable[[str | None], Base] = find_base
    detect: Callable[[str, int | None], LocalDevice] = detect
    check_workload: Callable[[str], None] = check_workload
    extract_tasks: Callable[[str, dict[str, Any]], list[TuningTask]] = extract_tasks
    make_candidates: Callable[[TuningTask, dict[str, Any], int, int], list[Candidate]] = make_candidates
    rebuild: Callable[[TuningTask, PoolEntry], Candidate] = rebuild
    workload_text: Callable[[TuningTask], str] = workload_text
    computation: Callable[[TuningTask], str] = computation
    open_measurer: Callable[[dict[str, Any], int, Callable[[str], None]], AbstractContextManager[Any]] = open_measurer
    open_journal: Callable[[Path, dict[str, Any]], AbstractContextManager[Any]] = open_journal
    register: Callable[..., tuple[Entry, Path]] = register
    tvm_version: Callable[[], str] = tvm_version


def network_tools(tools: Tools, network: Network) -> Tools:
    """The same tools for the tasks of a network that is at hand, whatever the workload's name."""

    def extract_its_tasks(_workload: str, target: dict[str, Any]) -> list[TuningTask]:
        import tvm

        from ..device.tvm_import import import_tensor_intrinsics
        from ..networks.tasks import extract

        import_tensor_intrinsics()
        return extract(network, tvm.target.Target(target))

    return replace(tools, check_workload=lambda _workload: None, extract_tasks=extract_its_tasks)


def chosen_tools(tools: Tools, device: ChosenDevice) -> Tools:
    """The same tools for an RPC device, where what measures and what fits is, or for this machine's other target."""
    from ..device.measure import MeasureConfig

    return replace(
        tools,
        find_base=lambda name: tools.find_base(name or fitting_checkpoint(device)),
        detect=lambda _device, _threads: device.facts,
        open_measurer=lambda _target, threads, note: device.measurer(MeasureConfig(threads=threads), note),
    )

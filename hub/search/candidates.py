"""Candidate programs of a task, from MetaSchedule's own design spaces: random, or evolved from measured ones."""

import json
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from ...zoo.errors import last_line
from ...zoo.tvm_import import import_tensor_intrinsics
from ..device.candidate import Candidate, from_measure_candidate, trace_key, tuning_record
from ..device.cuda_network import dlight_schedules
from ..device.host_facts import usable_cpus
from ..networks.tasks import TuningTask
from ..networks.transform.default_schedules import default_schedules
from ..networks.transform.prepare import register_rules
from .errors import NoCandidateError
from .tensor_cores import space_generator

T = TypeVar("T")
R = TypeVar("R")
# A population as large as MetaSchedule's default (512, four generations) takes 6 to 28 s a task; candidates for a
# corpus need variety around good programs, not the predicted optimum.
_EVOLVE = {"population_size": 48, "genetic_num_iters": 1, "init_min_unmeasured": 8, "eps_greedy": 0.2}


def tune_context(task: TuningTask, target: Any, strategy: Any, seed: int, threads: int = 1) -> Any:
    """Return MetaSchedule's context of one task, with its own design space and a seed."""
    import_tensor_intrinsics(target.kind.name)
    register_rules()
    return ms.TuneContext(
        mod=task.mod,
        target=target,
        space_generator=space_generator(task.mod, target),
        search_strategy=strategy,
        task_name=task.name,
        num_threads=threads,
        rand_state=seed % (2**30) + 1,  # TVM takes 0 for "not seeded"
    )


def untuned_candidate(task: TuningTask, target: Any = None) -> Any:
    """Return the task with the default schedules of its target, None for none, as a MetaSchedule `MeasureCandidate`."""
    args = ms.arg_info.ArgInfo.from_entry_func(task.mod, remove_preproc=True)
    mod = task.mod
    if target is not None:
        mod = dlight_schedules(mod, target) if target.kind.name == "cuda" else default_schedules(mod)
    return ms.MeasureCandidate(Schedule(mod), args)


def _generate(context: Any, count: int, database: Any) -> Iterator[Any]:
    spaces = context.generate_design_space()
    if not spaces:
        return
    context.pre_tuning(count, count, spaces, database, ms.cost_model.RandomModel())
    try:
        yield from context.generate_measure_candidates() or ()
    finally:
        context.post_tuning()


def _choices(inst: Any) -> int:
    """Return the values that a sampling instruction can take, at least; 1 for one that samples nothing."""
    name = inst.kind.name
    if name == "SampleCategorical":
        return len(inst.attrs[0])
    if name == "SampleComputeLocation":
        return 2
    return 8 if name in ("SamplePerfectTile", "SamplePartitionedTile") else 1


def has_choice(task: TuningTask, target: Any, least: int = 8) -> bool:
    """Return True where a task has about `least` schedules or more: a smaller design space has nothing to rank.

    Cheap: counts the choices of each design space without sampling programs.
    """
    spaces = tune_context(task, target, "replay-trace", 0).generate_design_space() or ()
    return sum(math.prod(_choices(inst) for inst in space.trace.insts) for space in spaces) >= least


def _distinct(candidates: Iterable[Any], task_id: str, strategy: str, known: set[str]) -> list[Candidate]:
    distinct: list[Candidate] = []
    for raw in candidates:
        candidate = from_measure_candidate(task_id, strategy, raw)
        if candidate.key not in known:
            known.add(candidate.key)
            distinct.append(candidate)
    return distinct


def random_candidates(
    task: TuningTask, target: Any, count: int, seed: int = 0, known: Iterable[str] = ()
) -> list[Candidate]:
    """Return at most `count` distinct random schedules of a task; fewer when its space is smaller.

    Args:
        known: keys to leave out.

    Raises:
        NoCandidateError: the target admits no schedule of this task.
    """
    seen = set(known)
    first = len(seen)
    distinct: list[Candidate] = []
    cause: RuntimeError | None = None
    for attempt in range(4):
        context = tune_context(task, target, ms.search_strategy.ReplayTrace(), seed * 1009 + attempt)
        sampled = _generate(context, count, ms.database.MemoryDatabase())
        drawn = set(seen)
        try:
            fresh = _distinct(sampled, task.task_id, "random", drawn)
        except RuntimeError as error:  # one program that TVM cannot make, e.g. with too long a loop, ends them all
            cause = error
            continue
        seen = drawn
        distinct += fresh
        if len(distinct) >= count or not fresh:
            break
    if not distinct and (cause or not first):
        raise NoCandidateError(
            f"task {task.name} has no valid program on this target{f': {last_line(cause)}' if cause else ''}",
            remedy="leave the task out, or check the target's limits",
            task=task.name,
            target=str(target),
        ) from cause
    return distinct[:count]


def evolved_candidates(
    task: TuningTask,
    target: Any,
    count: int,
    measured: Sequence[tuple[str, float]],
    seed: int = 0,
    known: Iterable[str] = (),
) -> list[Candidate]:
    """Return at most `count` new schedules that MetaSchedule's evolutionary search mutates from measured ones.

    Args:
        measured: (trace JSON text, latency in seconds) of valid programs of this task.
            One whose trace does not apply to the task's module is no parent.
        known: keys to leave out, besides those of `measured`.
    """
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(task.mod)
    seen = set(known)
    for text, latency in measured:
        obj = json.loads(text)
        seen.add(trace_key(obj))
        record = tuning_record(task.mod, target, workload, obj, [latency])
        if record is not None:
            database.commit_tuning_record(record)
    strategy = ms.search_strategy.EvolutionarySearch(**_EVOLVE)
    context = tune_context(task, target, strategy, seed * 1013 + 7)
    return _distinct(_generate(context, count, database), task.task_id, "evolutionary", seen)[:count]


def map_ahead(function: Callable[[T], R], items: Iterable[T], ahead: Callable[[], int]) -> Generator[tuple[T, R]]:
    """Yield each item with `function` of it, in order, made by all cores before it is asked for.

    Worth it for what TVM does: it runs outside the interpreter's lock. The items are taken in this thread, and an
    exception is raised here, in its item's place. The threads end when the iterator is closed.

    Args:
        ahead: how many to make ahead, asked before each. No more threads work than it says at the start; where that is
            0, all are made when asked for.
    """
    if ahead() < 1:
        yield from ((item, function(item)) for item in items)
        return
    source: Iterator[T] = iter(items)
    waiting: deque[tuple[T, Future[R]]] = deque()
    register_rules()
    with ThreadPoolExecutor(min(usable_cpus(), ahead()), thread_name_prefix="tchub-ahead") as pool:
        try:
            while True:
                more = islice(source, max(0, max(1, ahead()) - len(waiting)))
                waiting += ((item, pool.submit(function, item)) for item in more)
                if not waiting:
                    return
                item, result = waiting.popleft()
                yield item, result.result()
        finally:
            pool.shutdown(cancel_futures=True)

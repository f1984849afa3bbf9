"""Small tasks of which every program is measured, as a corpus: the spaces on which searches are compared.

A task whose design spaces have few programs is measured whole. Of a larger one a grid is: of each decision those values
that the fastest of some random programs have, in all combinations. No model and no search has a say in that.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import tvm
from tchub.hub.device.candidate import Candidate, from_measure_candidate
from tchub.hub.device.device_choice import choose_device
from tchub.hub.device.extensions import vector_registers
from tchub.hub.device.measure import MeasureConfig
from tchub.hub.device.timing import TimingConfig
from tchub.hub.networks.tasks import TuningTask, merge
from tchub.hub.networks.workloads import tasks_of
from tchub.hub.records.corpus import export_corpus
from tchub.hub.records.scope import MeasurementScope
from tchub.hub.records.store import FILE, RunStore
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.design_slots import Slot
from tchub.hub.search.design_space import Decisions, DesignSpace
from tchub.hub.search.schedules import ScheduleDatabase
from tchub.zoo.corpus import HELD_OUT
from tchub.zoo.primitives.scope import Decision

from scripts.benchmarks.common import Clock, note

TASKS = 24
# Programs of a task that is measured whole, at most, and of a grid, before those that the device or TVM refuses.
WHOLE, GRID = 4096, 1024
# A task with fewer has nothing to search; one with more operations takes long to measure.
LEAST_PROGRAMS, MOST_FLOPS = 128, 60e6
# Random programs whose fastest give a grid its values.
SAMPLE = 128
# Bytes of weights of a small network, see `TimingConfig.weights`.
_WEIGHTS = 16 << 20

Program = tuple[DesignSpace, Decisions]


def measure_spaces(work: Path, out: Path, clock: Clock) -> None:
    """Measure what is missing of the spaces on this machine, with one thread, and write the corpus.

    Args:
        work: keeps the measurements; a run that was killed goes on with them.
        out: the corpus folder.
    """
    device = choose_device("local", 1)
    facts, target = device.facts, tvm.target.Target(device.facts.target)
    config = MeasureConfig(threads=1, timing=TimingConfig(weights=_WEIGHTS))
    note("extracting the tasks")
    chosen = choose_tasks(merge(task for name in HELD_OUT for task in tasks_of(name, target)), target)
    whole = list[TuningTask]()
    with RunStore(work / FILE, MeasurementScope.of_device(facts, _WEIGHTS)) as store:
        with device.measurer(config) as measurer:
            for number, (task, spaces) in enumerate(chosen, 1):
                _measure(task, "random", _sample(spaces), store, measurer, clock)
                count = _measure(task, "exhaustive", _members(task, spaces, store), store, measurer, clock)
                if clock.is_over:
                    break
                whole.append(task)
                note(f"{number} of {len(chosen)}: {task.op} {task.name}: {count} programs more, {len(store)} in all")
        command = "python -m scripts.benchmarks spaces --measure"
        export_corpus(store.programs(), whole, facts, out, command=command, timing=config.timing)


def choose_tasks(tasks: Sequence[TuningTask], target: Any) -> list[tuple[TuningTask, list[DesignSpace]]]:
    """Return small tasks with their design spaces: of each kind of spaces in turn the one of the fewest operations.

    Tasks whose schedules a checkpoint in the wheel brings are left out: it has learnt from them.
    """
    learnt = {schedule.task_id for _, schedule in ScheduleDatabase.pretuned(target)}
    kinds: dict[tuple[str, ...], list[tuple[TuningTask, list[DesignSpace]]]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: (task.flops, task.task_id)):
        spaces = spaces_of(task, target) if task.flops <= MOST_FLOPS and task.task_id not in learnt else []
        if _programs(spaces) >= LEAST_PROGRAMS:
            kinds[task.op, *sorted({space.kernel for space in spaces})].append((task, spaces))
    ranked = [(place, kind, pair) for kind, own in kinds.items() for place, pair in enumerate(own)]
    return [pair for _, _, pair in sorted(ranked, key=lambda one: one[:2])[:TASKS]]


def spaces_of(task: TuningTask, target: Any) -> list[DesignSpace]:
    """Return the design spaces of a task, as a search has them."""
    context, registers = tune_context(task, target, "replay-trace", 0), vector_registers(target)
    postprocs = context.space_generator.postprocs
    return [DesignSpace(task.mod, postprocs, one, 0, registers) for one in context.generate_design_space() or ()]


def values_of(slot: Slot) -> list[Decision]:
    """Return all answers of a sampling instruction: some random ones, and what is next to one that is known."""
    values = dict.fromkeys(slot.draw(Random(0), 16))
    waiting = list(values)
    while waiting:
        for other in slot.adjacent(waiting.pop()):
            if other not in values:
                values[other] = None
                waiting.append(other)
    return list(values)


def grid(fastest: Sequence[Decisions], most: int) -> list[Decisions]:
    """Return all combinations of the values that programs have, the first ones' first, until they are `most`."""
    values: list[dict[Decision, None]] = [{value: None} for value in fastest[0]]
    for decisions in fastest[1:]:
        for own, value in zip(values, decisions, strict=True):
            if value not in own and math.prod(map(len, values)) // len(own) * (len(own) + 1) <= most:
                own[value] = None
    return list(product(*values))


def _programs(spaces: Sequence[DesignSpace]) -> int:
    """Return the number of combinations of all answers."""
    return sum(math.prod(len(values_of(slot)) for slot in space.slots) for space in spaces)


def _is_whole(spaces: Sequence[DesignSpace]) -> bool:
    return _programs(spaces) <= WHOLE


def _sample(spaces: Sequence[DesignSpace]) -> list[Program]:
    """Return the random programs of which a grid is made; none for a task that is measured whole."""
    share = -(-SAMPLE // len(spaces))
    return [] if _is_whole(spaces) else [(one, program) for one in spaces for program in one.random(Random(0), share)]


def _members(task: TuningTask, spaces: Sequence[DesignSpace], store: RunStore) -> list[Program]:
    """Return the programs to measure of a task, in a random order, so that the first ones are a fair sample."""
    members = list[Program]()
    for space in spaces:
        if _is_whole(spaces):
            members += [(space, program) for program in product(*map(values_of, space.slots))]
        elif fastest := _fastest(task, space, store):
            members += [(space, program) for program in grid(fastest, GRID // len(spaces))]
    Random(0).shuffle(members)
    return [(space, program) for space, program in members if space.fits(program)]


def _fastest(task: TuningTask, space: DesignSpace, store: RunStore) -> list[Decisions]:
    """Return the decisions of the sampled programs of a space, the fastest first."""
    sampled = []
    for program in store.programs(task.task_id):
        if program.strategy == "random" and math.isfinite(program.latency):
            decisions = space.read(json.loads(program.trace))
            if decisions is not None:
                sampled.append((program.latency, decisions))
    return [decisions for _, decisions in sorted(sampled)]


def _measure(
    task: TuningTask, strategy: str, programs: Sequence[Program], store: RunStore, measurer: Any, clock: Clock
) -> int:
    """Measure the programs that are not known yet; returns how many."""
    known, count = {program.key for program in store.programs(task.task_id, traces=False)}, 0

    def candidates() -> Iterator[Candidate]:
        for space, decisions in programs:
            if clock.is_over:
                return
            if (replayed := space.replay(decisions)) is not None:
                candidate = from_measure_candidate(task.task_id, strategy, replayed)
                if candidate.key not in known:
                    known.add(candidate.key)
                    yield candidate

    with closing(candidates()) as waiting:
        for candidate, measurement in measurer.measure(waiting):
            store.put(candidate, measurement)
            count += 1
    return count

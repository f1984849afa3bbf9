"""Collecting a corpus: tasks of a suite, random and evolved candidates, measured, kept, written as Parquet."""

import re
import shlex
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypedDict

import tvm

from ..device.candidate import Candidate
from ..device.device_choice import ChosenDevice, choose_device
from ..device.errors import MeasurementFailureRateError
from ..device.host_facts import usable_cpus
from ..device.measure import MeasureConfig, Measurer
from ..device.onsite.runs import TimingConfig
from ..device.rpc import RpcMeasurer
from ..networks import LAYOUTS
from ..networks.errors import NetworkLoadError
from ..networks.tasks import TuningTask, merge
from ..networks.workloads import tasks_of, workload_parts
from ..records.corpus import LICENCE, export_corpus
from ..records.scope import MeasurementScope
from ..records.store import MeasuredProgram, RunStore, open_store
from ..search.candidates import evolved_candidates, has_choice, map_ahead, random_candidates
from ..search.errors import NoCandidateError, TuningError
from ..search.tensor_cores import check_precision

# A space smaller than this has nothing to rank.
MIN_SPACE = 8
# Bytes of weights of a small network, see `TimingConfig.weights`: they come from outside of a second-level cache.
_WEIGHTS = 16 << 20


# Told after a program: phase and task, the programs measured, those planned, and those that failed.
Count = Callable[[str, int, int, int], None]


@dataclass(frozen=True)
class CollectResult:
    """The result of a collection."""

    path: str
    tasks: int
    programs: int
    failed: int
    outcomes: dict[str, int]
    tasks_without_choice: int
    journal: str


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a list of tasks: the same part for the same shard, on every machine.

    Attributes:
        number: from 1.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `I/N`, e.g. `3/8`.

        Raises:
            TuningError: not of this form, or I is not from 1 to N.
        """
        parts = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if not parts or not 1 <= int(parts[1]) <= int(parts[2]):
            raise TuningError(f"{text!r} names no shard", remedy="give I/N with I from 1 to N, e.g. 3/8")
        return cls(int(parts[1]), int(parts[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def folder(self, whole: Path | str) -> Path:
        """Return the folder of this shard's corpus and store: SQLite on a shared disk bears one writer only."""
        return Path(whole) / f"shard-{self.number}-of-{self.count}"

    def of(self, tasks: Sequence[TuningTask]) -> list[TuningTask]:
        """Return this shard's tasks, in the order given.

        Ids are hashes, so taking them in turn spreads operators and networks; the parts differ by one
        task at most, and every machine that extracted the same tasks has the same parts.

        Raises:
            TuningError: more shards than tasks.
        """
        if self.count > len(tasks):
            raise TuningError(
                f"{self.count} shards of {len(tasks)} tasks would leave some empty",
                remedy=f"cut into {len(tasks)} shards at most",
                tasks=len(tasks),
                shards=self.count,
            )
        mine = set(sorted(task.task_id for task in tasks)[self.number - 1 :: self.count])
        return [task for task in tasks if task.task_id in mine]


@dataclass(frozen=True)
class CollectConfig:
    """The settings of a collection; `collect` takes each as an argument by its name.

    Attributes:
        device: `local`, or `rpc://host:port/key` for the servers of TVM's RPC tracker.
        target, linker: see `TuneConfig`.
        threads: threads of a program, the target's `num-cores`; None for one a physical core that may be used.
        precision: float32, float16 or bfloat16, see `TuneConfig`.
        seed: of the candidates.
        shard: measure its share of the tasks only, in a folder of its own inside `out`; each task gets as many
            programs as it would without. `merge_corpora` makes one corpus of all.
        licence: of the measurements, as the corpus will say.
    """

    device: str = "local"
    target: dict[str, Any] | None = None
    linker: str | None = None
    threads: int | None = None
    precision: str = "float32"
    seed: int = 0
    shard: Shard | None = None
    licence: str = LICENCE


def _load_tasks(
    store: RunStore, workload: str, target: Any, precision: str, progress: Callable[[str], None]
) -> list[TuningTask]:
    """Return the suite's tasks; kept in the store, because extracting them takes minutes."""
    tasks: list[TuningTask] = []
    for name in workload_parts(workload):
        key = f"tasks of {name}, {LAYOUTS[0]}" + f", {precision}" * (precision != "float32")
        noted = store.noted(key, list[_TaskRow])
        if noted is None:
            progress(f"extracting the tasks of {name}")
            extracted = tasks_of(name, target, precision=precision)
            noted = [{n: getattr(one, n) for n in _ROW} | {"mod": str(tvm.ir.save_json(one.mod))} for one in extracted]
            store.note(key, noted)
        tasks += [TuningTask(**{**row, "mod": tvm.ir.load_json(row["mod"])}) for row in noted]
    return merge(tasks)


_ROW = {"task_id": str, "name": str, "op": str, "weight": int, "flops": float, "networks": dict[str, int], "mod": str}
_TaskRow = TypedDict("_TaskRow", _ROW)  # pyright: ignore  # as a collection notes a task; `mod` is TVM's JSON


@dataclass
class _Collector:
    """The state of one collection."""

    store: RunStore
    measurer: Measurer | RpcMeasurer
    target: Any
    per_task: int
    seed: int
    progress: Count
    note: Callable[[str], None]
    total: int
    failed: int = 0
    just_failed: set[tuple[str, str]] = field(default_factory=set)

    def run(self, tasks: Sequence[TuningTask]) -> None:
        """Measure random, then evolved programs of all tasks."""
        names = {task.task_id: task.name for task in tasks}
        for program in self.store.programs(traces=False):
            if program.task_id in names and program.measurement.error is None:
                self.measurer.know(program.task_id, program.latency)
        try:
            self._measure(self._random(tasks), names, "random")
            self._measure(self._evolved(tasks), names, "evolutionary")
        except MeasurementFailureRateError:
            # The machine fails, not the programs: once it is mended they are tried again.
            for task_id, key in self.just_failed:
                self.store.forget_failure(task_id, key)
            raise

    def _known(self, task: TuningTask) -> list[MeasuredProgram]:
        """Return the programs that are not to be measured again: all but failures of the moment of earlier runs."""
        programs = self.store.programs(task.task_id)
        return [p for p in programs if not p.passing or (p.task_id, p.key) in self.just_failed]

    def _ahead(self) -> int:
        """Return for how many tasks candidates are made ahead, by as many threads: few where programs are timed."""
        return usable_cpus() if self.target.kind.name == "cuda" else int(self.measurer.overlaps)

    def _random(self, tasks: Sequence[TuningTask]) -> Generator[Candidate]:
        def make(item: tuple[TuningTask, set[str]]) -> list[Candidate] | NoCandidateError:
            try:
                return random_candidates(item[0], self.target, self.per_task // 2, self.seed)
            except NoCandidateError as error:
                return error

        pairs = ((task, {program.key for program in self._known(task)}) for task in tasks)
        short = ((task, known) for task, known in pairs if len(known) < self.per_task // 2)
        for (_, known), candidates in map_ahead(make, short, self._ahead):
            if isinstance(candidates, NoCandidateError):
                self.note(f"{candidates.message}: left out")
                continue
            new = [candidate for candidate in candidates if candidate.key not in known]
            yield from new[: self.per_task // 2 - len(known)]

    def _evolved(self, tasks: Sequence[TuningTask]) -> Generator[Candidate]:
        def make(item: tuple[TuningTask, list[MeasuredProgram]]) -> list[Candidate]:
            task, known = item
            measured = [(p.trace, p.latency) for p in known if p.measurement.error is None]
            missing, seen = self.per_task - len(known), [program.key for program in known]
            if missing <= 0 or not measured:
                return []
            return evolved_candidates(task, self.target, missing, measured, self.seed, seen)

        for _, candidates in map_ahead(make, ((task, self._known(task)) for task in tasks), self._ahead):
            yield from candidates

    def _measure(self, candidates: Generator[Candidate], names: dict[str, str], phase: str) -> None:
        with closing(candidates):  # and the threads that make them, where the run is interrupted
            for candidate, measurement in self.measurer.measure(candidates):
                self.store.put(candidate, measurement)
                if measurement.error is not None:
                    self.failed += 1
                    self.just_failed.add((candidate.task_id, candidate.key))
                self.progress(f"{phase} {names[candidate.task_id]}", len(self.store), self.total, self.failed)


def collect(
    workload: str,
    programs: int,
    out: Path | str,
    *,
    config: CollectConfig | None = None,
    progress: Count = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> CollectResult:
    """Measure about `programs` candidates of a suite's tasks and write them as a corpus.

    Half of a task's programs are random schedules, the other half evolve from the measured ones. A second call
    with the same `out` goes on where the first one stopped; nothing is measured twice.

    Args:
        workload: a suite, a network or an operator of the reference workloads, or several with commas between.
        programs: shared evenly by the tasks; a task with a smaller space gives fewer.
        out: the corpus folder; measured programs are in its `records.sqlite` from the moment they are measured.
        progress, note: called after each program, see `Count`, and with each step.
        **options: fields of `CollectConfig`, e.g. `seed=1`; they win over `config`.

    Raises:
        NetworkLoadError: the suite has no task with a choice of programs.
        TuningError: there are more shards than such tasks, or tensor cores are asked for that the device lacks.
        DeviceError, NoServerError: the device cannot be used.
        MeasurementFailureRateError: nearly every program fails here.
    """
    config = replace(config or CollectConfig(), **options)
    device = choose_device(config.device, config.threads, target=config.target, linker=config.linker)
    facts, asked, shard, target = device.facts, programs, config.shard, tvm.target.Target(device.facts.target)
    check_precision(config.precision, facts.target, facts.cpu_model)
    folder = shard.folder(out) if shard else Path(out)
    weights = _WEIGHTS if device.address is None and device.card is None else 0
    measure = MeasureConfig(threads=facts.cores, timing=TimingConfig(weights=weights))
    # A shard writes to no file of others: on a cluster the user's data folder is often behind NFS.
    with open_store(folder, MeasurementScope.of_device(facts, weights), share=shard is None) as store:
        tasks = _load_tasks(store, workload, target, config.precision, note)
        rich = [task for task in tasks if has_choice(task, target, MIN_SPACE)]
        if not rich:
            raise NetworkLoadError(
                f"no task of {workload} has a choice of programs", remedy="collect a larger suite", workload=workload
            )
        note(f"{len(rich)} of {len(tasks)} tasks have a choice of programs")
        per_task = max(MIN_SPACE, -(-programs // len(rich)))
        if shard:
            rich, total = shard.of(rich), len(rich)
            programs = min(programs, per_task * len(rich))
            note(f"shard {shard}: {len(rich)} of {total}")
        with device.measurer(measure) as measurer:
            # On a card a wrong program, one with a race, may be the fastest.
            if isinstance(measurer, Measurer) and device.card is not None:
                for task in rich:
                    measurer.refer(task.task_id, task.mod)
            collector = _Collector(store, measurer, target, per_task, config.seed, progress, note, programs)
            collector.run(rich)
            outcomes = dict(measurer.outcomes)
        again = {"command": collect_command(device, workload, asked, config), "licence": config.licence}
        corpus = export_corpus(store.programs(), rich, facts, folder, timing=measure.timing, **again)
        return CollectResult(
            str(folder),
            len(corpus.tasks),
            corpus.meta["programs"],
            sum(not program.valid for program in corpus.iter_programs()),
            outcomes,
            len(tasks) - len(rich),
            str(store.path),
        )


def collect_command(device: ChosenDevice, workload: str, programs: int, config: CollectConfig) -> str:
    """Return the command that collects the same again, as the corpus tells it."""
    options = ["tchub", "collect", *device.options, "--workload", workload, "--programs", str(programs)]
    options += ["--shard", str(config.shard)] if config.shard else []
    options += ["--threads", str(device.facts.cores)] if device.card is None else []
    options += ["--precision", config.precision] if config.precision != "float32" else []
    return shlex.join([*options, "--seed", str(config.seed), "--out", "DIR"])

"""Collecting a corpus: tasks of a suite, random and evolved candidates, measured, journaled, written as Parquet."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.corpus import Corpus
from ..device.detect import LocalDevice
from ..device.device_choice import ChosenDevice, choose_device
from ..device.errors import MeasurementFailureRateError
from ..device.measure import MeasureConfig
from ..device.measurement import is_passing
from ..device.prefetch import prefetch
from ..networks.errors import NetworkLoadError
from ..records.history import open_sharing_journal
from ..records.journal import Entry, Journal
from ..search.errors import NoCandidateError
from .collected import LICENCE, export

if TYPE_CHECKING:
    from ..device.candidate import Candidate
    from ..device.measure import Measurer
    from ..device.rpc import RpcMeasurer
    from ..networks.tasks import TuningTask
    from .shards import Shard

# A space smaller than this has nothing to rank.
MIN_SPACE = 8
# Candidates made ahead of the workers.
_AHEAD = 64


@dataclass(frozen=True)
class CollectProgress:
    """Told after each program.

    Attributes:
        done, total: programs measured, and planned as far as is known now.
        task: the task's name.
        phase: `random` or `evolutionary`.
        failed: programs that failed so far.
    """

    done: int
    total: int
    task: str
    phase: str
    failed: int


@dataclass(frozen=True)
class CollectResult:
    """What a collection holds at its end."""

    path: str
    tasks: int
    programs: int
    failed: int
    outcomes: dict[str, int]
    tasks_without_choice: int
    journal: str


def scope_of(device: LocalDevice, threads: int) -> dict[str, Any]:
    """What must be equal before latencies may be compared."""
    import tvm

    return {
        "device": device.device.name,
        "family": device.family,
        "cpu_model": device.cpu_model,
        "target": device.target,
        "threads": threads,
        "tvm_version": str(tvm.__version__),
    }


def _load_tasks(journal: Journal, workload: str, target: Any, progress: Callable[[str], None]) -> list[TuningTask]:
    """The suite's tasks; remembered in the journal, because extracting them takes minutes."""
    import tvm

    from ...zoo.corpus.workloads import SUITES
    from ..networks.prepare import LAYOUTS
    from ..networks.tasks import TuningTask, merge, tasks_of

    found: list[TuningTask] = []
    for name in (name for part in workload.split(",") for name in SUITES.get(part, (part,))):
        noted = journal.noted(f"tasks of {name}, {LAYOUTS[0]}")
        if noted is None:
            progress(f"extracting the tasks of {name}")
            tasks = tasks_of(name, target)
            noted = [{**_plain(task), "mod": str(tvm.ir.save_json(task.mod))} for task in tasks]
            journal.note(f"tasks of {name}, {LAYOUTS[0]}", noted)
        found += [TuningTask(**{**row, "mod": tvm.ir.load_json(row["mod"])}) for row in noted]
    return merge(found)


def _plain(task: TuningTask) -> dict[str, Any]:
    return {n: getattr(task, n) for n in ("task_id", "name", "op", "weight", "flops", "networks")}


@dataclass
class _Collector:
    """The state of one collection."""

    journal: Journal
    measurer: Measurer | RpcMeasurer
    target: Any
    per_task: int
    seed: int
    tell: Callable[[CollectProgress], None]
    say: Callable[[str], None]
    total: int
    failed: int = 0
    just_failed: set[tuple[str, str]] = field(default_factory=set)

    def run(self, tasks: Sequence[TuningTask]) -> None:
        """Both phases over all tasks."""
        names = {task.task_id: task.name for task in tasks}
        for entry in self.journal.entries():
            if entry.task_id in names and entry.measurement.error is None:
                self.measurer.know(entry.task_id, entry.measurement.latency)
        try:
            self._measure(self._random(tasks), names, "random")
            self._measure(self._evolved(tasks), names, "evolutionary")
        except MeasurementFailureRateError:
            # The machine fails, not the programs: once it is mended they are tried again.
            for task_id, key in self.just_failed:
                self.journal.forget_failure(task_id, key)
            raise

    def _known(self, task: TuningTask) -> list[Entry]:
        """Programs that are not to be measured again: failures of the moment are, but not by the run that saw them."""

        def again(entry: Entry) -> bool:
            found = entry.measurement
            passing = found.error is not None and is_passing(f"{found.error}: {found.message}")
            return passing and (entry.task_id, entry.key) not in self.just_failed

        return [entry for entry in self.journal.of_task(task.task_id) if not again(entry)]

    def _random(self, tasks: Sequence[TuningTask]) -> Iterator[Candidate]:
        from ..search.candidates import random_candidates

        for task in tasks:
            known = {entry.key for entry in self._known(task)}
            missing = self.per_task // 2 - len(known)
            if missing <= 0:
                continue
            try:
                found = random_candidates(task, self.target, self.per_task // 2, self.seed)
            except NoCandidateError as error:
                self.say(f"{error.message}: left out")
                continue
            yield from [candidate for candidate in found if candidate.key not in known][:missing]

    def _evolved(self, tasks: Sequence[TuningTask]) -> Iterator[Candidate]:
        from ..search.candidates import evolved_candidates

        for task in tasks:
            known = self._known(task)
            measured = [(e.trace, e.measurement.latency) for e in known if e.measurement.error is None]
            missing = self.per_task - len(known)
            if missing > 0 and measured:
                seen = [entry.key for entry in known]
                yield from evolved_candidates(task, self.target, missing, measured, self.seed, seen)

    def _measure(self, candidates: Iterable[Candidate], names: dict[str, str], phase: str) -> None:
        if self.measurer.overlaps:  # else making candidates would disturb the program that is timed
            candidates = prefetch(candidates, _AHEAD)
        for candidate, measurement in self.measurer.measure(candidates):
            self.journal.put(candidate, measurement)
            if measurement.error is not None:
                self.failed += 1
                self.just_failed.add((candidate.task_id, candidate.key))
            self.tell(CollectProgress(len(self.journal), self.total, names[candidate.task_id], phase, self.failed))


def collect(
    workload: str,
    programs: int,
    out: Path | str,
    *,
    device: str = "local",
    target: dict[str, Any] | None = None,
    linker: str | None = None,
    threads: int | None = None,
    seed: int = 0,
    shard: Shard | None = None,
    besides: Sequence[Path | str] = (),
    licence: str = LICENCE,
    config: MeasureConfig | None = None,
    progress: Callable[[CollectProgress], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> CollectResult:
    """Measure about `programs` candidates of a suite's tasks and write them as a corpus.

    Half of a task's programs are random schedules, the other half evolve from the measured ones. A second call
    with the same `out` goes on where the first one stopped; nothing is measured twice.

    Args:
        workload: a suite, a network or an operator of the reference workloads, or several with commas between.
        programs: shared evenly by the tasks; a task with a smaller space gives fewer.
        out: the corpus folder; the journal lies in it as `journal.sqlite`.
        device: `local`, or `rpc://host:port/key` for the servers of TVM's RPC tracker.
        target, linker: see `tune`.
        threads: threads of a program, the target's `num-cores`; None for one a physical core that may be used.
        shard: measure its share of the tasks only, in a folder of its own inside `out`; each task gets as many
            programs as it would without. `merge_corpora` makes one corpus of all.
        besides: corpora whose tasks are left out.
        licence: of the measurements, as the corpus will say.
        progress, say: told after each program, and of each step.

    Raises:
        NetworkLoadError: the suite has no task with a choice of programs.
        ShardError: there are more shards than such tasks.
        DeviceChoiceError, NoServerError, TargetError, DeviceSetupError: the device cannot be used.
        TargetError: this machine cannot run programs for the target.
        MeasurementFailureRateError: nearly every program fails here.
    """
    import tvm

    from ..search.candidates import has_choice

    chosen = choose_device(device, threads, target=target, linker=linker)
    facts, asked, threads = chosen.facts, programs, chosen.facts.cores
    tvm_target = tvm.target.Target(facts.target)
    folder = shard.folder(out) if shard else Path(out)
    # A shard writes to no file of others: on a cluster the user's data folder is often behind NFS.
    opened = Journal if shard else open_sharing_journal
    with opened(folder / "journal.sqlite", scope_of(facts, threads)) as journal:
        known = {task_id for path in besides for task_id in Corpus.open(path).tasks}
        tasks = [task for task in _load_tasks(journal, workload, tvm_target, say) if task.task_id not in known]
        rich = [task for task in tasks if has_choice(task, tvm_target, MIN_SPACE)]
        if not rich:
            raise NetworkLoadError(
                f"no task of {workload} has a choice of programs", remedy="collect a larger suite", workload=workload
            )
        say(f"{len(rich)} of {len(tasks)} tasks have a choice of programs")
        per_task = max(MIN_SPACE, -(-programs // len(rich)))
        if shard:
            rich, total = shard.of(rich), len(rich)
            programs = min(programs, per_task * len(rich))
            say(f"shard {shard}: {len(rich)} of {total}")
        with chosen.measurer(config or MeasureConfig(threads=threads), say) as measurer:
            collector = _Collector(journal, measurer, tvm_target, per_task, seed, progress, say, programs)
            collector.run(rich)
            outcomes = dict(measurer.outcomes)
        command = _command(chosen, workload, asked, seed, threads, shard, besides)
        corpus = export(journal.entries(), rich, facts, folder, command=command, licence=licence)
    failed = sum(not program.valid for program in corpus.iter_programs())
    return CollectResult(
        str(folder),
        len(corpus.tasks),
        corpus.meta["programs"],
        failed,
        outcomes,
        len(tasks) - len(rich),
        str(journal.path),
    )


def _command(
    device: ChosenDevice, workload: str, programs: int, seed: int, threads: int, shard: Shard | None,
    besides: Sequence[Path | str],
) -> str:  # fmt: skip
    words = ["tchub", "collect", *device.options, "--workload", workload, "--programs", str(programs)]
    words += ["--shard", str(shard)] if shard else []
    words += [word for path in besides for word in ("--besides", Path(path).name)]
    return shlex.join([*words, "--seed", str(seed), "--threads", str(threads), "--out", "DIR"])

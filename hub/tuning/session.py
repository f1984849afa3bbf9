"""A tuning session: search, build, run, learn, task by task, until the trials are spent; a killed run resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from tvm.s_tir.meta_schedule.database import TuningRecord

from ..device.candidate import Candidate, from_measure_candidate
from ..device.errors import check_failure_rate
from ..device.host_facts import usable_cpus
from ..device.measure import Measurement
from ..networks.tasks import TuningTask
from ..records.database import RunDatabase, best_programs, measurement_of
from ..records.store import MeasuredProgram, RunStateError, RunStore
from ..search.candidates import untuned_candidate
from ..search.choice import AlternativeChoice
from ..search.cost_model import SessionCostModel
from ..search.engines import open_engine
from ..search.interrupt import StopFlag
from ..search.measuring import Job, Measure, runner_result
from ..search.roofline import Roofline
from ..search.scheduler import ScoredRound, TaskProgress, batch_size, next_round, settled
from ..search.settings import SearchSettings
from .config import TuneConfig
from .progress import SessionView

if TYPE_CHECKING:
    from ..networks.alternatives import Alternative
    from ..search.schedules import ScheduleDatabase

# Programs that are measured together where the measure function does not say how many keep its machines busy.
ROOM = 8
# Programs of a task that a resumed run shows to the model at most, the last ones: each is replayed in TVM, and a
# checkpoint takes no more as context.
MOST_TAUGHT = 512
# Programs of a task that go from earlier runs into the run's own store, which takes a replay in TVM each.
MOST_RECORDS = 4


@dataclass
class _Batch:
    """Candidates of one task that are measured together, the model's scores of them, and measurements by index."""

    index: int
    candidates: list[Any]
    scores: list[float]
    programs: dict[int, MeasuredProgram] = field(default_factory=dict)


class TuningSession:
    """One network, one cost model, one store; what the store holds of an earlier part of the run is taken up.

    Args:
        target: a `tvm.target.Target`.
        model: a MetaSchedule cost model.
        store: takes every program; programs of its home are where a new run begins.
        on_change: called whenever the view changed.
        untuned: latencies in seconds, by task id, of untuned programs that were measured already.
        roofline: of the device, which bounds what a task can gain; None: not known. The attribute of this name is what
            it was raised to by programs that exceed it.
        alternatives: ways to compute operators, whose tasks are among `tasks`.
        schedules: of similar tasks, with which the search of a task begins.
    """

    def __init__(
        self,
        tasks: Sequence[TuningTask],
        target: Any,
        model: Any,
        measure: Measure,
        store: RunStore,
        config: TuneConfig,
        stop: StopFlag,
        on_change: Callable[[SessionView], None] = lambda view: None,
        untuned: Mapping[str, float] | None = None,
        roofline: Roofline | None = None,
        alternatives: Sequence[Alternative] = (),
        schedules: ScheduleDatabase | None = None,
    ) -> None:
        self.config, self.target, self.stop, self.store = config, target, stop, store
        self._measure_batch, self._on_change = measure, on_change
        self._schedules, self.roofline = schedules, roofline
        self.model: Any = SessionCostModel(model, stop)
        self.database: Any = RunDatabase(store)
        programs = list(store.programs(traces=False))
        # A resumed run must not draw the same programs again.
        seed, search, threads = config.seed * 1009 + len(programs), config.search or SearchSettings(), usable_cpus()
        self._engines = [
            open_engine(task, target, search, seed + i, threads, self.model, roofline) for i, task in enumerate(tasks)
        ]
        pairs = zip(tasks, (engine.search for engine in self._engines), strict=True)
        prompt = getattr(measure, "prompt", True)
        bounds = [0.0 if roofline is None else roofline.bound(task) for task in tasks]
        progress = [
            TaskProgress(task.weight, search.fixed, task.flops, bound, cheap_search=search.cheap and prompt)
            for (task, search), bound in zip(pairs, bounds, strict=True)
        ]
        self.view = SessionView(tasks, progress, config.trials, programs, untuned=dict(untuned or {}))
        self.view.phases |= store.noted("phases", dict[str, float]) or {}
        self.choice = AlternativeChoice(tasks, progress, alternatives, self.view.untuned)
        self.view.batch = batch_size(config.trials, progress, config.trials_per_iter)
        self._elapsed_before, self._started = self.view.clock, time.monotonic()
        self._timed = 0.0  # seconds of all phases so far

    def run(self) -> SessionView:
        """Spend the trials that are left.

        Raises:
            InterruptedRunError: the user stopped it; the store holds all that was measured.
            MeasurementFailureRateError: nearly every program failed.
            RunStateError: the run began with programs of earlier runs, and this one may not.
        """
        before = dict(self.view.phases)
        self._take_up()
        self._start()
        if self.config.untuned:
            self._measure_untuned()
        self.view.phases.update(before)  # the tuning's clock starts here: what came before is no part of it
        self._started = time.monotonic()
        self._choose()
        target, pairs = self.config.latency_target, zip(self.view.tasks, self.view.progress, strict=True)
        if target and target < (least := 1e3 * sum(task.weight * one.bound for task, one in pairs)):
            self.view.notes.append(
                f"the latency target of {target:g} ms is out of reach: the roofline of this device allows "
                f"{least:.3g} ms at best; all trials are spent"
            )
        while self.view.done < self.config.trials and not (target and 1e3 * self.view.latency() <= target):
            chosen = next_round(self.view.progress, self.view.batch, getattr(self._measure_batch, "room", ROOM))
            if not chosen or settled(self.view.progress, self.config.early_stop):
                break
            self._round(chosen)
            self.store.note("phases", self.view.phases)
            self._check_failures()
        self._check_failures(last=True)
        self._enter("done", None)
        return self.view

    def choose(self) -> Any:
        """Measure nothing; return a MetaSchedule database of the program that each task would measure first.

        Where earlier runs measured programs of a task, it is the fastest of those.
        """
        self._take_up()
        self._start()
        chosen = best_programs(self.database, self.view.tasks)
        for index, task in enumerate(self.view.tasks):
            if isfinite(self.view.progress[index].best):
                continue
            with self._phase("search", index):
                search = self._engines[index].search
                for candidate in search.unmeasured() or search.candidates(1, self.stop):
                    workload, trace = chosen.commit_workload(task.mod), candidate.sch.trace
                    # MetaSchedule compiles the fastest of a task's records, of which this is the only one.
                    record = TuningRecord(trace, workload, [1.0], self.target, candidate.args_info)
                    chosen.commit_tuning_record(record)
        self._enter("done", None)
        return chosen

    def _start(self) -> None:
        """Open the searches, with the programs of earlier runs and the schedules of similar tasks."""
        for engine in self._engines:
            engine.search.start(self.config.trials, self.view.batch, self.database, self.model)
        self._reuse()
        if self._schedules:
            for engine in self._engines:
                engine.search.suggest(self._schedules)

    # What was measured before ------------------------------------------------------------------------

    def _take_up(self) -> None:
        """Bring each task's progress, and the model, to where the store is."""
        for index, task in enumerate(self.view.tasks):
            programs = [p for p in self.view.programs if p.task_id == task.task_id]
            latencies = {s: [p.latency for p in programs if p.strategy == s] for s in ("untuned", "reused", "tune")}
            if latencies["untuned"] and isfinite(latencies["untuned"][0]):
                self.view.untuned[task.task_id] = latencies["untuned"][0]
            progress = self.view.progress[index]
            progress.known = min(latencies["reused"], default=inf)
            for start in range(0, len(latencies["tune"]), self.view.batch):
                progress.record(latencies["tune"][start : start + self.view.batch])
            if not programs:
                continue
            with self._phase("model", index):
                records = self.database.latest(task.mod, MOST_TAUGHT)
                if records:
                    results = [runner_result(measurement_of(record)) for record in records]
                    candidates = [record.as_measure_candidate() for record in records]
                    self.model.update(self._engines[index].context, candidates, results)
        if unfit := len(self.database.unfit):
            self.view.notes.append(f"{self.store.path}: programs left out because they do not apply: {unfit}")

    def _reuse(self) -> None:
        """Begin with the programs that earlier runs measured; a resumed run has its own, and those it took over."""
        reused = sum(program.strategy == "reused" for program in self.view.programs)
        if self.store.home is None or not self.config.reuse:
            if reused:
                raise RunStateError(
                    f"{self.store.path.parent} holds a run that began with programs of earlier runs, and this one is "
                    "to begin afresh",
                    remedy="choose another --out, or leave out --no-reuse and --compare stock",
                    path=str(self.store.path.parent),
                )
            return
        self.view.reused = reused
        for index, task in enumerate(self.view.tasks):
            with self._phase("search", index):
                known = self.store.home.known(task.task_id)
                if not self.view.progress[index].trials:
                    self._take_over(index, known)
                self.view.reused += self._engines[index].search.teach(known)

    def _take_over(self, index: int, known: Sequence[MeasuredProgram]) -> None:
        """Put the fastest programs of earlier runs that apply to the task into the store, once a run."""
        task = self.view.tasks[index]
        if any(p.strategy == "reused" and p.task_id == task.task_id for p in self.view.programs):
            return
        latencies: list[float] = []
        unfit = 0
        for program in known:
            if len(latencies) == MOST_RECORDS or not isfinite(program.latency):
                break
            if not self.database.applies(program, task.mod):
                unfit += 1
                continue
            reused = Candidate(task.task_id, program.key, program.trace, "reused", task.mod, program.args)
            self.view.programs.append(self.store.put(reused, Measurement((program.latency,))))
            latencies.append(program.latency)
        self.view.progress[index].known = min(latencies, default=inf)
        if unfit:
            self.view.notes.append(f"{task.name}: stored programs left out because they do not apply: {unfit}")

    def _measure_untuned(self) -> None:
        measured = {p.task_id for p in self.view.programs if p.strategy == "untuned"} | set(self.view.untuned)
        jobs = [
            (task, untuned_candidate(task, self.target)) for task in self.view.tasks if task.task_id not in measured
        ]
        self.stop.check()
        for index, measurement in self._measured(jobs) if jobs else ():
            program = self._put(*jobs[index], measurement, None, "untuned")
            if isfinite(program.latency):
                self.view.untuned[program.task_id] = program.latency

    # One round ---------------------------------------------------------------------------------------

    def _round(self, chosen: Sequence[tuple[int, int]]) -> None:
        self.stop.check()
        asked: list[tuple[_Batch, int]] = []
        for index, measurement in self._measured(self._searched(chosen, asked)):
            batch, i = asked[index]
            task, candidate = self.view.tasks[batch.index], batch.candidates[i]
            batch.programs[i] = self._put(task, candidate, measurement, batch.scores[i], "tune")
            self._on_change(self.view)
        for batch in (batch for batch, i in asked if i == 0):
            self._learn(batch)
        self._choose()
        self.view.unread = self.model.unread

    def _searched(self, chosen: Sequence[tuple[int, int]], asked: list[tuple[_Batch, int]]) -> Iterator[Job]:
        """Search the tasks of a round one after the other; yield each program, whose batch and index are in `asked`."""
        left = self.config.trials - self.view.done
        for index, count in chosen:
            if not left:
                return
            with self._phase("search", index), self.stop.noted():
                candidates = self._engines[index].search.candidates(min(count, left), self.stop)
            if not candidates:
                self.view.progress[index].exhausted = True
                continue
            with self._phase("model", index), self.stop.noted():
                batch = _Batch(index, candidates, self._scores(index, candidates))
            self.stop.check("interrupted while searching")
            left -= len(candidates)
            for i, candidate in enumerate(candidates):
                asked.append((batch, i))
                yield self.view.tasks[index], candidate

    def _scores(self, index: int, candidates: list[Any]) -> list[float]:
        """Return the model's scores of candidates, for the log and the scheduler."""
        try:
            return [float(s) for s in self.model.predict(self._engines[index].context, candidates)]
        except RuntimeError:  # what the session's model raises when the user asked to stop
            self.stop.check()
            raise

    def _measured(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Measurement]]:
        """Measure programs while the next are searched; each is to be in the store before the next is awaited."""
        with self._phase("measure", None):
            for job, measurement in self.stop.each(self._measure_batch(jobs)):
                if self.stop.requested and measurement.error is not None:
                    break  # Ctrl-C reaches stock's workers too
                self.view.phases["build"] += measurement.build_seconds
                self.view.phases["run"] += measurement.run_seconds
                yield job, measurement
        self.stop.check("interrupted while measuring")

    def _put(
        self, task: TuningTask, candidate: Any, measurement: Measurement, score: float | None, strategy: str
    ) -> MeasuredProgram:
        clock = self._elapsed_before + time.monotonic() - self._started if strategy == "tune" else 0.0
        self.database.commit_workload(task.mod)
        ours = from_measure_candidate(task.task_id, strategy, candidate)
        program = self.store.put(ours, measurement, predicted=score, clock=clock)
        self.view.programs.append(program)
        return program

    def _learn(self, batch: _Batch) -> None:
        """Tell the scheduler, the search and the model the results of a batch."""
        engine, progress = self._engines[batch.index], self.view.progress[batch.index]
        programs = [batch.programs[i] for i in range(len(batch.candidates))]
        latencies = [program.latency for program in programs]
        progress.record(latencies)
        progress.scored.append(ScoredRound(tuple(batch.scores), tuple(latencies), engine.search.waiting))
        results = [runner_result(program.measurement) for program in programs]
        engine.search.notify(batch.candidates, results)
        with self._phase("model", batch.index):
            self.model.update(engine.context, batch.candidates, results)

    def _choose(self) -> None:
        """Let the view's tasks count as often as the network calls them, with the ways that are the fastest now."""
        self._raise_roofline()
        self.choice.update()
        weights = self.choice.weights()
        self.view.tasks = [replace(task, weight=weights[task.task_id]) for task in self.view.tasks]

    def _raise_roofline(self) -> None:
        """Where a product exceeds the peak that was measured, let its rate be the peak: no task may seem done early."""
        if (before := self.roofline) is None:
            return
        pairs = list(zip(self.view.tasks, self.view.progress, strict=True))
        for task, one in pairs:
            if one.best < one.bound:
                self.roofline = self.roofline.raised(task, one.best)
        if self.roofline != before:
            for task, one in pairs:
                one.bound = self.roofline.bound(task)

    # Bookkeeping -------------------------------------------------------------------------------------

    def _enter(self, phase: str, index: int | None) -> None:
        self.view.phase, self.view.current = phase, index
        self._on_change(self.view)

    @contextmanager
    def _phase(self, name: str, index: int | None) -> Iterator[None]:
        """Time a phase without those inside it; the cost model's share of a search is booked under `model`."""
        around = self.view.phase, self.view.current
        self._enter(name, index)
        start, inside, model_before = time.perf_counter(), self._timed, self.model.seconds
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            inner = self.model.seconds - model_before if name == "search" else 0.0
            self.view.phases[name] += spent - inner - (self._timed - inside)
            self.view.phases["model"] += inner
            self._timed = inside + spent
            if around[0] == "measure":
                self.view.phase, self.view.current = around

    def _check_failures(self, last: bool = False) -> None:
        """Raise MeasurementFailureRateError where nearly every program failed, or at the end all of a few."""
        tuned = self.view.tuned
        failures = [failure for program in tuned if (failure := program.failure) is not None]
        check_failure_rate(failures, len(tuned), "run `tchub doctor`; if a compiler is missing, install one", last=last)

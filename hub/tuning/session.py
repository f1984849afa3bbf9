"""A tuning run: search, build, run, learn, task by task, until the trials are spent; a killed run resumes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm.s_tir import meta_schedule as ms

from ..device.host_facts import usable_cpus
from ..records.errors import RunStateError
from ..records.records import FAILED_SECONDS, best_programs, make_trial, open_database
from ..records.run_folder import read_phases, write_phases
from ..records.trials import Trial, TrialLog
from ..search.cost_model import seconds
from ..search.errors import InterruptedRunError, TuningFailedError
from ..search.expected_gain import Round
from ..search.interrupt import StopFlag
from ..search.measuring import Job, Measure, Measured
from ..search.scheduler import TaskProgress, batch_size, next_round, settled
from ..search.task_search import WatchedCostModel, make_search
from .session_settings import SessionSettings
from .session_view import PHASES, SessionView
from .take_up import take_over, take_up, taught

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask
    from ..records.history import History


# Programs that are measured together where the measure function does not say how many keep its machines busy.
ROOM = 8


@dataclass
class _Batch:
    """Candidates of one task that are measured together, the model's scores of them, and results by place."""

    index: int
    candidates: list[Any]
    scores: list[float]
    results: dict[int, Any] = field(default_factory=dict)


class TuningSession:
    """One network, one cost model, one folder.

    Args:
        tasks: what to tune.
        target: a `tvm.target.Target`.
        model: a MetaSchedule cost model.
        measure: builds and runs a batch.
        folder: takes `database/` and `trials.jsonl`; what it holds of an earlier run is taken up.
        settings: trials and search.
        stop: asks the run to end early.
        on_change: called whenever the view changed.
        untuned: latencies in seconds, by task id, of untuned programs that were measured already.
        history: what earlier runs measured on this device; takes what this one measures.
    """

    def __init__(
        self,
        tasks: Sequence[TuningTask],
        target: Any,
        model: Any,
        measure: Measure,
        folder: Path,
        settings: SessionSettings,
        stop: StopFlag,
        on_change: Callable[[SessionView], None] = lambda view: None,
        untuned: Mapping[str, float] | None = None,
        history: History | None = None,
    ) -> None:
        self.settings = settings
        self.target = target
        self.stop = stop
        self._measure_batch = measure
        self._on_change = on_change
        self._history = history
        self.model: Any = WatchedCostModel(model, stop)
        self.database = open_database(folder / "database")
        log = TrialLog(folder / "trials.jsonl")
        self._elapsed_before = log.seconds
        self._started = time.monotonic()
        seed = settings.seed * 1009 + len(log.trials)  # a resumed run must not draw the same programs again
        threads = usable_cpus()
        self._searches = [
            make_search(t, target, settings.search, seed + i, threads, self.model) for i, t in enumerate(tasks)
        ]
        pairs = zip(tasks, self._searches, strict=True)
        progress = [TaskProgress(t.weight, s.fixed, t.flops, cheap_search=s.cheap) for t, s in pairs]
        self._folder = folder
        phases = read_phases(folder, PHASES)
        self.view = SessionView(tasks, progress, log, settings.trials, untuned=dict(untuned or {}), phases=phases)
        self.view.batch = batch_size(settings.trials, progress, settings.batch)

    def run(self) -> SessionView:
        """Spend the trials that are left.

        Raises:
            InterruptedRunError: the user stopped it; the folder holds all that was measured.
            TuningFailedError: nearly every program failed.
            RunStateError: the folder's run began with programs of earlier runs, and this one may not.
        """
        clocked = dict(self.view.phases)
        take_up(self.view, self.database)
        for index in range(len(self.view.tasks)):
            self._teach(index)
        if unfit := len(self.database.unfit):
            self.view.notes.append(f"{self._folder}: programs left out because they do not apply: {unfit}")
        for search in self._searches:
            search.start(self.settings.trials, self.view.batch, self.database, self.model)
        if self._history is not None and self.settings.reuse:
            self._reuse(self._history)
        elif any(trial.kind == "reused" for trial in self.view.log.trials):
            raise RunStateError(
                f"{self._folder} holds a run that began with programs of earlier runs, and this one is to begin afresh",
                remedy="choose another --out, or leave out --no-reuse and --compare-stock",
                path=str(self._folder),
            )
        if self.settings.untuned:
            self._measure_untuned()
        self.view.phases.update(clocked)  # the tuning's clock starts here: what came before is no part of it
        self._started = time.monotonic()
        while self.view.done < self.settings.trials:
            chosen = next_round(self.view.progress, self.view.batch, getattr(self._measure_batch, "room", ROOM))
            if not chosen or settled(self.view.progress, self.settings.early_stop):
                break
            self._round(chosen)
            write_phases(self._folder, self.view.phases)
            self._check_failures()
        self._check_failures(last=True)
        self._enter("done", None)
        return self.view

    # One round ---------------------------------------------------------------------------------------

    def _round(self, chosen: Sequence[tuple[int, int]]) -> None:
        self._check_stop()
        batches: list[_Batch] = []
        left = self.settings.trials - self.view.done
        for index, count in chosen:
            with self._phase("search", index):
                candidates = self._searches[index].candidates(min(count, left), self.stop)
            if not candidates:
                self.view.progress[index].exhausted = True
                continue
            with self._phase("model", index):
                scores = self._scores(index, candidates)
            batches.append(_Batch(index, candidates, scores))
            left -= len(candidates)
            if not left:
                break
        if batches:
            self._measure(batches)
        for batch in batches:
            self._learn(batch)
        self.view.unread = self.model.unread

    def _scores(self, index: int, candidates: list[Any]) -> list[float]:
        """What the model expects of candidates, for the log and the scheduler."""
        try:
            return [float(s) for s in self.model.predict(self._searches[index].context, candidates)]
        except RuntimeError:  # what a watched model raises when the user asked to stop
            self._check_stop()
            raise

    def _measure(self, batches: Sequence[_Batch]) -> None:
        """Measure batches; each program is in the database, then in the log, before the next is awaited."""
        places = [(batch, i) for batch in batches for i in range(len(batch.candidates))]
        jobs = [(self.view.tasks[batch.index], batch.candidates[i]) for batch, i in places]
        for measured in self._measured(jobs, batches[0].index):
            (task, candidate), (batch, i) = jobs[measured.index], places[measured.index]
            self._commit(task, candidate, measured.result)
            batch.results[i] = measured.result
            if self._history is not None:
                self._history.put(task, candidate, measured)
            self._log(task, measured, batch.scores[i], "tuned")
            self._on_change(self.view)

    def _measured(self, jobs: Sequence[Job], index: int) -> Iterator[Measured]:
        with self._phase("measure", index):
            for measured in self.stop.each(self._measure_batch(jobs)):
                if self.stop.requested and measured.result.error_msg is not None:
                    break  # Ctrl-C reaches stock's workers too
                self.view.phases["build"] += measured.build_seconds
                self.view.phases["run"] += measured.run_seconds
                yield measured
        if self.stop.requested:
            raise InterruptedRunError("interrupted while measuring")

    def _learn(self, batch: _Batch) -> None:
        """What a measured batch tells the scheduler, the search and the model."""
        search, progress = self._searches[batch.index], self.view.progress[batch.index]
        results = [batch.results[i] for i in range(len(batch.candidates))]
        latencies = [seconds(result) for result in results]
        progress.record(latencies)
        progress.scored.append(Round(tuple(batch.scores), tuple(latencies), search.waiting))
        search.notify(batch.candidates, results)
        with self._phase("model", batch.index):
            self.model.update(search.context, batch.candidates, results)

    def _log(self, task: TuningTask, measured: Measured, score: float | None, kind: str) -> Trial:
        cost = measured.build_seconds + measured.run_seconds
        at = self._elapsed() if kind == "tuned" else 0.0
        trial = make_trial(task.task_id, at, measured.result, score, kind, cost)
        self.view.log.append([trial])
        return trial

    def _commit(self, task: TuningTask, candidate: Any, result: Any) -> None:
        valid = result.error_msg is None and result.run_secs
        times = [float(s) for s in result.run_secs] if valid else [FAILED_SECONDS]
        workload = self.database.workload_of(task.mod)
        self.database.put(
            ms.database.TuningRecord(candidate.sch.trace, workload, times, self.target, candidate.args_info)
        )

    # Untuned programs --------------------------------------------------------------------------------

    def _measure_untuned(self) -> None:
        known = {t.task for t in self.view.log.trials if t.kind == "untuned"} | set(self.view.untuned)
        pairs = zip(self.view.tasks, self._searches, strict=True)
        jobs = [(task, search.untuned()) for task, search in pairs if task.task_id not in known]
        self._check_stop()
        for measured in self._measured(jobs, 0) if jobs else ():
            task = jobs[measured.index][0]
            trial = self._log(task, measured, None, "untuned")
            if trial.latency is not None:
                self.view.untuned[task.task_id] = trial.latency

    def _teach(self, index: int) -> None:
        """Show the cost model programs that were measured before."""
        with self._phase("model", index):
            candidates, results = taught(self.database, self.view.tasks[index])
            if candidates:
                self.model.update(self._searches[index].context, candidates, results)

    def _reuse(self, history: History) -> None:
        """Begin with the programs that earlier runs measured.

        After a resumption this run's own are known already, and so are those that it took over, which count.
        """
        self.view.reused = sum(trial.kind == "reused" for trial in self.view.log.trials)
        for index, task in enumerate(self.view.tasks):
            with self._phase("search", index):
                known = history.of_task(task.task_id)
                if not self.view.progress[index].trials:
                    take_over(self.view, self.database, self.target, index, known)
                self.view.reused += self._searches[index].teach(known)

    # Bookkeeping -------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return self._elapsed_before + time.monotonic() - self._started

    def _enter(self, phase: str, index: int | None) -> None:
        self.view.phase, self.view.current = phase, index
        self._on_change(self.view)

    @contextmanager
    def _phase(self, name: str, index: int) -> Iterator[None]:
        """Time a phase; the cost model's share of a search is booked under `model`."""
        self._enter(name, index)
        start, model_before = time.perf_counter(), self.model.seconds
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            inner = self.model.seconds - model_before if name == "search" else 0.0
            self.view.phases[name] += spent - inner
            self.view.phases["model"] += inner

    def _check_stop(self) -> None:
        if self.stop.requested:
            raise InterruptedRunError("interrupted")

    def _check_failures(self, last: bool = False) -> None:
        tuned = self.view.log.tuned
        failed = [t.error for t in tuned if t.error is not None]
        floor = 1 if last else self.settings.failure_floor
        limit = 1.0 if last else self.settings.failure_rate
        if len(tuned) < floor or len(failed) < limit * len(tuned):
            return
        commonest, count = Counter(failed).most_common(1)[0]
        raise TuningFailedError(
            f"{len(failed)} of {len(tuned)} programs failed; {count} with: {commonest}",
            remedy="run `tchub doctor`; if a compiler is missing, install one",
            failed=len(failed),
            measured=len(tuned),
            commonest=commonest,
        )


__all__ = ["SessionSettings", "SessionView", "TuningSession", "best_programs", "open_database"]

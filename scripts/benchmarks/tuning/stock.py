"""MetaSchedule as it ships, watched: its own builder, runner, search, scheduler, model and database.

One setting is not the default: a round measures 16 programs, not 64, for with 64 a budget of 16 trials a task would go
to the first quarter of the tasks and leave the rest untuned (apache/tvm#18159).
"""

from __future__ import annotations

import time
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import PyBuilder
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback
from tvm.s_tir.meta_schedule.runner import PyRunner

from scripts.benchmarks.tuning.runs import Outcome, Recorder, Run, Workload

TRIALS_PER_ROUND = 16


@derived_object
class TimedBuilder(PyBuilder):
    """Passes on to another builder, and keeps the seconds."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.seconds = inner, 0.0

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """The inner builder's results."""
        start = time.perf_counter()
        results = list(self.inner.build(build_inputs))
        self.seconds += time.perf_counter() - start
        return results


@derived_object
class TimedRunner(PyRunner):
    """Passes on to another runner, program by program as LocalRunner does itself, and keeps when each ended."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        super().__init__()
        self.inner, self.recorder, self.seconds = inner, recorder, 0.0
        self.ends: dict[str, float] = {}  # by artifact: results are told a task at a time, and much later

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        """The inner runner's futures, which have their results already."""
        futures = []
        for item in runner_inputs:
            start = time.perf_counter()
            futures += self.inner.run([item])
            self.seconds += time.perf_counter() - start
            self.ends[str(item.artifact_path)] = self.recorder.now()
        return futures


@derived_object
class TimedModel(PyCostModel):
    """Passes on to another cost model, and keeps the seconds."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.seconds = inner, 0.0

    def predict(self, context: Any, candidates: list[Any]) -> Any:
        """The inner model's scores."""
        start = time.perf_counter()
        scores = self.inner.predict(context, candidates)
        self.seconds += time.perf_counter() - start
        return scores

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        """Let the inner model learn."""
        start = time.perf_counter()
        self.inner.update(context, candidates, results)
        self.seconds += time.perf_counter() - start


@derived_object
class Watcher(PyMeasureCallback):
    """Tells the recorder of every batch; the runner knows when each of its programs ended."""

    def __init__(self, recorder: Recorder, runner: Any, task_ids: list[str]) -> None:
        super().__init__()
        self.recorder, self.runner, self.task_ids = recorder, runner, task_ids

    def apply(
        self, task_scheduler: Any, task_id: int, measure_candidates: Any, builder_results: Any, runner_results: Any
    ) -> None:
        """Record one batch."""
        now = self.recorder.now()
        for candidate, build, result in zip(measure_candidates, builder_results, runner_results, strict=True):
            at = self.runner.ends.pop(str(build.artifact_path), now)
            run_secs = None if result.error_msg is not None else result.run_secs
            self.recorder.add(at, self.task_ids[int(task_id)], run_secs, candidate.sch.trace)


def tune_stock(run: Run, work: Workload, budget: int) -> Outcome:
    """Tune with `ms.tune_tasks`."""
    import numpy as np
    import xgboost  # noqa: F401 (imported before the clock starts, as TVM and torch are)
    from tchub.hub.networks.tasks import task_id

    np.random.seed(run.seed)  # XGBModel draws its first scores from NumPy's global generator
    identities = [task_id(task.dispatched[0]) for task in work.extracted]
    folder = run.folder / "database"
    folder.mkdir()
    recorder = Recorder()
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        work.extracted, str(run.folder), seed=run.seed + 1
    )
    workers = contexts[0].num_threads
    builder: Any = TimedBuilder(ms.builder.LocalBuilder(max_workers=workers))
    runner: Any = TimedRunner(ms.runner.LocalRunner(), recorder)
    model: Any = TimedModel(ms.cost_model.XGBModel(num_tuning_cores=workers, tree_method="auto"))
    watcher: Any = Watcher(recorder, runner, identities)
    ms.tune_tasks(
        tasks=contexts,
        task_weights=[float(weight) for weight in weights],
        work_dir=str(folder),
        max_trials_global=budget,
        max_trials_per_task=run.trials,
        num_trials_per_iter=min(TRIALS_PER_ROUND, run.trials),
        builder=builder,
        runner=runner,
        cost_model=model,
        measure_callbacks=[
            ms.measure_callback.AddToDatabase(),
            ms.measure_callback.RemoveBuildArtifact(),
            ms.measure_callback.UpdateCostModel(),
            watcher,
        ],
    )
    seconds = recorder.now()
    measure = builder.seconds + runner.seconds
    phases = {
        "search": seconds - measure - model.seconds,
        "model": model.seconds,
        "measure": measure,
        "build": builder.seconds,
        "run": runner.seconds,
    }
    facts = {"model": run.system, "engine": "metaschedule", "batch": min(TRIALS_PER_ROUND, run.trials)}
    return Outcome(recorder, seconds, phases, facts)

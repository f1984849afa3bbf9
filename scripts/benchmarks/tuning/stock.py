"""MetaSchedule as it ships, watched: its own builder, runner, search, scheduler, model and database.

One setting is not the default: a round measures 16 programs, not 64, for with 64 a budget of 16 trials a task would go
to the first quarter of the tasks and leave the rest untuned (apache/tvm#18159).
"""

from __future__ import annotations

from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback
from tvm.s_tir.meta_schedule.runner import PyRunner

from scripts.benchmarks.tuning.runs import Outcome, Recorder, Run, Workload

TRIALS_PER_ROUND = 16


@derived_object
class TimedRunner(PyRunner):
    """Passes on to another runner, program by program as LocalRunner does itself, and keeps when each ended."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        super().__init__()
        self.inner, self.recorder = inner, recorder
        self.ends: dict[str, float] = {}  # by artifact: results are told a task at a time, and much later

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        """The inner runner's futures, which have their results already."""
        futures = []
        for item in runner_inputs:
            futures += self.inner.run([item])
            self.ends[str(item.artifact_path)] = self.recorder.now()
        return futures


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
    from tchub.zoo.corpus.tir import task_id

    np.random.seed(run.seed)  # XGBModel draws its first scores from NumPy's global generator
    identities = [task_id(task.dispatched[0]) for task in work.extracted]
    folder = run.folder / "database"
    folder.mkdir()
    recorder = Recorder()
    contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        work.extracted, str(run.folder), seed=run.seed + 1
    )
    workers = contexts[0].num_threads
    model: Any = ms.cost_model.XGBModel(num_tuning_cores=workers, tree_method="auto")
    runner: Any = TimedRunner(ms.runner.LocalRunner(), recorder)
    watcher: Any = Watcher(recorder, runner, identities)
    with ms.Profiler() as profiler:
        ms.tune_tasks(
            tasks=contexts,
            task_weights=[float(weight) for weight in weights],
            work_dir=str(folder),
            max_trials_global=budget,
            max_trials_per_task=run.trials,
            num_trials_per_iter=min(TRIALS_PER_ROUND, run.trials),
            builder=ms.builder.LocalBuilder(max_workers=workers),
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
    spent = {name: float(value) for name, value in profiler.get().items()}
    build, ran = spent["SendToBuilder"], spent["SendToRunner"]
    scoring = sum(spent.get(name, 0.0) for name in _MODEL)
    phases = {
        "search": seconds - build - ran - scoring,
        "model": scoring,
        "measure": build + ran,
    }
    facts = {"model": run.system, "engine": "metaschedule", "batch": min(TRIALS_PER_ROUND, run.trials)}
    return Outcome(recorder, seconds, phases, facts)


# What MetaSchedule's profiler calls scoring and learning.
_MODEL = ("EvoSearch/Evolve/PredictNormalizedScore", "MeasureCallback/UpdateCostModel")

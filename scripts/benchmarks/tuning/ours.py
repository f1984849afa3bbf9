"""tchub's tuning session, watched: the measurer, the search and a checkpoint of the zoo."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from scripts.benchmarks.tuning.runs import SYSTEMS, THREADS, note

if TYPE_CHECKING:
    from scripts.benchmarks.tuning.rivals import Outcome, Workload
    from scripts.benchmarks.tuning.runs import Run


def tune_ours(run: Run, work: Workload, budget: int) -> Outcome:
    """Tune with `TuningSession`, which is what `hub.tune` runs."""
    import torch  # noqa: F401 (imported before the clock starts, as TVM is)
    import xgboost  # noqa: F401
    from tchub.hub.device.measure import Measurer
    from tchub.hub.device.measurement import MeasureConfig
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.measuring import MeasureHere
    from tchub.hub.search.models import choose_model
    from tchub.hub.search.task_search import SearchSettings
    from tchub.hub.tuning.session import SessionSettings, TuningSession

    from scripts.benchmarks.tuning.rivals import Outcome, Recorder

    system = SYSTEMS[run.system]
    checkpoint = run.tlp if run.system == "tlp" else system.checkpoint
    adaptation = None
    if system.adapted:
        checkpoint, adaptation = _adapt(run, str(checkpoint))
    recorder = Recorder(run, budget)
    search = SearchSettings(engine=system.engine)
    # The judge times untuned programs; what earlier runs measured would be other systems' work.
    settings = SessionSettings(budget, seed=run.seed, search=search, untuned=False, reuse=False)
    config = MeasureConfig(threads=THREADS)
    with Measurer(work.local.target, config) as measurer:
        model = choose_model(checkpoint, seed=run.seed)
        session = TuningSession(
            work.tasks,
            work.target,
            model.make(),
            recorder.measured(MeasureHere(measurer)),
            run.folder,
            settings,
            StopFlag(),
        )
        view = session.run()
        seconds = recorder.now()
    facts = {"model": model.name, "update": model.update, "engine": system.engine, "batch": view.batch}
    return Outcome(recorder, seconds, dict(view.phases), facts, adaptation)


def _adapt(run: Run, checkpoint: str) -> tuple[str, dict[str, Any]]:
    """Adapt to the network with a 10% budget; returns the checkpoint to tune with and what it cost."""
    from tchub import hub
    from tchub.hub.adaptation.config import AdaptConfig

    note(f"{run.label}: adapting")
    start = time.perf_counter()
    config = AdaptConfig(budget="10%", seed=run.seed, threads=THREADS, out=run.folder / "adapt")
    found = hub.adapt(checkpoint, run.network, config=config)
    name = f"{found.name}@{found.version}" if found.version else found.name
    cost = {
        "seconds": time.perf_counter() - start,
        "trials": found.measurements.measured,
        "decision": found.judgement.guard.decision,
        "checkpoint": name,
    }
    return name, cost

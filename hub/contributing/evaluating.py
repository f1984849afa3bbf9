"""Step: how well does it rank programs of networks that it never saw, and what would others have done?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...cards import TITLES, read_metrics
from ...zoo.models.files import write_folder
from ...zoo.plain_json import json_file
from ..registry.store import cache_root
from .collecting import content, opened
from .step import Done, Walk
from .training import load_base, trained, trained_files

FILE = "metrics.json"


class Evaluate:
    """Scores on the test tasks, beside random choice, XGBoost, a tenth of the data, and the start."""

    name = "evaluate"
    title = "scores beside the baselines"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """What was trained, the corpora, and the start, which is a baseline too."""
        settings = walk.settings
        return {
            "trained": trained_files(walk),
            "corpora": content(walk),
            "base": settings.base,
            "seed": settings.seed,
        }

    def run(self, walk: Walk) -> Done:
        """Write `metrics.json`: what the training said, and the scores."""
        from ...zoo.models import Checkpoint
        from ..publishing.evaluate import BASELINES, evaluate

        checkpoint, corpus = Checkpoint.load(trained(walk)), opened(walk)[0]
        options: dict[str, Any] = {"seed": walk.settings.seed, "cache": cache_root().parent / "statements"}
        found = evaluate(checkpoint, corpus, baselines=BASELINES, curves=True, note=walk.note, **options)
        if walk.settings.base:
            walk.note("baseline: base")
            start = evaluate(load_base(walk.settings.base), corpus, **options)
            found["results"]["base"] = start["results"]["model"]
        said = json.loads((trained(walk) / "metrics.json").read_bytes())
        metrics = said | {key: value for key, value in found.items() if key != "checkpoint"}
        metrics["measured_by"] = "tchub contribute"
        write_folder(walk.folder, {FILE: json_file(metrics)})
        _tell(walk, metrics)
        return Done({"results": metrics["results"]}, [walk.folder / FILE])


def _tell(walk: Walk, metrics: dict[str, Any]) -> None:
    """The scores of all, and who is ahead: to be known before anything is published."""
    run = read_metrics(metrics)
    walk.note(f"{run.programs} programs of {run.tasks} test tasks:")
    for line in run.scores:
        told = ", ".join(f"{TITLES[key]} {line.value(key):.3f}" for key in ("top1", "top5", "pairwise"))
        walk.note(f"  {line.label.strip('*')}: {told}")
    if ahead := [line.label for line in run.beaten_by]:
        walk.note(f"ahead of it in a score: {', '.join(ahead)}; the card says so, and more programs may help")


def metrics_of(walk: Walk) -> Path:
    """The file, for the steps after this one."""
    return walk.folder / FILE

"""Step: the folder that is published: config, weights, metrics, and the card with its plots; nothing else."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...cards import draw, render_card
from ...zoo.models.config import CONFIG_FILE, CheckpointConfig
from ...zoo.models.files import write_folder
from ..publishing.check_files import PLOTS
from ..registry.files import sha256_of
from .evaluating import metrics_of
from .settings import CardFacts
from .step import Done, Walk
from .training import trained, trained_files

FOLDER = "checkpoint"


class WriteCard:
    """Facts into the config, and the card from config and metrics."""

    name = "card"
    title = "the folder to publish"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """What was trained, its scores, and the facts."""
        facts = walk.found["facts"]
        return {"trained": trained_files(walk), "metrics": sha256_of(metrics_of(walk)), "facts": facts}

    def run(self, walk: Walk) -> Done:
        """Write all files, then put the folder in its place."""
        config = with_facts(
            CheckpointConfig.read(trained(walk)), CardFacts.from_dict(walk.found["facts"]), walk.settings.measures
        )
        metrics = metrics_of(walk).read_bytes()
        weights = walk.found["train"]["weights"]
        card = render_card(asdict(config), json.loads(metrics))
        folder = walk.folder / FOLDER
        with tempfile.TemporaryDirectory(dir=walk.folder, prefix=".checkpoint-") as made:
            files = {
                weights: (trained(walk) / weights).read_bytes(),
                CONFIG_FILE: config.to_json(),
                "metrics.json": metrics,
                "README.md": card.encode(),
            }
            write_folder(Path(made) / FOLDER, files)
            plots = draw(json.loads(metrics), Path(made) / FOLDER / PLOTS)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(Path(made) / FOLDER, folder)
        walk.note(f"{config.name} {config.version} in {folder}")
        written = [folder / name for name in (*files, *(f"{PLOTS}/{name}" for name in plots))]
        return Done({"folder": FOLDER, "name": config.name, "version": config.version}, written)


def with_facts(config: CheckpointConfig, facts: CardFacts, measured_here: bool) -> CheckpointConfig:
    """The config with what only a person knew."""
    lineage = config.lineage | {"authors": facts.authors, "weights_licence": facts.weights_licence}
    lineage |= {"base": config.training.get("init"), "limits": list(facts.limits or ())}
    corpus = config.training["corpus"] | ({"licence": facts.data_licence} if measured_here else {})
    training = config.training | {"corpus": corpus}
    return replace(config, name=facts.name, version=facts.version, lineage=lineage, training=training)

"""Step: a checkpoint learns from the corpora, from random weights or from those of another one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.models.config import CONFIG_FILE, WEIGHTS_FILE
from ...zoo.models.files import write_folder
from ...zoo.plain_json import json_file
from ..registry.store import cache_root
from ..registry.files import sha256_of
from .collecting import content, opened
from .settings import Settings
from .step import Done, Walk

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ...zoo.training import TrainConfig

FOLDER, RECIPE = "training", "tilenet"


def recipe_of(settings: Settings) -> TrainConfig:
    """The recipe: the one asked for, else that of the base's architecture.

    Raises:
        TrainingError: the base is made of several networks.
    """
    from ...zoo.models import get_architecture
    from ...zoo.training import TrainConfig, TrainingError

    if settings.recipe is None and settings.base:
        base = load_base(settings.base).config
        if (known := get_architecture(base.arch)).base:
            raise TrainingError(
                f"no recipe trains the {known.kind} {base.name}",
                remedy=f"start from a plain {known.base}, or adapt this one: tchub adapt {base.name}",
                checkpoint=base.name,
            )
        return TrainConfig.find(base.arch)
    return TrainConfig.find(settings.recipe or RECIPE)


def load_base(name: str) -> Checkpoint:
    """The checkpoint whose weights are the start: a folder, or a name of the registry."""
    from ...zoo.models import Checkpoint
    from ..api import load

    return Checkpoint.load(name) if Path(name).is_dir() else load(name)


class Train:
    """The training, which goes on at the last saved epoch after a stop."""

    name = "train"
    title = "learning"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """Corpora, recipe, start and seed."""
        settings = walk.settings
        start = load_base(settings.base).config if settings.base else None
        return {
            "corpora": content(walk),
            "recipe": recipe_of(settings).as_dict(),
            "base": start and f"{start.name}@{start.version}",
            "seed": settings.seed,
        }

    def run(self, walk: Walk) -> Done:
        """Train; each plan has a folder of its own, so that a changed one does not meet another's state."""
        import torch

        from ...zoo.training.fit import fit
        from ...zoo.training.programs import StatementStore

        settings, recipe = walk.settings, recipe_of(walk.settings)
        corpus, *sources = opened(walk)
        folder = walk.folder / FOLDER / hashlib.sha256(json_file(self.inputs(walk))).hexdigest()[:12]
        fitted = fit(
            corpus,
            recipe,
            sources=sources,
            init=load_base(settings.base) if settings.base else None,
            seed=settings.seed,
            lineage={"base": None},
            command=command(settings, [corpus.path, *(source.path for source in sources)]),
            resume_dir=folder,
            on_epoch=lambda entry: walk.note(_told(entry, recipe.epochs)),
            torch_device="cuda" if torch.cuda.is_available() else "cpu",
            store=StatementStore(cache_root().parent / "statements"),
        )
        write_folder(folder, {"metrics.json": json_file(fitted.metrics)})
        fitted.checkpoint.save(folder)
        weights = folder / WEIGHTS_FILE
        facts = {"folder": str(folder.relative_to(walk.folder)), "weights": weights.name}
        return Done(facts, [folder / CONFIG_FILE, weights, folder / "metrics.json"])


def command(settings: Settings, corpora: list[Path]) -> str:
    """How to train the same again, for the card."""
    words = ["tchub train", settings.recipe or (RECIPE if not settings.base else recipe_of(settings).arch)]
    words += [f"--corpus {path.resolve().name}" for path in corpora]
    words += [f"--init {settings.base}"] if settings.base else []
    return " ".join([*words, f"--out DIR --seed {settings.seed}"])


def trained(walk: Walk) -> Path:
    """The folder of the checkpoint, for the steps after this one."""
    return walk.folder / walk.found["train"]["folder"]


def trained_files(walk: Walk) -> dict[str, str]:
    """Config and weights -> sha256."""
    return {name: sha256_of(trained(walk) / name) for name in (CONFIG_FILE, walk.found["train"]["weights"])}


def _told(entry: dict[str, float], epochs: int) -> str:
    score = f", pairwise {entry['val_pairwise']:.4f} on the validation tasks" if "val_pairwise" in entry else ""
    return f"epoch {int(entry['epoch']) + 1} of {epochs}: loss {entry['loss']:.4f}{score}"

"""`TrainConfig`: a recipe, all that decides a training run except the data and the seed; read from TOML or YAML."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import yaml
from msgspec import Meta

from .errors import TrainingError

_Count = Annotated[int, Meta(ge=1)]
_Amount = Annotated[float, Meta(ge=0, le=1e308)]  # finite
_FIXED = {"arch", "model", "feature_schema", "finetune"}


@dataclass(frozen=True)
class TrainConfig:
    """A recipe.

    Attributes:
        arch: architecture; model: its settings, all others being the architecture's defaults.
        feature_schema: what the model reads; without `-cpu` or `-gpu` at its end, the one of the corpus's device.
        loss: one of `losses.LOSSES`.
        optimizer: "adam" or "adamw".
        learning_rate, weight_decay: of the optimizer.
        schedule: of the learning rate, by epoch: "constant"; "cosine" from learning_rate to 0 and back to the top every
            `period` epochs (0: once over the run); "step", times `decay` every `period` epochs.
        warmup_epochs: epochs over which the rate first rises linearly.
        epochs: passes over the data.
        groups_per_batch, programs_per_group: a batch is this many groups of one task each.
        clip_norm: the gradient's norm is cut to this; 0 leaves it.
        average: share of the old weights in a running mean of the weights, by step, which is what is
            evaluated and kept; 0 keeps the weights themselves.
        select: metric on the validation set that chooses the epoch kept, or "last".
        save_every: epochs between saved states.
        finetune: settings that differ when a pretrained model goes on with the target's programs alone, e.g.
            epochs and learning_rate; empty for a recipe of one stage.
    """

    arch: str = "tcl"
    model: dict[str, Any] = field(default_factory=dict)
    feature_schema: str = "tcl"
    loss: str = "lambda_rank"
    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: Annotated[float, Meta(gt=0, le=1e308)] = 7e-4
    weight_decay: _Amount = 0.0
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    period: Annotated[int, Meta(ge=0)] = 0
    decay: _Amount = 0.1
    warmup_epochs: Annotated[int, Meta(ge=0)] = 0
    epochs: _Count = 100
    groups_per_batch: _Count = 16
    programs_per_group: Annotated[int, Meta(ge=2)] = 64
    clip_norm: _Amount = 0.0
    average: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    select: Literal["pairwise", "mean_top1", "top1", "last"] = "pairwise"
    save_every: _Count = 5
    finetune: dict[str, Any] = field(default_factory=dict)

    def pretraining(self) -> Self:
        """Return the settings of the first stage."""
        return replace(self, finetune={})

    def finetuning(self) -> Self:
        """Return the settings of the second stage; without any a tenth of the rate, which a good start survives."""
        gentle = {"learning_rate": self.learning_rate / 10, "warmup_epochs": 0}
        return replace(self, **(self.finetune or gentle), finetune={})

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "the recipe") -> Self:
        """Check names, types and values of a recipe, and of its second stage; TrainingError names the nearest key."""
        known = [f.name for f in fields(cls)]
        for key in data:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5) or sorted(known)
                remedy = f"did you mean: {', '.join(near)}?"
                raise TrainingError(f"{source}: unknown key {key!r}", remedy=remedy, key=key, source=source)
        try:
            config = msgspec.convert(dict(data), cls)
            if config.schedule == "step" and not config.period:
                raise ValueError("the schedule 'step' needs a period of at least 1")
            if fixed := sorted(_FIXED & set(config.finetune)):
                raise ValueError(f"finetune sets {', '.join(fixed)}, which would make it another model")
        except ValueError as error:  # msgspec's errors too
            remedy = "change this setting of the recipe"
            raise TrainingError(f"{source}: {error}", remedy=remedy, key=None, source=source) from error
        if config.finetune:
            _ = cls.from_dict(config.pretraining().as_dict() | config.finetune, f"{source}, [finetune]")
        return config

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a file: YAML where its name ends so, else TOML.

        Raises:
            TrainingError: the file is missing, cannot be parsed, or see `from_dict`.
        """
        try:
            text = path.read_text(encoding="utf-8")
            data = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
            if not isinstance(data, dict):
                raise ValueError("it holds no settings")
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise TrainingError(
                f"cannot read the recipe {path}: {error}",
                remedy=f"give a TOML or YAML file, or one of the recipes that ship: {', '.join(list_recipes())}",
            ) from error
        return cls.from_dict(data, str(path))

    @classmethod
    def find(cls, name_or_path: str) -> Self:
        """Return a recipe that ships (`tcl`, `tcl-paper`, ...) or the one of a file."""
        if name_or_path in list_recipes():
            with resources.as_file(_recipes() / f"{name_or_path}.toml") as path:
                return cls.from_file(path)
        return cls.from_file(Path(name_or_path))

    def learning_rate_at(self, epoch: int) -> float:
        """Return the rate of one epoch, counted from 0."""
        if epoch < self.warmup_epochs:
            return self.learning_rate * (epoch + 1) / (self.warmup_epochs + 1)
        if self.schedule == "step":
            return self.learning_rate * self.decay ** (epoch // self.period)
        if self.schedule == "cosine":
            period = self.period or max(1, self.epochs - self.warmup_epochs)
            turn = math.pi * ((epoch - self.warmup_epochs) % period) / period
            return self.learning_rate * ((1 + math.cos(turn)) / 2)
        return self.learning_rate


def list_recipes() -> list[str]:
    """Return the names of the recipes that ship."""
    return sorted(f.name.removesuffix(".toml") for f in _recipes().iterdir() if f.name.endswith(".toml"))


def _recipes():
    return resources.files(__package__.rpartition(".")[0]) / "recipes"  # pyright: ignore[reportOptionalMemberAccess]

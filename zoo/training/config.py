"""`TrainConfig`: everything that decides a training run except the data and the seed; read from TOML or YAML."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from .errors import TrainConfigError

_CHOICES = {
    "optimizer": ("adam", "adamw"),
    "schedule": ("constant", "cosine", "step"),
    "select": ("pairwise", "mean_top1", "top1", "last"),
    "precision": ("float32", "bfloat16", "float16"),
}


@dataclass(frozen=True)
class TrainConfig:
    """A recipe.

    Attributes:
        arch: architecture; model: its settings, all others being the architecture's defaults.
        feature_schema: what the model reads; without `-cpu` or `-gpu` at its end, the one of the corpus's device.
        loss: one of `losses.LOSSES`.
        optimizer: "adam" or "adamw".
        learning_rate, weight_decay: of the optimizer.
        schedule: of the learning rate, by epoch: "constant"; "cosine" from learning_rate to min_learning_rate
            and back to the top every `period` epochs (0: once over the run); "step", times `decay` every
            `period` epochs.
        warmup_epochs: epochs over which the rate first rises linearly.
        epochs: passes over the data.
        groups_per_batch, programs_per_group: a batch is this many groups of one task each.
        clip_norm: the gradient's norm is cut to this; 0 leaves it.
        average: share of the old weights in a running mean of the weights, by step, which is what is
            evaluated and kept; 0 keeps the weights themselves.
        select: metric on the validation set that chooses the epoch kept, or "last".
        evaluate_every, save_every: epochs between evaluations, and between saved states.
        precision: "float32", or "bfloat16" or "float16" (autocast, the latter with a scaled loss).
        finetune: settings that differ when a pretrained model goes on with the target's programs alone, e.g.
            epochs and learning_rate; empty for a recipe of one stage.
    """

    arch: str = "tcl"
    model: dict[str, Any] = field(default_factory=dict)
    feature_schema: str = "tcl"
    loss: str = "lambda_rank"
    optimizer: str = "adam"
    learning_rate: float = 7e-4
    weight_decay: float = 0.0
    schedule: str = "cosine"
    period: int = 0
    min_learning_rate: float = 0.0
    decay: float = 0.1
    warmup_epochs: int = 0
    epochs: int = 100
    groups_per_batch: int = 16
    programs_per_group: int = 64
    clip_norm: float = 0.0
    average: float = 0.0
    select: str = "pairwise"
    evaluate_every: int = 1
    save_every: int = 5
    precision: str = "float32"
    finetune: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            _require(getattr(self, name) in allowed, name, getattr(self, name), f"one of {', '.join(allowed)}")
        for name in ("epochs", "groups_per_batch", "evaluate_every", "save_every"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        _require(self.programs_per_group >= 2, "programs_per_group", self.programs_per_group, "at least 2")
        _require(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        _require(0 <= self.average < 1, "average", self.average, "at least 0 and below 1")
        for name in ("period", "warmup_epochs", "clip_norm", "weight_decay", "min_learning_rate"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _require(self.schedule != "step" or self.period >= 1, "period", self.period, "at least 1 for 'step'")
        fixed = {"arch", "model", "feature_schema", "finetune"} & set(self.finetune)
        _require(not fixed, "finetune", sorted(fixed), "without what makes it another model")
        _ = self.finetuning()

    def pretraining(self) -> TrainConfig:
        """The settings of the first stage."""
        return replace(self, finetune={})

    def finetuning(self) -> TrainConfig:
        """The settings of the second stage."""
        if not self.finetune:
            return self
        return self.from_dict(self.pretraining().as_dict() | self.finetune, "[finetune]")

    def as_dict(self) -> dict[str, Any]:
        """JSON form, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "the recipe") -> TrainConfig:
        """Checks names and types.

        Raises:
            TrainConfigError: an unknown key (with the nearest one), a wrong type or an impossible value.
        """
        kinds = {f.name: dict if f.name in ("model", "finetune") else type(f.default) for f in fields(cls)}
        values = {}
        for key, given in data.items():
            if key not in kinds:
                near = difflib.get_close_matches(str(key), kinds, n=1, cutoff=0.5) or sorted(kinds)
                raise TrainConfigError(
                    f"{source}: unknown key {key!r}",
                    remedy=f"did you mean: {', '.join(near)}?",
                    key=key,
                    source=source,
                )
            value = float(given) if kinds[key] is float and type(given) is int else given
            fits = type(value) is kinds[key] and not (type(value) is float and not math.isfinite(value))
            _require(fits, key, value, f"of type {kinds[key].__name__}", source)
            values[key] = value
        return cls(**values)

    @classmethod
    def from_file(cls, path: Path) -> TrainConfig:
        """Reads a file: YAML where its name ends so, else TOML.

        Raises:
            TrainConfigError: the file is missing, cannot be parsed, or see `from_dict`.
        """
        try:
            text = path.read_text(encoding="utf-8")
            data = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
            if not isinstance(data, dict):
                raise ValueError("it holds no settings")
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise TrainConfigError(
                f"cannot read the recipe {path}: {error}",
                remedy=f"give a TOML or YAML file, or one of the recipes that ship: {', '.join(list_recipes())}",
                key=None,
                source=str(path),
            ) from error
        return cls.from_dict(data, str(path))

    @classmethod
    def find(cls, name_or_path: str) -> TrainConfig:
        """A recipe that ships (`tcl`, `tcl-paper`, ...) or a file."""
        if name_or_path in list_recipes():
            with resources.as_file(_recipes() / f"{name_or_path}.toml") as path:
                return cls.from_file(path)
        return cls.from_file(Path(name_or_path))

    def learning_rate_at(self, epoch: int) -> float:
        """The rate of one epoch, counted from 0."""
        if epoch < self.warmup_epochs:
            return self.learning_rate * (epoch + 1) / (self.warmup_epochs + 1)
        if self.schedule == "step":
            return self.learning_rate * self.decay ** (epoch // self.period)
        if self.schedule == "cosine":
            period = self.period or max(1, self.epochs - self.warmup_epochs)
            turn = math.pi * ((epoch - self.warmup_epochs) % period) / period
            return self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * ((1 + math.cos(turn)) / 2)
        return self.learning_rate


def list_recipes() -> list[str]:
    """Names of the recipes that ship."""
    return sorted(f.name.removesuffix(".toml") for f in _recipes().iterdir() if f.name.endswith(".toml"))


def _recipes():
    return resources.files(__package__.rpartition(".")[0]) / "recipes"  # pyright: ignore[reportOptionalMemberAccess]


def _require(ok: bool, key: str, value: object, wanted: str, source: str = "the recipe") -> None:
    if not ok:
        raise TrainConfigError(f"{source}: {key} is {value!r}", remedy=f"make it {wanted}", key=key, source=source)

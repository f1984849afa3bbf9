"""`CardData`: everything a card says, each fact taken from config.json or metrics.json, none typed by hand.

Read from config.json: name, version, arch, model, feature_schema, family, device, tvm, and
    lineage    weights_licence (SPDX id), base (name@version that it was adapted from), authors, limits (list of texts)
    training   command, seed, seconds, and corpus: {name, device, cpu_model, licence, programs, tasks, how, networks,
               held_out (networks whose tasks are in no training split)}
Read from metrics.json: corpus, split, device, seed, command, seeds: {count, score -> {mean, stdev}}, and results:
    name -> {top1, top5, mean_top1, mean_top5,
    pairwise, tasks, programs}, where `model` is the checkpoint and the others are its baselines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import CardError

METRICS_FORMAT = 1
SCORES = ("top1", "top5", "pairwise", "mean_top1", "mean_top5")
BASELINES = {
    "random": "random choice",
    "xgboost": "XGBoost on TVM's PerStoreFeature",
    "base": "the checkpoint that it was adapted from",
    "ten_percent": "same architecture, trained on a random 10% of the data (mean of 3 seeds)",
}


@dataclass(frozen=True)
class Scores:
    """One line of the table of scores; a number that was not measured is None.

    Attributes:
        key: its name in metrics.json.
        label: its name for people.
    """

    key: str
    label: str
    top1: float | None = None
    top5: float | None = None
    pairwise: float | None = None
    mean_top1: float | None = None
    mean_top5: float | None = None
    tasks: int | None = None
    programs: int | None = None


@dataclass(frozen=True)
class Corpus:
    """The measured programs that the checkpoint learnt from."""

    name: str | None = None
    device: str | None = None
    cpu_model: str | None = None
    licence: str | None = None
    programs: int | None = None
    tasks: int | None = None
    how: str | None = None
    networks: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """How the scores were made.

    Attributes:
        seeds: trainings that `spread` was taken over; spread: score -> (mean, standard deviation).
    """

    corpus: str | None = None
    split: str | None = None
    device: str | None = None
    seed: int | None = None
    command: str | None = None
    scores: tuple[Scores, ...] = ()
    seeds: int | None = None
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def model(self) -> Scores | None:
        """The checkpoint's own line."""
        return next((line for line in self.scores if line.key == "model"), None)

    @property
    def beaten_by(self) -> tuple[Scores, ...]:
        """Baselines with a higher top-1 or pairwise accuracy than the checkpoint."""
        model = self.model
        if model is None:
            return ()
        return tuple(b for b in self.scores if _above(b.top1, model.top1) or _above(b.pairwise, model.pairwise))


@dataclass(frozen=True)
class CardData:
    """The facts of one card; None and () are shown as missing.

    Attributes:
        model: the architecture's settings.
        parameters: trained numbers, where the config says it.
        spec: spec sheet of the device family: number -> (value, source).
    """

    name: str
    version: str
    arch: str
    family: str
    feature_schema: str
    tvm: str | None = None
    licence: str | None = None
    base: str | None = None
    authors: str | None = None
    limits: tuple[str, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    seed: int | None = None
    seconds: float | None = None
    corpus: Corpus = field(default_factory=Corpus)
    evaluation: Evaluation = field(default_factory=Evaluation)
    spec: Mapping[str, tuple[float | None, str]] = field(default_factory=dict)

    @classmethod
    def from_files(
        cls,
        config: Mapping[str, Any],
        metrics: Mapping[str, Any],
        spec: Mapping[str, tuple[float | None, str]] | None = None,
    ) -> CardData:
        """Gather the facts.

        Raises:
            CardError: a field has the wrong type, or metrics.json is of a newer format.
        """
        training, lineage = _object(config, "training"), _object(config, "lineage")
        return cls(
            **{key: _required(config, key) for key in ("name", "version", "arch", "family", "feature_schema")},
            tvm=_text(config, "tvm"),
            licence=_text(lineage, "weights_licence"),
            base=_text(lineage, "base"),
            authors=_text(lineage, "authors"),
            limits=_texts(lineage, "limits"),
            model=_object(config, "model"),
            command=_text(training, "command"),
            seed=_whole(training, "seed"),
            seconds=_number(training, "seconds"),
            corpus=_corpus(training),
            evaluation=_evaluation(metrics),
            spec=spec or {},
        )


def _above(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and a > b


def _corpus(training: Mapping[str, Any]) -> Corpus:
    raw = training.get("corpus")
    raw = {"name": raw} if isinstance(raw, str) else _object(training, "corpus")
    facts: dict[str, Any] = {key: _text(raw, key) for key in ("name", "device", "cpu_model", "licence", "how")}
    facts |= {key: _whole(raw, key) for key in ("programs", "tasks")}
    facts |= {key: _texts(raw, key) for key in ("networks", "held_out")}
    return Corpus(**facts)


def _evaluation(metrics: Mapping[str, Any]) -> Evaluation:
    number = metrics.get("format", METRICS_FORMAT)
    if not isinstance(number, int) or number > METRICS_FORMAT:
        raise CardError(
            f"metrics.json has format {number}; this tchub reads up to {METRICS_FORMAT}",
            remedy="upgrade tchub: pip install -U tchub",
            field="format",
        )
    results = _object(metrics, "results")
    return Evaluation(
        **{key: _text(metrics, key) for key in ("corpus", "split", "device", "command")},
        seed=_whole(metrics, "seed"),
        scores=tuple(_scores(results, key) for key in sorted(results, key=_place)),
        seeds=_whole(_object(metrics, "seeds"), "count"),
        spread=_spread(_object(metrics, "seeds")),
    )


def _spread(seeds: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each score over the seeds, as far as they were measured."""
    found = {}
    for name in SCORES:
        line = _object(seeds, name)
        mean, deviation = _number(line, "mean"), _number(line, "stdev")
        if mean is not None and deviation is not None:
            found[name] = (mean, deviation)
    return found


def _place(key: str) -> tuple[int, str]:
    """The checkpoint first, then the known baselines in their order, then others by name."""
    known = ["model", *BASELINES]
    return (known.index(key) if key in known else len(known), key)


def _scores(results: Mapping[str, Any], key: str) -> Scores:
    line = _object(results, key)
    return Scores(
        key,
        "**this checkpoint**" if key == "model" else BASELINES.get(key, key),
        **{name: _number(line, name) for name in SCORES},
        **{name: _whole(line, name) for name in ("tasks", "programs")},
    )


def _wrong(key: str, wanted: str) -> CardError:
    return CardError(f"{key} is not {wanted}", remedy="write the file again with tchub evaluate", field=key)


def _object(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(key, "an object")
    return value


def _required(raw: Mapping[str, Any], key: str) -> str:
    value = _text(raw, key)
    if not value:
        raise CardError(f"config.json lacks {key}", remedy="save the checkpoint again", field=key)
    return value


def _text(raw: Mapping[str, Any], key: str) -> str | None:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise _wrong(key, "text")
    return value or None


def _texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key) or []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise _wrong(key, "a list of texts")
    return tuple(value)


def _number(raw: Mapping[str, Any], key: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "a number")
    return float(value) if math.isfinite(value) else None


def _whole(raw: Mapping[str, Any], key: str) -> int | None:
    value = raw.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise _wrong(key, "a whole number")
    return value

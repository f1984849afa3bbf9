"""The registry of methods, and `adapt_model`: by the method asked for, or by the one that ranks best (`auto`).

Every method is cross-validated on the labels to learn from, never on the hold-out: that chooses between methods, tells
how far to go from the start to the result, and gives the guard a second opinion (`nested_gain`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..models import CostModel
from .continual.device import Continual
from .cross_validation import CrossValidation, blend, cross_validate, nested_gain
from .ensemble import EnsembleMethod
from .errors import AdaptError
from .method import FewShot, Method, TrainedModel, TrainingSet
from .multi_task import MultiTask

AUTO = "auto"
# In the order in which they assume more.
METHODS: dict[str, Method] = {m.name: m for m in (FewShot(), EnsembleMethod(), Continual(), MultiTask())}


@dataclass(frozen=True)
class MethodScore:
    """The cross-validation of one method, or why it was not tried (`missing`).

    Attributes:
        accuracy, base: cross-validated pairwise accuracy with it, at its best strength, and of the incumbent; None:
            too few labels.
        strength: share of the way from the start to the result.
    """

    method: str
    accuracy: float | None = None
    base: float | None = None
    strength: float = 1.0
    missing: str | None = None


@dataclass(frozen=True)
class AdaptedModel:
    """The result of adapting: the model, the method that made it and why, all that were tried, facts of the training.

    `strength` is the share of the way from its start that was taken; `learnt_gain`: see `nested_gain`.
    """

    model: CostModel
    method: str
    strength: float
    learnt_gain: float | None
    reason: str
    tried: tuple[MethodScore, ...]
    facts: dict[str, Any]


def check_method(name: str) -> None:
    """Raise AdaptError unless `name` is a method or `auto`."""
    if name != AUTO and name not in METHODS:
        raise AdaptError(f"no method is called {name!r}", remedy=f"choose one of: {', '.join((*METHODS, AUTO))}")


def applying(name: str, base: CostModel, sources: int) -> tuple[list[Method], list[MethodScore]]:
    """Return the methods of a name that can adapt `base` with so many corpora, and why the others of `auto` cannot.

    Raises:
        AdaptError: no such method, it lacks something, or corpora are given of which it would learn nothing.
    """
    check_method(name)
    asked = list(METHODS.values()) if name == AUTO else [METHODS[name]]
    missing = {method.name: method.missing(base, sources) for method in asked}
    if name != AUTO and (lack := missing[name]) is not None:
        raise AdaptError(
            f"{name} cannot adapt this {base.arch}: {lack}",
            remedy=f"give what it lacks, or choose another --method: {', '.join((*METHODS, AUTO))}",
        )
    methods = [method for method in asked if missing[method.name] is None]
    if sources and not any(method.learns_corpora for method in methods):
        able = [m.name for m in METHODS.values() if m.learns_corpora and m.missing(base, sources) is None]
        raise AdaptError(
            f"{name} learns nothing from corpora, and {sources} of them are named",
            remedy=f"choose --method {', '.join(able)} or {AUTO}, or leave the corpora out of --sources",
        )
    return methods, [MethodScore(method, missing=lack) for method, lack in missing.items() if lack is not None]


def adapt_model(
    name: str, training_set: TrainingSet, on_method: Callable[[str, str], None] = lambda name, step: None
) -> AdaptedModel:
    """Adapt a model by a method, or with `auto` by the best of all; `on_method` gets its name and the step it begins.

    Raises:
        AdaptError: no such method, or it lacks something.
        LabelError: the labels have no order to learn.
    """
    methods, refused = applying(name, training_set.base, len(training_set.sources))
    # Cross-validation, whose parts have fewer labels, judges the kind of update that all of them get.
    config = training_set.config
    training_set = replace(training_set, config=replace(config, update=config.update_for(len(training_set.data))))
    trials: list[tuple[Method, TrainedModel, CrossValidation | None]] = []
    for method in methods:
        on_method(method.name, "start")
        start = method.start(training_set)
        on_method(method.name, "cross-validate")
        trials.append((method, start, cross_validate(method.learn, start.model, training_set, near=method.near)))
    method, start, validation = max(trials, key=lambda one: -1.0 if one[2] is None else one[2].accuracy)
    on_method(method.name, "learn")
    result = method.learn(start.model, training_set)
    strength = validation.strength if validation else 1.0
    by_name = {one.name: validated for one, _, validated in trials if validated is not None}
    scores = [
        MethodScore(one.name, cv.accuracy, cv.base, cv.strength) if cv else MethodScore(one.name)
        for one, _, cv in trials
    ]
    model, gain = blend(start.model, result.model, strength), nested_gain([*by_name.values()]) if by_name else None
    reason, facts = _reason(name, by_name, method.name), start.facts | result.facts
    return AdaptedModel(model, method.name, strength, gain, reason, (*scores, *refused), facts)


def _reason(asked: str, validated: Mapping[str, CrossValidation], chosen: str) -> str:
    if asked != AUTO:
        return "it was asked for"
    if not validated:
        return "the labels are too few to compare methods by; it assumes least"
    known = ", ".join(f"{name} {one.accuracy:.3f}" for name, one in validated.items())
    best = validated[chosen]
    verdict = "is best" if round(best.accuracy, 3) > round(best.base, 3) else "is best, but no better than the base"
    return f"cross-validated pairwise accuracy on the labels: base {best.base:.3f}, {known}; {chosen} {verdict}"

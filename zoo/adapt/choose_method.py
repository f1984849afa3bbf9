"""From labels to an adapted model: the method asked for, or of those that apply the one that ranks best (`auto`).

Every method is cross-validated on the labels to learn from, never on the hold-out: that chooses between methods and
tells how far to go from the start to what was learnt (`shrink`). The gain of choosing so, on folds that had no say in
the choice (`nested_gain`), is a second opinion for the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..models import CostModel
from .cross_validation import CrossValidated, cross_validate, nested_gain
from .errors import MethodError
from .method_list import LEARN_CORPORA, METHODS
from .methods import Learnt, Lesson, Method, keeping
from .shrink import blend

AUTO = "auto"


@dataclass(frozen=True)
class Tried:
    """What became of one method.

    Attributes:
        method: its name.
        accuracy, base: cross-validated pairwise accuracy with it and of the model to beat; None: too few labels to
            tell. The first is of its best strength, on the pairs that chose it.
        strength: share of the way from the start to what was learnt.
        missing: why it was not tried; None: it was.
    """

    method: str
    accuracy: float | None = None
    base: float | None = None
    strength: float = 1.0
    missing: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class AdaptedModel:
    """The model that a method made.

    Attributes:
        model: in evaluation mode.
        method: its name; strength: share of the way from its start that was taken.
        learnt_gain: cross-validated gain of the choice of method and strength over the model to beat (`nested_gain`);
            None: too few labels to tell.
        reason: why this method, in one sentence.
        tried: all methods that were asked for.
        facts: of its start and of the training.
    """

    model: CostModel
    method: str
    strength: float
    learnt_gain: float | None
    reason: str
    tried: tuple[Tried, ...]
    facts: dict[str, Any]


def check_method(name: str) -> None:
    """Raises MethodError unless `name` is a method or `auto`."""
    if name != AUTO and name not in METHODS:
        raise MethodError(
            f"no method is called {name!r}", remedy=f"choose one of: {', '.join((*METHODS, AUTO))}", method=name
        )


def applying(name: str, base: CostModel, sources: int) -> tuple[list[Method], list[Tried]]:
    """The methods of a name that can be used, and why the others of `auto` cannot.

    Args:
        name: a method, or `auto`.
        base: the model to adapt; sources: corpora of other devices.

    Raises:
        MethodError: no such method, it lacks something, or corpora are given of which it would learn nothing.
    """
    check_method(name)
    asked = list(METHODS.values()) if name == AUTO else [METHODS[name]]
    missing = {method.name: method.missing(base, sources) for method in asked}
    if name != AUTO and (lack := missing[name]) is not None:
        raise MethodError(
            f"{name} cannot adapt this {base.arch}: {lack}",
            remedy=f"give what it lacks, or choose another --method: {', '.join((*METHODS, AUTO))}",
            method=name,
        )
    refused = [Tried(method, missing=lack) for method, lack in missing.items() if lack is not None]
    methods = [method for method in asked if missing[method.name] is None]
    if sources and not any(method.name in LEARN_CORPORA for method in methods):
        able = [other for other in LEARN_CORPORA if METHODS[other].missing(base, sources) is None]
        raise MethodError(
            f"{name} learns nothing from corpora, and {sources} of them are named",
            remedy=f"choose --method {', '.join(able)} or {AUTO}, or leave the corpora out of --from",
            method=name,
        )
    return methods, refused


def adapt_model(
    name: str, lesson: Lesson, on_method: Callable[[str, str], None] = lambda name, step: None
) -> AdaptedModel:
    """Adapt a model by a method, or by the best of all.

    Args:
        name: a method, or `auto`.
        lesson: base, labels, sources and settings.
        on_method: called with a method's name and the step that it begins.

    Raises:
        MethodError: no such method, or it lacks something.
        LabelError: the labels have no order to learn.
    """
    methods, refused = applying(name, lesson.base, len(lesson.sources))
    # Cross-validation, whose parts have fewer labels, judges the kind of update that all of them get.
    lesson = replace(lesson, config=replace(lesson.config, update=lesson.config.update_for(len(lesson.data))))
    found: list[tuple[Method, Learnt, CrossValidated | None]] = []
    for method in methods:
        on_method(method.name, "start")
        start = method.start(lesson)
        on_method(method.name, "cross-validate")
        found.append((method, start, cross_validate(keeping(method), start.model, lesson, near=method.near)))
    method, start, judged = max(found, key=lambda one: -1.0 if one[2] is None else one[2].accuracy)
    on_method(method.name, "learn")
    learnt = keeping(method)(start.model, lesson)
    strength = judged.strength if judged else 1.0
    by_name = {one.name: validated for one, _, validated in found if validated is not None}
    tried = [_tried(*one) for one in found]
    return AdaptedModel(
        blend(start.model, learnt.model, strength),
        method.name,
        strength,
        nested_gain(list(by_name.values())) if by_name else None,
        _reason(name, by_name, method.name),
        tuple(tried + refused),
        start.facts | learnt.facts,
    )


def _tried(method: Method, _start: Learnt, judged: CrossValidated | None) -> Tried:
    if judged is None:
        return Tried(method.name)
    return Tried(method.name, judged.accuracy, judged.base, judged.strength)


def _reason(asked: str, judged: Mapping[str, CrossValidated], chosen: str) -> str:
    if asked != AUTO:
        return "it was asked for"
    if not judged:
        return "the labels are too few to compare methods by; it assumes least"
    known = ", ".join(f"{name} {one.accuracy:.3f}" for name, one in judged.items())
    best = judged[chosen]
    verdict = "is best" if round(best.accuracy, 3) > round(best.base, 3) else "is best, but no better than the base"
    return f"cross-validated pairwise accuracy on the labels: base {best.base:.3f}, {known}; {chosen} {verdict}"

"""Step: what no file and no measurement can tell: who, and under which licences. There is no default licence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ..publishing.check_card import is_spdx
from ..registry import CheckpointName, Registry, Version
from ..registry.errors import CheckpointNameError
from .errors import BadFactError, MissingFactsError
from .settings import FACTS_FILE, CardFacts
from .step import Ask, Done, Walk
from .training import recipe_of

_LICENCE = "an SPDX identifier, e.g. Apache-2.0 or CC-BY-4.0"
QUESTIONS = {
    "authors": "Who are the authors, as they are to be cited?",
    "weights_licence": f"Under which licence do you give the weights? ({_LICENCE})",
    "data_licence": f"And the programs measured here, with their latencies? ({_LICENCE})",
}
_LASTING = (*QUESTIONS, "limits")
_LIMITS = "What should users know that no number tells? (empty: nothing)"


class AskFacts:
    """Authors and licences from the options, from `contribute.toml`, or from the person at the terminal."""

    name = "facts"
    title = "authors, licences, limits"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """What was given, and what it is for."""
        what = {"arch": recipe_of(walk.settings).arch, "family": walk.found["device"]["family"]}
        return asdict(walk.settings.facts) | {"measures": walk.settings.measures} | what

    def run(self, walk: Walk) -> Done:
        """Gather the facts.

        Raises:
            MissingFactsError: one is missing, and there is nobody to ask; all that are missing are named.
            BadFactError: a licence is no SPDX identifier, or a name or version is none.
        """
        # What was answered before is not asked again because another fact is given now.
        given = walk.settings.facts.over(CardFacts.from_dict({key: walk.before.get(key) for key in _LASTING}))
        wanted = [key for key in QUESTIONS if walk.settings.measures or key != "data_licence"]
        missing = [key for key in wanted if not getattr(given, key)]
        for key, value in ((key, getattr(given, key)) for key in wanted if key not in missing):
            if why := _wrong(key)(value):
                raise BadFactError(f"{key}: {why}", remedy=f"give {_LICENCE}", key=key, value=value)
        if walk.ask is None:
            _require(walk, missing)
        else:
            given = _asked(walk.ask, given, missing)
        return Done(asdict(_named(replace(given, limits=given.limits or ()), self.inputs(walk))))


def _require(walk: Walk, missing: list[str]) -> None:
    """Nobody can be asked: all must have been given, before hours are spent."""
    if missing:
        raise MissingFactsError(
            f"not told: {', '.join(missing)}",
            remedy=f"give {' '.join(map(_option, missing))}, or write them into {walk.folder / FACTS_FILE}",
            missing=missing,
        )


def _asked(ask: Ask, given: CardFacts, missing: list[str]) -> CardFacts:
    answers: dict[str, Any] = {key: ask.text(QUESTIONS[key], _wrong(key)) for key in missing}
    if given.limits is None:
        said = ask.text(_LIMITS, lambda _: None).strip()
        answers["limits"] = (said,) if said else ()
    return replace(given, **answers)


def _wrong(key: str) -> Callable[[str], str | None]:
    """What is wrong with an answer, None for a good one."""
    if key == "authors":
        return lambda text: None if text.strip() else "nobody is named"
    return lambda text: None if is_spdx(text) else f"{text!r} is no SPDX licence"


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')} ..."


def _named(facts: CardFacts, what: dict[str, Any]) -> CardFacts:
    """With a name and a version: those that were given, else the zoo's name and the first version that nobody has."""
    listed = Registry.default().index.entries
    usual = (entry.name for entry in listed if (entry.arch, entry.family) == (what["arch"], what["family"]))
    name = facts.name or next(usual, f"{what['arch']}-{what['family']}")
    known = [entry.semver for entry in listed if entry.name == name]
    version = facts.version or str(max(known).next_minor() if known else Version(1, 0, 0))
    try:
        CheckpointName.parse(f"{name}@{version}")
    except CheckpointNameError as error:
        raise BadFactError(error.message, remedy=error.remedy, key="name", value=name) from error
    return replace(facts, name=name, version=version)

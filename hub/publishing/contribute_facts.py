"""Facts of a card that only a person knows: those of the options, of an earlier run, or asked for at the terminal."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...zoo.files import write_files
from ...zoo.plain_json import json_file
from ..registry import CheckpointName, Registry, Version
from ..registry.errors import CheckpointNameError
from .check_files import is_spdx
from .errors import PublishError

FACTS_FILE = "facts.json"
_LICENCE = "an SPDX identifier, e.g. Apache-2.0 or CC-BY-4.0"
QUESTIONS = {
    "authors": "Who are the authors, as they are to be cited?",
    "weights_licence": f"Under which licence do you give the weights? ({_LICENCE})",
    "data_licence": f"And the programs measured here, with their latencies? ({_LICENCE})",
}
_LIMITS = "What should users know that no number tells? (empty: nothing)"


class Asker(Protocol):
    """Prompt of a person at a terminal."""

    def text(self, question: str, wrong: Callable[[str], str | None]) -> str:
        """Return an answer for which `wrong` gives None; its sentence is shown, and the question put again, else."""
        ...

    def yes(self, question: str) -> bool:
        """Return whether the person agrees."""
        ...


class CardFacts(msgspec.Struct, frozen=True):
    """Facts that only a person knows; None where one is not given.

    Attributes:
        authors: names, as they are to be cited.
        weights_licence: SPDX identifier; data_licence: of the programs measured here, SPDX too.
        limits: what users should know that no number tells.
        name, version: of the checkpoint; by default `arch-family` and the next one that is free.
    """

    authors: str | None = None
    weights_licence: str | None = None
    data_licence: str | None = None
    limits: tuple[str, ...] | None = None
    name: str | None = None
    version: str | None = None


def gather_facts(
    asked: CardFacts, out: Path, arch: str, family: str, ask: Asker | None, *, measures: bool
) -> CardFacts:
    """Return the facts of the options, of an earlier run, or of the person at the terminal; keep them in `out`.

    Args:
        asked: what the options give.
        out: folder of the contribution.
        arch, family: of the checkpoint.
        ask: None where nobody is there.
        measures: programs are measured here, whose licence is a fact, too.

    Raises:
        PublishError: one is missing, and there is nobody to ask; a licence is no SPDX identifier; a name or a
            version is none; or the file of an earlier run is damaged.
    """
    given = {key: value for key, value in msgspec.structs.asdict(asked).items() if value is not None}
    earlier = _read_facts(out / FACTS_FILE)
    facts = msgspec.structs.replace(earlier, **given)
    wanted = [key for key in QUESTIONS if measures or key != "data_licence"]
    missing = [key for key in wanted if not getattr(facts, key)]
    for key in set(wanted) - set(missing):
        if wrong := _wrong(key, getattr(facts, key)):
            raise PublishError(f"{key}: {wrong}", reason="fact", remedy=f"give {_LICENCE}", key=key)
    if ask is None and missing:
        options = " ".join(f"--{key.replace('_', '-')} ..." for key in missing)
        message = f"facts are missing: {', '.join(missing)}"
        raise PublishError(message, reason="facts", remedy=f"give {options}", missing=missing)
    answers: dict[str, Any] = {key: ask.text(QUESTIONS[key], partial(_wrong, key)) for key in missing} if ask else {}
    if facts.limits is None:
        limit = ask.text(_LIMITS, lambda _: None).strip() if ask else ""
        answers["limits"] = (limit,) if limit else ()
    entries = Registry.default().index.entries
    usual = (entry.name for entry in entries if (entry.arch, entry.family) == (arch, family))
    name = asked.name or next(usual, f"{arch}-{family}")
    known = [entry.semver for entry in entries if entry.name == name]
    # One that was chosen before stays: the checkpoint may be published as that.
    kept = earlier.version if earlier.name == name else None
    version = asked.version or kept or str(max(known).next_minor() if known else Version(1, 0, 0))
    try:
        CheckpointName.parse(f"{name}@{version}")
    except CheckpointNameError as error:
        raise PublishError(error.message, reason="fact", remedy=error.remedy, key="name") from error
    facts = msgspec.structs.replace(facts, **answers, name=name, version=version)
    write_files(out, {FACTS_FILE: json_file(msgspec.to_builtins(facts))})
    return facts


def _read_facts(path: Path) -> CardFacts:
    try:
        return msgspec.json.decode(path.read_bytes(), type=CardFacts)
    except FileNotFoundError:
        return CardFacts()
    except (msgspec.DecodeError, OSError) as error:
        message, remedy = f"{path} cannot be used: {error}", "correct it, or remove it: the facts are asked for again"
        raise PublishError(message, reason="state", remedy=remedy, path=str(path)) from error


def _wrong(key: str, text: str) -> str | None:
    """Return the fault of an answer, None for a good one."""
    if key == "authors":
        return None if text.strip() else "nobody is named"
    return None if is_spdx(text) else f"{text!r} is no SPDX licence"

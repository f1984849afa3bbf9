"""What a contribution is asked to be: options of the command, and what `contribute.toml` says."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .errors import BadFactError

FACTS_FILE = "contribute.toml"


@dataclass(frozen=True)
class CardFacts:
    """What only a person knows; None where it was not said.

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

    def over(self, other: CardFacts) -> CardFacts:
        """These facts, and where nothing was said those of `other`."""
        said = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(other, **said)

    @classmethod
    def read(cls, path: Path) -> CardFacts:
        """From a TOML file; nothing where there is none.

        Raises:
            BadFactError: it is no TOML, or has an unknown key or a value of a wrong type.
        """
        if not path.is_file():
            return cls()
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadFactError(f"{path} cannot be read: {error}", remedy="correct it", key="", value="") from error
        return cls(**{key: _checked(path, key, value) for key, value in raw.items()})

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> CardFacts:
        """From what a state keeps."""
        limits = raw.get("limits")
        return cls(**{**raw, "limits": None if limits is None else tuple(limits)})


def _checked(path: Path, key: str, value: Any) -> Any:
    known = [f.name for f in fields(CardFacts)]
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or known
        raise BadFactError(f"{path}: unknown key {key!r}", remedy=f"use {', '.join(near)}", key=key, value=str(value))
    if key == "limits" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if key != "limits" and isinstance(value, str):
        return value
    wanted = "a list of texts" if key == "limits" else "a text"
    raise BadFactError(f"{path}: {key} is not {wanted}", remedy=f"write {wanted}", key=key, value=str(value))


@dataclass(frozen=True)
class Settings:
    """What a contribution is made of.

    Attributes:
        output: folder of all that is made.
        device, target, linker: where to measure, see `choose_device`.
        threads: threads of a program, see `choose_device`.
        networks: suites, networks or operators to measure; programs: in all.
        corpora: measured already, to learn from instead of measuring; the first one judges.
        recipe: how to train; of `base`'s architecture unless given, else `tilenet`.
        base: checkpoint whose weights are the start.
        seed: of candidates and training.
        facts: for the card.
        repo: of the Hub, to publish to; index_repo: of the index that is asked to list it; None for none;
            index_named: as for `publish`.
        publish: whether to publish at all; confirmed: without asking.
    """

    output: Path
    device: str = "local"
    target: dict[str, Any] | None = None
    linker: str | None = None
    threads: int | None = None
    networks: tuple[str, ...] = ("full",)
    programs: int = 12000
    corpora: tuple[Path, ...] = ()
    recipe: str | None = None
    base: str | None = None
    seed: int = 0
    facts: CardFacts = field(default_factory=CardFacts)
    repo: str | None = None
    index_repo: str | None = None
    index_named: bool = True
    publish: bool = True
    confirmed: bool = False

    @property
    def measures(self) -> bool:
        """Whether programs are measured here."""
        return not self.corpora

    @property
    def destination(self) -> str | None:
        """The repository that it goes to, once a person agrees; None where nothing leaves this machine."""
        return self.repo if self.publish else None

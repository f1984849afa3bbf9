"""One step of a contribution, and what it works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .settings import Settings

if TYPE_CHECKING:
    from ..tuning.collect import CollectProgress


class Ask(Protocol):
    """Asks a person at a terminal."""

    def text(self, question: str, wrong: Callable[[str], str | None]) -> str:
        """An answer for which `wrong` gives None; else what it says is shown, and the question is put again."""
        ...

    def yes(self, question: str) -> bool:
        """Whether the person agrees."""
        ...


@dataclass
class Walk:
    """What a step works with.

    Attributes:
        settings: of the contribution.
        found: what the finished steps found, by step.
        before: what the step at hand found in an earlier run, with other inputs.
        ask: asks a person; None where there is nobody.
        note: told what is being done.
        progress: told after each program that is measured.
    """

    settings: Settings
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    ask: Ask | None = None
    note: Callable[[str], None] = lambda _: None
    progress: Callable[[CollectProgress], None] = lambda _: None

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return self.settings.output


@dataclass(frozen=True)
class Done:
    """What a step found, and the files that it wrote."""

    facts: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


class Step(Protocol):
    """One step. It is finished when it was run with the same inputs and its files are as it left them.

    Attributes:
        name: in the state, and for `--step`.
        title: what it does, for people.
    """

    name: str
    title: str

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """All that the result depends on, JSON-serialisable; of earlier steps what they found."""
        ...

    def run(self, walk: Walk) -> Done:
        """Do it, or go on with what an earlier, stopped run left.

        Raises:
            TchubError: it cannot be done; what was reached is kept.
        """
        ...

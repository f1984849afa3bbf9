"""The report of a check, and the checkpoint that is checked with all that it is checked against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...cards import CardData, CardError
from ..registry.files import CARD_FILE, CONFIG_FILE, METRICS_FILE, read_json
from ..registry.index import Index
from .errors import PublishError

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint

TOLERANCE = 0.002
MAX_TEXT_BYTES = 4 << 20


@dataclass(frozen=True)
class CheckFinding:
    """The answer to one question.

    Attributes:
        name: question, e.g. `licences`.
        outcome: `ok`, `failed`, or `not-checked` where something that the check needs was not given.
        detail: the fact behind the answer, in one line.
        remedy: what to do about it; None where all is well.
    """

    name: str
    outcome: Literal["ok", "failed", "not-checked"]
    detail: str
    remedy: str | None = None


def passed(name: str, detail: str) -> CheckFinding:
    """Return a finding without a fault."""
    return CheckFinding(name, "ok", detail)


def failed(name: str, detail: str, remedy: str | None) -> CheckFinding:
    """Return a finding that forbids publishing."""
    return CheckFinding(name, "failed", detail, remedy)


def not_checked(name: str, detail: str, remedy: str) -> CheckFinding:
    """Return a question without an answer, and how to get one."""
    return CheckFinding(name, "not-checked", detail, remedy)


@dataclass(frozen=True)
class CheckReport:
    """All findings, in the order in which a reviewer asks.

    Attributes:
        unchecked_allowed: a question without an answer does not forbid publishing.
    """

    findings: tuple[CheckFinding, ...]
    unchecked_allowed: bool = False

    @property
    def ok(self) -> bool:
        """True if the checkpoint may be published."""
        return not self.failed and (self.unchecked_allowed or not self.not_checked)

    @property
    def failed(self) -> tuple[CheckFinding, ...]:
        """Findings that forbid publishing."""
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    @property
    def not_checked(self) -> tuple[CheckFinding, ...]:
        """Questions without an answer."""
        return tuple(finding for finding in self.findings if finding.outcome == "not-checked")

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def require(self) -> None:
        """Raise PublishError (reason `check`, with all `findings`) for a checkpoint that may not be published."""
        if not self.ok:
            wrong = self.failed or self.not_checked
            details = "; ".join(f"{finding.name}: {finding.detail}" for finding in wrong)
            raise PublishError(
                f"{'failed' if self.failed else 'not checked'}: {details}",
                reason="check",
                remedy=wrong[0].remedy,
                findings=self.as_dict()["findings"],
            )


@dataclass(frozen=True)
class CheckSubject:
    """One checkpoint, and what it is checked against. Files are read when a question first needs them.

    Attributes:
        index: the published checkpoints.
        corpora: measured programs at hand, by their folders' names.
        tolerance: how far a score may be from the published one.
        threads: that may be used.
        note: called with a line on what is being done.
    """

    folder: Path
    index: Index
    corpora: dict[str, Corpus] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    threads: int = 1
    note: Callable[[str], None] = lambda _: None

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json; {} without one."""
        return read_json(self.folder / CONFIG_FILE)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """metrics.json; {} without one."""
        return read_json(self.folder / METRICS_FILE)

    @cached_property
    def text(self) -> str:
        """The card; empty without one. Raises CardError for one that is no text."""
        path = self.folder / CARD_FILE
        try:
            with path.open("rb") as file:
                return file.read(MAX_TEXT_BYTES).decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            remedy = "write it again from config.json and metrics.json"
            raise CardError(f"{CARD_FILE} cannot be read: {error}", remedy=remedy, field=CARD_FILE) from error

    @cached_property
    def card(self) -> CardData:
        """The facts of the card; raises CardError for a field of a wrong type."""
        return CardData.from_files(self.config, self.metrics)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The audited and loaded checkpoint; raises CheckpointError."""
        from ...zoo.models import Checkpoint

        return Checkpoint.load(self.folder)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return those names, each once, of which no corpus is at hand."""
        return [name for name in dict.fromkeys(names) if name not in self.corpora]

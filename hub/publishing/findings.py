"""What a check of a checkpoint answers: one finding a question, each with its remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...zoo.errors import TchubError

Outcome = Literal["ok", "failed", "not-checked"]


@dataclass(frozen=True)
class Finding:
    """One answer.

    Attributes:
        name: what was checked, e.g. `licences`.
        outcome: `ok`, `failed`, or `not-checked` where something that the check needs was not given.
        detail: the fact behind the answer, in one line.
        remedy: what to do about it; None where all is well.
    """

    name: str
    outcome: Outcome
    detail: str
    remedy: str | None = None


def passed(name: str, detail: str) -> Finding:
    """A finding that is as it should be."""
    return Finding(name, "ok", detail)


def failed(name: str, detail: str, remedy: str | None) -> Finding:
    """A finding that forbids publishing."""
    return Finding(name, "failed", detail, remedy)


def not_checked(name: str, detail: str, remedy: str) -> Finding:
    """A question without an answer, and what would give one."""
    return Finding(name, "not-checked", detail, remedy)


@dataclass(frozen=True)
class Report:
    """All findings, in the order in which a reviewer asks.

    Attributes:
        unchecked_allowed: whether a question that was not answered is none that failed.
    """

    findings: tuple[Finding, ...]
    unchecked_allowed: bool = False

    @property
    def ok(self) -> bool:
        """Whether the checkpoint may be published."""
        return not self.failed and (self.unchecked_allowed or not self.not_checked)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    @property
    def not_checked(self) -> tuple[Finding, ...]:
        """What was not looked at."""
        return tuple(finding for finding in self.findings if finding.outcome == "not-checked")

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def require(self) -> None:
        """Go on only with a checkpoint that may be published.

        Raises:
            CheckFailedError: it may not.
        """
        if not self.ok:
            wrong = self.failed or self.not_checked
            what = "failed" if self.failed else "not checked"
            raise CheckFailedError(
                f"{what}: " + "; ".join(f"{finding.name}: {finding.detail}" for finding in wrong),
                remedy=wrong[0].remedy,
                findings=self.as_dict()["findings"],
            )


class CheckFailedError(TchubError):
    """A checkpoint may not be published as it is. Field: findings, as in `Report.as_dict`."""

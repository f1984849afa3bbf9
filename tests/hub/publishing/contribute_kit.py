"""A contribution in seconds: everything is real but the measuring, the doctor, and the Hub."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest
from fake_tuning import latency_of_key
from tchub.hub.device.doctor import Check
from tchub.hub.device.measure import Measurement
from tchub.hub.publishing.contribute import Contribution, ContributionConfig
from tchub.hub.publishing.contribute_facts import CardFacts

NETWORKS = ("dense-small", "dense-square", "dense-tall", "dense-row", "batch-matmul-scores", "batch-matmul-context")
FACTS = CardFacts(authors="Ada Lovelace", weights_licence="Apache-2.0", data_licence="CC-BY-4.0", limits=("A toy.",))
RECIPE = 'arch = "tcl"\nepochs = 2\nprograms_per_group = 8\n[model]\nhidden = 8\nd_model = 16\nhead = 4\n'


@dataclass(frozen=True)
class Finished:
    """A finished contribution.

    Attributes:
        paid: programs measured.
    """

    folder: Path
    result: Contribution
    notes: list[str]
    paid: int

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def corpus(self) -> Path:
        return next((self.folder / "corpora").iterdir())


class FakeMeasurer:
    """Measures by the name of a program; counts what was paid for.

    Args:
        after: called with the number of programs so far, after each.
    """

    overlaps = False

    def __init__(self, after: Callable[[int], None] = lambda n: None) -> None:
        self.after, self.paid = after, 0
        self.outcomes: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def know(self, task_id: str, latency: float) -> None:
        """Nothing is stopped early."""

    def measure(self, candidates: Iterable[Any]) -> Iterator[tuple[Any, Measurement]]:
        """One after the other."""
        for candidate in candidates:
            self.paid += 1
            self.outcomes["ok"] += 1
            yield candidate, Measurement((latency_of_key(candidate.key),), measured_at=float(self.paid))
            self.after(self.paid)


class Answers:
    """A person at a terminal who has an answer to every question, by a word of it."""

    def __init__(self, answers: dict[str, list[str]], agrees: bool = True) -> None:
        self.answers, self.agrees = answers, agrees
        self.asked: list[str] = []

    def text(self, question: str, wrong: Callable[[str], str | None]) -> str:
        """Return the next answer that is not wrong."""
        self.asked.append(question)
        left = next(left for word, left in self.answers.items() if word in question)
        while wrong(answer := left.pop(0)):
            self.asked.append(question)
        return answer

    def yes(self, question: str) -> bool:
        """Return the person's opinion."""
        self.asked.append(question)
        return self.agrees


def fake_machine(patch: pytest.MonkeyPatch, measurer: FakeMeasurer, checks: tuple[Check, ...] = ()) -> None:
    """Let the doctor find the given checks, `measurer` measure, and plots have no lines, which take seconds."""
    from tchub.hub.device.device_choice import ChosenDevice

    patch.setattr("tchub.hub.device.doctor.run_checks", lambda: iter(checks))
    patch.setattr("tchub.cards.plots.svg_text", lambda figure: "<svg><style></style></svg>")
    patch.setattr(ChosenDevice, "measurer", lambda self, config: measurer)


def small_config(folder: Path, **changes: Any) -> ContributionConfig:
    """Return a small contribution of this machine that is not published."""
    recipe = folder.parent / "recipe.toml"
    recipe.write_text(RECIPE)
    small = ContributionConfig(folder, workload=NETWORKS, programs=60, recipe=str(recipe), facts=FACTS, publish=False)
    return replace(small, **changes)


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the files of the checkpoint of a contribution."""
    files = [path for path in (folder / "checkpoint").rglob("*") if path.is_file()]
    return {path.relative_to(folder / "checkpoint"): path.read_bytes() for path in files}

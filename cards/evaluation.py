"""What metrics.json says: scores beside baselines, with few labels of the task itself, and on other corpora."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import CardError
from .fields import as_object, read_number, read_object, read_text, read_whole, wrong
from .scores import BASELINES, SCORES, Scores
from .transfer import Transfer, read_transfer

METRICS_FORMAT = 1
RIVALS = {"gbdt": "gradient-boosted trees", "fine-tune": "fine-tuning by gradient steps"}


@dataclass(frozen=True)
class FewShot:
    """Scores when some programs of each test task are measured: the checkpoint's first, then its rivals'."""

    labels: int
    lines: tuple[Scores, ...]


@dataclass(frozen=True)
class Evaluation:
    """How the scores were made, and all of them.

    Attributes:
        tasks, programs: that were ranked.
        validation: scores on the validation tasks.
        seeds: trainings that `spread` was taken over; spread: score -> (mean, standard deviation).
        chosen_by: how the published one of these trainings was chosen.
        command, measured_by: that made the scores; that made the curves and the scores on other corpora.
    """

    corpus: str | None = None
    split: str | None = None
    device: str | None = None
    seed: int | None = None
    command: str | None = None
    measured_by: str | None = None
    tasks: int | None = None
    programs: int | None = None
    scores: tuple[Scores, ...] = ()
    validation: Scores | None = None
    seeds: int | None = None
    chosen_by: str | None = None
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    few_shot: tuple[FewShot, ...] = ()
    transfer: tuple[Transfer, ...] = ()

    @property
    def model(self) -> Scores | None:
        """The checkpoint's own line."""
        return next((line for line in self.scores if line.key == "model"), None)

    @property
    def beaten_by(self) -> tuple[Scores, ...]:
        """Baselines that have a higher score than the checkpoint."""
        model = self.model
        return () if model is None else tuple(line for line in self.scores if line.ahead_of(model))


def read_evaluation(metrics: Mapping[str, Any]) -> Evaluation:
    """Gather what metrics.json holds.

    Raises:
        CardError: a field has the wrong type, or the file is of a newer format.
    """
    number = metrics.get("format", METRICS_FORMAT)
    if not isinstance(number, int) or number > METRICS_FORMAT:
        raise CardError(
            f"metrics.json has format {number}; this tchub reads up to {METRICS_FORMAT}",
            remedy="upgrade tchub: pip install -U tchub",
            field="format",
        )
    results, seeds = read_object(metrics, "results"), read_object(metrics, "seeds")
    validation = read_object(metrics, "validation")
    lines = tuple(_line(results, key) for key in sorted(results, key=_place) if results[key])
    model = next((line for line in lines if line.key == "model"), None)
    return Evaluation(
        **{key: read_text(metrics, key) for key in ("corpus", "split", "device", "command", "measured_by")},
        tasks=read_whole(metrics, "tasks") or (model and model.tasks),
        programs=read_whole(metrics, "programs") or (model and model.programs),
        seed=read_whole(metrics, "seed"),
        scores=lines,
        validation=Scores.read("validation", "validation tasks", validation) if validation else None,
        seeds=read_whole(seeds, "count"),
        chosen_by=read_text(seeds, "chosen_by"),
        spread=_spread(seeds),
        few_shot=_few_shot(metrics),
        transfer=read_transfer(metrics),
    )


def _line(results: Mapping[str, Any], key: str) -> Scores:
    label = "**this checkpoint**" if key == "model" else BASELINES.get(key, key)
    return Scores.read(key, label, read_object(results, key))


def _place(key: str) -> tuple[int, str]:
    """The checkpoint first, then the known baselines in their order, then others by name."""
    known = ["model", *BASELINES]
    return (known.index(key) if key in known else len(known), key)


def _spread(seeds: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each score over the seeds, as far as they were measured; of one seed none."""
    found = {}
    if (read_whole(seeds, "count") or 0) < 2:
        return found
    for name in SCORES:
        line = read_object(seeds, name)
        mean, deviation = read_number(line, "mean"), read_number(line, "stdev")
        if mean is not None and deviation is not None:
            found[name] = (mean, deviation)
    return found


def _few_shot(metrics: Mapping[str, Any]) -> tuple[FewShot, ...]:
    """By number of labels, in order."""
    own, rivals = read_object(metrics, "few_shot"), read_object(metrics, "few_shot_rivals")
    who = {"model": own} | {name: read_object(rivals, name) for name in rivals}
    numbers = sorted({_labels(text) for rows in who.values() for text in rows})
    labels = {"model": "**this checkpoint**"} | RIVALS
    return tuple(
        FewShot(
            number,
            tuple(
                Scores.read(name, labels.get(name, name), as_object(rows[str(number)], str(number)))
                for name, rows in who.items()
                if str(number) in rows
            ),
        )
        for number in numbers
    )


def _labels(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise wrong("few_shot", "keyed by numbers of labels")
    return int(text)

"""Questions about a checkpoint's scores: are they there, are they possible, and do they come out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...cards import SCORES, CardData, ScoreLine
from ..registry.store import cache_root
from .findings import Finding, failed, not_checked, passed
from .subject import Subject

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus

# Another release may read a few more programs of the same log.
_SAME_DATA = 0.01
_AGAIN = "evaluate the checkpoint again (`tchub evaluate --baselines --json`) and render the card from what it says"


@dataclass(frozen=True)
class Judged:
    """Scores on one corpus, as published or as they came out again."""

    corpus: str
    scores: Mapping[str, Any]
    tasks: int | None
    programs: int | None


def check_metrics(subject: Subject) -> Finding:
    """All five scores of the checkpoint and those of a random order, each between 0 and 1."""
    run = subject.card.metrics
    problems = [f"{line.key}.{key} is {value}" for line in run.scores for key, value in _impossible(line)]
    lines = {line.key: line for line in run.scores}
    for name, wanted in (("model", SCORES), ("random", SCORES[:3])):
        absent = [key for key in wanted if name not in lines or lines[name].value(key) is None]
        problems += [f"no {name}.{key}" for key in absent]
    problems += [] if run.split else ["no split"]
    if problems:
        return failed("metrics", "; ".join(problems), _AGAIN)
    return passed("metrics", f"{len(SCORES)} scores on the {run.split} split of {run.corpus}, random choice beside")


def _impossible(line: ScoreLine) -> Iterator[tuple[str, float]]:
    for key in SCORES:
        value = line.value(key)
        if value is not None and not 0 <= value <= 1:
            yield key, value


def check_scores(subject: Subject) -> Finding:
    """The evaluation that metrics.json names gives the published scores again, within the tolerance."""
    said = published(subject.card)
    if absent := subject.missing([judged.corpus for judged in said]):
        remedy = f"give {' '.join(f'--corpus DIR/{name}' for name in absent)}, or --without-evaluation"
        return not_checked("scores", f"needs the corpus {', '.join(absent)}", remedy)
    subject.note("evaluating again: " + ", ".join(judged.corpus for judged in said))
    again = judge_again(subject, said)
    compared = [(one, other) for one in said for other in again if one.corpus == other.corpus]
    differences = [d for one, other in compared for d in _differences(one, other, subject.tolerance)]
    if differences or len(compared) != len(said):
        return failed("scores", "; ".join(differences) or "nothing could be evaluated", _AGAIN)
    largest = max((abs(b - a) for one, other in compared for _, a, b in _pairs(one, other)), default=0.0)
    detail = f"come out again on {', '.join(judged.corpus for judged in said)}; largest difference {largest:.4f}"
    return passed("scores", detail)


def published(card: CardData) -> list[Judged]:
    """What metrics.json says: one entry, or of a knowledge base one for each device that was judged."""
    if card.is_knowledge_base:
        return [
            Judged(device.corpus, _scores(device.now), device.tasks, device.programs)
            for device in card.metrics.devices
            if device.now
        ]
    run = card.metrics
    return [Judged(run.corpus or "", _scores(run.model), run.tasks, run.programs)]


def _scores(line: ScoreLine | None) -> dict[str, float | None]:
    return {key: line.value(key) if line else None for key in SCORES}


def judge_again(subject: Subject, said: list[Judged]) -> list[Judged]:
    """The same evaluation, now."""
    corpora = [subject.corpora[judged.corpus] for judged in said]
    if subject.is_base:
        return list(_judge_base(subject, corpora))
    from .evaluate import evaluate

    split = subject.card.metrics.split or "test"
    cache = cache_root().parent / "statements"
    found = evaluate(subject.checkpoint, corpora[0], split, threads=subject.threads, cache=cache)
    return [Judged(found["corpus"], found["results"]["model"], found["tasks"], found["programs"])]


def _judge_base(subject: Subject, corpora: list[Corpus]) -> Iterator[Judged]:
    """Of every device the test tasks that no device taught."""
    from ...zoo.adapt.continual.curriculum import Curriculum
    from ...zoo.adapt.continual.lineage import seen_tasks
    from ...zoo.features import get_schema
    from ...zoo.training import evaluate_model
    from ...zoo.training.programs import StatementStore

    checkpoint, store = subject.checkpoint, StatementStore()
    schema = get_schema(checkpoint.config.feature_schema)
    curriculum = Curriculum((), corpora, schema, seen_tasks(checkpoint.config))
    for corpus in corpora:
        data = curriculum.test(corpus, store)
        if data is not None:
            scores = evaluate_model(checkpoint.model, data)
            yield Judged(corpus.path.resolve().name, scores, len(data.task_ids), len(data))


def _pairs(one: Judged, other: Judged) -> Iterator[tuple[str, float, float]]:
    for key in SCORES:
        if one.scores.get(key) is not None and key in other.scores:
            yield key, one.scores[key], other.scores[key]


def _differences(one: Judged, other: Judged, tolerance: float) -> Iterator[str]:
    """What does not agree, in words."""
    counts = (("tasks", one.tasks, other.tasks, 0.0), ("programs", one.programs, other.programs, _SAME_DATA))
    for what, said, found, share in counts:
        if said is not None and abs((found or 0) - said) > share * said:
            yield f"{one.corpus}: {said} {what} published, {found} now"
    for key, said, found in _pairs(one, other):
        if not abs(found - said) <= tolerance:
            yield f"{one.corpus}: {key} {said:.4f} published, {found:.4f} now ({found - said:+.4f})"

"""The check of a checkpoint before it is published: one question after the other, with scores evaluated again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...cards import SCORES, CardData, CorpusFacts, ScoreLine
from ...zoo.errors import TchubError
from ..registry import Registry
from ..registry.entry import as_object
from ..registry.files import CONFIG_FILE, read_json
from ..registry.index import Index
from ..registry.store import cache_root
from .check_files import (
    check_device,
    check_facts,
    check_files,
    check_licences,
    check_metadata,
    check_name,
    check_text,
    check_version,
    check_weights,
)
from .check_report import TOLERANCE, CheckFinding, CheckReport, CheckSubject, failed, not_checked, passed

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus

# Another release may read a few more programs of the same log.
_SAME_DATA = 0.01
_AGAIN = "evaluate the checkpoint again (`tchub evaluate --baselines --json`) and render the card from its result"
_RETRAIN = "train it again with `tchub train`, which keeps every test task out"
_OTHER_START = "start from random weights, or from a checkpoint that did not learn these tasks"


@dataclass(frozen=True)
class CorpusScores:
    """Scores on one corpus, as published or as evaluated again."""

    corpus: str
    scores: dict[str, float | None]
    tasks: int | None
    programs: int | None


def check(
    path: Path | str,
    *,
    corpora: Sequence[Path | str | Corpus] = (),
    tolerance: float = TOLERANCE,
    evaluate: bool = True,
    index: Index | None = None,
    threads: int = 1,
    note: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """Ask all `QUESTIONS` about a checkpoint's folder.

    Args:
        path: of the folder.
        corpora: that it learnt from and is judged by, in folders of the names that the config uses.
        tolerance: how far a score that is evaluated again may be from the published one.
        evaluate: evaluate the scores again and search the training for test tasks; without, both questions stay open,
            and the report does not mind.
        index: the published checkpoints; the default index unless given.
        threads: to use for evaluating.
        note: called with a line on what is being done.

    Returns:
        A finding for every question; nothing that is wrong with the checkpoint is raised.

    Raises:
        CorpusError: one of the corpora cannot be opened.
        IndexFileError: the index cannot be read.
    """
    from ...zoo.corpus import Corpus

    opened = [corpus if isinstance(corpus, Corpus) else Corpus.open(corpus) for corpus in corpora]
    by_name = {corpus.path.resolve().name: corpus for corpus in opened}
    known = Registry.default().index if index is None else index
    subject = CheckSubject(Path(path), known, by_name, tolerance, threads, note)
    return CheckReport(tuple(_ask(name, subject, evaluate) for name in QUESTIONS), unchecked_allowed=not evaluate)


def _ask(name: str, subject: CheckSubject, evaluate: bool) -> CheckFinding:
    if name in ("scores", "leak") and not evaluate:
        return not_checked(name, "left out", "give the corpora, and leave out --no-evaluate")
    if name != "files" and not (subject.folder / CONFIG_FILE).is_file():
        return not_checked(name, f"there is no {CONFIG_FILE}", "give the folder of a checkpoint")
    try:
        return QUESTIONS[name](subject)
    except TchubError as error:
        return failed(name, error.message, error.remedy)
    except OSError as error:  # a file that another question misses too, or that may not be read
        return failed(name, f"{error.filename}: {error.strerror}", "give a folder whose files are all there to be read")


# Scores


def check_metrics(subject: CheckSubject) -> CheckFinding:
    """All five scores of the checkpoint and those of a random order, each between 0 and 1."""
    run = subject.card.metrics
    values = [(line.key, key, line.value(key)) for line in run.scores for key in SCORES]
    problems = [f"{name}.{key} is {value}" for name, key, value in values if value is not None and not 0 <= value <= 1]
    measured = {(name, key) for name, key, value in values if value is not None}
    wanted = [("model", key) for key in SCORES] + [("random", key) for key in SCORES[:3]]
    problems += [f"no {name}.{key}" for name, key in wanted if (name, key) not in measured]
    problems += [] if run.split else ["no split"]
    if problems:
        return failed("metrics", "; ".join(problems), _AGAIN)
    return passed("metrics", f"{len(SCORES)} scores on the {run.split} split of {run.corpus}, random choice beside")


def check_scores(subject: CheckSubject) -> CheckFinding:
    """The evaluation that metrics.json names gives the published scores again, within the tolerance."""
    published = _published(subject.card)
    names = ", ".join(scores.corpus for scores in published)
    if absent := subject.missing([scores.corpus for scores in published]):
        return not_checked("scores", f"needs the corpus {', '.join(absent)}", _give(absent))
    subject.note(f"evaluating again: {names}")
    again = {scores.corpus: scores for scores in _evaluate_again(subject, published)}
    compared = [(scores, again[scores.corpus]) for scores in published if scores.corpus in again]
    differences = [text for one, other in compared for text in _differences(one, other, subject.tolerance)]
    if differences or len(compared) != len(published):
        return failed("scores", "; ".join(differences) or "nothing could be evaluated", _AGAIN)
    largest = max((abs(b - a) for one, other in compared for _, a, b in _pairs(one, other)), default=0.0)
    return passed("scores", f"come out again on {names}; largest difference {largest:.4f}")


def _give(corpora: Sequence[str]) -> str:
    return f"give {' '.join(f'--corpus DIR/{name}' for name in corpora)}, or --no-evaluate"


def _published(card: CardData) -> list[CorpusScores]:
    """Return the scores of metrics.json; of a knowledge base those of each device that was judged."""
    run = card.metrics
    if card.is_knowledge_base:
        judged = [device for device in run.devices if device.now]
        return [CorpusScores(one.corpus, _values(one.now), one.tasks, one.programs) for one in judged]
    return [CorpusScores(run.corpus or "", _values(run.model), run.tasks, run.programs)]


def _values(line: ScoreLine | None) -> dict[str, float | None]:
    return {key: line.value(key) if line else None for key in SCORES}


def _evaluate_again(subject: CheckSubject, published: list[CorpusScores]) -> Iterator[CorpusScores]:
    corpora = [subject.corpora[scores.corpus] for scores in published]
    if subject.card.is_knowledge_base:
        yield from _evaluate_devices(subject, corpora)
        return
    from .evaluate import EvaluationConfig, evaluate

    split, cache = subject.card.metrics.split or "test", cache_root().parent / "statements"
    result = evaluate(subject.checkpoint, corpora[0], EvaluationConfig(split, threads=subject.threads, cache=cache))
    yield CorpusScores(result["corpus"], result["results"]["model"], result["tasks"], result["programs"])


def _evaluate_devices(subject: CheckSubject, corpora: list[Corpus]) -> Iterator[CorpusScores]:
    """Return the scores of a knowledge base on each device's test tasks that no device taught."""
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
            scores: dict[str, float | None] = {**evaluate_model(checkpoint.model, data)}
            yield CorpusScores(corpus.path.resolve().name, scores, len(data.task_ids), len(data))


def _pairs(one: CorpusScores, other: CorpusScores) -> Iterator[tuple[str, float, float]]:
    for key in SCORES:
        published, now = one.scores.get(key), other.scores.get(key)
        if published is not None and now is not None:
            yield key, published, now


def _differences(one: CorpusScores, other: CorpusScores, tolerance: float) -> Iterator[str]:
    counts = (("tasks", one.tasks, other.tasks, 0.0), ("programs", one.programs, other.programs, _SAME_DATA))
    for unit, published, now, share in counts:
        if published is not None and abs((now or 0) - published) > share * published:
            yield f"{one.corpus}: {published} {unit} published, {now} now"
    for key, published, now in _pairs(one, other):
        if not abs(now - published) <= tolerance:
            yield f"{one.corpus}: {key} {published:.4f} published, {now:.4f} now ({now - published:+.4f})"


# Leaks
#
# A config gives the number of tasks and programs of every corpus that were learnt. Training keeps a task out when a
# test task of any of its corpora computes the same, whatever the framework and the device (or, with one corpus, when it
# is a test task there), so the rest of a corpus bounds both numbers: a checkpoint with more has learnt what it is
# judged by. That corpora have tasks in common is no leak by itself. What the checkpoint that it started from had learnt
# counts too, and that one knew nothing of the corpus that judges now.


@dataclass(frozen=True)
class LearntCorpora:
    """Corpora that one training learnt: the checkpoint's own (`start` is empty), or that of one that it started from.

    Attributes:
        start: `name@version`; corpora: None where the start is not on this machine.
    """

    start: str
    corpora: tuple[CorpusFacts, ...] | None

    @property
    def names(self) -> list[str]:
        """Names of the corpora."""
        return [str(corpus.name) for corpus in self.corpora or ()]


def check_leak(subject: CheckSubject) -> CheckFinding:
    """No test task was learnt, as far as the config and the corpora tell."""
    trainings = list(_trainings(subject))
    names = [name for training in trainings for name in training.names]
    if absent := subject.missing([*(scores.corpus for scores in _published(subject.card)), *names]):
        return not_checked("leak", f"needs the corpora that teach and judge: {', '.join(absent)}", _give(absent))
    if unknown := [training.start for training in trainings if training.corpora is None]:
        detail = f"what its start {unknown[0]} learnt is not known here"
        return not_checked("leak", detail, f"tchub pull {unknown[0]}")
    for training in trainings:
        is_base = subject.card.is_knowledge_base
        if problems := _learnt_judges(subject) if is_base else _too_many(subject, training):
            return failed("leak", "; ".join(problems), _OTHER_START if training.start else _RETRAIN)
    return passed("leak", f"no test task is in what was learnt of {', '.join(dict.fromkeys(names))}")


def _trainings(subject: CheckSubject) -> Iterator[LearntCorpora]:
    """Yield the checkpoint's own training, then those of its starts, nearest first."""
    registry, config, seen = Registry.default(), subject.config, {""}
    yield _learnt("", config)
    while (start := str(as_object(config.get("training")).get("init") or "")) not in seen:
        seen.add(start)
        folder = next((registry.folder(entry) for entry in registry.entries() if entry.id == start), None)
        config = read_json(folder / CONFIG_FILE) if folder else {}
        yield _learnt(start, config) if config else LearntCorpora(start, None)


def _learnt(start: str, config: dict[str, object]) -> LearntCorpora:
    corpora = CardData.from_files(config, {}).corpora
    return LearntCorpora(start, tuple(corpus for corpus in corpora if corpus.name and corpus.programs))


def _too_many(subject: CheckSubject, training: LearntCorpora) -> list[str]:
    """Return the corpora of which more was learnt than they have without the test tasks."""
    judge = subject.corpora[_published(subject.card)[0].corpus]
    free = _free([subject.corpora[name] for name in training.names], judge)
    who = f" by its start {training.start}" if training.start else ""
    problems = []
    for facts, (tasks, programs) in zip(training.corpora or (), free, strict=True):
        for unit, learnt, most in (("tasks", facts.tasks, tasks), ("programs", facts.programs, programs)):
            if learnt is not None and learnt > most:
                problems.append(f"{learnt} {unit} of {facts.name} were learnt{who}, {most} are no test")
    return problems


def _free(corpora: Sequence[Corpus], judge: Corpus) -> list[tuple[int, int]]:
    """Return of each corpus the tasks, and their valid programs, that compute nothing that any corpus tests on."""
    from ...zoo.corpus import exclude_computations, held_out_computations, split_tasks, usable_programs

    held = held_out_computations([*corpora, judge])
    counts = []
    for corpus in corpora:
        split = exclude_computations(corpus, split_tasks(corpus), held)
        usable = usable_programs(corpus, (*split.train, *split.val)).programs
        counts.append((len(usable), sum(map(len, usable.values()))))
    return counts


def _learnt_judges(subject: CheckSubject) -> list[str]:
    """Return the devices of a knowledge base that are judged by more tasks than it has not learnt."""
    from ...zoo.adapt.continual.lineage import computation_key, seen_tasks
    from ...zoo.corpus import computations, split_tasks

    learnt = seen_tasks(subject.checkpoint.config).learnt
    problems = []
    for scores in _published(subject.card):
        corpus = subject.corpora[scores.corpus]
        known = computations(corpus)
        left = sum(computation_key(known[task]) not in learnt for task in split_tasks(corpus).test)
        if (scores.tasks or 0) > left:
            problems.append(f"{scores.tasks} tasks of {scores.corpus} judge it, {left} of its tests are not learnt")
    return problems


# In the order in which a reviewer asks; CONTRIBUTING.md has the same list.
QUESTIONS: dict[str, Callable[[CheckSubject], CheckFinding]] = {
    "files": check_files,
    "weights": check_weights,
    "name": check_name,
    "version": check_version,
    "device": check_device,
    "facts": check_facts,
    "card": check_text,
    "metadata": check_metadata,
    "licences": check_licences,
    "metrics": check_metrics,
    "scores": check_scores,
    "leak": check_leak,
}

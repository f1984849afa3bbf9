"""The check of a checkpoint before it is published: one question after the other, with scores evaluated again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...cards import SCORES, CardData, CorpusFacts
from ...zoo.errors import TchubError
from ..registry import Registry
from ..registry.entry import as_object
from ..registry.files import CONFIG_FILE, read_json
from ..registry.index import Index
from ..registry.store import cache_root
from .check_files import (
    TOLERANCE,
    CheckSubject,
    check_device,
    check_facts,
    check_files,
    check_licences,
    check_name,
    check_text,
    check_version,
    check_weights,
    failed,
    open_question,
)
from .errors import PublishError

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus

# Another release may read a few more programs of the same log.
_SAME_DATA = 0.01
# Parts of a corpus that a card may be judged on.
_SPLITS = ("test", "val", "train", "all")
_AGAIN = "evaluate the checkpoint again (`tchub evaluate --json`) and render the card from its result"
_RETRAIN = "train it again with `tchub train`, which keeps every test task out"
_OTHER_START = "start from random weights, or from a checkpoint that did not learn these tasks"


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
        return not self.failed and (self.unchecked_allowed or not self.not_checked)

    @property
    def failed(self) -> tuple[CheckFinding, ...]:
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    @property
    def not_checked(self) -> tuple[CheckFinding, ...]:
        return tuple(finding for finding in self.findings if finding.outcome == "not-checked")

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def require(self) -> None:
        """Raise PublishError (reason `check`, with all `findings`) for a checkpoint that may not be published."""
        if not self.ok:
            wrong = self.failed or self.not_checked
            details = "; ".join(f"{finding.name}: {finding.detail}" for finding in wrong)
            message = f"{'failed' if self.failed else 'not checked'}: {details}"
            findings = self.as_dict()["findings"]
            raise PublishError(message, reason="check", remedy=wrong[0].remedy, findings=findings)


def check(
    path: Path | str,
    *,
    corpora: Sequence[Path | str | Corpus] = (),
    evaluate: bool = True,
    index: Index | None = None,
    threads: int = 1,
    note: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """Ask all `QUESTIONS` about a checkpoint's folder.

    Args:
        corpora: that it learnt from and is judged by, in folders of the names that the config uses.
        evaluate: evaluate the scores again and search the training for test tasks; without, both questions stay open,
            and the report does not mind.
        index: the published checkpoints; the default index unless given.

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
    subject = CheckSubject(Path(path), known, by_name, threads, note)
    return CheckReport(tuple(_ask(name, subject, evaluate) for name in QUESTIONS), unchecked_allowed=not evaluate)


def _ask(name: str, subject: CheckSubject, evaluate: bool) -> CheckFinding:
    try:
        if name in ("scores", "leak") and not evaluate:
            raise open_question("left out", "give the corpora, and leave out --no-evaluate")
        if name != "files" and not (subject.folder / CONFIG_FILE).is_file():
            raise open_question(f"there is no {CONFIG_FILE}", "give the folder of a checkpoint")
        return CheckFinding(name, "ok", QUESTIONS[name](subject))
    except TchubError as error:
        is_open = isinstance(error, PublishError) and error.reason == "open"
        return CheckFinding(name, "not-checked" if is_open else "failed", error.message, error.remedy)
    except OSError as error:  # a file that another question misses too, or that may not be read
        remedy = "give a folder whose files are all there to be read"
        return CheckFinding(name, "failed", f"{error.filename}: {error.strerror}", remedy)


# Scores


def check_metrics(subject: CheckSubject) -> str:
    """Check all five scores of the checkpoint and those of a random order: each lies between 0 and 1."""
    run = subject.card.metrics
    values = [(line.key, key, line.value(key)) for line in run.scores for key in SCORES]
    problems = [f"{name}.{key} is {value}" for name, key, value in values if value is not None and not 0 <= value <= 1]
    measured = {(name, key) for name, key, value in values if value is not None}
    wanted = [("model", key) for key in SCORES] + [("random", key) for key in SCORES[:3]]
    problems += [f"no {name}.{key}" for name, key in wanted if (name, key) not in measured]
    problems += [] if run.split else ["no split"]
    if problems:
        raise failed("; ".join(problems), _AGAIN)
    return f"{len(SCORES)} scores on the {run.split} split of {run.corpus}, random choice beside"


def check_scores(subject: CheckSubject) -> str:
    """Check that the evaluation that metrics.json names gives the published scores again, within the tolerance."""
    from .evaluate import EvaluationConfig, evaluate

    corpus, run = _judging_corpus(subject), subject.card.metrics
    split = run.split or _SPLITS[0]
    if split not in _SPLITS:  # whoever made the checkpoint does not choose a file that is read here
        raise failed(f"the split {split[:80]!r} is none of {', '.join(_SPLITS)}", _AGAIN)
    name = corpus.path.resolve().name
    subject.note(f"evaluating again: {name}")
    cache = cache_root().parent / "statements"
    config = EvaluationConfig(split, threads=subject.threads, cache=cache)
    now = evaluate(subject.checkpoint, corpus, config)
    # Published are scores of the weights alone, or `tchub evaluate`'s, which has both.
    before = run.results.get("weights") or run.model
    scores = now["results"].get("weights") or now["results"]["model"]
    problems, largest = [], 0.0
    for unit, published, share in (("tasks", run.tasks, 0.0), ("programs", run.programs, _SAME_DATA)):
        if published is not None and abs(now[unit] - published) > share * published:
            problems.append(f"{name}: {published} {unit} published, {now[unit]} now")
    for key in SCORES:
        published, score = before.value(key) if before else None, scores[key]
        if published is None:
            continue
        largest = max(largest, abs(score - published))
        if not abs(score - published) <= TOLERANCE:
            problems.append(f"{name}: {key} {published:.4f} published, {score:.4f} now ({score - published:+.4f})")
    if problems:
        raise failed("; ".join(problems), _AGAIN)
    return f"come out again on {name}; largest difference {largest:.4f}"


def _judging_corpus(subject: CheckSubject) -> Corpus:
    """Return the corpus that the published scores are of; leaves the question open where it is not at hand."""
    if subject.card.is_knowledge_base:
        remedy = "score it on each device: tchub evaluate; and give --no-evaluate"
        raise open_question("a knowledge base is judged on several devices", remedy)
    name = subject.card.metrics.corpus or ""
    subject.require_corpora([name])
    return subject.corpora[name]


# Leaks
#
# A config gives the number of tasks and programs of every corpus that were learnt. Training keeps a task out when a
# test task of any of its corpora computes the same, whatever the framework and the device (or, with one corpus, when it
# is a test task there), so the rest of a corpus bounds both numbers: a checkpoint with more has learnt what it is
# judged by. That corpora have tasks in common is no leak by itself. What the checkpoint that it started from had learnt
# counts too, and that one knew nothing of the corpus that judges now.


def check_leak(subject: CheckSubject) -> str:
    """Check that no test task was learnt, as far as the config and the corpora tell."""
    judge, trainings = _judging_corpus(subject), dict(_trainings(subject))
    names = [str(corpus.name) for corpora in trainings.values() for corpus in corpora or ()]
    subject.require_corpora(names)
    for start, corpora in trainings.items():
        if corpora is None:
            raise open_question(f"what its start {start} learnt is not known here", f"tchub pull {start}")
        if problems := _too_many(subject, start, corpora, judge):
            raise failed("; ".join(problems), _OTHER_START if start else _RETRAIN)
    return f"no test task is in what was learnt of {', '.join(dict.fromkeys(names))}"


def _trainings(subject: CheckSubject) -> Iterator[tuple[str, list[CorpusFacts] | None]]:
    """Yield what the training learnt, then its starts (`name@version`), nearest first; None: it is not here."""
    registry, config, start, seen = Registry.default(), subject.config, "", {""}
    while True:
        corpora = CardData.from_files(config, {}).config.corpora if config else ()
        yield start, [corpus for corpus in corpora if corpus.name and corpus.programs] if config else None
        start = str(as_object(config.get("training")).get("init") or "")
        if start in seen:
            return
        seen.add(start)
        folder = next((registry.folder(entry) for entry in registry.entries() if entry.id == start), None)
        config = read_json(folder / CONFIG_FILE) if folder else {}


def _too_many(subject: CheckSubject, start: str, learnt: list[CorpusFacts], judge: Corpus) -> list[str]:
    """Return the corpora of which more was learnt than they have without tasks that compute what any of them tests."""
    from ...zoo.corpus import free_tasks, held_out_computations, usable_programs

    corpora = [subject.corpora[str(facts.name)] for facts in learnt]
    held = held_out_computations([*corpora, judge])
    who = f" by its start {start}" if start else ""
    problems = []
    for facts, corpus in zip(learnt, corpora, strict=True):
        usable = usable_programs(corpus, free_tasks(corpus, held, "train", "val"))
        programs = sum(map(len, usable.values()))
        for unit, number, most in (("tasks", facts.tasks, len(usable)), ("programs", facts.programs, programs)):
            if number is not None and number > most:
                problems.append(f"{number} {unit} of {facts.name} were learnt{who}, {most} are no test")
    return problems


# In the order in which a reviewer asks; CONTRIBUTING.md has the same list.
QUESTIONS: dict[str, Callable[[CheckSubject], str]] = {
    "files": check_files,
    "weights": check_weights,
    "name": check_name,
    "version": check_version,
    "device": check_device,
    "facts": check_facts,
    "card": check_text,
    "licences": check_licences,
    "metrics": check_metrics,
    "scores": check_scores,
    "leak": check_leak,
}

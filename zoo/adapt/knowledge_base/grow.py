"""`grow_base`: a knowledge base learns corpus after corpus; a run that was killed goes on where it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...corpus import EmptyDatasetError
from ...features import FeatureSchema
from ...models import Checkpoint, Progressive
from ...training.claim import claim
from ...training.inputs import StatementStore
from ...training.read import corpus_device
from ..continual import AddedDevice, Change, add_device
from .begin import Beginning, first_base
from .curriculum import Curriculum, Lesson, check_judged, check_kinds, check_new, ordered
from .facts import LearntDevice, SeenTasks, learnt_devices, programs_digest, seen_tasks
from .judge import judge, test_scores
from .record import Step, Title, record
from .settings import DistillSettings

if TYPE_CHECKING:
    from ...corpus import Corpus

PLAN_FILE = "plan.json"
STEPS = "devices"
# Told the corpus, the phase ("train" for a new base's first device, "learn", "distill", "done") and its facts.
Told = Callable[[str, str, dict[str, Any]], None]


@dataclass(frozen=True)
class Grown:
    """A knowledge base and its scores; `added` are the devices of this run, in order."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    added: tuple[LearntDevice, ...]


def has_run(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / PLAN_FILE).is_file()


def grow_base(
    start: Beginning,
    corpora: Sequence[Corpus],
    folder: Path,
    title: Title,
    settings: DistillSettings | None = None,
    *,
    judged: Sequence[Corpus] = (),
    store: StatementStore | None = None,
    on_event: Told | None = None,
) -> Grown:
    """Adds corpora to a base, one device after the other, and judges it on the test tasks of all.

    No test or validation task of any of the corpora teaches, nor a test task of a device that the base knows; tasks
    are told apart by what they compute. As large afterwards as before.

    Args:
        start: a base, or an architecture.
        corpora: of devices of one kind; unless `keep_order`, the last one is the target, which the others are
            ordered by (see `curriculum.ordered`).
        folder: keeps the state of every epoch and the base after every device; what it holds is not done again.
        title: of the result.
        settings: of the run.
        judged: corpora of devices that the base knows already, to see what is forgotten.
        store: where features of statements are kept.
        on_event: told what happens.

    Raises:
        EmptyDatasetError: there is no corpus, or one has no task to learn.
        DeviceKindError: a corpus is of the other kind of device.
        LearntAlreadyError: a corpus was learnt before.
        NotLearntError: one of `judged` was not.
        ResumeError: the folder holds another run.
        SourceMismatchError, DivergedError: see `add_device`.
    """
    settings, store = settings or DistillSettings(), store or StatementStore()
    if not corpora:
        raise EmptyDatasetError("there is no corpus to learn from", remedy="name one: --corpus DIR")
    known = learnt_devices(start.checkpoint.config) if start.checkpoint else ()
    schema = start.schema(settings.first(start.arch), corpus_device(corpora[0]).kind)
    check_kinds((*corpora, *judged), schema)
    check_new(corpora, known)
    check_judged(judged, known, corpora)
    order = list(corpora) if settings.keep_order else ordered(corpora)
    _claim(folder, start, order, title, settings)
    seen = seen_tasks(start.checkpoint.config) if start.checkpoint else SeenTasks()
    run = _Run(start, Curriculum(order, judged, schema, seen), folder, title, settings, store, on_event or _silent)
    checkpoint = start.checkpoint
    for number, corpus in enumerate(order):
        checkpoint = run.step(number, corpus, checkpoint)
    assert checkpoint is not None
    # A run that is taken up again may name the licence or the authors that it was begun without.
    config = checkpoint.config
    checkpoint = replace(checkpoint, config=replace(config, lineage=config.lineage | title.lineage))
    metrics = judge(checkpoint, run.curriculum, store)
    return Grown(checkpoint, metrics, learnt_devices(checkpoint.config)[len(known) :])


@dataclass(frozen=True)
class _Run:
    start: Beginning
    curriculum: Curriculum
    folder: Path
    title: Title
    settings: DistillSettings
    store: StatementStore
    tell: Told

    @property
    def schema(self) -> FeatureSchema:
        return self.curriculum.schema

    def step(self, number: int, corpus: Corpus, before: Checkpoint | None) -> Checkpoint:
        """One device; the checkpoint of a run before, where it was learnt then."""
        name = corpus.path.resolve().name
        folder = self.folder / STEPS / f"{number + 1:02d}-{name}"
        if (folder / "kb" / "config.json").is_file():
            return Checkpoint.load(folder / "kb")
        lesson = self.curriculum.lesson(corpus, self.store, self.settings.per_task, self.settings.seed)
        done = self._learn(corpus, lesson, before, folder)
        made = record(self.start, before, done, self.title, self.settings, self.schema)
        made.save(folder / "kb")
        for phase in ("train", "learn", "distill"):  # their states are of no use any more, and four times as large
            shutil.rmtree(folder / phase, ignore_errors=True)
        self.tell(name, "done", done.device.as_dict())
        return made

    def _learn(self, corpus: Corpus, lesson: Lesson, before: Checkpoint | None, folder: Path) -> Step:
        name, seed = corpus.path.resolve().name, self.settings.seed
        devices = len(self.curriculum.corpora)
        phases = self.settings.phases(self.start.arch, lesson.train, devices)
        if before is None:
            recipe = self.settings.first(self.start.arch, devices)
            told = lambda entry: self.tell(name, "train", entry)  # noqa: E731
            base, result = first_base(
                self.start.arch, lesson, self.schema, recipe, phases, seed, folder / "train", told
            )
            return self._step(corpus, lesson, base, None, result.history)
        added = add_device(
            cast("Progressive", before.model), lesson.train, lesson.val, phases, seed, folder,
            lambda phase, entry: self.tell(name, phase, entry),
        )  # fmt: skip
        history = [*added.learnt.history, *added.distilled.training.history]
        return self._step(corpus, lesson, added.kb, added, history)

    def _step(
        self,
        corpus: Corpus,
        lesson: Lesson,
        base: Progressive,
        added: AddedDevice | None,
        history: Sequence[dict[str, float]],
    ) -> Step:
        """The device as the lineage tells it, with the scores of base and column on its test tasks."""
        data = self.curriculum.test(corpus, self.store)
        test = {"base": test_scores(base, data)}
        validation: dict[str, dict[str, float]] = {}
        if added is not None:
            test["column"] = test_scores(added.adapted, data)
            validation = {"before": added.base_before, "column": added.column, "base": added.base_after}
        device = LearntDevice(
            corpus=corpus.path.resolve().name,
            sha256=programs_digest(corpus),
            device=corpus_device(corpus).name,
            version=self.title.version,
            tasks=len(lesson.train.task_ids),
            programs=len(lesson.train),
            licence=corpus.meta.get("licence"),
            source=corpus.meta.get("source"),
            gate=added.distilled.gate.open if added else None,
            validation={who: scores for who, scores in validation.items() if scores},
            test={who: scores for who, scores in test.items() if scores},
            warning=_warning(added.change if added else None),
        )
        return Step(base, corpus, lesson, device, sum(entry["seconds"] for entry in history))


def _warning(change: Change | None) -> str | None:
    """What to tell of a device that the base knew better before it learnt it; whether to keep it is not ours to say."""
    if change is None or not change.fell:
        return None
    return f"the base ranks its validation tasks worse for having learnt it: pairwise {change}"


def _claim(folder: Path, start: Beginning, order: Sequence[Corpus], title: Title, settings: DistillSettings) -> None:
    """Writes down whose run the folder holds, or sees that it is this one."""
    mine = {
        "start": start.identity(),
        "corpora": [programs_digest(corpus) for corpus in order],
        "name": f"{title.name}@{title.version}",
        "settings": settings.as_dict(),
    }
    claim(folder / PLAN_FILE, mine, "give another --out, or the same command as before")


def _silent(_corpus: str, _phase: str, _facts: dict[str, Any]) -> None:
    """Nobody listens."""

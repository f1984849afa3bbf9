"""`grow_base`: a knowledge base learns corpus after corpus, and is judged on the test tasks of every device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, cast

import torch

from ...corpus import CorpusError
from ...features import get_schema
from ...models import Checkpoint, CheckpointConfig, ProgressiveNetwork, create, get_architecture
from ...training import TrainConfig, TrainResult, evaluate_model, evaluate_random, train
from ...training.programs import StatementStore, corpus_device, resolve_schema
from ...training.state import ensure_same_run
from ...training.training_data import describe_corpus
from ..errors import AdaptError
from .config import ContinualConfig, DistillConfig
from .curriculum import Curriculum, DevicePrograms, check_corpora, ordered
from .device import DeviceResult, add_device, start_base
from .lineage import DeviceRecord, Title, learnt_devices, programs_digest, seen_tasks

if TYPE_CHECKING:
    from ...corpus import Corpus

PLAN_FILE = "plan.json"
STEPS = "devices"
METRICS_FORMAT = 1
# Called with the corpus, the phase ("train" for a new base's first device, "learn", "distill", "done") and its facts.
OnEvent = Callable[[str, str, dict[str, Any]], None]


@dataclass(frozen=True)
class StartingPoint:
    """Start of a run: the network that base and column are of, and the knowledge base to go on with, if any."""

    arch: str
    checkpoint: Checkpoint | None = None

    @classmethod
    def new(cls, arch: str) -> StartingPoint:
        """Start with a base that knows nothing; AdaptError if `arch` is a knowledge base or an ensemble itself."""
        if get_architecture(arch).base:
            raise AdaptError(
                f"no knowledge base is made of {arch}", remedy="name a network, e.g. new:tcl or new:tilenet", arch=arch
            )
        return cls(arch)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> StartingPoint:
        """Start with a base that knows devices; AdaptError if the checkpoint is an ordinary one."""
        learnt_devices(checkpoint.config)
        return cls(get_architecture(checkpoint.config.arch).base, checkpoint)

    @property
    def config(self) -> CheckpointConfig | None:
        """The config of the checkpoint, if any."""
        return self.checkpoint.config if self.checkpoint else None


@dataclass(frozen=True)
class KnowledgeBase:
    """The result of a run: checkpoint and scores; `added` are the devices of this run, in order."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    added: tuple[DeviceRecord, ...]


def has_run(folder: Path) -> bool:
    """Return whether a run was begun in this folder."""
    return (folder / PLAN_FILE).is_file()


def grow_base(
    start: StartingPoint,
    corpora: Sequence[Corpus],
    folder: Path,
    title: Title,
    settings: DistillConfig | None = None,
    *,
    judged: Sequence[Corpus] = (),
    store: StatementStore | None = None,
    on_event: OnEvent = lambda corpus, phase, facts: None,
) -> KnowledgeBase:
    """Add corpora to a base, one device after the other, and judge it on the test tasks of all.

    No test or validation task of any of the corpora teaches, nor a test task of a device that the base knows; tasks
    are told apart by what they compute. As large afterwards as before.

    Args:
        start: a base, or an architecture.
        corpora: of devices of one kind; unless `keep_order`, the last one is the target, which the others are
            ordered by (see `curriculum.ordered`).
        folder: keeps the state of every epoch and the base after every device; a killed run goes on from it.
        judged: corpora of devices that the base knows already, to see what is forgotten.
        store: where features of statements are kept.
        on_event: called for every epoch and every device.

    Raises:
        AdaptError, DeviceKindError: see `check_corpora`.
        TrainingError: the folder holds another run; see `add_device` too.
    """
    settings, store = settings or DistillConfig(), store or StatementStore()
    if not corpora:
        raise CorpusError("there is no corpus to learn from", remedy="name one: --corpus DIR")
    if (config := start.config) is not None:
        known, schema = learnt_devices(config), get_schema(config.feature_schema)
        begun_from = f"{config.name}@{config.version} {json.dumps([device.sha256[:12] for device in known])}"
    else:
        recipe, kind = settings.first(start.arch), corpus_device(corpora[0]).kind
        known, schema, begun_from = (), resolve_schema(recipe.feature_schema, kind), f"new:{start.arch}"
    check_corpora(corpora, judged, schema, known)
    order = list(corpora) if settings.keep_order else ordered(corpora)
    plan = {
        "start": begun_from,
        "corpora": [programs_digest(corpus) for corpus in order],
        "name": f"{title.name}@{title.version}",
        "settings": asdict(settings),
    }
    ensure_same_run(folder / PLAN_FILE, plan, "give another --out, or the same command as before")
    curriculum = Curriculum(order, judged, schema, seen_tasks(start.config))
    run = _GrowthRun(start, curriculum, title, settings, store, on_event)
    checkpoint = start.checkpoint
    for number, corpus in enumerate(order, start=1):
        step = folder / STEPS / f"{number:02d}-{corpus.path.resolve().name}"
        if (step / "kb" / "config.json").is_file():
            checkpoint = Checkpoint.load(step / "kb")
            continue
        checkpoint = run.learn(corpus, checkpoint, step)
        checkpoint.save(step / "kb")
        for phase in ("train", "learn", "distill"):  # their states are of no use any more, and four times as large
            shutil.rmtree(step / phase, ignore_errors=True)
        on_event(corpus.path.resolve().name, "done", learnt_devices(checkpoint.config)[-1].as_dict())
    assert checkpoint is not None
    # A run that is taken up again may name the licence or the authors that it was begun without.
    config = checkpoint.config
    checkpoint = replace(checkpoint, config=replace(config, lineage=config.lineage | title.lineage))
    added = learnt_devices(checkpoint.config)[len(known) :]
    return KnowledgeBase(checkpoint, judge(checkpoint, curriculum, store), added)


@dataclass(frozen=True)
class _GrowthRun:
    start: StartingPoint
    curriculum: Curriculum
    title: Title
    settings: DistillConfig
    store: StatementStore
    on_event: OnEvent

    def learn(self, corpus: Corpus, before: Checkpoint | None, folder: Path) -> Checkpoint:
        """Learn one device, and return the checkpoint after it."""
        name, settings = corpus.path.resolve().name, self.settings
        programs = self.curriculum.training(corpus, self.store, settings.per_task, settings.seed)
        devices = len(self.curriculum.corpora)
        phases = settings.phases(self.start.arch, programs.train, devices)
        result = None
        if before is None:
            recipe = settings.first(self.start.arch, devices)
            model, training = self._first(programs, recipe, phases, folder / "train", name)
            history = training.history
        else:
            base = cast("ProgressiveNetwork", before.model)
            result = add_device(
                base, programs.train, programs.val, phases, settings.seed, folder,
                partial(self.on_event, name),
            )  # fmt: skip
            model, history = result.kb, [*result.learning.history, *result.distilling.history]
        device = self._record(corpus, programs, model, result)
        old = before.config if before else None
        training_facts = self._training(old, model, corpus, programs, sum(entry["seconds"] for entry in history))
        return self._checkpoint(old, model, corpus, device, training_facts)

    def _first(
        self, programs: DevicePrograms, recipe: TrainConfig, phases: ContinualConfig, folder: Path, name: str
    ) -> tuple[ProgressiveNetwork, TrainResult]:
        """Train the network by its recipe; return a base that knows one device."""
        schema, seed = self.curriculum.schema, self.settings.seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = create(self.start.arch, **{"width": schema.width, "hardware": schema.hardware} | recipe.model)
        model.prepare(torch.from_numpy(programs.train.features))
        on_epoch = partial(self.on_event, name, "train")
        result = train(model, programs.train, programs.val, recipe, seed, folder, on_epoch)
        return start_base(model, programs.train, phases, seed=seed), result

    def _record(
        self, corpus: Corpus, programs: DevicePrograms, model: ProgressiveNetwork, result: DeviceResult | None
    ) -> DeviceRecord:
        """Score base and column on the device's test tasks."""
        data = self.curriculum.test(corpus, self.store)
        models, warning = {"base": model}, None
        if result is not None:
            models["column"] = result.adapted
            if result.change is not None and result.change.fell:
                warning = f"the base ranks its validation tasks worse for having learnt it: pairwise {result.change}"
        return DeviceRecord(
            corpus=corpus.path.resolve().name,
            sha256=programs_digest(corpus),
            device=corpus_device(corpus).name,
            version=self.title.version,
            tasks=len(programs.train.task_ids),
            programs=len(programs.train),
            licence=corpus.meta.get("licence"),
            source=corpus.meta.get("source"),
            gate=result.gate if result else None,
            validation=result.validation if result else {},
            test={name: evaluate_model(one, data) for name, one in models.items()} if data is not None else {},
            warning=warning,
        )

    def _training(
        self,
        old: CheckpointConfig | None,
        model: ProgressiveNetwork,
        corpus: Corpus,
        programs: DevicePrograms,
        seconds: float,
    ) -> dict[str, Any]:
        """`training` of the config: corpora in the order of learning, the first as `corpus`, others as `sources`."""
        earlier = old.training if old else {}
        facts = describe_corpus(corpus) | {
            "tasks": len(programs.train.task_ids),
            "programs": len(programs.train),
            "programs_without_features": programs.without_features,
        }
        return {
            "command": self.title.command,
            "settings": asdict(self.settings),
            "seed": self.settings.seed,
            "seconds": round(float(earlier.get("seconds") or 0.0) + seconds, 1),
            "parameters": model.parameter_count(),
            "programs_per_task": self.settings.per_task,
            "corpus": earlier.get("corpus") or facts,
            "sources": [*(earlier.get("sources") or []), facts] if earlier.get("corpus") else [],
            "seen": seen_tasks(old).with_device(programs.learnt, programs.test).as_dict(),
        }

    def _checkpoint(
        self,
        old: CheckpointConfig | None,
        model: ProgressiveNetwork,
        corpus: Corpus,
        device: DeviceRecord,
        training: dict[str, Any],
    ) -> Checkpoint:
        sheet, base = corpus_device(corpus), self.start.config
        devices = (*(learnt_devices(old) if old else ()), device)
        lineage = (base.lineage if base else {}) | self.title.lineage
        lineage |= {
            "base": base and f"{base.name}@{base.version}",
            "data": "measured",
            "measured_on": list(dict.fromkeys(one.device for one in devices)),
            "devices": [one.as_dict() for one in devices],
        }
        config = CheckpointConfig(
            name=self.title.name,
            version=self.title.version,
            arch=model.arch,
            model=model.config.as_dict(),
            feature_schema=self.curriculum.schema.name,
            feature_version=self.curriculum.schema.version,
            family=sheet.kind,
            # The hardware row holds the numbers of the device learnt last until another device's are given.
            device=sheet.to_dict(),
            lineage=lineage,
            training=training,
            tvm=str(corpus.meta.get("tvm_version") or (old.tvm if old else "")),
        )
        return Checkpoint(config, model.eval(), sheet)


def judge(checkpoint: Checkpoint, curriculum: Curriculum, store: StatementStore) -> dict[str, Any]:
    """Return the contents of `metrics.json`.

    `devices` has every device in the order of learning: `learnt`, the base's scores on its test tasks right after it
    was learnt, `now`, those of the finished base, and `column`, those of the column that taught it. A device whose
    corpus is not at hand has no `now`. `results` are the means over those that have one.
    """
    at_hand = {programs_digest(c): c for c in (*curriculum.judged, *curriculum.corpora)}
    rows = []
    for device in learnt_devices(checkpoint.config):
        corpus = at_hand.get(device.sha256)
        data = curriculum.test(corpus, store) if corpus is not None else None
        row = {"corpus": device.corpus, "device": device.device, "gate": device.gate}
        row |= {"learnt": device.test.get("base"), "column": device.test.get("column"), "now": None}
        row |= {"tasks": 0, "programs": 0}
        if data is not None:
            row |= {"now": evaluate_model(checkpoint.model, data), "tasks": len(data.task_ids), "programs": len(data)}
            row["random"] = evaluate_random(data.latency, data.group, data.task_weights)
        rows.append(row)
    judged = [row for row in rows if row["now"]]
    training = checkpoint.config.training
    return {
        "format": METRICS_FORMAT,
        "corpus": f"the mean over {len(judged)} {'corpus' if len(judged) == 1 else 'corpora'}",
        "split": "test",
        "seed": training["seed"],
        "seconds": training["seconds"],
        "tasks": sum(row["tasks"] for row in judged),
        "programs": sum(row["programs"] for row in judged),
        "results": {"model": _mean(judged, "now"), "random": _mean(judged, "random")} if judged else {},
        "devices": rows,
    }


def _mean(rows: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    return {name: mean(row[key][name] for row in rows) for name in rows[0][key]}

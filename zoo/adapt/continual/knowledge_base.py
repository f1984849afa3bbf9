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
from ...models import Checkpoint, CheckpointConfig, CostModel, ProgressiveNetwork, create, get_architecture
from ...training import evaluate_model, evaluate_random, train
from ...training.fit import CheckpointFacts
from ...training.programs import StatementStore, corpus_device, resolve_schema
from ...training.state import ensure_same_run
from ...training.training_data import describe_corpus
from ...trust import ClassTrust, class_trust
from ..errors import AdaptError
from .config import DistillConfig
from .curriculum import (
    Curriculum,
    DevicePrograms,
    DeviceRecord,
    check_corpora,
    learnt_devices,
    ordered,
    programs_digest,
    seen_tasks,
)
from .device import DeviceResult, add_device, start_base

if TYPE_CHECKING:
    from ...corpus import Corpus

PLAN_FILE = "plan.json"
STEPS = "devices"
METRICS_FORMAT = 1
# Called with the corpus, the phase ("train" for a new base's first device, "learn", "distill", "done") and its facts.
OnEvent = Callable[[str, str, dict[str, Any]], None]


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
    start: Checkpoint | str,
    corpora: Sequence[Corpus],
    folder: Path,
    facts: CheckpointFacts,
    settings: DistillConfig | None = None,
    *,
    judged: Sequence[Corpus] = (),
    store: StatementStore | None = None,
    on_event: OnEvent = lambda corpus, phase, facts: None,
) -> KnowledgeBase:
    """Add corpora to a base, one device after the other, and judge it on the test tasks of all.

    No test or validation task of any of the corpora teaches, nor a test task of a device that the base knows; tasks
    are told apart by what they compute.

    Args:
        start: a knowledge base, or the architecture of base and column of a new one.
        corpora: of devices of one kind; judged: of devices that the base knows already, to see what is forgotten.
        folder: keeps the state of every epoch and the base after every device; a killed run goes on from it.
        facts: of the new checkpoint; store: where features of statements are kept.
        on_event: called for every epoch and every device.

    Raises:
        AdaptError, DeviceKindError: no base is made of this architecture, the checkpoint is no knowledge base, or see
            `check_corpora`.
        TrainingError: the folder holds another run; see `add_device` too.
    """
    settings, store = settings or DistillConfig(), store or StatementStore()
    if not corpora:
        raise CorpusError("there is no corpus to learn from", remedy="name one: --corpus DIR")
    if isinstance(start, Checkpoint):
        config, arch = start.config, get_architecture(start.config.arch).base
        known, schema = learnt_devices(config), get_schema(config.feature_schema)
        begun_from = f"{config.name}@{config.version} {json.dumps([device.sha256[:12] for device in known])}"
    elif get_architecture(start).base:
        remedy = "name a network, e.g. new:tcl or new:tilenet"
        raise AdaptError(f"no knowledge base is made of {start}", remedy=remedy, arch=start)
    else:
        recipe, kind = settings.first(start).feature_schema, corpus_device(corpora[0]).kind
        config, arch, known = None, start, ()
        schema, begun_from = resolve_schema(recipe, kind), f"new:{start}"
    check_corpora(corpora, judged, schema, known)
    order = list(corpora) if settings.keep_order else ordered(corpora)
    plan = {
        "start": begun_from,
        "corpora": [programs_digest(corpus) for corpus in order],
        "name": f"{facts.name}@{facts.version}",
        "settings": asdict(settings),
    }
    ensure_same_run(folder / PLAN_FILE, plan, "give another --out, or the same command as before")
    curriculum = Curriculum(order, judged, schema, seen_tasks(config))
    run = _GrowthRun(arch, config, curriculum, facts, settings, store, on_event)
    checkpoint = start if isinstance(start, Checkpoint) else None
    for number, corpus in enumerate(order, start=1):
        step = folder / STEPS / f"{number:02d}-{corpus.path.resolve().name}"
        if (step / "kb" / "config.json").is_file():
            checkpoint = Checkpoint.load(step / "kb")
            continue
        checkpoint = run.learn(corpus, checkpoint, step)
        checkpoint.save(step / "kb")
        for phase in ("train", "learn", "distill"):  # their states are of no use any more, and four times as large
            shutil.rmtree(step / phase, ignore_errors=True)
        on_event(corpus.path.resolve().name, "done", asdict(learnt_devices(checkpoint.config)[-1]))
    assert checkpoint is not None
    # A run that is taken up again may name the licence or the authors that it was begun without.
    final, trust = checkpoint.config, run.class_trust(checkpoint.model)
    checkpoint = replace(checkpoint, config=replace(final, lineage=final.lineage | facts.lineage, trust=trust))
    return KnowledgeBase(checkpoint, judge(checkpoint, curriculum, store), learnt_devices(final)[len(known) :])


@dataclass(frozen=True)
class _GrowthRun:
    """The architecture of both parts, the config that the run began from, and the arguments of `grow_base`."""

    arch: str
    begun: CheckpointConfig | None
    curriculum: Curriculum
    facts: CheckpointFacts
    settings: DistillConfig
    store: StatementStore
    on_event: OnEvent

    def class_trust(self, model: CostModel) -> dict[str, ClassTrust]:
        """Return the trust in the finished base: of the run's devices, and where known before, the lower bound."""
        reads = self.store, self.settings.per_task, self.settings.seed
        rows = (row for c in self.curriculum.corpora for row in self.curriculum.accuracies(model, c, *reads))
        trust, before = class_trust(rows), self.begun.trust if self.begun else {}
        both = trust.keys() & before.keys()
        return before | trust | {key: min(trust[key], before[key], key=lambda one: one.least or 0.0) for key in both}

    def learn(self, corpus: Corpus, before: Checkpoint | None, folder: Path) -> Checkpoint:
        """Learn one device, and return the checkpoint after it."""
        settings, devices = self.settings, len(self.curriculum.corpora)
        programs = self.curriculum.training(corpus, self.store, settings.per_task, settings.seed)
        phases = settings.phases(self.arch, programs.train, devices)
        on_epoch = partial(self.on_event, corpus.path.resolve().name)
        result = None
        if before is None:
            recipe, schema = settings.first(self.arch, devices), self.curriculum.schema
            sizes = {"width": schema.width, "hardware": schema.hardware} | recipe.model
            network = create(self.arch, seed=settings.seed, **sizes)
            network.prepare(torch.from_numpy(programs.train.features))
            watch, state = partial(on_epoch, "train"), folder / "train"
            history = train(network, programs.train, programs.val, recipe, settings.seed, state, watch).history
            model = start_base(network, programs.train, phases, seed=settings.seed)
        else:
            base = cast("ProgressiveNetwork", before.model)
            result = add_device(base, programs.train, programs.val, phases, settings.seed, folder, on_epoch)
            model, history = result.kb, [*result.learning.history, *result.distilling.history]
        device = self._record(corpus, programs, model, result)
        seconds = sum(entry["seconds"] for entry in history)
        return self._checkpoint(before.config if before else None, model, corpus, programs, device, seconds)

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
            version=self.facts.version,
            tasks=len(programs.train.task_ids),
            programs=len(programs.train),
            licence=corpus.meta.get("licence"),
            source=corpus.meta.get("source"),
            gate=result.gate if result else None,
            validation=result.validation if result else {},
            test={name: evaluate_model(one, data) for name, one in models.items()} if data is not None else {},
            warning=warning,
        )

    def _checkpoint(
        self,
        old: CheckpointConfig | None,
        model: ProgressiveNetwork,
        corpus: Corpus,
        programs: DevicePrograms,
        device: DeviceRecord,
        seconds: float,
    ) -> Checkpoint:
        """Return the checkpoint; in `training` the first corpus is `corpus`, and the others are `sources`."""
        sheet, begun, seen, earlier = corpus_device(corpus), self.begun, seen_tasks(old), old.training if old else {}
        counts = {"tasks": device.tasks, "programs": device.programs}
        learnt = describe_corpus(corpus) | counts | {"programs_without_features": programs.without_features}
        training = {
            "command": self.facts.command,
            "settings": asdict(self.settings),
            "seed": self.settings.seed,
            "seconds": round(float(earlier.get("seconds") or 0.0) + seconds, 1),
            "parameters": model.parameter_count(),
            "programs_per_task": self.settings.per_task,
            "corpus": earlier.get("corpus") or learnt,
            "sources": [*(earlier.get("sources") or []), learnt] if earlier.get("corpus") else [],
            "seen": {"learnt": sorted(seen.learnt | {*programs.learnt}), "test": sorted(seen.test | {*programs.test})},
        }
        devices = (*(learnt_devices(old) if old else ()), device)
        lineage = (begun.lineage if begun else {}) | self.facts.lineage
        lineage |= {
            "base": begun and f"{begun.name}@{begun.version}",
            "data": "measured",
            "measured_on": list(dict.fromkeys(one.device for one in devices)),
            "devices": [asdict(one) for one in devices],
        }
        config = CheckpointConfig(
            name=self.facts.name or f"{model.arch}-{sheet.kind}",
            version=self.facts.version,
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

    `devices` has every device in the order of learning, with scores on its test tasks: `learnt`, the base's right after
    it was learnt, `now`, the finished base's, where the corpus is at hand, and `column`, of the column that taught it.
    `results` are the means over those that have `now`.
    """
    at_hand = {programs_digest(c): c for c in (*curriculum.judged, *curriculum.corpora)}
    rows = []
    for device in learnt_devices(checkpoint.config):
        corpus = at_hand.get(device.sha256)
        data = curriculum.test(corpus, store) if corpus is not None else None
        row = {"corpus": device.corpus, "device": device.device, "gate": device.gate, "tasks": 0, "programs": 0}
        row |= {"learnt": device.test.get("base"), "column": device.test.get("column"), "now": None}
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

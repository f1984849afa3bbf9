"""`CardData`: everything a card says, each fact taken from config.json or metrics.json, none typed by hand.

Read from config.json: name, version, arch, model, feature_schema, family, device, tvm, and
    lineage    weights_licence (SPDX id), base (name@version that it was adapted from), authors, limits (list of
               texts), and of the device's own data: data (`measured` or `transferred`), measured_on (devices),
               stand_in (a sentence)
    training   command, seed, seconds, machine, kilojoules (of energy, where it was measured), parameters, stages,
               init, tasks_fraction, programs_fraction, programs_per_task, and corpus and each of sources: {name,
               device, cpu_model, threads, framework, licence, source, programs, tasks, programs_without_features,
               how, networks, held_out (networks whose tasks are in no training split)}
Read from metrics.json: corpus, split, device, seed, command, measured_by, tasks, programs, validation,
    results          name -> {top1, top5, mean_top1, mean_top5, pairwise, label}, where `model` is the checkpoint
                     and the others are its baselines; a score is a number or {mean, stdev}
    seeds            {count, chosen_by, score -> {mean, stdev}}
    few_shot         number of labels -> scores; few_shot_rivals: name -> number of labels -> scores
    transfer         list of {corpus, split, device, device_learnt, tasks, programs, programs_per_task, tasks_known,
                     tasks_left_out, metrics, random}, see `transfer.Transfer`
    curves           see `zoo.training.measured_curves.measure_curves`
    tuning           list of {network, device, trials, seconds, ms, rival: {name, seconds, ms}}
    devices          of a knowledge base, in the order of learning: list of {corpus, device, gate, column, learnt, now}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .curves import Curves, Tuning, read_curves, read_tuning
from .data import Corpus, Origin, belongs, origin, read_corpora
from .devices import KINDS, LearntDevice, read_devices
from .evaluation import METRICS_FORMAT, Evaluation, read_evaluation
from .fields import read_number, read_object, read_required, read_text, read_texts, read_whole
from .papers import network_of

__all__ = ["METRICS_FORMAT", "CardData"]

Spec = Mapping[str, tuple[float | None, str]]


@dataclass(frozen=True)
class Training:
    """How the weights came about.

    Attributes:
        seconds, machine, kilojoules: time spent, where, and the energy if that was measured.
        stages: 2 when the sources were learnt first and then the target alone; init: whose weights were the start.
        parameters: trained numbers, or the nodes of trees.
        tasks_fraction, programs_fraction, programs_per_task: what was taken of the target's training programs.
        judged_apart: whether tasks that compute the same as a test task were kept out of every corpus.
    """

    command: str | None = None
    seed: int | None = None
    seconds: float | None = None
    machine: str | None = None
    kilojoules: float | None = None
    parameters: int | None = None
    stages: int | None = None
    init: str | None = None
    tasks_fraction: float | None = None
    programs_fraction: float | None = None
    programs_per_task: int | None = None
    judged_apart: bool = False


@dataclass(frozen=True)
class CardData:
    """The facts of one card; None and () are left out, or shown as missing where a card must have them.

    Attributes:
        kind: `cpu` or `gpu`, where the device is known.
        model: the architecture's settings.
        corpora: learnt from and judged by; the target's is first.
        devices: of a knowledge base, that it has learnt.
        curves: how it ranks the programs that its scores are of; tuning: networks that were tuned with it.
        spec: spec sheet of the device family: number -> (value, source).
    """

    name: str
    version: str
    arch: str
    family: str
    feature_schema: str
    kind: str | None = None
    tvm: str | None = None
    licence: str | None = None
    base: str | None = None
    authors: str | None = None
    limits: tuple[str, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    corpora: tuple[Corpus, ...] = ()
    origin: Origin = field(default_factory=Origin)
    evaluation: Evaluation = field(default_factory=Evaluation)
    devices: tuple[LearntDevice, ...] = ()
    curves: Curves | None = None
    tuning: tuple[Tuning, ...] = ()
    spec: Spec = field(default_factory=dict)

    @property
    def corpus(self) -> Corpus:
        """The target's."""
        return self.corpora[0] if self.corpora else Corpus()

    @property
    def is_knowledge_base(self) -> bool:
        """Whether it is of a kind of device, and is made to learn further ones."""
        return self.family in KINDS

    @property
    def network(self) -> str:
        """The architecture that scores."""
        return network_of(self.arch)

    @property
    def scope(self) -> str:
        """What it ranks programs for."""
        return KINDS.get(self.family) or f"devices of the family `{self.family}`"

    @property
    def trained_programs(self) -> int:
        """Programs learnt from, all corpora together."""
        return sum(corpus.programs or 0 for corpus in self.corpora)

    @property
    def own_programs(self) -> int:
        """Those of the family's own devices."""
        return sum(corpus.programs or 0 for corpus in self.corpora if corpus.device in self.origin.own)

    @property
    def judged_on_own(self) -> bool:
        """Whether the scores are of programs measured on a device of the family."""
        device = self.evaluation.device
        return device is not None and (device in self.origin.own or belongs(device, self.family))

    @classmethod
    def from_files(cls, config: Mapping[str, Any], metrics: Mapping[str, Any], spec: Spec | None = None) -> CardData:
        """Gather the facts.

        Raises:
            CardError: a field has the wrong type, metrics.json is of a newer format, or the lineage claims
                measurements of a device that is in no corpus.
        """
        training, lineage = read_object(config, "training"), read_object(config, "lineage")
        family = read_required(config, "family")
        device = read_object(config, "device")
        corpora = read_corpora(training)
        return cls(
            **{key: read_required(config, key) for key in ("name", "version", "arch", "feature_schema")},
            family=family,
            kind=read_text(device, "kind"),
            tvm=read_text(config, "tvm"),
            licence=read_text(lineage, "weights_licence"),
            base=read_text(lineage, "base"),
            authors=read_text(lineage, "authors"),
            limits=read_texts(lineage, "limits"),
            model=read_object(config, "model"),
            training=_training(training),
            corpora=corpora,
            origin=origin(lineage, corpora, family, read_text(device, "name")),
            evaluation=read_evaluation(metrics),
            devices=read_devices(metrics),
            curves=read_curves(metrics),
            tuning=read_tuning(metrics),
            spec=spec or {},
        )


def _training(raw: Mapping[str, Any]) -> Training:
    return Training(
        command=read_text(raw, "command"),
        seed=read_whole(raw, "seed"),
        seconds=read_number(raw, "seconds"),
        machine=read_text(raw, "machine"),
        kilojoules=read_number(raw, "kilojoules"),
        parameters=read_whole(raw, "parameters"),
        stages=read_whole(raw, "stages"),
        init=read_text(raw, "init"),
        tasks_fraction=read_number(raw, "tasks_fraction"),
        programs_fraction=read_number(raw, "programs_fraction"),
        programs_per_task=read_whole(raw, "programs_per_task"),
        judged_apart="sources" in raw,
    )

"""Scores of checkpoints on a corpus, beside random choice, XGBoost, a tenth of the data, and a few labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...zoo.corpus import Corpus, CorpusError, computations, metric_weight, split_tasks, usable_programs
from ...zoo.corpus.splits import PARTS
from ...zoo.features import get_schema
from ...zoo.models import Checkpoint, ContextModel, XGBoostRanker, get_architecture
from ...zoo.training import (
    RankingDataset,
    TrainConfig,
    TrainingError,
    evaluate_model,
    evaluate_random,
    evaluate_scores,
    predict,
)
from ...zoo.training.evaluation import (
    RankedPrograms,
    draw_labels,
    evaluate_unknown,
    head_scores,
    measure_curves,
    operator_scores,
    scores_given,
    trusted_tasks,
)
from ...zoo.training.fit import METRICS_FORMAT, fit, fit_trees
from ...zoo.training.programs import Share, StatementStore, corpus_device
from ...zoo.training.training_data import load_part, load_training_data
from ...zoo.untrusted import parse_json, read_plain
from ..search.candidate_features import require_kind

FEW_DATA = 0.1
# Three programs a task are few enough that one training says little: the scores are the mean of these many.
FEW_RUNS = 3
BASELINES = ("random", "xgboost", "ten_percent", "statements")
CARD_BASELINES = BASELINES[:3]
_MOST_SPLIT_BYTES = 8 << 20
# `FeatureSchema.source` -> name of XGBoost on it, and its settings: on numbers of a nest it ranks better by labels.
_XGBOOST = {
    "primitives": ("XGBoost on primitives", XGBoostRanker()),
    "statements": ("XGBoost on the statements of each program", XGBoostRanker()),
    "nest": ("XGBoost on TileNet's numbers", XGBoostRanker(objective="reg:squarederror", eta=0.1)),
}
# Reports what is being done, programs done, and all programs to do.
Count = Callable[[str, int, int], None]


@dataclass(frozen=True)
class EvaluationConfig:
    """Settings of an evaluation.

    Attributes:
        split: "test", "val", "train", "all", or the path of a JSON file: a list of task ids or names, or an object
            whose `test` is one. XGBoost and the 10% then learn from the tasks that compute something else.
        baselines: of `BASELINES`: a random order in expectation; XGBoost on what the checkpoint reads, trained on the
            same training tasks; the checkpoint's own recipe on 10% of the training programs, picked at random, mean of
            three seeds; MetaSchedule's XGBoost on TVM's statement features.
        labels: also rank with so many programs of each task known, at most half of them, which do not count.
        curves: also the curves of a card: top-k, calibration, failures (see `measure_curves`).
        seed: of the 10%, of the training on them, and of the labels.
        threads: for XGBoost, and processes that replay programs.
        cache: folder for statement features, which statement models and one baseline read.
    """

    split: str = "test"
    baselines: tuple[str, ...] = ()
    labels: int = 0
    curves: bool = False
    seed: int = 0
    threads: int = 1
    cache: Path | None = None


def evaluate(
    checkpoint: Checkpoint,
    corpus: Corpus,
    config: EvaluationConfig | None = None,
    note: Callable[[str], None] = lambda _: None,
    count: Count | None = None,
) -> dict[str, Any]:
    """Return scores of a checkpoint on a corpus in the form of its `metrics.json`.

    Args:
        note: called with a line on what is being done.
        count: called while programs are lowered, 20 ms each, see `Count`.

    Returns:
        format, corpus, split, tasks, programs, and results: for "model" and each baseline top1, top5, mean_top1,
        mean_top5, pairwise; "weights" are the model's without trust, where that differs; classes: tasks, programs, top1
        and pairwise of each operator class; untrusted: classes of which the checkpoint's scores do not hold, so that
        they are all equal; with labels also few_shot: their number -> the scores; curves where asked; heads, of a model
        of three: R² of each, see `head_scores`.

    Raises:
        DeviceKindError: the checkpoint is for the other kind of device.
        CorpusError: the corpus has nothing in this split, or nothing that a baseline could learn from.
        TrainingError: labels, and the model takes none as context.
        TchubError: a subclass for each other way this can fail.
    """
    return evaluate_each([checkpoint], corpus, config, note, count)[0]


def evaluate_each(
    checkpoints: Sequence[Checkpoint],
    corpus: Corpus,
    config: EvaluationConfig | None = None,
    note: Callable[[str], None] = lambda _: None,
    count: Count | None = None,
) -> list[dict[str, Any]]:
    """Return `evaluate` of several checkpoints; a baseline that reads what two of them read is made once."""
    config = config or EvaluationConfig()
    judged, part = _judged_corpus(corpus, config.split)
    evaluation = _Evaluation(judged, part, config, note, count)
    return [evaluation.scores(checkpoint) for checkpoint in checkpoints]


def _judged_corpus(corpus: Corpus, split: str) -> tuple[Corpus, str]:
    """Return the corpus with the split that was asked for, and the part of it that judges."""
    if split in PARTS:
        return corpus, split
    chosen = set(corpus.tasks) if split == "all" else _read_split(corpus, Path(split))
    known = computations(corpus)
    held = {known[task_id] for task_id in chosen}
    rest = sorted(task_id for task_id in corpus.tasks if known[task_id] not in held)
    return replace(corpus, meta=corpus.meta | {"split": {"train": rest, "test": sorted(chosen)}}), "test"


def _read_split(corpus: Corpus, file: Path) -> set[str]:
    try:
        content = parse_json(read_plain(file, _MOST_SPLIT_BYTES))
    except (OSError, ValueError) as error:
        remedy = f"give {', '.join(PARTS)}, all, or a JSON file that lists tasks"
        raise CorpusError(f"the split {file} cannot be read: {error}", remedy=remedy, split=str(file)) from error
    listed = content.get("test") if isinstance(content, dict) else content
    names = set(listed) if isinstance(listed, list) and all(isinstance(one, str) for one in listed) else set()
    chosen = {task.task_id for task in corpus.tasks.values() if {task.task_id, task.name} & names}
    if not chosen:
        raise CorpusError(
            f"{file} names no task of {corpus.path}",
            remedy="list ids or names of its tasks, or give an object whose `test` lists them",
            split=str(file),
        )
    return chosen


class _Evaluation:
    """Scores of checkpoints on one part of a corpus; keeps the baselines by what they read."""

    def __init__(
        self, corpus: Corpus, part: str, config: EvaluationConfig, note: Callable[[str], None], count: Count | None
    ) -> None:
        self._corpus, self._part, self._config, self._note, self._count = corpus, part, config, note, count
        self._store = StatementStore(config.cache, config.threads, count)
        self._baselines: dict[tuple[str, str], dict[str, Any]] = {}

    def scores(self, checkpoint: Checkpoint) -> dict[str, Any]:
        corpus, config, name = self._corpus, self._config, checkpoint.config.name
        own = checkpoint.device.name == corpus.meta["device"]
        device = checkpoint.device if own else corpus_device(corpus)
        require_kind(checkpoint, device.name, device.kind)
        schema = get_schema(checkpoint.config.feature_schema)
        data = load_part(corpus, self._part, schema, device, self._store)
        if data is None:
            raise CorpusError(
                f"{corpus.path} has no task with enough valid programs in its {config.split} split",
                remedy="choose another --split, or collect tasks of the held-out networks",
                corpus=str(corpus.path),
                split=config.split,
            )
        training = checkpoint.config.training
        learnt = [one for one in (training.get("corpus"), *(training.get("sources") or ())) if isinstance(one, dict)]
        knows = corpus.path.resolve().name in {one.get("name") for one in learnt}
        if config.split not in ("test", "val") and knows:
            self._note(f"{name} has learnt from this corpus: its scores include tasks that it knows")
        trusted = trusted_tasks(checkpoint.config, corpus, data)
        alone = predict(checkpoint.model, data.features)
        scores = np.where(trusted[data.group], alone, 0.0)
        ranked = RankedPrograms(corpus.path.resolve().name, corpus.tasks, data, scores, computations(corpus))
        untrusted = sorted({corpus.tasks[data.task_ids[task]].op for task in np.flatnonzero(~trusted)})
        if untrusted:
            self._note(f"{name} is not trusted with {', '.join(untrusted)}: all programs score the same there")
        more: dict[str, Any] = {"classes": operator_scores(ranked), "untrusted": untrusted}
        if labels := config.labels:
            if not isinstance(checkpoint.model, ContextModel):
                remedy = "learn from them by `tchub adapt`, or choose a tilenet"
                raise TrainingError(f"{name} takes no measured programs as context", remedy=remedy)
            known = draw_labels(data, labels, config.seed)
            unknown = scores_given(checkpoint.model, data, known, trusted)
            more["few_shot"] = {str(labels): evaluate_unknown(data, known, unknown)}
        if heads := head_scores(checkpoint.model, data):
            more["heads"] = heads
        if config.curves:
            more["curves"] = measure_curves([ranked])
        results: dict[str, Any] = {"model": evaluate_scores(scores, data.latency, data.group, data.task_weights)}
        if untrusted:
            by_weights = evaluate_scores(alone, data.latency, data.group, data.task_weights)
            results["weights"] = {**by_weights, "label": f"{name}, weights alone"}
        results |= {baseline: self._baseline(baseline, checkpoint, data) for baseline in config.baselines}
        return {
            "format": METRICS_FORMAT,
            "checkpoint": f"{name}@{checkpoint.config.version}",
            "corpus": corpus.path.resolve().name,
            "split": config.split,
            "device": corpus.meta.get("device"),
            "seed": config.seed,
            "tasks": len(data.task_ids),
            "programs": len(data),
            "results": results,
            **more,
        }

    def _baseline(self, name: str, checkpoint: Checkpoint, data: RankingDataset) -> dict[str, Any]:
        own = {"ten_percent": checkpoint.config.name, "statements": ""}
        key = name, own.get(name, checkpoint.config.feature_schema)
        if key not in self._baselines:
            self._note(f"baseline: {name}")
            if name == "random":
                result: dict[str, Any] = evaluate_random(data.latency, data.group, data.task_weights)
            elif name == "xgboost":
                result = self._xgboost(checkpoint.config.feature_schema, data)
            elif name == "statements":
                result = self._statements()
            else:
                result = _evaluate_ten_percent(checkpoint, self._corpus, data, self._config.seed, self._store)
            self._baselines[key] = result
        return self._baselines[key]

    def _xgboost(self, schema: str, data: RankingDataset) -> dict[str, Any]:
        label, ranker = _XGBOOST[get_schema(schema).source]
        training = load_training_data(self._corpus, (), schema, store=self._store)
        return {**evaluate_model(fit_trees(ranker, training, self._config.seed), data), "label": label}

    def _statements(self) -> dict[str, Any]:
        """Rank by MetaSchedule's own model; `tasks` and `programs` count those that could be replayed and ranked."""
        from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBConfig, XGBModel

        features, latency, group, _ = self._replayed("train")
        judged, measured, tasks, weights = self._replayed(self._part)
        if not judged or not features:
            raise CorpusError(
                f"no training task of {self._corpus.path}, or no task that judges, has programs that can be replayed",
                remedy="leave the baseline `statements` out: `xgboost` reads what the checkpoint reads",
                corpus=str(self._corpus.path),
            )
        best = np.full(int(group.max()) + 1, np.inf)
        np.minimum.at(best, group, latency)
        self._note(f"training XGBoost on {len(features)} programs, {sum(map(len, features))} statements")
        model = XGBModel(config=XGBConfig(seed=XGBConfig().seed + self._config.seed, nthread=self._config.threads))
        model._train(features, (best[group] / latency).astype(np.float32))
        scores = evaluate_scores(np.asarray(model._predict(judged), dtype=np.float64), measured, tasks, weights)
        counts = {"tasks": len(np.unique(tasks)), "programs": len(measured)}
        return {**scores, **counts, "label": "XGBoost on PerStoreFeature"}

    def _replayed(self, part: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
        """Return statement features, latencies and tasks of programs in the order of training, and the tasks' weights.

        Left out are programs that cannot be replayed, and tasks of which one program is left.
        """
        usable = usable_programs(self._corpus, split_tasks(self._corpus).part(part))
        programs = [program for same in usable.values() for program in same]
        group = np.repeat(np.arange(len(usable)), [len(same) for same in usable.values()])
        features, failures = self._store.read(self._corpus, programs)
        good = np.ones(len(programs), dtype=bool)
        good[list(failures)] = False
        kept = np.flatnonzero(good & (np.bincount(group[good], minlength=len(usable))[group] > 1))
        weights = np.array([metric_weight(self._corpus.tasks[task_id]) for task_id in usable], dtype=np.float64)
        return [features[i] for i in kept], np.array([programs[i].latency for i in kept]), group[kept], weights


def _evaluate_ten_percent(
    checkpoint: Checkpoint, corpus: Corpus, data: RankingDataset, seed: int, store: StatementStore
) -> dict[str, float]:
    recipe = checkpoint.config.training.get("recipe")
    known = {field.name for field in fields(TrainConfig)}  # settings of other releases had no part in this one's
    own = TrainConfig.from_dict({k: v for k, v in recipe.items() if k in known}) if recipe else None
    # Else the shipped one of the architecture; of what is made of several networks, that of these networks.
    arch = get_architecture(checkpoint.config.arch).base or checkpoint.config.arch
    sized = {f.name for f in fields(get_architecture(arch).config)}
    settings = {name: value for name, value in checkpoint.config.model.items() if name in sized}
    config = own or replace(TrainConfig.find(arch), model=settings)
    shares = [Share(programs=FEW_DATA, seed=seed + i) for i in range(FEW_RUNS)]
    samples = [load_training_data(corpus, (), config.feature_schema, share, store) for share in shares]
    runs = [fit(sample, config, sample.share.seed) for sample in samples]
    scores = [evaluate_model(run.checkpoint.model, data) for run in runs]
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}

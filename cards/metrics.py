"""Decode config.json and metrics.json: scores, scores with few labels, other corpora, curves and tuning runs.

The error for a field of a wrong type gives its path in the file.
"""

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Self, TypeVar

import msgspec

from ..zoo.errors import TchubError

CONFIG_FILE, METRICS_FILE = "config.json", "metrics.json"
_REMEDIES = {CONFIG_FILE: "save the checkpoint again", METRICS_FILE: "write the file again with tchub evaluate"}
_ABSENT = re.compile(r"missing required field `(\w+)`")

METRICS_FORMAT = 1
SCORES = ("top1", "top5", "pairwise", "mean_top1", "mean_top5")
TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "pairwise": "pairwise accuracy",
    "mean_top1": "mean top-1",
    "mean_top5": "mean top-5",
}
# Heads of a model with three heads; `zoo.training.evaluation.head_scores` returns the R² of each.
HEADS = {
    "latency": "latency within a task",
    "memory": "memory-bound score",
    "core": "core-bound score",
}
BASELINES = {
    "random": "random choice",
    "xgboost": "XGBoost",
    "tenset-mlp": "TenSet-MLP",
    "base": "the checkpoint that it was adapted from",
    "ten_percent": "same architecture, trained on a random 10% of the data (mean of 3 seeds)",
}
_OURS = "**this checkpoint**"

Positive = Annotated[int, msgspec.Meta(ge=1)]

T = TypeVar("T", bound="JsonFacts")


class CardError(TchubError):
    """config.json or metrics.json cannot be read as the facts of a card. Field: `field`, a path in the file."""


class JsonFacts(msgspec.Struct, frozen=True):
    """Base of all structs that are decoded from a checkpoint's files; unknown fields are ignored."""


def decode(raw: Mapping[str, Any], form: type[T], file: str) -> T:
    """Return a JSON object of a checkpoint's file as a struct.

    null, an empty text, an empty object and a number that is not finite count as missing. `zoo.untrusted` limits the
    size and the depth of an untrusted file when it reads it.

    Raises:
        CardError: a required field is missing, or a field has another type.
    """
    try:
        return msgspec.convert(_present(raw, ""), form)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        path = path.removesuffix("`")
        if absent := _ABSENT.search(reason):
            path += f".{absent[1]}"
        raise bad_field(file, path.removeprefix(".") or file, reason) from error


def bad_field(file: str, path: str, reason: str) -> CardError:
    """Return the error of one field."""
    return CardError(f"{file}: {path}: {reason}", remedy=_REMEDIES[file], field=path)


def _present(value: Any, path: str) -> Any:
    """Return the value without the entries that count as missing."""
    if isinstance(value, Mapping):
        entries = {str(key): _present(entry, f"{path}.{key}") for key, entry in value.items()}
        return {key: entry for key, entry in entries.items() if entry not in (None, "", {})}
    if isinstance(value, list | tuple):
        return [_present(entry, f"{path}[{number}]") for number, entry in enumerate(value)]
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise msgspec.ValidationError(f"the text contains an unpaired surrogate - at `${path}`")
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


class MeanScore(JsonFacts, frozen=True):
    """Mean and standard deviation of a score over several seeds."""

    mean: float | None = None
    stdev: float | None = None


class ScoreLine(JsonFacts, frozen=True):
    """One line of a table of scores; a score that was not measured is None.

    Attributes:
        key: name of the model in metrics.json; label: the name that a card shows.
    """

    top1: float | MeanScore | None = None
    top5: float | MeanScore | None = None
    pairwise: float | MeanScore | None = None
    mean_top1: float | MeanScore | None = None
    mean_top5: float | MeanScore | None = None
    tasks: int | None = None
    programs: int | None = None
    label: str = ""
    key: str = ""

    def value(self, name: str) -> float | None:
        """Return one score, or its mean over seeds."""
        score = getattr(self, name)
        return score.mean if isinstance(score, MeanScore) else score

    def ahead_of(self, other: Self) -> dict[str, tuple[float, float]]:
        """Return the scores that are higher here: name -> (here, there)."""
        pairs = {name: (self.value(name), other.value(name)) for name in SCORES}
        return {name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None and a > b}

    def named(self, key: str, label: str) -> Self:
        """Return the line with its key, and with `label` unless the file has one."""
        return msgspec.structs.replace(self, key=key, label=self.label or label)


class SeedScores(ScoreLine, frozen=True):
    """Scores over several trainings; the number of trainings, and how the published one was chosen."""

    count: int | None = None
    chosen_by: str | None = None

    @property
    def spread(self) -> dict[str, MeanScore]:
        """Scores that have a mean and a standard deviation; empty for a single training."""
        scores = {name: getattr(self, name) for name in SCORES} if (self.count or 0) > 1 else {}
        whole = {name: score for name, score in scores.items() if isinstance(score, MeanScore)}
        return {name: score for name, score in whole.items() if None not in (score.mean, score.stdev)}


class SiblingScores(ScoreLine, frozen=True):
    """Scores of another checkpoint of the family on the same programs; its parameters, and programs learnt from."""

    parameters: int | None = None
    learnt: int | None = None


class TransferScores(JsonFacts, frozen=True):
    """Scores on a corpus other than the checkpoint's own, without further training.

    Attributes:
        split: part of the corpus; `all` if the corpus has no test tasks.
        device: device of the corpus; device_learnt: true if programs of this device are in the training.
        tasks, programs: numbers that were ranked; programs_per_task: most programs that were drawn of each task.
        tasks_known: tasks among them that were learnt, on other devices.
        tasks_left_out: tasks of the part that do not count, because they compute the same as a training task.
    """

    corpus: str
    split: str | None = None
    scores: ScoreLine = msgspec.field(default_factory=ScoreLine, name="metrics")
    random: ScoreLine | None = None
    device: str | None = None
    device_learnt: bool | None = None
    tasks: int | None = None
    programs: int | None = None
    programs_per_task: int | None = None
    tasks_known: int | None = None
    tasks_left_out: int | None = None

    @property
    def lost(self) -> bool:
        """True if random choice is ahead in a score."""
        return self.random is not None and bool(self.random.ahead_of(self.scores))


class TopKScore(JsonFacts, frozen=True):
    """Score of the best of the k programs that are ranked highest."""

    k: Positive
    model: float
    random: float | None = None


class CalibrationTenth(JsonFacts, frozen=True):
    """Programs whose predicted ranks within their tasks are in one tenth of the ranking.

    Attributes:
        least, most: range of the ranks, from 0 to 1; 1 is the program that is ranked first.
        mean, stdev: measured label, i.e. lowest latency of the task / latency.
        perfect: mean label of the same tenth of a perfect ranking.
    """

    least: float
    most: float
    mean: float
    stdev: float
    perfect: float | None = None


class GroupScore(JsonFacts, frozen=True):
    """Scores of one task, described by `text`, or the mean over the tasks of one operator."""

    operator: str = "other"
    text: str | None = msgspec.field(default=None, name="words")
    corpus: str | None = None
    tasks: int | None = None
    programs: int | None = None
    top1: float | None = None
    pairwise: float | None = None


class ScatterSample(JsonFacts, frozen=True):
    """Sample of programs: rank within the task by score, in (0, 1), and measured label."""

    predicted: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.predicted) != len(self.measured):
            raise ValueError("`predicted` and `measured` differ in length")


class FailureTables(JsonFacts, frozen=True):
    """Tasks with the lowest pairwise accuracy, and all operators, those with many tasks first."""

    tasks: tuple[GroupScore, ...] = ()
    operators: tuple[GroupScore, ...] = ()


class RankingCurves(JsonFacts, frozen=True):
    """How the checkpoint ranks the programs of its scores, see `zoo.training.evaluation`."""

    tasks: int | None = None
    programs: int | None = None
    top_k: tuple[TopKScore, ...] = ()
    scatter: ScatterSample = msgspec.field(default_factory=ScatterSample)
    calibration: tuple[CalibrationTenth, ...] = ()
    failures: FailureTables = msgspec.field(default_factory=FailureTables)

    @property
    def rises(self) -> int:
        """Number of tenths that have a higher mean label than the tenth before."""
        means = [tenth.mean for tenth in self.calibration]
        return sum(after > before for before, after in pairwise(means))


class LatencyCurve(JsonFacts, frozen=True, kw_only=True):
    """Latency of a network in milliseconds after seconds of tuning, with one system."""

    seconds: tuple[float, ...]
    ms: tuple[float, ...]
    name: str = "rival"

    def __post_init__(self) -> None:
        if not self.seconds or len(self.seconds) != len(self.ms):
            raise ValueError("`seconds` and `ms` are empty, or differ in length")

    @property
    def end(self) -> tuple[float, float]:
        """The last seconds and milliseconds."""
        return self.seconds[-1], self.ms[-1]


class ScheduleGain(JsonFacts, frozen=True, kw_only=True):
    """Sum of the latencies of a network's tasks in ms, without and with the schedules of a checkpoint.

    Attributes:
        without, brought: sum without and with the schedules, each after half of `trials` programs and after all.
    """

    network: str
    trials: int
    without: tuple[float, float]
    brought: tuple[float, float]
    command: str | None = None


class TuningCurve(LatencyCurve, frozen=True, kw_only=True):
    """One network tuned with the checkpoint, and with a rival system."""

    network: str
    device: str | None = None
    trials: int | None = None
    rival: LatencyCurve | None = None
    command: str | None = None


class KnowledgeBaseScores(JsonFacts, frozen=True):
    """One device that a knowledge base has learnt, in the order of learning.

    Attributes:
        gate: mean gate of its distillation; None for the first device.
        tasks, programs: numbers that were ranked.
        column: scores of the column that learnt it; then: of the base right after that; now: of the published base.
    """

    corpus: str
    device: str
    tasks: int | None = None
    programs: int | None = None
    gate: float | None = None
    column: ScoreLine | None = None
    then: ScoreLine | None = msgspec.field(default=None, name="learnt")
    now: ScoreLine | None = None

    @property
    def forgotten(self) -> float | None:
        """Pairwise accuracy lost since the device was learnt; below 0 where later devices helped."""
        then, now = self.then and self.then.value("pairwise"), self.now and self.now.value("pairwise")
        return None if then is None or now is None else then - now


class CardMetrics(JsonFacts, frozen=True):
    """metrics.json of a checkpoint.

    Attributes:
        tasks, programs: numbers that were ranked.
        command: produced the scores; measured_by: produced the curves and the scores on other corpora.
        results: name -> scores, where `model` is the checkpoint and the others are baselines.
        siblings: name -> other checkpoints of the family; validation: scores on the validation tasks.
        few_shot: number of labels -> scores; heads: name of `HEADS` -> R² on the same programs.
    """

    format: int = METRICS_FORMAT
    corpus: str | None = None
    split: str | None = None
    device: str | None = None
    seed: int | None = None
    command: str | None = None
    measured_by: str | None = None
    tasks: int | None = None
    programs: int | None = None
    results: dict[str, ScoreLine] = msgspec.field(default_factory=dict)
    siblings: dict[str, SiblingScores] = msgspec.field(default_factory=dict)
    validation: ScoreLine | None = None
    seeds: SeedScores = msgspec.field(default_factory=SeedScores)
    few_shot: dict[str, ScoreLine] = msgspec.field(default_factory=dict)
    heads: dict[str, float] = msgspec.field(default_factory=dict)
    transfer: tuple[TransferScores, ...] = ()
    curves: RankingCurves | None = None
    tuning: tuple[TuningCurve, ...] = ()
    schedules: tuple[ScheduleGain, ...] = ()
    devices: tuple[KnowledgeBaseScores, ...] = ()

    def __post_init__(self) -> None:
        if not all(text.isdecimal() and len(text) < 10 for text in self.few_shot):
            raise ValueError("a key of `few_shot` is not a number of labels")

    @property
    def scores(self) -> tuple[ScoreLine, ...]:
        """The checkpoint's line, then the known baselines in their order, then others by name."""
        known = ["model", *BASELINES]
        order = sorted(self.results, key=lambda key: (known.index(key) if key in known else len(known), key))
        labels = {"model": _OURS} | BASELINES
        return tuple(self.results[key].named(key, labels.get(key, key)) for key in order)

    @property
    def model(self) -> ScoreLine | None:
        """The checkpoint's own line."""
        return self.results.get("model")

    @property
    def beaten_by(self) -> tuple[ScoreLine, ...]:
        """Baselines that have a higher score than the checkpoint."""
        return tuple(line for line in self.scores if self.model and line.ahead_of(self.model))

    @property
    def few_shots(self) -> tuple[tuple[int, ScoreLine], ...]:
        """Numbers of labels, ascending, each with the checkpoint's scores."""
        numbers = sorted(self.few_shot, key=int)
        return tuple((int(number), self.few_shot[number].named("model", _OURS)) for number in numbers)


def read_metrics(metrics: Mapping[str, Any]) -> CardMetrics:
    """Return metrics.json as a struct.

    Raises:
        CardError: a field has the wrong type, or the file is of a newer format.
    """
    number = metrics.get("format", METRICS_FORMAT)
    if isinstance(number, int) and number > METRICS_FORMAT:
        raise CardError(
            f"metrics.json has format {number}; this tchub reads up to {METRICS_FORMAT}",
            remedy="upgrade tchub: pip install -U tchub",
            field="format",
        )
    return decode(metrics, CardMetrics, METRICS_FILE)

"""docs/leaderboard.md: how the wheel's checkpoints rank the test programs of each corpus, from their metrics.json."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scripts.benchmarks.common import ROOT, read_json
from scripts.benchmarks.report.tables import Row, table

SCORES = {
    "pairwise": "pairwise",
    "mean_top1": "mean top-1",
    "top1": "top-1",
    "top5": "top-5",
    "mean_top5": "mean top-5",
}
_BASELINES = ("random", "xgboost", "lightgbm")  # of what a card compares with; the others ship themselves
_CHANCE = "random choice"
_SUMMARY = ("pairwise", "mean_top1", "top5")
_INTRO = """# Leaderboard

Written by `python -m scripts.benchmarks.report` from what each checkpoint of the wheel scores, which
[its card](../cards) shows too; `python -m scripts.zoo.measure_cards` judges them again, without training.

The models of a table are judged on the same programs of the same test tasks. *pairwise* is the share of pairs more than
5% apart that are ordered rightly, mean over tasks; *top-k* is the lowest latency of all measured programs over the
lowest among the k that the model ranks highest, weighted by how often a network runs the task; *mean* weighs all tasks
alike. 1 is best. A table is sorted by pairwise accuracy, the best of a column is bold, and baselines are in italics.
Scores are of the weights alone, with nothing of the tasks measured; \\*: no program of the device was learnt.
A checkpoint that has learnt what some of the test tasks compute, or for which only some programs were lowered to
statements, is judged on the rest: in a second table, beside a random order of that rest.
XGBoost learns what `scripts/zoo.toml` names for the family whose own corpus it is; on other corpora, by
`python -m scripts.benchmarks baselines`, the corpus's own training tasks.

What measured programs add: [from other devices to a new one](benchmarks.md#from-other-devices-to-a-new-one). How many
programs a second a model scores: [scoring candidates](benchmarks.md#scoring-candidates).
"""
_BEST = "Of those judged on all test tasks of a corpus, the best checkpoint and the best XGBoost by pairwise accuracy."
_CHECKPOINTS = """## The checkpoints

Size is that of the weights' file; training is of the one that ships, which the validation tasks chose where several
seeds were trained. The last column is over all seeds, on the test tasks of the first corpus.
"""


@dataclass(frozen=True)
class Judged:
    """Scores of a checkpoint or a baseline on programs of a corpus's test tasks, beside those of a random order."""

    corpus: str
    device: str
    name: str
    scores: Row
    tasks: int
    programs: int
    random: Row
    baseline: bool = False

    def cells(self, best: Sequence[str] = ()) -> Iterator[str]:
        """Yield the name and the scores, bold where they are the best of a column."""
        yield f"*{self.name}*" if self.baseline else self.name
        for i, text in enumerate(f"{self.scores[key]:.3f}" for key in SCORES):
            yield f"**{text}**" if best and text == best[i] else text

    def part(self) -> tuple[str, int, str]:
        """Return what tells how much of the test tasks these are, and how easy."""
        return f"{self.random['mean_top1']:.3f}", self.tasks, f"{self.programs:,}"


def judged(config: Row, metrics: Row) -> Iterator[Judged]:
    """Yield the scores of a checkpoint on every corpus, and those of the baselines on its own corpus."""
    name, devices = config["name"], metrics.get("devices")
    for row in devices or ():
        if row["now"]:
            yield Judged(row["corpus"], row["device"], name, row["now"], row["tasks"], row["programs"], row["random"])
    for key, row in metrics["results"].items() if devices is None else ():
        if key == "model" or key.startswith(_BASELINES):
            title = name if key == "model" else row.get("label", _CHANCE)
            title += f", {row['programs']:,} programs" if "programs" in row else ""
            facts = metrics["tasks"], metrics["programs"], metrics["results"]["random"], key != "model"
            yield Judged(metrics["corpus"], metrics["device"], title, row, *facts)
    for row in metrics["transfer"]:
        title = name if row["device_learnt"] else f"{name} \\*"
        facts = row["tasks"], row["programs"], row["random"]
        yield Judged(row["corpus"], row["device"], title, row["metrics"], *facts)


def shipped() -> Iterator[tuple[Row, Row, int]]:
    """Yield config.json, metrics.json and the bytes of the weights of what is in the wheel."""
    for path in sorted((ROOT / "zoo" / "checkpoints").glob("*/*/config.json")):
        size = path.with_name("model.safetensors").stat().st_size
        yield read_json(path), read_json(path.with_name("metrics.json")), size


def leaderboard_markdown(checkpoints: Sequence[tuple[Row, Row, int]], baselines: Sequence[Row] = ()) -> str:
    """Return the leaderboard: a summary of where XGBoost learnt, the checkpoints, then the tables of each corpus.

    Args:
        baselines: rows of docs/benchmarks/baselines.json.
    """
    corpora: dict[str, dict[str, Judged]] = defaultdict(dict)
    for config, metrics, _ in checkpoints:
        for row in judged(config, metrics):
            corpora[row.corpus].setdefault(row.name, row)  # a family's checkpoints have the same baselines
    for row in baselines:
        facts = (row[key] for key in ("corpus", "device", "name", "metrics", "tasks", "programs", "random"))
        corpora[row["corpus"]][row["name"]] = Judged(*facts, baseline=True)
    summary, sections = [], []
    for corpus, rows in sorted(corpora.items()):
        ranked = sorted(rows.values(), key=lambda row: (-row.scores["pairwise"], row.name))
        most = max(ranked, key=lambda row: row.programs)
        whole = [row for row in ranked if row.programs == most.programs]
        if _CHANCE not in rows:
            whole.append(replace(most, name=_CHANCE, scores=most.random, baseline=True))
            whole.sort(key=lambda row: -row.scores["pairwise"])
        sections += [f"## {corpus}", ""]
        sections += [f"Tasks: {most.tasks}. Programs: {most.programs:,}, measured on {most.device}.", ""]
        best = [f"{max(row.scores[key] for row in whole):.3f}" for key in SCORES]
        sections += table(("model", *SCORES.values()), [tuple(row.cells(best)) for row in whole], 1)
        part = [(*row.cells(), *row.part()) for row in ranked if row.programs < most.programs]
        sections += table(("on some of them", *SCORES.values(), "random: mean top-1", "tasks", "programs"), part, 1)
        ours = [row for row in whole if not row.baseline]
        trees = [row for row in whole if row.name.startswith("XGBoost")]
        if ours and trees:
            cells = (f"{row.scores[key]:.3f}" for row in (ours[0], trees[0]) for key in _SUMMARY)
            summary.append((f"[{corpus}](#{corpus})", ours[0].name, *cells))
    head = ("corpus", "best checkpoint", "pairwise", "mean top-1", "top-5", "XGBoost: pairwise", "mean top-1", "top-5")
    facts = ("checkpoint", "learnt from", "programs", "parameters", "size", "training", "seeds", "pairwise")
    about = table(facts, [tuple(_facts(*one)) for one in checkpoints], 2)
    return "\n".join([_INTRO, "## Summary", "", _BEST, "", *table(head, summary, 2), _CHECKPOINTS, *about, *sections])


def _facts(config: Row, metrics: Row, size: int) -> Iterator[Any]:
    """A row of the checkpoints' table."""
    training, seeds, name = config["training"], metrics.get("seeds", {"count": 1}), config["name"]
    learnt = [training["corpus"], *training.get("sources", ())]
    yield f"[{name}](../cards/{name}.md) {config['version']}"
    yield ", ".join(row["name"] for row in learnt)
    yield f"{sum(row.get('programs') or 0 for row in learnt):,}"
    yield f"{training['parameters']:,}" if "parameters" in training else "-"
    yield f"{size / 2**20:.2f} MiB"
    yield f"{training['seconds']:,.0f} s"
    yield seeds["count"]
    yield f"{seeds['pairwise']['mean']:.3f} ± {seeds['pairwise']['stdev']:.3f}" if seeds["count"] > 1 else "-"

"""docs/leaderboard.md: how the wheel's checkpoints rank the test programs of each corpus, from their metrics.json."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scripts.benchmarks.common import ROOT, read_json
from scripts.benchmarks.report.tables import Row, render

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
        best = [f"{max(row.scores[key] for row in whole):.3f}" for key in SCORES]
        part = [(*row.cells(), *row.part()) for row in ranked if row.programs < most.programs]
        sections.append((corpus, most, [tuple(row.cells(best)) for row in whole], part))
        ours = [row for row in whole if not row.baseline]
        trees = [row for row in whole if row.name.startswith("XGBoost")]
        if ours and trees:
            cells = (f"{row.scores[key]:.3f}" for row in (ours[0], trees[0]) for key in _SUMMARY)
            summary.append((f"[{corpus}](#{corpus})", ours[0].name, *cells))
    facts = {"summary": summary, "checkpoints": [tuple(_facts(*one)) for one in checkpoints], "sections": sections}
    return render("leaderboard", **facts, scores=list(SCORES.values()))


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

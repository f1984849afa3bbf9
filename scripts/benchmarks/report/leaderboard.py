"""docs/leaderboard.md: every model on every corpus, from docs/benchmarks/models.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scripts.benchmarks.report.tables import Row, seeds_of, table

BASELINES = {"random": "random choice", "xgboost": "XGBoost", "lightgbm": "LightGBM", "tenset-mlp": "TenSet-MLP"}
SCORES = {
    "pairwise": "pairwise",
    "mean_top1": "mean top-1",
    "top1": "top-1",
    "top5": "top-5",
    "mean_top5": "mean top-5",
}
# Facts of a model: title, key, factor, format.
_FACTS = (
    ("parameters", "parameters", 1, "{:,.0f}"),
    ("size", "bytes", 2**-20, "{:.2f} MiB"),
    ("training", "train_seconds", 1, "{:,.0f} s"),
    ("programs/s", "programs_per_second", 1, "{:,.0f}"),
)
_SUMMARY = ("pairwise", "mean_top1", "top5", "xgb_pairwise", "xgb_mean_top1")
_INTRO = """# Leaderboard

Written by `python -m scripts.benchmarks.report` from [benchmarks/models.json](benchmarks/models.json).

The models of a table are judged on the same programs of the same test tasks; what they learnt from, and what they are
told of the test tasks themselves, stands under its title. *pairwise* is the share of pairs more than 5% apart that are
ordered rightly, mean over tasks; *top-k* is the lowest latency of all measured programs over the lowest among the k
that the model ranks highest, weighted by how often a network runs the task; *mean* weighs all tasks alike. 1 is best.
"±" is the standard deviation over the seeds. A table is sorted by pairwise accuracy, the best of a column is bold, and
baselines are in italics. Size is that of the weights' file. `tilenet` is TileNet by the recipe `tilenet-sheets`, as in
version 1.0.0 of the zoo; scores of the present version stand on its
[cards](../cards).
"""


def leaderboard_markdown(job: Mapping[str, Any]) -> str:
    """Return the leaderboard: a summary, then a table for each corpus and protocol."""
    facts = job["machine"]
    machine = f"{facts['device']}, {facts['cpu_model']}, {facts['cores']} cores, {facts['memory_gib']} GiB"
    lines = [_INTRO, f"Made by `{job['command']}`, seeds {seeds_of(job)}, on {machine}, {job['date']}.", ""]
    head = ("corpus", "best model", "pairwise", "mean top-1", "top-5", "XGBoost: pairwise", "mean top-1")
    rows = [
        (f"`{corpus}`", best["best_model"], *(_score(best.get(key)) for key in _SUMMARY))
        for corpus, best in job["summary"].items()
    ]
    lines += ["## Summary", "", *table(head, rows, 2)]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in job["details"]["rows"]:
        groups.setdefault((row["corpus"], row["protocol"]), []).append(row)
    for (corpus, protocol), own in groups.items():
        lines += [f"## {corpus}", "", protocol, "", *_ranked(own)]
    return "\n".join(lines)


def _ranked(rows: Sequence[Row]) -> Iterator[str]:
    """A corpus's table, the best model first, and the seeds below it."""
    ranked = sorted(rows, key=lambda row: (-row["pairwise"]["mean"], row["model"]))
    best = {name: f"{max(row[name]['mean'] for row in rows):.3f}" for name in SCORES}
    yield from table(
        ("model", *SCORES.values(), *(title for title, *_ in _FACTS)), [list(_cells(row, best)) for row in ranked], 1
    )
    seeds = {row["model"]: seeds_of(row) for row in ranked if row["seeds"]}
    same = len(set(seeds.values())) == 1
    yield f"Seeds: {next(iter(seeds.values())) if same else '; '.join(map(' '.join, seeds.items()))}."
    yield from (f"- {row['model']}: {row['notes']}" for row in ranked if row.get("notes"))
    yield ""


def _cells(row: Row, best: Mapping[str, str]) -> Iterator[str]:
    name = row["model"]
    yield f"*{BASELINES[name]}*" if name in BASELINES else name
    for key, top in best.items():
        text = _score(row[key])
        yield f"**{text}**" if text.startswith(top) else text
    for _, key, factor, form in _FACTS:
        yield form.format(factor * row[key]) if row.get(key) is not None else "-"


def _score(score: Any) -> str:
    """A number, or the mean and deviation of several seeds."""
    if isinstance(score, Mapping):
        return f"{score['mean']:.3f} ± {score['stdev']:.3f}"
    return "-" if score is None else f"{score:.3f}"

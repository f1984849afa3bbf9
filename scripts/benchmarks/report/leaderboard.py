"""docs/leaderboard.md: every model on every corpus, from docs/benchmarks/models.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

BASELINES = {"random": "random choice", "xgboost": "XGBoost", "lightgbm": "LightGBM", "tenset-mlp": "TenSet-MLP"}
SCORES = {
    "pairwise": "pairwise",
    "mean_top1": "mean top-1",
    "top1": "top-1",
    "top5": "top-5",
    "mean_top5": "mean top-5",
}
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
_HEAD = (*SCORES.values(), "parameters", "size", "training", "programs/s")


def leaderboard_markdown(document: Mapping[str, Any]) -> str:
    """The leaderboard: a summary, then a table for each corpus and protocol.

    Args:
        document: models.json: `command`, `seeds`, `machine`, `summary` (corpus -> best_model and scores, beside
            XGBoost's) and `details.rows`, each with `corpus`, `protocol`, `model`, `seeds`, scores as numbers or
            {mean, stdev}, `parameters`, `bytes`, `train_seconds`, `programs_per_second`, `notes`.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in document["details"]["rows"]:
        groups.setdefault((row["corpus"], row.get("protocol") or ""), []).append(row)
    parts = [_INTRO, _made(document), _summary(document["summary"])]
    parts += [_table(corpus, protocol, rows) for (corpus, protocol), rows in groups.items()]
    return "\n".join(parts)


def _made(document: Mapping[str, Any]) -> str:
    machine = document.get("machine") or document["details"].get("machine") or {}
    facts = [f"{machine[key]} {word}".strip() for key, word in _MACHINE.items() if machine.get(key) is not None]
    seeds = ", ".join(map(str, document.get("seeds", ())))
    lines = [f"Made by `{document['command']}`" if document.get("command") else "", f"seeds {seeds}" if seeds else ""]
    lines += [f"on {', '.join(facts)}" if facts else "", str(document.get("date") or "")]
    return ", ".join(filter(None, lines)) + ".\n"


_MACHINE = {"device": "", "cpu_model": "", "gpu": "", "cores": "cores", "memory_gib": "GiB"}


def _summary(summary: Mapping[str, Mapping[str, Any]]) -> str:
    head = ("corpus", "best model", "pairwise", "mean top-1", "top-5", "XGBoost: pairwise", "mean top-1")
    rows = [_row(head), _row(["---", "---", *["---:"] * 5])]
    for corpus, best in summary.items():
        scores = (best.get(key) for key in ("pairwise", "mean_top1", "top5", "xgb_pairwise", "xgb_mean_top1"))
        rows.append(_row([f"`{corpus}`", best["best_model"], *map(_score, scores)]))
    return "\n".join(["## Summary", "", *rows, ""])


def _table(corpus: str, protocol: str, rows: Sequence[Mapping[str, Any]]) -> str:
    ranked = sorted(rows, key=lambda row: (-_mean(row.get("pairwise")), row["model"]))
    best = {name: max((_mean(row.get(name)) for row in rows), default=-math.inf) for name in SCORES}
    lines = [f"## {corpus}", "", *([protocol, ""] if protocol else [])]
    lines += [_row(["model", *_HEAD]), _row(["---", *["---:"] * len(_HEAD)])]
    lines += [_line(row, best) for row in ranked]
    seeds = {row["model"]: ", ".join(map(str, row.get("seeds") or ())) for row in ranked}
    common = {told for told in seeds.values() if told}
    lines += ["", *([f"Seeds: {common.pop()}."] if len(common) == 1 else _differing(seeds))]
    lines += [f"- {row['model']}: {row['notes']}" for row in ranked if row.get("notes")]
    return "\n".join(lines).rstrip() + "\n"


def _differing(seeds: Mapping[str, str]) -> list[str]:
    told = [f"{model} {numbers}" for model, numbers in seeds.items() if numbers]
    return [f"Seeds: {'; '.join(told)}."] if told else []


def _line(row: Mapping[str, Any], best: Mapping[str, float]) -> str:
    name = row["model"]
    title = f"*{BASELINES[name]}*" if name in BASELINES else name
    scores = []
    for key, top in best.items():
        text = _score(row.get(key))
        scores.append(f"**{text}**" if text != "-" and f"{_mean(row[key]):.3f}" == f"{top:.3f}" else text)
    size, seconds, speed = (row.get(key) for key in ("bytes", "train_seconds", "programs_per_second"))
    return _row(
        [
            title,
            *scores,
            _number(row.get("parameters"), "{:,.0f}"),
            _number(None if size is None else size / 2**20, "{:.2f} MiB"),
            _number(seconds, "{:,.0f} s"),
            _number(speed, "{:,.0f}"),
        ]
    )


def _mean(score: Any) -> float:
    """Of a number or {mean, stdev}; one that is missing is below all."""
    value = score.get("mean") if isinstance(score, Mapping) else score
    return -math.inf if value is None or math.isnan(value) else float(value)


def _score(score: Any) -> str:
    mean = _mean(score)
    if mean == -math.inf:
        return "-"
    spread = score.get("stdev") if isinstance(score, Mapping) else None
    return f"{mean:.3f}" if spread is None else f"{mean:.3f} ± {spread:.3f}"


def _number(value: Any, form: str) -> str:
    told = value.get("mean") if isinstance(value, Mapping) else value
    return "-" if told is None else form.format(told)


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

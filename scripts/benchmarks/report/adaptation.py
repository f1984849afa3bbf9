"""What the page shows of the benchmarks of adapting: samplers, other devices' programs, and settings.

A figure of several seeds is shown as mean ± deviation (number of seeds). What was not run has no column.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scripts.benchmarks.common import spread
from scripts.benchmarks.report.tables import Row, pick

PROTOCOLS = {"cross-task": "Cross-task", "in-task": "In-task", "both": "Both"}
SCORES = {"pairwise": "pairwise accuracy", "mean_top1": "top-1"}
# Methods of the transfer benchmark that learn from no source.
ALONE = ("scratch", "three-scratch", "trees")
BLOCKS = {"scratch": "from random weights", "pretrained": "from another device's"}
# Tables of the details that are shown as they are.
_PLAIN = {
    "label_ratios": "Labels that a method without sources needs over those that one with sources needs",
    "sources": "Number and order of the sources",
    "forgetting": "What the base still knows of earlier devices",
    "lost": "Score lost on earlier devices",
    "papers": "The papers' own networks",
}


def pivot(rows: Iterable[Row], index: Callable[[Row], Row], column: Any, value: Any) -> list[dict[str, Any]]:
    """Return a row for each `index` of the rows, beside it a cell for each `column`: three functions of a row."""
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = index(row)
        table.setdefault(tuple(key.values()), dict(key))[column(row)] = value(row)
    return list(table.values())


def plain(rows: Any) -> list[dict[str, Any]]:
    """Rows with their figures of several seeds in one cell each; of a mapping, a row for each key."""
    if isinstance(rows, Mapping):
        rows = [{"of": name} | dict(row) for name, row in rows.items()]
    return [{name: figure(v) if isinstance(v, Mapping) else v for name, v in row.items()} for row in rows or ()]


def figure(value: Row) -> str:
    """Mean, deviation and number of seeds; one seed has no deviation."""
    deviation = f" ± {value['stdev']:.3f}" if value["stdev"] is not None else ""
    return f"{value['mean']:.3f}{deviation} ({value['seeds']})"


def _filled(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {title: table for title, table in shown.items() if table}


def sampling(job: Row) -> dict[str, Any]:
    """A table for each start and score, a column a sampler; then differences, budgets and the time of picking."""
    details = job["details"]
    shown: dict[str, Any] = {
        "Means over corpora and seeds, pairwise accuracy (top-1)": _means(
            details["means"], lambda row: f"{row['share']:.0%} {BLOCKS[row['block']]}"
        ),
        "Where the tasks that are measured are ranked, pairwise accuracy (top-1)": _means(
            details["in_task"], lambda row: f"{row['labels']} labels"
        ),
    }
    rows = sorted(details["table"], key=lambda row: (row["corpus"], row["share"]))
    for block, start in BLOCKS.items():
        for score, title in SCORES.items():
            shown[f"{title.capitalize()}, {start}"] = pivot(
                [row for row in rows if row["block"] == block],
                lambda row: {"corpus": row["corpus"], "share": f"{row['share']:.0%}", "programs": row["programs"]},
                lambda row: row["sampler"],
                lambda row, score=score: figure(row[score]),
            )
    shown["Differences at a tenth, seed by seed"] = plain(details["cells"])
    shown["Share of RDU's tenth that gives RDU's score"] = list(_budget_means(job["summary"]))
    shown["The same for each corpus and start"] = plain(details["budgets"])
    return _filled(shown)


def _means(rows: Sequence[Row], column: Callable[[Row], str]) -> list[dict[str, Any]]:
    """A row a sampler, the best pairwise accuracy first."""
    total = Counter[str]()
    for row in rows:
        total[row["sampler"]] += row["pairwise"]
    return pivot(
        sorted(rows, key=lambda row: -total[row["sampler"]]),
        lambda row: {"sampler": row["sampler"]},
        lambda row: f"{column(row)} ({row['runs']})",
        lambda row: f"{row['pairwise']:.3f} ({row['mean_top1']:.3f})",
    )


def _budget_means(summary: Row) -> Iterator[dict[str, Any]]:
    """Means over corpora and starts: rdu+, and RDU itself as the control."""
    for sampler, name in (("rdu+", "rdu_plus"), ("rdu itself, the control", "rdu_control")):
        for end, score in (("", "top-1"), ("_pairwise", "pairwise accuracy")):
            key = f"{name}_budget_ratio{end}"
            if summary.get(key) is not None:
                columns = {"mean": key, "median": f"{key}_median", "mean, in seconds": f"{name}_seconds_ratio{end}"}
                columns |= {"corpora and starts": f"budget_ratio_cells{end}"}
                columns |= {"never reached": f"{key}_never", "smallest is enough": f"{key}_at_once"}
                yield {"sampler": sampler, "score": score} | pick([summary], columns)[0]


def transfer(job: Row) -> dict[str, Any]:
    """Every protocol's tables, by whether the tasks were seen, then sources, forgetting and cost."""
    details = job["details"]
    titles = details["methods"]
    rows = [row for row in _spread_rows(details) if row["method"] in titles]
    shown: dict[str, Any] = {}
    for protocol, title in PROTOCOLS.items():
        for seen, known in ((False, "unseen"), (True, "seen")):
            own = [row for row in rows if row["protocol"] == protocol and row["seen"] is seen]
            for score, name in SCORES.items():
                heading = f"{title}, {known}: {name}"
                shown[heading] = _by_target(own, score, titles)
                if any(row["labels"] for row in own):
                    shown[f"{heading}, mean over targets"] = list(_by_labels(own, score, titles))
    for score, name in SCORES.items():
        shown[f"Differences cross-task, seed by seed: {name}"] = pivot(
            details["differences"],
            lambda row: {"difference": row["difference"]},
            lambda row: row["target"],
            lambda row, score=score: figure(row[score]),
        )
    return _filled(shown | {title: plain(details.get(name)) for name, title in _PLAIN.items()})


def _spread_rows(details: Row) -> list[dict[str, Any]]:
    """The rows, with mean and deviation of their scores, which are kept seed by seed."""
    rows = [dict(zip(details["columns"], row, strict=True)) for row in details["rows"]]
    return [row | {score: spread(row[score]) | {"values": row[score]} for score in SCORES} for row in rows]


def _by_target(rows: Sequence[Row], score: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each target and number of labels, a column for each method."""
    targets, methods = list(dict.fromkeys(row["target"] for row in rows)), list(titles)
    return pivot(
        sorted(rows, key=lambda r: (targets.index(r["target"]), r["labels"], methods.index(r["method"]))),
        lambda r: {"target": r["target"]} | ({"labels a task": r["labels"]} if r["labels"] else {}),
        lambda r: titles[r["method"]],
        lambda r: figure(r[score]),
    )


def _by_labels(rows: Sequence[Row], score: str, titles: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """A row for each method, a column for each number of labels: the mean over all targets, where it has them all."""
    targets = {row["target"] for row in rows}
    for name, title in titles.items():
        cells = {}
        for labels in sorted({row["labels"] for row in rows}):
            own = [
                dict(zip(row["seeds"], row[score]["values"], strict=True))
                for row in rows
                if (row["method"], row["labels"]) == (name, labels)
            ]
            if len(own) == len(targets) and (common := set.intersection(*map(set, own))):
                cells[f"{labels} labels"] = figure(spread([statistics.mean(r[s] for r in own) for s in sorted(common)]))
        if cells:
            yield {"method": title, "targets": len(targets)} | cells


def lost_sampling(job: Row) -> Iterator[str]:
    """Corpora and starts on which RDU's tenth teaches more than rdu+'s."""
    for row in job["details"]["cells"]:
        for end, score in (("pairwise", "pairwise accuracy"), ("top1", "top-1")):
            gap = row.get(f"rdu_plus_minus_rdu_{end}")
            if gap and gap["mean"] < 0:
                yield f"{row['corpus']} {BLOCKS[row['block']]}: rdu+ less RDU at a tenth, {score}: {figure(gap)}."


def lost_transfer(job: Row) -> Iterator[str]:
    """In-task: where the best method without any source is ahead of ours, or of fine-tuning."""
    titles = job["details"]["methods"]
    rows = [row for row in _spread_rows(job["details"]) if row["protocol"] == "in-task"]
    for target, seen in sorted({(row["target"], row["seen"]) for row in rows}):
        own = [row for row in rows if (row["target"], row["seen"]) == (target, seen)]
        for score, name in SCORES.items():
            for method in ("ours", "fine-tune"):
                if ahead := "; ".join(_ahead(own, method, score, titles)):
                    yield f"{target}, {'seen' if seen else 'unseen'}, {name}, {titles[method]}: {ahead}."


def _ahead(rows: Sequence[Row], method: str, score: str, titles: Mapping[str, str]) -> Iterator[str]:
    """For each number of labels at which a method without sources is ahead of a method: both scores, and its name."""
    for labels in sorted({row["labels"] for row in rows}):
        means = {row["method"]: row[score]["mean"] for row in rows if row["labels"] == labels}
        best = max((name for name in ALONE if name in means), key=means.__getitem__, default=None)
        if best and method in means and means[best] > means[method]:
            yield f"{means[method]:.3f} with {labels} labels a task, {titles[best]} {means[best]:.3f}"

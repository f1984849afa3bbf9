"""What the page shows of the benchmarks of adapting: samplers, and what other devices' programs are worth.

A figure of several seeds is shown as mean ± deviation (number of seeds). What was not run has no column.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scripts.benchmarks.transfer.figures import spread

Row = Mapping[str, Any]

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
    "cost": "Size and cost by number of devices",
    "papers": "The papers' own networks",
    "ablation": "Parts of TCL, added one by one",
}


def sampling(job: Mapping[str, Any]) -> dict[str, Any]:
    """A table for each start and score, a column a sampler; then differences, budgets and the time of picking."""
    details = job["details"]
    found: dict[str, Any] = {
        "Means over corpora and seeds, pairwise accuracy (top-1)": _means(
            details.get("means", ()), lambda row: f"{row['share']:.0%} {BLOCKS[row['block']]}"
        )
    }
    found["Where the tasks that are measured are ranked, pairwise accuracy (top-1)"] = _means(
        details.get("in_task", ()), lambda row: f"{row['labels']} labels"
    )
    for block, words in BLOCKS.items():
        own = [row for row in details.get("table", ()) if row["block"] == block]
        for score, named in SCORES.items():
            found[f"{named.capitalize()}, {words}"] = _by_sampler(own, score)
    found["Differences at a tenth, seed by seed"] = plain(details.get("cells", ()))
    found["Share of RDU's tenth that gives RDU's score"] = _budget_means(job.get("summary", {}))
    found["The same for each corpus and start"] = plain(details.get("budgets", ()))
    found["Seconds to pick"] = plain(details.get("pool", ()))
    return {title: table for title, table in found.items() if table}


def _means(rows: Sequence[Row], named: Callable[[Row], str]) -> list[dict[str, Any]]:
    """A row a sampler, the best pairwise accuracy first; a column for each place, `named` by its rows."""
    found: dict[str, dict[str, Any]] = {}
    total = Counter[str]()
    for row in rows:
        told = f"{row['pairwise']:.3f} ({row['mean_top1']:.3f})"
        found.setdefault(row["sampler"], {"sampler": row["sampler"]})[f"{named(row)} ({row['runs']})"] = told
        total[row["sampler"]] += row["pairwise"]
    return sorted(found.values(), key=lambda told: -total[told["sampler"]])


def _budget_means(summary: Row) -> list[dict[str, Any]]:
    """Means over corpora and starts: rdu+, and RDU itself as the control."""
    found = []
    for sampler, named in (("rdu+", "rdu_plus"), ("rdu itself, the control", "rdu_control")):
        for end, score in (("", "top-1"), ("_pairwise", "pairwise accuracy")):
            key = f"{named}_budget_ratio{end}"
            if summary.get(key) is not None:
                told = {
                    "sampler": sampler,
                    "score": score,
                    "mean": summary[key],
                    "median": summary.get(f"{key}_median"),
                    "mean, in seconds": summary.get(f"{named}_seconds_ratio{end}"),
                }
                told |= {"corpora and starts": summary.get(f"budget_ratio_cells{end}")}
                told |= {
                    "never reached": summary.get(f"{key}_never"),
                    "smallest is enough": summary.get(f"{key}_at_once"),
                }
                found.append(told)
    return found


def _by_sampler(rows: Sequence[Row], score: str) -> list[dict[str, Any]]:
    """A row for each corpus and share."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["corpus"], row["share"])):
        place = row["corpus"], row["share"]
        told = found.setdefault(place, {"corpus": place[0], "share": f"{place[1]:.0%}", "programs": row["programs"]})
        told[row["sampler"]] = figure(row[score])
    return list(found.values())


def transfer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Every protocol's tables, told apart by whether the tasks were seen, then sources, forgetting and cost."""
    details = job["details"]
    rows, titles = _spread_rows(details), details.get("methods", {})
    found: dict[str, Any] = {}
    for protocol, title in PROTOCOLS.items():
        for seen, words in ((False, "unseen"), (True, "seen")):
            own = [r for r in rows if r["protocol"] == protocol and r["seen"] is seen and r["method"] in titles]
            for score, named in SCORES.items():
                heading = f"{title}, {words}: {named}"
                found[heading] = _by_target(own, score, titles)
                if any(row["labels"] for row in own):
                    found[f"{heading}, mean over targets"] = _by_labels(own, score, titles)
    for score, named in SCORES.items():
        found[f"Differences cross-task, seed by seed: {named}"] = _by_difference(details.get("differences", ()), score)
    found |= {title: plain(_listed(details.get(name))) for name, title in _PLAIN.items()}
    return {title: table for title, table in found.items() if table}


def _spread_rows(details: Row) -> list[dict[str, Any]]:
    """The rows, with mean and deviation of their scores, which are kept seed by seed."""
    rows = [dict(zip(details["columns"], row, strict=True)) for row in details.get("rows", ())]
    return [row | {score: spread(row[score]) for score in SCORES} for row in rows]


def _by_difference(rows: Sequence[Row], score: str) -> list[dict[str, Any]]:
    """A row for each difference, a column for each target."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["difference"], {"difference": row["difference"]})[row["target"]] = figure(row[score])
    return list(found.values())


def _listed(value: Any) -> Sequence[Row]:
    if isinstance(value, Mapping):
        return [{"of": name} | dict(row) for name, row in value.items()]
    return value or ()


def plain(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows with their figures of several seeds in one cell each."""
    return [{name: figure(v) if _is_spread(v) else v for name, v in row.items()} for row in rows]


def _by_target(rows: Sequence[Row], score: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each target and number of labels, a column for each method."""
    places = dict.fromkeys((row["target"], row["labels"]) for row in sorted(rows, key=lambda row: row["labels"]))
    targets = list(dict.fromkeys(row["target"] for row in rows))
    found = []
    for target, labels in sorted(places, key=lambda place: targets.index(place[0])):
        own = {r["method"]: figure(r[score]) for r in rows if (r["target"], r["labels"]) == (target, labels)}
        told = {"target": target, "labels a task": labels} if labels else {"target": target}
        found.append(told | {title: own[name] for name, title in titles.items() if name in own})
    return found


def _by_labels(rows: Sequence[Row], score: str, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each method, a column for each number of labels: the mean over all targets, where it has them all."""
    targets = {row["target"] for row in rows}
    found = []
    for name in titles:
        told: dict[str, Any] = {}
        for labels in sorted({row["labels"] for row in rows}):
            own = [row for row in rows if (row["method"], row["labels"]) == (name, labels)]
            if len(own) == len(targets) and (mean := over_targets(own, score)):
                told[f"{labels} labels"] = figure(mean)
        if told:
            found.append({"method": titles[name], "targets": len(targets)} | told)
    return found


def over_targets(rows: Sequence[Row], score: str) -> dict[str, Any] | None:
    """The mean over targets of each seed that all of them have: its mean and deviation; None without such a seed."""
    if not rows:
        return None
    seeds = set.intersection(*(set(row["seeds"]) for row in rows))
    values = [statistics.mean(row[score]["values"][row["seeds"].index(seed)] for row in rows) for seed in sorted(seeds)]
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "stdev": deviation, "seeds": len(values)}


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and {"mean", "stdev", "seeds"} <= set(value)


def figure(spread: Mapping[str, Any]) -> str:
    """Mean, deviation and number of seeds; one seed has no deviation."""
    told = f"{spread['mean']:.3f}"
    return told + (f" ± {spread['stdev']:.3f}" if spread["stdev"] is not None else "") + f" ({spread['seeds']})"


def lost_sampling(job: Mapping[str, Any]) -> Iterator[str]:
    """Corpora and starts on which RDU's tenth teaches more than rdu+'s."""
    for row in job["details"].get("cells", ()):
        for end, words in (("pairwise", "pairwise accuracy"), ("top1", "top-1")):
            gap = row.get(f"rdu_plus_minus_rdu_{end}")
            if gap and gap["mean"] < 0:
                yield f"{row['corpus']} {BLOCKS[row['block']]}: rdu+ less RDU at a tenth, {words}: {figure(gap)}."


def lost_transfer(job: Mapping[str, Any]) -> Iterator[str]:
    """In-task: where the best method without any source is ahead of ours, or of fine-tuning."""
    titles = job["details"].get("methods", {})
    rows = [row for row in _spread_rows(job["details"]) if row["protocol"] == "in-task"]
    for target, seen in sorted({(row["target"], row["seen"]) for row in rows}):
        own = [row for row in rows if (row["target"], row["seen"]) == (target, seen)]
        for score, named in SCORES.items():
            for method in ("ours", "fine-tune"):
                if ahead := list(_ahead(own, method, score, titles)):
                    place = f"{target}, {'seen' if seen else 'unseen'}, {named}, {titles[method]}"
                    yield f"{place}: {'; '.join(ahead)}."


def _ahead(rows: Sequence[Row], method: str, score: str, titles: Mapping[str, str]) -> Iterator[str]:
    """For each number of labels at which a method without sources is ahead of a method: both scores, and its name."""
    for labels in sorted({row["labels"] for row in rows}):
        found = {row["method"]: row[score]["mean"] for row in rows if row["labels"] == labels}
        best = max((name for name in ALONE if name in found), key=found.__getitem__, default=None)
        if best and method in found and found[best] > found[method]:
            yield f"{found[method]:.3f} with {labels} labels a task, {titles[best]} {found[best]:.3f}"

"""Figures of the transfer benchmark, from its single results: means over seeds, differences, labels needed.

Whatever is subtracted or divided is a mean over the seeds that both sides have.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from operator import sub, truediv
from typing import Any

from scripts.benchmarks.common import monotone, spread

Row = Mapping[str, Any]
Curve = Sequence[tuple[float, float]]

SCORES = ("pairwise", "mean_top1", "mean_top5")
QUOTED = ("mean_top1", "pairwise")
# What is counted for each of two methods at one protocol, targets and seeds in common.
DIFFERENCES = (
    ("continual_minus_finetune", "continual", "fine-tune"),
    ("continual_minus_mtl", "continual", "multi-task"),
    ("ours_minus_continual", "ours", "continual"),
    ("ours_minus_finetune", "ours", "fine-tune"),
    ("ours_minus_finetune_strata", "ours", "fine-tune-strata"),
    ("finetune_minus_scratch", "fine-tune", "scratch"),
    ("full_minus_finetune", "full", "fine-tune"),
    ("finetune_all_minus_finetune", "fine-tune-all", "fine-tune"),
    ("merged_minus_finetune", "merged", "fine-tune"),
    ("adapt_continual_minus_finetune", "continual-adapt", "fine-tune"),
)
RIVALS = ("scratch", "three-scratch", "trees")
# Whose need of labels is compared with theirs, and how the ratio is named: ours, and the most that could be hoped for.
HOPES = {"ours": "label_ratio", "committee-informed": "label_ratio_informed"}
# Pairwise accuracy of any order before there is a label.
COIN = 0.5


def mean_rows(answers: Iterable[Row]) -> list[dict[str, Any]]:
    """One row for each target, sources, protocol, labels and method: its `seeds`, and each score seed by seed."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for answer in sorted(answers, key=lambda answer: answer["seed"]):
        key = tuple(answer[name] for name in ("target", "seen", "protocol", "labels", "method"))
        groups.setdefault((*key, tuple(answer["sources"]), tuple(answer["taught"])), []).append(answer)
    facts = ("target", "seen", "protocol", "labels", "drawn", "method", "taught")
    return [
        {name: group[0][name] for name in facts}
        | {"seeds": [answer["seed"] for answer in group]}
        | {name: [answer["scores"][name] for answer in group] for name in SCORES}
        for group in groups.values()
    ]


def find(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def by_seed(row: Row, score: str) -> dict[int, float]:
    """The score of each seed of a row."""
    return dict(zip(row["seeds"], row[score], strict=True))


def pairs(rows: Sequence[Row], one: str, other: str, score: str) -> dict[str, list[tuple[float, float]]]:
    """Both methods' scores cross-task for each target that both have, one pair for each seed that both have."""
    cross = find(rows, protocol="cross-task", seen=False)
    second = {row["target"]: by_seed(row, score) for row in find(cross, method=other)}
    found = {}
    for row in find(cross, method=one):
        theirs = second.get(row["target"], {})
        both = [(value, theirs[seed]) for seed, value in by_seed(row, score).items() if seed in theirs]
        if both:
            found[row["target"]] = both
    return found


def compared(
    rows: Sequence[Row], one: str, other: str, score: str, how: Callable[[float, float], float]
) -> float | None:
    """Mean over targets of how one method's mean score compares with another's, cross-task; None without a target."""
    means = [map(statistics.mean, zip(*both, strict=True)) for both in pairs(rows, one, other, score).values()]
    return statistics.mean(how(mine, theirs) for mine, theirs in means) if means else None


def difference_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every quoted difference target by target: mean and deviation over the pairs of seeds."""
    found = []
    for _, one, other in DIFFERENCES:
        paired = {score: pairs(rows, one, other, score) for score in QUOTED}
        for target, both in paired[QUOTED[0]].items():
            gaps = {score: spread([a - b for a, b in paired[score][target]]) for score in QUOTED}
            found.append({"difference": f"{one} less {other}", "target": target, "seeds": len(both), **gaps})
    return found


def curve(
    rows: Sequence[Row], target: str, seen: bool, method: str, seeds: Iterable[int] | None = None
) -> list[tuple[float, float]]:
    """(labels a task, mean pairwise accuracy) in-task, from the least labels; of small tasks, as many as were drawn.

    Without labels there is what the method itself was measured to have, if it was; a method that knows nothing but
    labels has a coin's accuracy there.

    Args:
        seeds: over which the means are taken; None: all that a point has.
    """
    points = [(0, COIN)] if method in RIVALS else []
    wanted = None if seeds is None else set(seeds)
    for row in find(rows, target=target, seen=seen, method=method, protocol="in-task"):
        values = [value for seed, value in by_seed(row, "pairwise").items() if wanted is None or seed in wanted]
        if values and (row["labels"] or method not in RIVALS):
            points.append((row["drawn"], statistics.mean(values)))
    return sorted(points)


def labels_needed(points: Curve, level: float) -> float | None:
    """Labels at which a curve first has a level, straight lines between its points; None where it never has."""
    for i, (labels, value) in enumerate(points):
        if value >= level:
            if i == 0:
                return float(labels)
            before, lower = points[i - 1]
            return before + (labels - before) * (level - lower) / (value - lower)
    return None


def label_ratio(scratch: Curve, ours: Curve) -> float | None:
    """Labels that scratch needs over those that ours needs, for scratch's score at its most labels.

    Both curves are made monotone. A need of less than one label counts as one. Where ours has that score at its
    fewest labels, it needs no more than those. Where ours does not reach it, the ratio is for ours' own best score,
    which scratch has with fewer labels: it is below 1.
    """
    if not scratch or not ours or scratch[-1][0] != ours[-1][0]:
        return None
    scratch, ours = monotone(scratch), monotone(ours)
    most = scratch[-1][0]
    need = labels_needed(ours, scratch[-1][1])
    if need is not None:
        return most / max(1.0, need)
    return max(1.0, labels_needed(scratch, ours[-1][1]) or most) / most


def ratio_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The label ratio of each target against each method without sources, over the seeds that both curves have.

    Returns:
        `of` names the method that learns from sources; `ratio` is that of the mean curves; `of seeds` has those of
        single seeds; `at_least` says that the fewest labels that the method was asked with were enough.
    """
    targets = dict.fromkeys(row["target"] for row in rows)
    asked = product((False, True), targets, HOPES, RIVALS)
    return [row for one in asked if (row := _ratio_row(rows, *one))]


def _ratio_row(rows: Sequence[Row], seen: bool, target: str, method: str, rival: str) -> dict[str, Any] | None:
    def ratio(used: Iterable[int]) -> float | None:
        return label_ratio(*(curve(rows, target, seen, name, used) for name in (rival, method)))

    points = find(rows, target=target, seen=seen, protocol="in-task")
    common = [set(row["seeds"]) for row in points if row["method"] in (rival, method)]
    seeds = sorted(set.intersection(*common)) if common else []
    mean = ratio(seeds)
    if mean is None:
        return None
    ours = curve(rows, target, seen, method, seeds)
    single = [value for seed in seeds if (value := ratio([seed])) is not None]
    row = {"target": target, "seen": seen, "of": method, "versus": rival, "ratio": mean, "seeds": len(seeds)}
    first = max(1.0, ours[0][0])
    return row | {"of seeds": spread(single), "at_least": ours[0][0] > 0 and mean == ours[-1][0] / first}


def summary(rows: Sequence[Row], forgetting: Mapping[str, float | None]) -> dict[str, Any]:
    """The figures that are quoted; one that was not measured is left out."""
    quoted: dict[str, Any] = {}
    for end, score in (("", "mean_top1"), ("_pairwise", "pairwise")):
        quoted |= {f"{name}{end}": compared(rows, one, other, score, sub) for name, one, other in DIFFERENCES}
        # Of the same model on all of the target's data, and of one training on that and the sources.
        for name, other in (("continual_over_full", "continual-all"), ("continual_over_joint", "full")):
            quoted[f"{name}{end}"] = compared(rows, "continual", other, score, truediv)
        quoted[f"forgetting{end}"] = forgetting.get(score)
    ratios = ratio_rows(rows)
    for method, title in HOPES.items():
        for rival in RIVALS:
            for seen, end in ((False, ""), (True, "_seen")):
                own = [row["ratio"] for row in find(ratios, of=method, versus=rival, seen=seen)]
                name = f"{title}_vs_{rival.replace('-', '_')}{end}"
                quoted |= {name: statistics.geometric_mean(own), f"{name}_least": min(own)} if own else {}
    return {name: value for name, value in quoted.items() if value is not None}


def method_rows(rows: Sequence[Row], methods: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each method that has answers, two columns for each target: mean, deviation and number of seeds."""
    table = []
    for name, method in methods.items():
        own, ends = find(rows, method=name), {"pairwise": "pairwise", "mean_top1": "top-1"}
        if own:
            cells = {f"{row['target']}, {end}": spread(row[key]) for row in own for key, end in ends.items()}
            table.append({"method": method.title} | cells)
    return table


def source_rows(rows: Sequence[Row], ordered: Sequence[Row]) -> list[dict[str, Any]]:
    """Continual learning cross-task by the sources that teach, in order, those of the main table among them."""
    targets = {row["target"] for row in ordered}
    titles = {"continual": "all, as given", "fine-tune": "all at once, fine-tuned"}
    found = [(row, " > ".join(row["taught"])) for row in ordered]
    whole = [row for row in find(rows, protocol="cross-task", seen=False) if row["target"] in targets]
    found += [(row, titles[row["method"]]) for row in whole if row["method"] in titles]
    return [
        {"target": row["target"], "sources": order, "seeds": len(row["seeds"])}
        | {name: spread(row[name]) for name in SCORES}
        for row, order in sorted(found, key=lambda pair: pair[0]["target"])
    ]

"""What the checkpoints in the wheel gained over those of an earlier commit: on their own test split, and elsewhere.

    python -m scripts.zoo.compare 301dc93
    python -m scripts.zoo.compare 301dc93 --checkpoint tilenet-k80

Pairwise accuracy without any label of the task, as the metrics.json of both say it; nothing is judged again. *own* is
the test split, mean over seeds, of a knowledge base the mean over its devices; *own top-1* is its top-1 score.
*elsewhere* and *learnt devices* are means over the rows of the card's transfer table, of devices that the checkpoint
did not and did learn from.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import click

from scripts.benchmarks.common import ROOT
from scripts.zoo.publish import WHEEL

_FILE = "metrics.json"
_OWN = ("pairwise", "top1")


def metrics_at(commit: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Version and metrics of each checkpoint that the wheel held at a commit, by name."""
    listed = _git("ls-tree", "-r", "--name-only", commit, WHEEL.relative_to(ROOT).as_posix()).split()
    paths = [PurePosixPath(path) for path in listed if path.endswith(f"/{_FILE}")]
    return {path.parts[-3]: (path.parts[-2], json.loads(_git("show", f"{commit}:{path}"))) for path in paths}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def scores(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Pairwise accuracy by column; None where the checkpoint has none."""
    rows = metrics.get("transfer", ())
    devices = [row["now"] for row in metrics.get("devices", ()) if row["now"]]
    own = {key: _mean(row[key] for row in devices) for key in _OWN}
    if not devices:
        own = {key: metrics["seeds"][key]["mean"] for key in _OWN}
    return {
        "validation": metrics.get("validation", {}).get("pairwise"),
        "own": own["pairwise"],
        "own top-1": own["top1"],
        "learnt devices": _mean(row["metrics"]["pairwise"] for row in rows if row["device_learnt"]),
        "elsewhere": _mean(row["metrics"]["pairwise"] for row in rows if not row["device_learnt"]),
    }


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.mean(known) if known else None


def table(pairs: Mapping[str, tuple[dict[str, float | None], dict[str, float | None]]]) -> list[str]:
    """A line for each checkpoint, `0.828 -> 0.835 (+0.007)` in each column, and their means."""
    columns = list(next(iter(pairs.values()))[0])
    lines = [f"{'':<16}" + "".join(f"{column:>26}" for column in columns)]
    for name, (before, now) in pairs.items():
        lines.append(f"{name:<16}" + "".join(f"{_gain(before[column], now[column]):>26}" for column in columns))
    means = []
    for column in columns:
        both = [
            (b, n)
            for before, now in pairs.values()
            if (b := before[column]) is not None and (n := now[column]) is not None
        ]
        means.append(_gain(_mean(b for b, _ in both), _mean(n for _, n in both)))
    return [*lines, f"{'mean':<16}" + "".join(f"{gain:>26}" for gain in means)]


def _gain(before: float | None, now: float | None) -> str:
    return "-" if before is None or now is None else f"{before:.3f} -> {now:.3f} ({now - before:+.3f})"


@click.command()
@click.argument("commit")
@click.option("--checkpoint", "names", multiple=True, help="Only these; all of another version than then otherwise.")
def main(commit: str, names: tuple[str, ...]) -> None:
    """Compare the checkpoints in the wheel with those of COMMIT."""
    earlier = metrics_at(commit)
    pairs = {}
    for path in sorted(WHEEL.glob(f"*/*/{_FILE}")):
        name, version = path.parts[-3], path.parts[-2]
        if name in earlier and (name in names if names else version != earlier[name][0]):
            pairs[name] = scores(earlier[name][1]), scores(json.loads(path.read_text()))
    click.echo("\n".join(table(pairs)) if pairs else "no checkpoint is of another version")


if __name__ == "__main__":
    main()

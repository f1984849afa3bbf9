"""Feed every reader of foreign files with damaged and hostile ones: no crash but a typed error, and no hang.

    python -m scripts.fuzz [--target index --target lock] [--inputs 100000] [--seed 0] [--json]

Each target runs in a process of its own, so that code of other libraries may die there too. Inputs that crash or hang
are kept in `runs/fuzzing/TARGET`; a file of a bug that was mended goes to `tests/fuzz_inputs/TARGET`, where the tests
read it for ever.
"""

import shutil
import sys
from collections import Counter, defaultdict
from functools import partial
from typing import Any

import click

from scripts.benchmarks.common import CLOCK, ROOT, Clock, Document, Journal, benchmark, in_process, note, read_json
from scripts.fuzz.one import run_part
from scripts.fuzz.targets import TARGETS

KEPT = ROOT / "runs" / "fuzzing"
# Inputs of one process: what is measured is kept when it ends.
_PART = 5_000
# A target that dies this often in a part has shown enough.
_MAX_DEATHS = 20
_NONE: dict[str, Any] = {"inputs": 0, "accepted": 0, "refused": {}, "hangs": {}, "slowest_ms": 0.0, "seconds": 0.0}


def fuzz(target: str, seed: int, first: int, end: int) -> dict[str, Any]:
    """Inputs `first` to `end` of a target, in as many processes as die of them: their results, and the deaths."""
    folder = KEPT / target
    folder.mkdir(parents=True, exist_ok=True)
    deaths: dict[str, str] = {}
    while first < end and len(deaths) < _MAX_DEATHS:
        try:
            row = vars(in_process(run_part, target, end, seed, folder, first))
            return row | {"crashes": deaths | row["crashes"]}
        except click.ClickException as error:
            number = max(first, int((folder / "number").read_text()))  # of an earlier run where it died at once
            deaths[f"at {number}: {error.message}"] = f"{number}-death"
            shutil.copy(folder / "current", folder / f"{number}-death")
            first = number + 1
    return {"target": target, "crashes": deaths} | _NONE


def together(target: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of a target, of its parts."""
    refused: Counter[str] = sum((Counter(part["refused"]) for part in parts), Counter())
    return {
        "target": target,
        "inputs": sum(part["inputs"] for part in parts),
        "accepted": sum(part["accepted"] for part in parts),
        "slowest_ms": max(part["slowest_ms"] for part in parts),
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        "refused": dict(refused.most_common()),
        **{name: {key: file for part in parts for key, file in part[name].items()} for name in ("crashes", "hangs")},
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All targets together."""
    whole = together("all", rows)
    counts = {name: sum(len(row[name]) for row in rows) for name in ("crashes", "hangs")}
    return {
        "targets": len(rows),
        "inputs": whole["inputs"],
        "fewest_inputs": min(row["inputs"] for row in rows),
        "accepted": whole["accepted"],
        "refused": sum(whole["refused"].values()),
        **counts,
        "slowest_ms": whole["slowest_ms"],
    }


@benchmark(
    "fuzz",
    click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="All without it."),
    click.option("--inputs", default=100_000, show_default=True),
    click.option("--seed", default=0, show_default=True),
    CLOCK,
)
def main(targets: tuple[str, ...], inputs: int, seed: int, clock: Clock) -> Document:
    """Run the targets one after the other and write docs/benchmarks/fuzz.json.

    What that file counts, of the same seed and without a fault, is not run again. Delete it and runs/fuzzing, where
    results of parts are kept until a run ends, to begin anew.
    """
    sys.argv[1:] = ["--inputs", str(inputs), "--seed", str(seed)]  # what makes every row again, whichever is new
    path, journal = ROOT / "docs/benchmarks/fuzz.json", Journal(KEPT / "parts.jsonl")
    written = read_json(path) if path.exists() else {"seeds": [], "details": {"targets": []}}
    rows = {row["target"]: row for row in written["details"]["targets"]}
    clean = [row for row in rows.values() if written["seeds"] == [seed] and not row["crashes"] and not row["hangs"]]
    parts = defaultdict[str, list[dict[str, Any]]](list) | {row["target"]: [row] for row in clean}
    counts = {name: sum(row["inputs"] for row in parts[name]) for name in targets or TARGETS}
    left = [(first, name) for name, count in counts.items() for first in range(count, inputs, _PART)]
    for first, name in sorted(left):  # all grow alike where time is short
        key = {"target": name, "seed": seed, "first": first, "end": min(first + _PART, inputs)}
        if part := journal.get(partial(fuzz, *key.values()), clock, **key):
            parts[name].append(part)
    for name in counts.keys() & {name for name, own in parts.items() if own}:
        rows[name] = together(name, parts[name])
        note(", ".join(f"{key} {value}" for key, value in rows[name].items()))
    if bad := [name for name, row in rows.items() if row["crashes"] or row["hangs"]]:
        click.echo(f"crashes or hangs of {', '.join(bad)}: see {KEPT.relative_to(ROOT)}", err=True)
    ordered = [rows[name] for name in TARGETS if name in rows]
    return summary(ordered), {"targets": ordered}, [seed]


if __name__ == "__main__":
    main()

"""Fuzz one target by coverage: inputs that reach new code are kept and bent further (needs `pip install atheris`).

    python -m scripts.fuzz.guided TARGET [--seconds 60] [--seed 0]

The inputs are bent as `fuzz_mutate` bends them; what is new here is which ones. `python -m scripts.fuzz` counts,
and can be repeated input by input; this looks for what that may have missed, and keeps it in
`runs/fuzzing/guided/TARGET`.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from random import Random

import atheris
import click

from scripts.benchmarks.common import ROOT
from scripts.fuzz.mutate import mutate
from scripts.fuzz.targets import TARGETS, Target

KEPT = ROOT / "runs" / "fuzzing" / "guided"


class Guided:
    """One target, and what it may not end in."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.seen: set[str] = set()

    def one(self, data: bytes) -> None:
        """Reads an input; a crash is kept and told once, and the search goes on."""
        try:
            self.target.run(bytes(data))
        except Exception as error:
            if hasattr(error, "remedy"):  # a TchubError, whose class is not imported before it is watched
                return
            kind = f"{type(error).__name__}: {error}"[:60]
            if kind not in self.seen:
                self.seen.add(kind)
                path = self.folder / f"crash-{hashlib.sha256(data).hexdigest()[:8]}"
                path.write_bytes(data)
                click.echo(f"crash: {kind}: {path.relative_to(ROOT)}", err=True)

    def bent(self, data: bytes, most: int, seed: int) -> bytes:
        """A relative of an input that reached something new."""
        rng, seeds = Random(seed), self.target.seeds()
        return self.target.mend(rng, mutate(rng, bytes(data) or seeds[0], seeds, self.target.form))[:most]


@click.command()
@click.argument("name", metavar="TARGET", type=click.Choice(sorted(TARGETS)))
@click.option("--seconds", default=60, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(name: str, seconds: int, seed: int) -> None:
    """Fuzz until the time is over; the last line of libFuzzer says how much was covered."""
    folder = KEPT / name
    folder.mkdir(parents=True, exist_ok=True)
    guided = Guided(TARGETS[name], folder)
    with atheris.instrument_imports(include=["tchub"]):  # readers are imported when they first read
        for number, data in enumerate(guided.target.seeds()):
            (folder / f"seed-{number}").write_bytes(data)
            guided.one(data)
    told = [str(folder), f"-max_total_time={seconds}", f"-seed={seed + 1}", "-max_len=100000", "-timeout=20"]
    atheris.Setup([sys.argv[0], *told], guided.one, custom_mutator=guided.bent)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""Seconds until a command that needs no model has answered, beside Python itself and the Hub's own command line.

    python -m scripts.benchmarks startup --json

The commands run in turn, so that a busy moment of the machine hits all of them alike; the first round, which fills the
caches of the disk, is not counted. What they import is counted in a run of its own.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import Document, benchmark

BIN = Path(sys.executable).parent
COMMANDS: dict[str, list[str]] = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import tchub.hub'": [sys.executable, "-c", "import tchub.hub"],
    "tchub --help": [str(BIN / "tchub"), "--help"],
    "tchub list": [str(BIN / "tchub"), "list"],
    "tchub info tcl-epyc": [str(BIN / "tchub"), "info", "tcl-epyc"],
    "tchub pull --dry-run --device epyc": [str(BIN / "tchub"), "pull", "--dry-run", "--device", "epyc"],
    "hf --help": [str(BIN / "hf"), "--help"],
}
REPEATS = 21
HEAVY = ("torch", "tvm", "transformers", "matplotlib", "pyarrow", "numpy")


def seconds_of(command: list[str]) -> float:
    """Wall seconds of one run."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def imported_by(command: list[str]) -> set[str]:
    """Every module that Python imports on the way."""
    watched = [sys.executable, "-X", "importtime", *(command[1:] if command[0] == sys.executable else command)]
    run = subprocess.run(watched, check=True, capture_output=True, text=True)
    lines = (line for line in run.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}


def row_of(command: list[str], seconds: list[float], base: float) -> dict[str, Any]:
    """What one command took."""
    modules = imported_by(command)
    middle, quarters = statistics.median(seconds), statistics.quantiles(seconds, n=4)
    return {
        "median_ms": round(1000 * middle, 1),
        "quartiles_ms": [round(1000 * quarters[0], 1), round(1000 * quarters[2], 1)],
        "above_python_ms": round(1000 * (middle - base), 1),
        "modules": len(modules),
        "heavy_modules": [name for name in HEAVY if name in modules],
    }


@benchmark("startup")
def main() -> Document:
    """Measure and write docs/benchmarks/startup.json."""
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"TCHUB_CACHE": f"{empty}/cache", "TCHUB_HOME": f"{empty}/home", "HF_HUB_OFFLINE": "1"}
        rounds = [{name: seconds_of(command) for name, command in COMMANDS.items()} for _ in range(REPEATS + 1)][1:]
        seconds = {name: [one[name] for one in rounds] for name in COMMANDS}
        base = statistics.median(seconds["python -c pass"])
        rows = {name: row_of(command, seconds[name], base) for name, command in COMMANDS.items()}
    ms = {name: row["median_ms"] for name, row in rows.items()}
    summary = {
        "help_beside_hf": round(ms["hf --help"] / ms["tchub --help"], 2),
        "torch_or_tvm_imported": sum(bool({"torch", "tvm"} & set(row["heavy_modules"])) for row in rows.values()),
    }
    return summary, {"repeats": REPEATS, "commands": rows}, []

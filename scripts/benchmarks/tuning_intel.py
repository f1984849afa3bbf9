"""Run the benchmark `tuning` on a Xeon: another maker's CPU than that of its own table."""

from typing import Any

from scripts.benchmarks.common import Document, benchmark, work_option
from scripts.benchmarks.tuning import OPTIONS, measure


@benchmark("tuning_intel", *OPTIONS, work_option("tuning_intel"))
def main(**options: Any) -> Document:
    """Tune networks with every system and write docs/benchmarks/tuning_intel.json."""
    return measure("xeon", **options)

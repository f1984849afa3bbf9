"""Run the benchmark `rivals` on a Xeon: another maker's CPU than that of its own table."""

from pathlib import Path

from scripts.benchmarks.common import CLOCK, Clock, Document, benchmark, work_option
from scripts.benchmarks.rivals import AVX2, measure


@benchmark("rivals_intel", CLOCK, work_option("rivals_intel"))
def main(clock: Clock, work: Path) -> Document:
    """Tune networks and time them beside other runtimes; write docs/benchmarks/rivals_intel.json."""
    return measure(clock, work, family="xeon", held=AVX2)

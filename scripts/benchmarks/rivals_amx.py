"""Run the benchmark `rivals` on a Xeon with AMX, on one thread: a core has up to twice the FLOP/s of the others."""

from pathlib import Path

from scripts.benchmarks.common import CLOCK, Clock, Document, benchmark, work_option
from scripts.benchmarks.rivals import measure


@benchmark("rivals_amx", CLOCK, work_option("rivals_amx"))
def main(clock: Clock, work: Path) -> Document:
    """Tune networks and time them beside other runtimes; write docs/benchmarks/rivals_amx.json."""
    return measure(clock, work, family="xeon", threads=(1,))

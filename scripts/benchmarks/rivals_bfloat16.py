"""Run the benchmark `rivals` in bfloat16, OpenVINO's default there, on a Xeon with AMX."""

from pathlib import Path

from scripts.benchmarks.common import CLOCK, Clock, Document, benchmark, work_option
from scripts.benchmarks.rivals import NETWORKS, measure

# An untrained MobileNet-V2 loses its output in bfloat16, in PyTorch's too.
_LOST = "mobilenet-v2"


@benchmark("rivals_bfloat16", CLOCK, work_option("rivals_bfloat16"))
def main(clock: Clock, work: Path) -> Document:
    """Tune networks and time them beside other runtimes; write docs/benchmarks/rivals_bfloat16.json."""
    networks = [network for network in NETWORKS if network != _LOST]
    return measure(clock, work, "xeon", networks, precision="bfloat16")

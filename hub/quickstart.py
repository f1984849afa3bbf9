"""The whole way on a small network: pull a checkpoint, adapt it to this machine, tune with it, compare."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..zoo.files import write_atomically

if TYPE_CHECKING:
    from .adaptation.settings import AdaptProgress
    from .tuning.tune import TuneProgress, TuneResult

NETWORK = "bert-tiny"
# Sized for ten minutes on two cores: some 100 s of measuring to adapt, as much to tune, the rest searching.
POOL_PER_TASK = 48
BUDGET = "96"
TRIALS = 64
POPULATION, GENERATIONS = 64, 2


@dataclass(frozen=True)
class QuickstartResult:
    """What the quickstart came to.

    Attributes:
        network: the network.
        pulled: the checkpoint started from; tuned_with: the one that guided the tuning.
        adapted: whether the adapted model ranked the held-out programs better and was kept.
        pairwise_before, pairwise_after: accuracy on those programs; None when an earlier call adapted.
        untuned, tuned, pytorch: median end-to-end latency in seconds.
        output_equal: whether the tuned network's output equals PyTorch's; max_abs_diff: the largest difference.
        seconds: wall time of this call.
        folder: the tuning's output.
    """

    network: str
    pulled: str
    tuned_with: str
    adapted: bool
    pairwise_before: float | None
    pairwise_after: float | None
    untuned: float
    tuned: float
    pytorch: float
    output_equal: bool
    max_abs_diff: float
    seconds: float
    folder: str

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


class QuickstartProgress:
    """Told what happens; this one says nothing."""

    def say(self, text: str) -> None:
        """A step begins or ended."""

    def adapting(self) -> AdaptProgress | None:
        """Told of the adaptation's phases."""
        return None

    def tuning(self) -> TuneProgress | None:
        """Told of the tuning's steps."""
        return None


def quickstart(
    output: str | Path = "quickstart", *, trials: int = TRIALS, threads: int | None = None,
    progress: QuickstartProgress | None = None,
) -> QuickstartResult:  # fmt: skip
    """Pull, adapt, tune and compare on BERT-tiny; called again after a stop, it goes on.

    Args:
        output: folder for everything but the adapted checkpoint, which goes into the user's store.
        trials: programs to measure in the tuning.
        threads: threads of a program; None for one a physical core that may be used.
        progress: told of every step.

    Raises:
        TchubError: whatever `pull`, `adapt` and `tune` raise.
    """
    from .search.task_search import SearchSettings
    from .tuning.tune import tune

    started, folder, progress = time.monotonic(), Path(output), progress or QuickstartProgress()
    state = _adapted(folder, threads, progress)
    progress.say(f"tune {NETWORK} with {state['name']}: {trials} programs")
    result = tune(
        NETWORK,
        checkpoint=state["name"],
        trials=trials,
        output=folder / "tune",
        threads=threads,
        search=SearchSettings(population_size=POPULATION, genetic_num_iters=GENERATIONS),
        progress=progress.tuning(),
    )
    return _result(state, result, time.monotonic() - started)


def _adapted(folder: Path, threads: int | None, progress: QuickstartProgress) -> dict[str, Any]:
    """Pull and adapt, or what an earlier call noted about it."""
    from .adaptation.adapt import adapt
    from .api import locate, pull

    path = folder / "quickstart.json"
    if path.is_file():
        state = json.loads(path.read_text(encoding="utf-8"))
        locate(state["name"])
        progress.say(f"{state['name']} was adapted by an earlier call")
        return state
    pulled = pull()
    progress.say(f"pulled {pulled.entry.id} from {pulled.source}: it fits this machine best")
    progress.say(f"adapt it to this machine: {BUDGET} programs of {NETWORK}")
    result = adapt(
        pulled.entry.id,
        budget=BUDGET,
        workload=NETWORK,
        programs_per_task=POOL_PER_TASK,
        work_dir=folder / "adapt",
        threads=threads,
        progress=progress.adapting(),
    )
    verdict = f"stored {result.name}@{result.version}" if result.adapted else f"{result.base} kept"
    progress.say(f"{verdict}: {result.guard.reason}")
    state = {
        "pulled": pulled.entry.id,
        "name": f"{result.name}@{result.version}" if result.adapted else result.base,
        "adapted": result.adapted,
        "pairwise_before": result.guard.base,
        "pairwise_after": result.guard.adapted,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(state, indent=2).encode())
    return state


def _result(state: dict[str, Any], result: TuneResult, seconds: float) -> QuickstartResult:
    check, latency = result.report["output_check"]["tuned"], result.latency
    return QuickstartResult(
        network=NETWORK,
        pulled=state["pulled"],
        tuned_with=state["name"],
        adapted=state["adapted"],
        pairwise_before=state["pairwise_before"],
        pairwise_after=state["pairwise_after"],
        untuned=latency["untuned"],
        tuned=latency["tuned"],
        pytorch=latency["pytorch"],
        output_equal=check["ok"],
        max_abs_diff=check["max_abs_diff"],
        seconds=seconds,
        folder=str(result.folder),
    )

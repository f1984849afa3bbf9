"""`tchub quickstart`: pull a checkpoint, adapt it to this machine, tune a small network with it, compare."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from ...zoo.files import write_atomically
from .options import command, given_again, out_option, threads_option
from .output import Output
from .tune import suggest_use

NETWORK = "bert-tiny"
# Sized for ten minutes on two cores: some 100 s of measuring to adapt, as much to tune, the rest searching.
POOL_PER_TASK = 48
BUDGET = "96"
TRIALS = 64
POPULATION, GENERATIONS = 64, 2


def quickstart(
    out: str | Path = "quickstart", *, trials: int = TRIALS, threads: int | None = None, progress: Any = None
) -> dict[str, Any]:
    """Pull, adapt, tune and compare on BERT-tiny; called again after a stop, it goes on.

    Args:
        out: folder for everything but the adapted checkpoint, which goes into the user's store.
        trials: programs to measure in the tuning.
        threads: threads of a program; None for one a physical core that may be used.
        progress: receives every step, as that of `adapt` and that of `tune`.

    Returns:
        What was pulled and tuned with; the accuracies before and after adapting; median end-to-end latencies in seconds
        of the untuned and the tuned network and of PyTorch; the output check; the seconds of this call; the folder.

    Raises:
        TchubError: any error of `pull`, `adapt` and `tune`.
    """
    from ..search.engines import SearchSettings
    from ..tuning.progress import TuneProgress
    from ..tuning.tune import tune

    started, folder, progress = time.monotonic(), Path(out), progress or TuneProgress()
    state = _adapted(folder, threads, progress)
    progress.note(f"tune {NETWORK} with {state['name']}: {trials} programs")
    result = tune(
        NETWORK,
        checkpoint=state["name"],
        trials=trials,
        out=folder / "tune",
        threads=threads,
        search=SearchSettings(population_size=POPULATION, genetic_num_iters=GENERATIONS),
        progress=progress,
    )
    check = result.report["output_check"]["tuned"]
    latencies = {name: result.latency[name] for name in ("untuned", "tuned", "pytorch")}
    tuned_with = {"tuned_with" if key == "name" else key: value for key, value in state.items()}
    return {
        "network": NETWORK,
        **tuned_with,
        **latencies,
        "output_equal": check["ok"],
        "max_abs_diff": check["max_abs_diff"],
        "seconds": time.monotonic() - started,
        "folder": str(result.folder),
    }


def _adapted(folder: Path, threads: int | None, progress: Any) -> dict[str, Any]:
    """Pull and adapt, or return what an earlier call noted about it."""
    from ..adaptation.adapt import adapt
    from ..adaptation.config import AdaptConfig
    from ..api import locate, pull

    path = folder / "quickstart.json"
    if path.is_file():
        state = json.loads(path.read_text(encoding="utf-8"))
        locate(state["name"])
        progress.note(f"{state['name']} was adapted by an earlier call")
        return state
    pulled = pull()
    progress.note(f"pulled {pulled.entry.id} from {pulled.source}: it fits this machine best")
    progress.note(f"adapt it to this machine: {BUDGET} programs of {NETWORK}")
    config = AdaptConfig(budget=BUDGET, per_task=POOL_PER_TASK, out=folder / "adapt", threads=threads)
    result = adapt(pulled.entry.id, NETWORK, config=config, progress=progress)
    guard = result.judgement.guard
    verdict = f"stored {result.name}@{result.version}" if result.adapted else f"{result.settings.base} kept"
    progress.note(f"{verdict}: {guard.reason}")
    state = {
        "pulled": pulled.entry.id,
        "name": f"{result.name}@{result.version}" if result.adapted else result.settings.base,
        "adapted": result.adapted,
        "pairwise_before": guard.base,
        "pairwise_after": guard.adapted,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(state, indent=2).encode())
    return state


@command("quickstart")
@out_option("Output folder.", "quickstart")
@click.option("--trials", default=64, type=click.IntRange(1), help="Programs that tuning measures.")
@threads_option
def quickstart_command(out: Path, trials: int, threads: int | None, output: Output) -> None:
    """The whole way in under ten minutes on two cores: pull, adapt, tune, compare, on BERT-tiny.

    Pulls the checkpoint that fits this machine best, adapts it with a small budget, tunes BERT-tiny with it and
    prints the latency before and after, beside PyTorch's, and the output check. Ctrl-C is safe: run the same
    command again to go on.

    \b
    Examples:
      tchub quickstart
      tchub quickstart --out qs --trials 96 --json
    """
    from .native_log import native_output_logged
    from .progress import shown_progress

    with native_output_logged(output, out) as log, shown_progress(output, log) as progress:
        result = quickstart(out, trials=trials, threads=threads, progress=progress)
    output.data(result, [_summary(result)])
    output.note(f"report: {result['folder']}/report.html")
    if result["output_equal"]:
        suggest_use(result["folder"], output)
    same = given_again(only=["threads"])
    parts = ["tchub tune resnet-18 --checkpoint", result["tuned_with"], same, "--trials 128 --out resnet-18"]
    output.hint(" ".join(filter(None, parts)))


def _summary(result: dict[str, Any]) -> dict[str, str]:
    faster, against = result["untuned"] / result["tuned"], result["pytorch"] / result["tuned"]
    verdict = "equals" if result["output_equal"] else "DIFFERS FROM"
    return {
        "network": f"{result['network']}, tuned with {result['tuned_with']}",
        "before": f"{1e3 * result['untuned']:.2f} ms, TVM untuned",
        "after": f"{1e3 * result['tuned']:.2f} ms, TVM tuned: {faster:.1f}x faster",
        "PyTorch": f"{1e3 * result['pytorch']:.2f} ms, eager: the tuned network is {against:.2f}x as fast",
        "output": f"{verdict} PyTorch's (largest difference {result['max_abs_diff']:.1e})",
        "time": f"{result['seconds'] / 60:.1f} min",
    }

"""`tchub quickstart`: pull a checkpoint, adapt it to this machine, tune a small network with it, compare."""

import json
import time
from pathlib import Path
from typing import Any

import click

from ...zoo.files import write_files
from .options import command, given_again, out_option, threads_option
from .output import Output
from .tune import suggest_use

NETWORK = "bert-tiny"
# Sized for ten minutes on two cores: some 100 s of measuring to adapt, as much to tune, the rest searching.
POOL_PER_TASK = 48
BUDGET = "96"
TRIALS = 64
POPULATION, GENERATIONS = 64, 2
# What was adapted, for a call that goes on.
STATE_FILE = "quickstart.json"


@command("quickstart")
@out_option("Output folder.", "quickstart")
@click.option("--trials", default=TRIALS, type=click.IntRange(1), help="Programs that tuning measures.")
@threads_option
def quickstart_command(out: Path, trials: int, threads: int | None, output: Output) -> None:
    """The whole way in under ten minutes on two cores: pull, adapt, tune, compare, on BERT-tiny.

    Pulls the checkpoint that fits this machine best, adapts it with a small budget, tunes BERT-tiny with it and
    prints the latency before and after, beside PyTorch's, and the output check. Ctrl-C is safe: run the same
    command again to go on.

    \b
    Examples:
      tchub quickstart
    """
    from ..search.settings import SearchSettings
    from ..tuning.tune import tune
    from .progress import shown_progress

    started, search = time.monotonic(), SearchSettings(population_size=POPULATION, genetic_num_iters=GENERATIONS)
    with shown_progress(output, out) as progress:
        result = _adapt(out, threads, progress)
        name = result["tuned_with"]
        progress.note(f"tune {NETWORK} with {name}: {trials} programs")
        how: dict[str, Any] = {"out": out / "tune", "threads": threads, "search": search, "progress": progress}
        tuned = tune(NETWORK, checkpoint=name, trials=trials, **how)
    check = tuned.report["output_check"]["tuned"]
    result |= {"network": NETWORK} | {key: tuned.latency[key] for key in ("untuned", "tuned", "pytorch")}
    result |= {"output_equal": check["ok"], "max_abs_diff": check["max_abs_diff"]}
    result |= {"seconds": time.monotonic() - started, "folder": str(tuned.folder)}
    output.data(result, [_summary(result)])
    output.note(f"report: {tuned.folder}/report.html")
    if check["ok"]:
        suggest_use(tuned.folder, output)
    parts = ["tchub tune resnet-18 --checkpoint", name, given_again(only=["threads"]), "--out resnet-18"]
    output.hint(" ".join(filter(None, parts)))


def _adapt(folder: Path, threads: int | None, progress: Any) -> dict[str, Any]:
    """Pull and adapt; return what was made and its accuracies, or what an earlier call noted of it."""
    from ..adaptation.adapt import adapt
    from ..adaptation.config import AdaptConfig
    from ..api import locate, pull
    from ..registry.errors import UnknownCheckpointError

    if (folder / STATE_FILE).is_file():
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        try:
            locate(state["tuned_with"])
        except UnknownCheckpointError:
            progress.note(f"{state['tuned_with']} was adapted in another home; adapt again")
        else:
            progress.note(f"{state['tuned_with']} was adapted by an earlier call")
            return state
    pulled = pull()
    progress.note(f"pulled {pulled.entry.id} from {pulled.source}: it fits this machine best")
    progress.note(f"adapt it to this machine: {BUDGET} programs of {NETWORK}")
    config = AdaptConfig(budget=BUDGET, per_task=POOL_PER_TASK, out=folder / "adapt", threads=threads)
    result = adapt(pulled.entry.id, NETWORK, config=config, progress=progress)
    guard, name = result.judgement.guard, f"{result.name}@{result.version}" if result.adapted else result.settings.base
    progress.note(f"{name} {'stored' if result.adapted else 'kept'}: {guard.reason}")
    accuracies = {"pairwise_before": guard.base, "pairwise_after": guard.adapted}
    state = {"pulled": pulled.entry.id, "tuned_with": name, "adapted": result.adapted} | accuracies
    write_files(folder, {STATE_FILE: json.dumps(state, indent=2).encode()})
    return state


def _summary(result: dict[str, Any]) -> dict[str, str]:
    faster, against = result["untuned"] / result["tuned"], result["pytorch"] / result["tuned"]
    verdict = "equals" if result["output_equal"] else "DIFFERS FROM"
    return {
        "network": f"{result['network']}, tuned with {result['tuned_with']}",
        "before": f"{1e3 * result['untuned']:.2f} ms, untuned",
        "after": f"{1e3 * result['tuned']:.2f} ms, tuned: {faster:.1f}x faster",
        "PyTorch": f"{1e3 * result['pytorch']:.2f} ms, eager: the tuned network is {against:.2f}x as fast",
        "output": f"{verdict} PyTorch's (largest difference {result['max_abs_diff']:.1e})",
        "time": f"{result['seconds'] / 60:.1f} min",
    }

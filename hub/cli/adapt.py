"""`tchub adapt`: measure a little on this machine, fine-tune a checkpoint, keep it if it ranks better."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from .options import device_options, output_options, shape_option, threads_option
from .output import Output

if TYPE_CHECKING:
    from ..adaptation.result import AdaptResult


@click.command("adapt")
@click.argument("name", required=False)
@device_options
@click.option(
    "--budget", default="10%", show_default=True, metavar="B",
    help="What may be measured: 10% of the candidates, 200 programs (of fewer candidates all), 15m of building and "
    "running, or auto: rounds, until the next one is not worth its time.",
)  # fmt: skip
@click.option("--workload", metavar="NET", help="Network, operator, suite or file; default: the reference suite.")
@shape_option
@click.option(
    "--method", default="few-shot", show_default=True,
    help="How the model learns: few-shot, committee, continual, multi-task, or auto, which takes what ranks best.",
)  # fmt: skip
@click.option(
    "--from", "sources", metavar="A,B",
    help="Further checkpoints, of which the best is adapted, and folders of corpora of other devices to learn from.",
)  # fmt: skip
@click.option(
    "--sampler", default="rdu+", show_default=True,
    help="What picks programs: random, stratified, alt, balto, fasor, rdu, rdu+ or strata.",
)  # fmt: skip
@click.option(
    "--rounds", default=3, show_default=True,
    help="Rounds of picking, each with a model update; with --budget auto the least.",
)  # fmt: skip
@click.option(
    "--worth", default=60.0, show_default=True, metavar="S",
    help="With --budget auto: seconds of measuring that 1% of the network's latency is worth.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of every random choice.")
@click.option("--pool", default=128, show_default=True, metavar="N", help="Candidate programs of each task.")
@threads_option
@click.option("--work-dir", type=click.Path(file_okay=False), help="For the pool, the journal and the corpus.")
@output_options
def command(name: str | None, sources: str | None, out: Output, **options: Any) -> None:
    """Adapt a checkpoint to this machine, or to others behind TVM's RPC, from a few measured programs.

    NAME is a checkpoint, e.g. tcl-epyc; without it, the one that fits this machine best is taken. A fifth of the
    budget measures programs that are never learnt from: if the adapted model does not rank them better than its
    base, the base is kept. The result is stored as NAME+local, with --target, --threads or RPC servers as
    NAME+local-x86-64-v2, NAME+local-2t and the like. Ctrl-C is safe: run the same command again to go on.

    \b
    Examples:
      tchub adapt tcl-epyc --device local --budget 10% --workload bert-tiny
      tchub adapt tilenet-epyc --budget auto --worth 120 --workload resnet-50
      tchub adapt tcl-epyc --from tcl-xeon,tcl-graviton --sampler rdu --budget 15m
      tchub adapt tilenet-epyc --from corpora/epyc-turin --method auto --budget 200
      tchub adapt --device rpc://tracker.lan:9190/graviton --target graviton2 --budget 500
      tchub adapt tcl-epyc --budget 200 --workload resnet-18 --sampler random --json
    """
    from ..adaptation.adapt import adapt, adapt_root
    from .adapt_drawing import draw
    from .adapt_progress import shown_progress
    from .native_log import native_output_logged

    options["programs_per_task"] = options.pop("pool")
    with native_output_logged(out, options["work_dir"] or adapt_root()), shown_progress(out) as progress:
        result = adapt(name, sources=sources or (), progress=progress, **options)
    out.data(result.as_dict(), lambda console: draw(result, console))
    for line in result.base_reasons:
        out.note(line)
    out.note(f"measurements: {result.journal}; as a corpus: {result.corpus}")
    kept = result.name if result.adapted else name or result.asked or result.name  # a base of a folder is in no store
    words = f"{_tunable(result)} --checkpoint {shlex.quote(kept)}{_update(result)}{_same_device()}"
    out.hint(f"tchub tune {words}")


def _update(result: AdaptResult) -> str:
    """The option of `tchub tune` that leaves context out, where the model ranks worse with it."""
    return "" if result.update == "auto" else f" --update {result.update}"


def _same_device() -> str:
    """The options of `tchub tune` for the programs that were adapted to, in the user's own words."""
    given = click.get_current_context().params
    keys = {"--device": "device", "--target": "target", "--cc": "linker", "--threads": "threads"}
    options = {name: given[key] for name, key in keys.items() if given[key] not in (None, "local")}
    return "".join(f" {name} {shlex.quote(str(value))}" for name, value in options.items())


def _tunable(result: AdaptResult) -> str:
    """The workload as `tchub tune` takes it: a suite is not one network."""
    from ...zoo.corpus.workloads import SUITES

    given = click.get_current_context().params
    if given["shapes"]:  # the result has the network's name, and no path
        sizes = (f"{name}={','.join(map(str, values))}" for name, values in given["shapes"].items())
        return " ".join([shlex.quote(given["workload"]), *(f"--shape {shlex.quote(size)}" for size in sizes)])
    return SUITES[result.workload][0] if result.workload in SUITES else shlex.quote(result.workload)

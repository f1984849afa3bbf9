"""`tchub adapt`: measure a little on this machine, fine-tune a checkpoint, keep it if it ranks better."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..adaptation.config import AdaptConfig
from ..text import Column, Part
from .options import bundle_options, command, device_options, given_again, options_of, shape_option, threads_option
from .output import Output

if TYPE_CHECKING:
    from ..adaptation.result import AdaptResult


_COUNTS = (
    ("candidates", "pool", 2),
    ("learnt from", "learn", None),
    ("held out", "hold_out", None),
    ("failed", "failed", 3),
)


@command("adapt")
@click.argument("checkpoint", metavar="[NAME]", required=False)
@device_options
@bundle_options
@click.option("--workload", metavar="NET", help="Network, operator, suite or file. [default: reference]")
@shape_option
@options_of(
    AdaptConfig, "budget", "corpus", "labels", "method", "sources", "sampler", "rounds", "worth", "seed", "per_task",
    "precision", "out", out="Work folder. [default: in the user's data]",
)  # fmt: skip
@threads_option
def adapt_command(checkpoint: str | None, workload: str | None, shapes: Any, output: Output, **options: Any) -> None:
    """Adapt a checkpoint to this machine, or to others behind TVM's RPC, from a few measured programs.

    NAME is a checkpoint; without it, the one that fits this machine best is taken. A fifth of the budget measures
    programs that are never learnt from: if the adapted model does not rank them better, the base is kept. The result
    is stored as NAME+local, with --target, --threads or RPC servers as NAME+local-2t and the like. With --corpus
    nothing is measured: its training tasks teach and its test tasks judge. Ctrl-C is safe: the same command goes on.

    \b
    Examples:
      tchub adapt tcl-epyc --device local --budget 10% --workload bert-tiny
      tchub adapt tilenet-epyc --budget auto --worth 120 --workload resnet-50
      tchub adapt tilenet-t4 --corpus corpora/k80 --labels 16
      tchub adapt tilenet-t4 --device cuda --workload bert-tiny
      tchub adapt --device rpc://tracker.lan:9190/graviton --target graviton2
    """
    from ...zoo.corpus.workloads import SUITES
    from ..adaptation.adapt import adapt, adapt_root
    from .progress import shown_progress

    config = AdaptConfig(**{name: value for name, value in options.items() if value is not None})
    with shown_progress(output, config.out or adapt_root()) as progress:
        result = adapt(checkpoint, workload, shapes=shapes, config=config, progress=progress)
    output.data(result.as_dict(), _verdict(result))
    measured = result.measurements
    for line in result.settings.base_reasons:
        output.note(line)
    if measured.journal is None:
        output.hint(f"tchub evaluate {shlex.quote(result.name)} --corpus {shlex.quote(str(measured.corpus))}")
        return
    output.note(f"measurements: {measured.journal}; as a corpus: {measured.corpus}")
    kept = result.name if result.adapted else checkpoint or result.settings.asked or result.name
    same = given_again(only=["shapes", "device", "target", "linker", "threads", "precision", "bundle", "per_round"])
    update = "" if result.update == "auto" else f"--update {result.update}"
    name = str(workload) if shapes else result.settings.workload  # with shapes the result has a name, and no path
    tunable = SUITES[name][0] if name in SUITES else shlex.quote(name)
    parts = ["tchub tune", tunable, "--checkpoint", shlex.quote(kept), update, same]
    output.hint(" ".join(filter(None, parts)))


def _verdict(result: AdaptResult) -> Iterator[Part]:
    name = f"{result.name}@{result.version}" if result.adapted else f"{result.settings.base} kept"
    times = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in result.seconds.items() if seconds >= 1)
    yield {"checkpoint": name, **dict(result.facts()), "time": times}
    if curve := result.curve:
        yield [
            Column("labels", [str(point.labels) for point in curve], True),
            Column("seconds", [f"{point.seconds:.0f}" for point in curve], True, leaves=1),
            Column("choices slower than the best", [f"{100 * point.slowdown:.1f}%" for point in curve], True, leaves=2),
            Column("pairwise", [f"{point.pairwise:.3f}" for point in curve], True),
        ]
        yield f"stopped: {result.stop.reason if result.stop else ''}"
    tasks = result.tasks
    yield [
        Column("task", [task.task for task in tasks], least=12),
        Column("operator", [task.op for task in tasks], leaves=1),
        *(Column(title, [str(getattr(task, name)) for task in tasks], True, leaves) for title, name, leaves in _COUNTS),
    ]
    for reason, count in Counter(reason for _, reason in result.skipped).items():
        yield f"left out {count} task{'s' * (count > 1)}: {reason}"

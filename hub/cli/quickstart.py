"""`tchub quickstart`: pull, adapt, tune and compare on a small network."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from .options import output_options, threads_option
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..quickstart import QuickstartProgress, QuickstartResult
    from .native_log import NativeLog


@click.command("quickstart")
@click.option("--output", default="quickstart", show_default=True, type=click.Path(file_okay=False), help="Folder.")
@click.option("--trials", default=64, show_default=True, type=click.IntRange(1), help="Programs that tuning measures.")
@threads_option
@output_options
def command(output: str, trials: int, threads: int | None, out: Output) -> None:
    """The whole way in under ten minutes on two cores: pull, adapt, tune, compare, on BERT-tiny.

    Pulls the checkpoint that fits this machine best, adapts it with a small budget, tunes BERT-tiny with it and
    prints the latency before and after, beside PyTorch's, and the output check. Ctrl-C is safe: run the same
    command again to go on.

    \b
    Examples:
      tchub quickstart
      tchub quickstart --output qs --trials 96 --json
    """
    from ..quickstart import quickstart
    from .native_log import native_output_logged
    from .tune import suggest_use

    with native_output_logged(out, output) as log, ExitStack() as stack:
        result = quickstart(output, trials=trials, threads=threads, progress=_progress(out, log, stack))
    out.data(result.as_dict(), lambda console: _draw(result, console))
    out.note(f"report: {result.folder}/report.html")
    same = f" --threads {threads}" if threads is not None else ""
    if result.output_equal:
        suggest_use(result.folder, out)
    out.hint(f"tchub tune resnet-18 --checkpoint {result.tuned_with}{same} --trials 128 --output resnet-18")


def _progress(out: Output, log: NativeLog | None, stack: ExitStack) -> QuickstartProgress:
    from ..adaptation.settings import AdaptProgress
    from ..quickstart import QuickstartProgress
    from ..tuning.tune import TuneProgress
    from .adapt_progress import shown_progress
    from .tune_progress import shown_tuning

    class Shown(QuickstartProgress):
        """Shows one display at a time on stderr."""

        def say(self, text: str) -> None:
            stack.close()
            out.note(text)

        def adapting(self) -> AdaptProgress:
            return stack.enter_context(shown_progress(out))

        def tuning(self) -> TuneProgress:
            return stack.enter_context(shown_tuning(out, log))

    return Shown()


def _draw(result: QuickstartResult, console: Console) -> None:
    faster, against = result.untuned / result.tuned, result.pytorch / result.tuned
    verdict = "equals" if result.output_equal else "DIFFERS FROM"
    lines = {
        "network": f"{result.network}, tuned with {result.tuned_with}",
        "before": f"{1e3 * result.untuned:.2f} ms, TVM untuned",
        "after": f"{1e3 * result.tuned:.2f} ms, TVM tuned: {faster:.1f}x faster",
        "PyTorch": f"{1e3 * result.pytorch:.2f} ms, eager: the tuned network is {against:.2f}x as fast",
        "output": f"{verdict} PyTorch's (largest difference {result.max_abs_diff:.1e})",
        "time": f"{result.seconds / 60:.1f} min",
    }
    for key, value in lines.items():
        console.print(f"{key:<9}", style="bold", end="", highlight=False)
        console.print(value, highlight=False)

"""`tchub evaluate`: how well a checkpoint ranks the programs of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ...zoo.models import Checkpoint

COLUMNS = {
    "top1": "top-1",
    "top5": "top-5",
    "mean_top1": "mean top-1",
    "mean_top5": "mean top-5",
    "pairwise": "pairwise",
}


@click.command("evaluate")
@click.argument("name_or_path")
@click.option("--corpus", "corpus_path", required=True, type=click.Path(path_type=Path), help="Corpus folder.")
@click.option(
    "--split", default="test", show_default=True, type=click.Choice(["test", "val", "train"]),
    help="Which tasks: test are those of the held-out networks.",
)  # fmt: skip
@click.option("--baselines", is_flag=True, help="Add random choice, XGBoost and 10% random data.")
@click.option(
    "--labels", default=0, metavar="N", type=click.IntRange(0),
    help="Also rank with N random programs of each task known, as a tilenet can; they do not count.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of the baselines and the labels.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads to use.")
@output_options
def command(
    name_or_path: str,
    corpus_path: Path,
    split: str,
    baselines: bool,
    labels: int,
    seed: int,
    threads: int,
    out: Output,
) -> None:
    """Score a checkpoint on a corpus. NAME_OR_PATH is a name that `tchub list` shows or a folder.

    Top-1 and top-5 are those of TLP 6.1 and TCL equation 12, weighted by how often the networks hold a task;
    the means weigh tasks alike; pairwise is the share of pairs over 5% apart that are ordered rightly.
    The baselines learn from the same training tasks: XGBoost on TVM's PerStoreFeature (as in MetaSchedule; on
    primitives where the corpus cannot be replayed), and the checkpoint's own recipe on a tenth of the programs.
    They take minutes; features are cached. The corpus may be of any framework (see `tchub corpus import`).

    \b
    Examples:
      tchub evaluate tcl-epyc --corpus corpora/epyc
      tchub evaluate runs/tcl-epyc --corpus corpora/epyc --split val
      tchub evaluate tcl-epyc --corpus corpora/epyc --baselines --json
      tchub evaluate tilenet-v100 --corpus corpora/v100-ansor --labels 16
    """
    import torch

    from ...zoo.corpus import Corpus
    from ..publishing.evaluate import BASELINES, evaluate
    from ..registry import cache_root

    torch.set_num_threads(threads)
    corpus = Corpus.open(corpus_path)
    result = evaluate(
        _load(name_or_path),
        corpus,
        split,
        baselines=BASELINES if baselines else (),
        labels=labels,
        seed=seed,
        threads=threads,
        cache=cache_root().parent / "statements",
        note=out.note,
    )
    out.data(result, lambda console: _draw(result, console))


def _load(name_or_path: str) -> Checkpoint:
    from ...zoo.models import Checkpoint
    from .checkpoints import find_folder

    return Checkpoint.load(find_folder(name_or_path))


def _draw(result: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    title = f"{result['corpus']}, {result['split']}: {result['programs']} programs of {result['tasks']} tasks"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for column in COLUMNS.values():
        table.add_column(column, justify="right", no_wrap=True)
    rows = {scores.get("label", name): scores for name, scores in result["results"].items()}
    rows = {result["checkpoint"]: rows.pop("model")} | rows
    rows |= {f"given {number} programs": scores for number, scores in result.get("few_shot", {}).items()}
    for name, scores in rows.items():
        table.add_row(name, *(f"{scores[key]:.4f}" for key in COLUMNS))
    console.print(table)

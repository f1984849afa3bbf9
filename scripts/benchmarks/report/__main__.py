"""Write every figure that a document quotes, from docs/benchmarks/*.json, the checkpoints of the wheel and the index.

None is typed by hand.

python -m scripts.benchmarks.report           # rewrite
python -m scripts.benchmarks.report --check   # exit 1 when something is out of date
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from scripts.benchmarks.common import FOLDER, ROOT
from scripts.benchmarks.report.blocks import with_blocks
from scripts.benchmarks.report.leaderboard import leaderboard_markdown, shipped
from scripts.benchmarks.report.page import page
from scripts.benchmarks.report.picture import picture


def documents() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every document that quotes figures."""
    results = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    yield ROOT / "docs/benchmarks.md", page(results)
    rows = results["baselines"]["details"]["rows"]
    yield ROOT / "docs/leaderboard.md", leaderboard_markdown(list(shipped()), rows)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if (text := path.read_text()) != (new := with_blocks(text, results)):
            yield path, new
    plot = picture(results)
    if not plot.is_current(FOLDER / plot.file):
        yield FOLDER / plot.file, plot.to_svg()


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when something would change.")
def main(check: bool) -> None:
    """Write docs/benchmarks.md, docs/leaderboard.md, the marked blocks of README and docs, and the README's picture."""
    stale = [(path, text) for path, text in documents() if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        if check:
            click.echo(f"{path.relative_to(ROOT)} is out of date: run python -m scripts.benchmarks.report", err=True)
        else:
            path.write_text(text)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()

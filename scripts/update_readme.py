"""Fill the README's result tables from docs/benchmarks/*.json, so that no figure is typed by hand.

python scripts/update_readme.py           # rewrite
python scripts/update_readme.py --check   # fail when README and benchmarks disagree
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import click
from benchmarking import FOLDER, ROOT


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _ranking(job: dict[str, Any]) -> list[str]:
    names = {
        "model": "**TCL (`tcl-epyc`)**",
        "xgboost": "XGBoost on PerStoreFeature (stock features and model)",
        "ten_percent": "TCL from 10% random data (mean of 3 seeds)",
        "random": "random choice",
    }
    results = job["details"]["evaluation"]["results"]
    rows = [_row("ranks held-out networks by", "top-1", "top-5", "pairwise"), _row("---", "---:", "---:", "---:")]
    return rows + [
        _row(title, *(f"{results[name][metric]:.3f}" for metric in ("top1", "top5", "pairwise")))
        for name, title in names.items()
        if name in results
    ]


def _tuning(job: dict[str, Any]) -> list[str]:
    head = ("network", "trials", "seed", "untuned", "stock XGBoost model", "**tchub**", "PyTorch eager")
    rows = [_row(*head), _row("---", *["---:"] * (len(head) - 1))]
    for item in job["details"]["tuning"]:
        ms = {name: f"{value:.3g} ms" for name, value in item["latency_ms"].items()}
        rows.append(
            _row(
                item["network"], item["trials"], item["seed"], ms["untuned"], ms["stock"], f"**{ms['tuned']}**",
                ms.get("pytorch", ""),
            )
        )  # fmt: skip
    return rows


def _main_job() -> str:
    job = json.loads((FOLDER / "main_job.json").read_text())
    facts, evaluation = job["machine"], job["details"]["evaluation"]
    where = (
        f"Measured on {facts['device']} ({facts['cpu_model']}, {facts['cores']} cores, programs on one thread), "
        f"{evaluation['tasks']} tasks and {evaluation['programs']} programs of the five held-out networks, "
        f"corpus `{evaluation['corpus']}`, seeds {', '.join(map(str, job['seeds']))}, by `{job['command']}`."
    )
    return "\n".join([*_ranking(job), "", *_tuning(job), "", where])


BLOCKS = {"main-job": _main_job}


def render(text: str) -> str:
    """The README with every marked block rewritten."""
    for name, make in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        body = make()
        text = pattern.sub(lambda found, body=body: found[1] + body + "\n" + found[2], text)
    return text


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when something would change.")
def main(check: bool) -> None:
    """Rewrite the marked blocks of README.md."""
    path = Path(ROOT / "README.md")
    old = path.read_text()
    new = render(old)
    if check and new != old:
        click.echo("README.md disagrees with docs/benchmarks: run python scripts/update_readme.py", err=True)
        sys.exit(1)
    if new != old:
        path.write_text(new)


if __name__ == "__main__":
    main()

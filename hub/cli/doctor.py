"""`tchub doctor`: is this machine ready, and quiet enough to measure?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..device.doctor import Check

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command("doctor")
@output_options
def command(out: Output) -> None:
    """Check Python, TVM, the compiler, the clock's noise, the disk and the GPU.

    Ends with exit code 1 if a check failed; warnings alone give 0.

    \b
    Examples:
      tchub doctor
      tchub doctor --json
    """
    from ..device.doctor import failed, run_checks

    out.note("checking this machine; it takes some seconds")
    checks = list(run_checks())
    bad = failed(checks)
    data = {"ok": not bad, "checks": [check.to_dict() for check in checks]}
    out.data(data, lambda console: draw(checks, console))
    if bad:
        click.get_current_context().exit(1)
    out.hint("tchub devices local")


def draw(checks: list[Check], console: Console) -> None:
    """The table, each remedy under its check."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found")
    for check in checks:
        remedy = f"\n-> {check.remedy}" if check.remedy else ""
        table.add_row(check.name, Text(check.status, _STYLES[check.status]), check.value + remedy)
    console.print(table)

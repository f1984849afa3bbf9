"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from .output import Output


def output_options(func: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--json` and `--quiet` and passes the command an `out: Output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
    @click.option("--quiet", is_flag=True, help="Print the result only.")
    @click.pass_context
    @wraps(func)
    def wrapper(ctx: click.Context, *args: Any, as_json: bool, quiet: bool, **kwargs: Any) -> Any:
        out = Output("json" if as_json else "quiet" if quiet else "human")
        ctx.ensure_object(dict)["out"] = out
        return func(*args, out=out, **kwargs)

    return wrapper

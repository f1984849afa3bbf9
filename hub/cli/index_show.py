"""`tchub index show`: which index is in use, where it comes from, and who signed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import output_options
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console


@click.command("show")
@output_options
def command(out: Output) -> None:
    """Show the index in the wheel, the refreshed one beside it, the trusted keys and the old names.

    A refreshed index that cannot be used any more is an error here; other commands go on without it.

    \b
    Examples:
      tchub index show
      tchub index show --json
    """
    from ..api import describe_index
    from ..registry.trust import today

    result = describe_index()
    out.data(result, lambda console: draw(result, console))
    expires = (result["refreshed"] or {}).get("expires")
    if expires and expires < today().isoformat():
        out.note(f"the refreshed index was to be replaced by {expires}: newer ones may be held back from you")
    out.hint("tchub index refresh")


def draw(found: dict[str, Any], console: Console) -> None:
    """A line for each index, key, old name and deprecated checkpoint."""

    def line(title: str, text: str) -> None:
        console.print(f"{title:<11} {text}", highlight=False, soft_wrap=True)

    for name in ("override", "shipped", "refreshed"):
        if index := found[name]:
            line(name, ", ".join(f"{key} {value}" for key, value in index.items() if value is not None))
    for key in found["keys"]["trusted"]:
        state = "taken back" if key["revoked"] else f"good from {key['not_before']} to {key['not_after']}"
        line("key", f"{key['id']}, {state}")
    for old, new in found["aliases"].items():
        line("old name", f"{old} is called {new} now")
    for name, reason in found["deprecated"].items():
        line("deprecated", f"{name}: {reason}")

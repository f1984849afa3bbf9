"""Options that several commands share, and the command line that was given."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from .output import Output


def per_task_option(flag: str, default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds an option for the programs of a task at most; of 1 there would be nothing to compare it with."""

    def comparable(_context: click.Context, _parameter: click.Parameter, value: int) -> int:
        if value < 0 or value == 1:
            raise click.BadParameter("give 2 or more, since programs of a task are compared, or 0 for all of them")
        return value

    return click.option(
        flag, default=default, show_default=True, callback=comparable, help="Programs of a task at most; 0: all."
    )


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


def device_options(func: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--device`, `--target` and `--cc`, and passes the command `device`, `target` and `linker`."""

    @click.option(
        "--device", default="local", show_default=True,
        help="Where to measure: local, or rpc://HOST:PORT/KEY for the servers of TVM's RPC tracker.",
    )  # fmt: skip
    @click.option(
        "--target", metavar="T",
        help="The device's TVM target: JSON, a file of it, a device's name from `tchub devices`, or LLVM's name of a "
        "CPU or level, e.g. x86-64-v2 for this machine without AVX. "
        "Default: this machine's, or what the RPC servers say of themselves.",
    )  # fmt: skip
    @click.option(
        "--cc", "linker", metavar="CC",
        help="Links programs for RPC servers of another architecture; default: ARCH-linux-gnu-gcc or ld.lld.",
    )  # fmt: skip
    @wraps(func)
    def wrapper(*args: Any, target: str | None, **kwargs: Any) -> Any:
        from ..device.device_choice import parse_target

        return func(*args, target=parse_target(target), **kwargs)

    return wrapper


threads_option = click.option(
    "--threads", type=click.IntRange(1), metavar="N",
    help="Threads of a program. Default: one for each physical core that may be used; 1 for one thread.",
)  # fmt: skip
"""Adds `--threads`; None for the default of `choose_device`."""


def _parse_shapes(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    shapes = {}
    for text in given:
        name, equals, sizes = text.partition("=")
        if not (name and equals and all(size.isdecimal() for size in sizes.split(","))):
            raise click.BadParameter(f"{text!r} is no name with sizes: write batch=1,8")
        shapes[name] = [int(size) for size in sizes.split(",")]
    return shapes or None


shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=N,...", callback=_parse_shapes,
    help="Sizes of a dynamic shape of the network, e.g. batch=1,8; may be given for several.",
)  # fmt: skip
"""Adds `--shape`, and passes the command `shapes`: sizes by name, or None."""


def index_options(func: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--index-repo` and `--no-index`, and passes the command `index_repo`: which index to ask, None for none.

    It is also passed `index_named`: whether that index was named, or is the one by default.
    What is `private` is listed by an index that is named, and by no other.
    """

    @click.option(
        "--index-repo", metavar="ORG/NAME",
        help="The index that is asked, by a pull request, to list it. Default: TCHUB_INDEX_REPO, or tchub/index.",
    )  # fmt: skip
    @click.option("--no-index", is_flag=True, help="Ask no index.")
    @wraps(func)
    def wrapper(*args: Any, index_repo: str | None, no_index: bool, **kwargs: Any) -> Any:
        from ..registry.index_place import index_to_ask

        if index_repo and no_index:
            raise click.UsageError("--index-repo and --no-index exclude each other")
        by_default = None if no_index or kwargs.get("private") else index_to_ask()
        return func(*args, index_repo=index_repo or by_default, index_named=bool(index_repo), **kwargs)

    return wrapper


def given_again(without: Collection[str] = ()) -> str:
    """The command at hand with all that was written on its line, so that no option is lost on the way to the next.

    Args:
        without: parameters, by their names in Python, that are to be left out.
    """
    context = click.get_current_context()
    words = context.command_path.split()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in without or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        words += [word for one in (value if parameter.multiple else [value]) for word in _words(parameter, one)]
    return shlex.join(words)


def _words(parameter: click.Parameter, value: object) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [str(value)]
    return [parameter.opts[0]] + ([] if getattr(parameter, "is_flag", False) else [str(value)])

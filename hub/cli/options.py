"""Options that several commands share, options built from a config's fields, and the command line that was given."""

import inspect
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import Field, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .output import Output

FOLDER: Any = click.Path(file_okay=False, path_type=Path)
FILE: Any = click.Path(dir_okay=False, path_type=Path)
PATH: Any = click.Path(path_type=Path)
_CORPUS: Any = click.Path(exists=True, file_okay=False, path_type=Path)
# Field's type -> the option's type, and its name in the help.
_TYPES: dict[str, Any] = {"int": (int, "N"), "float": (float, "X"), "str": (str, "S"), "Path": (FOLDER, "DIR")}

Decorator = Callable[[Callable[..., Any]], Any]


def command(name: str, group: click.Group | None = None) -> Decorator:
    """Make a click command with `--json` and `--quiet`, whose function takes an `output: Output`."""

    def decorate(func: Callable[..., Any]) -> click.Command:
        @wraps(func)
        def run(*args: Any, as_json: bool, quiet: bool, **kwargs: Any) -> Any:
            return func(*args, output=Output("json" if as_json else "quiet" if quiet else "human"), **kwargs)

        built = (click if group is None else group).command(name)(run)
        built.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON on stdout."),
            click.Option(["--quiet"], is_flag=True, help="Print the result only."),
        ]
        return built

    return decorate


def options_of(config: type[Any], *names: str, **helps: str) -> Decorator:
    """Add an option for each of these fields of a frozen config: name, type, default and help are the field's.

    The help is the first sentence about the field in the class's docstring, and `metadata["choices"]` are the choices.
    A field that is true by default becomes `--no-NAME`. A field whose default an option cannot show is passed as None
    where the user does not give it: leave it out of the config then.

    Args:
        names: of its fields, in the order of the help.
        helps: field to another help.
    """
    by_name, described = {field.name: field for field in fields(config)}, _attributes(config) | helps

    def decorate(func: Callable[..., Any]) -> Any:
        for name in reversed(names):
            func = _option(by_name[name], described.get(name, ""))(func)
        return func

    return decorate


def _option(field: Field[Any], about: str) -> Decorator:
    flag, default = "--" + field.name.replace("_", "-"), field.default
    about = about.replace("`", "")
    about = about[:1].upper() + about[1:]
    if isinstance(default, bool):
        flag = f"{flag}/--no-{flag[2:]}" if default else flag
        return click.option(flag, is_flag=True, default=default, help=about)
    kind, metavar = _TYPES[getattr(field.type, "__name__", str(field.type)).partition(" | ")[0]]
    if choices := field.metadata.get("choices"):
        kind = click.Choice(choices)
    shown = default if isinstance(default, str | int | float) else None
    return click.option(flag, type=kind, metavar=metavar, default=shown, help=about)


def _attributes(config: type[Any]) -> dict[str, str]:
    """Return the first sentence about each attribute in a class's docstring (Google style)."""
    text = (inspect.getdoc(config) or "").partition("Attributes:\n")[2]
    texts = re.findall(r"^    (\w+(?:, \w+)*): (.*?)(?=^    \w|^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return {
        name: re.split(r"(?<=\.)\s", re.sub(r"\s+", " ", about).strip())[0]
        for names, about in texts
        for name in names.split(", ")
    }


def out_option(about: str, default: str | None = None) -> Decorator:
    """Add `--out`, the folder that the command writes; required without a default."""
    return click.option("--out", required=default is None, default=default, type=FOLDER, help=about)


def corpora_option(about: str, *, required: bool = False) -> Decorator:
    """Add `--corpus`, which may be repeated, and pass the command `corpora`."""
    about = f"{about} Repeatable."
    return click.option(
        "--corpus", "corpora", multiple=True, required=required, metavar="DIR", type=_CORPUS, help=about
    )


def _parsed(name: str, parse: Callable[[Any], Any]) -> Decorator:
    """Pass the command a parsed parameter; click keeps what was written, for `given_again`."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs | {name: parse(kwargs[name])})

        return wrapper

    return decorate


def _target(text: str | None) -> dict[str, Any] | None:
    from ..device.device_choice import parse_target

    return parse_target(text)


def device_options(func: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--device`, `--target` and `--linker`."""
    device = "Where to measure: local (this machine's NVIDIA card, else its CPU), cpu, cuda or cuda:N for a card, "
    device += "rpc://HOST:PORT/KEY of a tracker, or with --bundle a GPU of `tchub devices`."
    target = (
        "TVM target: JSON, a file of it, a name of `tchub devices`, or LLVM's name of a CPU or level, e.g. x86-64-v2."
    )
    linker = "Linker of programs for another architecture. [default: ARCH-linux-gnu-gcc, ld.lld]"
    func = click.option("--linker", metavar="CC", help=linker)(_parsed("target", _target)(func))
    func = click.option("--target", metavar="T", help=f"{target} [default: the device's own]")(func)
    return click.option("--device", default="local", metavar="D", help=device)(func)


def bundle_options(func: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--bundle` and `--per-round`: `--device` is then a GPU elsewhere; see `BundleDevice`."""
    about = "Measure elsewhere: each call writes round-N.zip there, and goes on once round-N.jsonl is beside it."

    @click.option("--bundle", metavar="DIR", type=FOLDER, help=about)
    @click.option("--per-round", default=256, metavar="N", help="With --bundle: programs of a round, about.")
    @wraps(func)
    def wrapper(*args: Any, bundle: Path | None, per_round: int, **options: Any) -> Any:
        if bundle is None:
            return func(*args, **options)
        from ..bundle.rounds import BundleDevice
        from ..search.errors import InterruptedRunError

        if given := [f"--{name}" for name in ("target", "linker", "threads") if options[name] is not None]:
            raise click.UsageError(f"with --bundle the device says all: leave out {', '.join(given)}")
        try:
            return func(*args, **options | {"device": BundleDevice.of(options["device"], bundle, per_round)})
        except InterruptedRunError as stopped:
            if "bundle" not in stopped.fields:
                raise
            options["output"].data(stopped.fields, stopped.message)
            options["output"].hint(str(stopped.remedy))

    return wrapper


threads_option = click.option(
    "--threads", type=click.IntRange(1), metavar="N",
    help="Threads of a program. [default: one a physical core]",
)  # fmt: skip
"""Adds `--threads`; None for the default of `choose_device`."""


precision_option = click.option(
    "--precision", default="float32", metavar="P", help="float32; float16: on tensor cores; bfloat16: with AMX."
)


def _set_torch_threads(_context: click.Context, _parameter: click.Parameter, threads: int) -> int:
    import torch

    torch.set_num_threads(threads)
    return threads


torch_threads_option = click.option(
    "--threads", default=1, type=click.IntRange(1), metavar="N", help="Threads for PyTorch.",
    callback=_set_torch_threads,
)  # fmt: skip


def shape_option(func: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--shape`, and pass the command `shapes`: sizes by name, or None."""
    about = "Sizes of a dynamic shape, e.g. batch=1,8, or the number of a scalar input of an ONNX file. Repeatable."
    option = click.option("--shape", "shapes", multiple=True, metavar="NAME=N", help=about)
    return option(_parsed("shapes", lambda texts: dict(map(_sizes, texts)) or None)(func))


def _sizes(text: str) -> tuple[str, list[int]]:
    name, equals, sizes = text.partition("=")
    if not (name and equals and all(size.isdecimal() for size in sizes.split(","))):
        raise click.BadParameter(f"{text!r} is no name with sizes: write batch=1,8", param_hint="--shape")
    return name, [int(size) for size in sizes.split(",")]


def index_options(func: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--index-repo` and `--no-index`, and pass the command `index_repo`: which index to ask, None for none.

    Also passed is `index_named`: true where the user named that index. A private repository is listed by an index that
    is named, and by no other.
    """

    @click.option(
        "--index-repo", metavar="ORG/NAME",
        help="The index that is asked, by a pull request, to list it. [default: TCHUB_INDEX_REPO, or tchub/index]",
    )  # fmt: skip
    @click.option("--no-index", is_flag=True, help="Ask no index.")
    @wraps(func)
    def wrapper(*args: Any, index_repo: str | None, no_index: bool, **kwargs: Any) -> Any:
        from ..registry.trust import index_to_ask

        if index_repo and no_index:
            raise click.UsageError("--index-repo and --no-index exclude each other")
        by_default = None if no_index or kwargs.get("private") else index_to_ask()
        return func(*args, index_repo=index_repo or by_default, index_named=bool(index_repo), **kwargs)

    return wrapper


def given_again(
    without: Collection[str] = (), only: Collection[str] | None = None, *, folders_by_name: bool = False
) -> str:
    """Return the command at hand with all that was written on its line, so that no option is lost for the next one.

    Args:
        without: parameters, by their names in Python, that are to be left out.
        only: return these options alone, without the command.
        folders_by_name: write folders as their names, since where they are is nobody else's.
    """
    context = click.get_current_context()
    parts = [] if only is not None else context.command_path.split()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in without or (only is not None and name not in only) or name in ("as_json", "quiet"):
            continue
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params[name]
            for one in value if isinstance(value, tuple) else [value]:
                by_name = folders_by_name and isinstance(one, Path)
                parts += _argument_parts(parameter, one.resolve().name if by_name else one)
    return shlex.join(parts)


def _argument_parts(parameter: click.Parameter, value: object) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [str(value)]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    return [parameter.opts[0], str(value)]

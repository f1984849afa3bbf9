"""The command that was given, to be given again."""

from __future__ import annotations

import shlex
from collections.abc import Collection

import click
from click.core import ParameterSource


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

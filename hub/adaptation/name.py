"""What an adapted checkpoint is called: those of two targets of one machine are not versions of one name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from ..registry import CheckpointName

LOCAL = "local"
# A target's kind and CPU are said in words; its cores are the programs' threads, and a machine has one triple.
_SAID = ("kind", "mcpu", "mtriple", "num-cores")
_MAX_WORD = 32


def variant_of(target: Mapping[str, Any] | None = None, threads: int | None = None, key: str | None = None) -> str:
    """`local`, and what was asked for beside this machine's own target and threads: `local-x86-64-v2-2t`.

    Args:
        target: TVM target as a dictionary, if one was asked for.
        threads: of a program, where it is not what the device has by default.
        key: of RPC servers, where programs are measured on those.
    """
    words = [LOCAL, *([_word(key)] if key else []), *(_words(target) if target is not None else [])]
    return "-".join([*words, *([f"{threads}t"] if threads is not None else [])])


def adapted_name(base: str, variant: str) -> str:
    """The name of a variant of a checkpoint, e.g. `tcl-epyc+local`; a variant of a variant is one of the first."""
    parsed = CheckpointName.parse(base)
    return CheckpointName(parsed.arch, parsed.family, variant).name


def target_text(target: Mapping[str, Any], threads: int) -> str:
    """What programs are compiled for, in a few words."""
    of = str(target.get("mcpu", target.get("kind", "")))
    return f"{of}, {threads} thread{'s' if threads > 1 else ''}"


def _words(target: Mapping[str, Any]) -> list[str]:
    """The CPU's name, and six hex digits of all that the name does not say."""
    rest = {key: value for key, value in target.items() if key not in _SAID}
    digits = [_digits(json.dumps(rest, sort_keys=True))] if rest else []
    return [_word(str(target.get("mcpu", target.get("kind", "")))), *digits]


def _word(text: str) -> str:
    """Text in the alphabet of names; what is left out of a long one, or of one in other letters, stands as digits."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain if plain and len(plain) <= _MAX_WORD else f"{plain[:_MAX_WORD]}-{_digits(text)}".strip("-")


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]

"""Inputs for the fuzzer: real files with their structure bent, their numbers driven to extremes, their bytes damaged.

A mutation is drawn from a `random.Random` alone, so that an input can be made again from its number.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 64, 8192, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
)
TEXTS: tuple[str, ...] = (
    *("", " ", "\x00", "a\nb", "../../up", "/etc/passwd", "..", "a" * 70_000, "\ud800", "é", "𝕏", "\u202e", "\u2028"),
    *("1_0", "0x10", "NaN", "-1", "1e999", "null", "True", "9" * 5000, "{{ 7 * 7 }}", "{% for %}", "<script>", "%s%n"),
    *("hf://a/b", "file:///dev/zero", "https://localhost", "!!python/object:os.system", "__class__", "model.pkl"),
)


def mutate(rng: Random, data: bytes, others: list[bytes], form: str) -> bytes:
    """A relative of `data`.

    Args:
        others: further inputs of the same kind, from which parts are taken.
        form: `json`, `lines` (of JSON), `tensors` (8 bytes of length, JSON, numbers) or `text`.
    """
    structured = FORMS[form]
    made = structured(rng, data, others) if rng.random() < 0.8 else data
    if made is data or rng.random() < 0.15:
        made = _damage(rng, made, others)
    return made


def _json(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    try:
        value, other = json.loads(data), json.loads(rng.choice(others))
    except (ValueError, RecursionError):
        return data
    holder = [value]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _bend(rng, holder, other)
    return json.dumps(holder[0]).encode()


def _lines(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    lines = data.splitlines()
    at = rng.randrange(len(lines)) if lines else 0
    if not lines or rng.random() < 0.1:
        return data
    lines[at] = _json(rng, lines[at], [line for one in others for line in one.splitlines()[:3]])
    return b"\n".join(lines) + b"\n"


def _tensors(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _json(rng, data[8 : 8 + size], [one[8 : 8 + int.from_bytes(one[:8], "little")] for one in others])
    length = len(header) if rng.random() < 0.9 else rng.choice((0, 1, len(header) - 1, 2**20, 2**40, 2**63, 2**64 - 1))
    return struct.pack("<Q", length) + header + data[8 + size :]


def _text(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Lines dropped, doubled and exchanged, words replaced."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        act = rng.random()
        if act < 0.15:
            lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [lines[rng.randrange(len(lines))]]))
            lines = lines or [b""]
        else:
            words = lines[at].replace(b"=", b" = ").split(b" ")
            words[rng.randrange(len(words))] = _word(rng)
            lines[at] = b" ".join(words).replace(b" = ", b"=")
    return b"\n".join(lines)


FORMS: dict[str, Callable[[Random, bytes, list[bytes]], bytes]] = {
    "json": _json, "lines": _lines, "tensors": _tensors, "text": _text,
}  # fmt: skip


def _word(rng: Random) -> bytes:
    value = rng.choice(NUMBERS) if rng.random() < 0.7 else rng.choice(TEXTS)
    return str(value).encode(errors="surrogatepass")


def _bend(rng: Random, holder: list[Any], other: Any) -> None:
    """Changes one place of a value, which is the holder's only item."""
    places = list(_places(holder))
    parent, key = places[int(len(places) * rng.random() ** 0.7)]
    old, act = parent[key], rng.random()
    if isinstance(old, str) and old[:1] in ("[", "{") and act < 0.7:  # JSON within JSON
        parent[key] = _json(rng, old.encode(errors="replace"), [old.encode(errors="replace")]).decode()
    elif act < 0.4:
        parent[key] = _leaf(rng, old)
    elif act < 0.55 and parent is not holder:
        del parent[key]
    elif act < 0.65:
        source, at = rng.choice(list(_places([other])))
        parent[key] = deepcopy(source[at])
    elif act < 0.75:
        parent[key] = _wrapped(rng, old)
    elif isinstance(old, dict):
        old[rng.choice((*list(old)[:20], *TEXTS))] = _leaf(rng, None)
    elif isinstance(old, list):
        old[rng.randint(0, len(old)) :] = rng.choice(
            ([], old[:2], [_leaf(rng, None)], old * 2 if len(old) < 50 else [])
        )
    else:
        parent[key] = _leaf(rng, old)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a value, a level after the other."""
    found: list[tuple[Any, Any]] = []
    level = [value]
    while level and len(found) < 5000:
        here = [(one, key) for one in level for key in (one if isinstance(one, dict) else range(len(one)))]
        found += here
        level = [one[key] for one, key in here if isinstance(one[key], dict | list)]
    return found


def _leaf(rng: Random, old: Any) -> Any:
    """A value in place of another one: near it, or of any type."""
    if isinstance(old, int | float) and not isinstance(old, bool) and rng.random() < 0.5:
        return rng.choice((old + 1, old - 1, -old, old * 2, str(old)))
    if isinstance(old, str) and old and rng.random() < 0.4:
        at = rng.randrange(len(old))
        return rng.choice((old[:at], old[at:], old[:at] + rng.choice(TEXTS) + old[at:], old.upper(), old * 2))
    simple = (None, True, False, [], {}, [[]], [0], {"": 0})
    return rng.choice((rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(TEXTS), rng.choice(simple)))


def _wrapped(rng: Random, value: Any) -> Any:
    """The value some levels down."""
    for _ in range(rng.choice((1, 1, 2, 40, 300))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _damage(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Bytes flipped, cut, doubled, or joined with another input's."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, length = rng.randint(0, len(made)), rng.choice((1, 2, 4, 30, 1000))
        act = rng.randrange(6)
        if act == 0 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif act == 1:
            del made[at : at + length]
        elif act == 2:
            made[at:at] = rng.randbytes(min(length, 30))
        elif act == 3:
            made[at:at] = made[at : at + length]
        elif act == 4:
            other = rng.choice(others)
            start = rng.randint(0, len(other))
            made[at:] = other[start:]
        else:
            made[at:at] = rng.choice((b"[", b"{", b'"', b"[" * 2000, b'{"a":' * 600, b"9" * 5000, b"\xff", _word(rng)))
    return bytes(made)

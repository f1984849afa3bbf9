"""Inputs for the fuzzer: real files with their structure bent, their numbers driven to extremes, their bytes damaged.

A mutation is drawn from a `random.Random` alone, so that an input can be made again from its number.
"""

import hashlib
import io
import json
import sqlite3
import struct
import warnings
from collections.abc import Callable
from contextlib import closing, suppress
from copy import deepcopy
from random import Random
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

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
        form: `json`, `lines` (of JSON), `tensors` (8 bytes of length, JSON, numbers), `zip` or
            `sqlite`.
    """
    structured = FORMS[form]
    made = structured(rng, data, others) if rng.random() < 0.8 else data
    if made is data or rng.random() < 0.15:
        made = _damage(rng, made, others)
    return made


def _json(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    try:
        holder, other = [json.loads(data)], json.loads(rng.choice(others))
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            _bend(rng, holder, other)
        return json.dumps(holder[0]).encode()
    except (ValueError, RecursionError):  # no JSON, or deeper than Python reads, copies or writes
        return data


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


def _zip(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Members bent, dropped, doubled, renamed and deflated; a manifest of hashes mostly says what is there now."""
    with ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        texts = [at for at, (_, content) in enumerate(members) if content[:1] in (b"{", b"[")]
        at = rng.choice(texts) if texts and rng.random() < 0.7 else rng.randrange(len(members))
        name, content = members[at]
        act = rng.random()
        if act < 0.6:
            members[at] = name, _json(rng, content, [content])
        elif act < 0.75:
            members[at] = name, _damage(rng, content, others)
        elif act < 0.8 and len(members) > 1:
            del members[at]
        elif act < 0.85:
            members.insert(at, (rng.choice((name, name.upper())), rng.choice(members)[1]))
        elif act < 0.9:
            members[at] = rng.choice((name + ".so", _text(rng), name.rpartition("/")[0] + "/" + _text(rng))), content
        elif act < 0.92:
            members[at] = name, bytes(rng.choice((1 << 16, 4 << 20)))
    if rng.random() < 0.9:
        _seal(members)
    kinds = [ZIP_DEFLATED if rng.random() < 0.02 else ZIP_STORED for _ in members]
    out = io.BytesIO()
    with warnings.catch_warnings(), ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for (name, content), kind in zip(members, kinds, strict=True):
            archive.writestr(ZipInfo(name.encode(errors="replace").decode()[:60_000]), content, kind)
    return out.getvalue()


def _seal(members: list[tuple[str, bytes]]) -> None:
    """Put the hashes of the other members into a bundle's manifest."""
    contents = dict(members)
    try:
        manifest = json.loads(contents["manifest.json"])
        hashed = {name: hashlib.sha256(contents[name]).hexdigest() for name in manifest["files"] if name in contents}
        manifest["files"] |= hashed
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return
    for at, (name, _) in enumerate(members):
        if name == "manifest.json":
            members[at] = name, json.dumps(manifest).encode()


def _sqlite(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """Cells bent, rows and tables dropped, tables that run forever; `data` is a database that is not in WAL mode."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db, suppress(sqlite3.Error):
        db.deserialize(data)
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")]
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            table = rng.choice(tables)
            if rng.random() < 0.1:
                db.executescript(rng.choice(_SCHEMA_CHANGES).format(table=table))
                break  # a table that runs forever must not be read here
            rows = db.execute(f"SELECT rowid, * FROM {table}")
            columns = [column for column, *_ in rows.description][1:]
            rowid, *cells = rng.choice(rows.fetchall() or [(0, *columns)])
            at = rng.randrange(len(columns))
            db.execute(f"UPDATE {table} SET {columns[at]} = ? WHERE rowid = ?", (_cell(rng, cells[at]), rowid))
        return db.serialize()
    return data


_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
_SCHEMA_CHANGES = (
    "DROP TABLE {table}", "DELETE FROM {table}", "ALTER TABLE {table} ADD COLUMN more TEXT", "PRAGMA user_version = 7",
    "ALTER TABLE {table} RENAME TO other", "ALTER TABLE {table} RENAME COLUMN task_id TO other",
    f"DROP TABLE {{table}}; CREATE VIEW {{table}} AS {_ENDLESS} SELECT i AS task_id, i AS name, '' AS scope FROM n",
    f"CREATE TRIGGER t BEFORE INSERT ON {{table}} BEGIN INSERT INTO other {_ENDLESS} SELECT i FROM n; END",
    "CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN SELECT load_extension('evil'); END",
    "DROP TABLE {table}; CREATE TABLE {table} (scope, name, task_id AS (zeroblob(1000000000)), module, value, facts)",
)  # fmt: skip


def _cell(rng: Random, old: Any) -> Any:
    """A value of a column: of JSON mostly other JSON, else one that SQLite takes."""
    if isinstance(old, str) and old[:1] in ("[", "{") and rng.random() < 0.8:
        value: Any = _json(rng, old.encode(), [old.encode()])
        return value.decode() if rng.random() < 0.95 else _damage(rng, value, [value])
    value = _leaf(rng, old)
    if isinstance(value, bool | dict | list) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        return json.dumps(value)
    return value.encode(errors="surrogatepass") if isinstance(value, str) and not value.isascii() else value


FORMS: dict[str, Callable[[Random, bytes, list[bytes]], bytes]] = {
    "json": _json, "lines": _lines, "tensors": _tensors, "zip": _zip, "sqlite": _sqlite,
}  # fmt: skip


def _text(rng: Random) -> str:
    return str(rng.choice(NUMBERS) if rng.random() < 0.5 else rng.choice(TEXTS))


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

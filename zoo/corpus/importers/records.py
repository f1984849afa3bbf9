"""A log line by line: what cannot be read is told of, and the lines around it are read all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from .base import MISSHAPEN, BadRecordError, Broken, Entry
from .files import PACKED_ERRORS, check_texts, open_lines


def read_records(file: Path, read: Callable[[str, str], Entry]) -> Iterator[Entry | Broken]:
    """What becomes of each line that is not empty; of the rest of a damaged file, one `not-readable`.

    Args:
        file: packed or not.
        read: makes an entry of a line and its place, `file:line`; raises BadRecordError, or one of `MISSHAPEN`.
    """
    where = file.name
    try:
        with open_lines(file) as lines:
            for number, line in enumerate(lines, 1):
                where = f"{file.name}:{number}"
                if line.strip():
                    yield _one(read, line, where)
    except PACKED_ERRORS as error:
        yield Broken("not-readable", where, f"nothing can be read after this line: {error}")


def _one(read: Callable[[str, str], Entry], line: str, where: str) -> Entry | Broken:
    try:
        entry = read(line, where)
        check_texts(line)
        return entry
    except BadRecordError as bad:
        return bad.at(where)
    except MISSHAPEN as error:
        return Broken("wrong-shape", where, f"it holds what no record does: {error!r:.200}")

"""What a file of safetensors announces, before a number of it is read.

The format: 8 bytes of header length (little endian), a JSON header of that length, the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

from ..untrusted import parse_json

# The format allows 100 MB; the largest header of the zoo has 20 KB.
MAX_HEADER_BYTES = 256 << 10


@dataclass(frozen=True)
class Announced:
    """One tensor: its type as safetensors calls it ("F32"), its shape, and how many bytes its numbers take."""

    dtype: str
    shape: tuple[int, ...]
    size: int


def read_header(file: BinaryIO, size: int) -> tuple[bytes, dict[str, Announced]]:
    """Reads the header and no more.

    Args:
        file: at its beginning.
        size: bytes that the whole file has; the tensors must fill it without gap or overlap.

    Returns:
        The bytes read so far, and the tensors by name.

    Raises:
        ValueError: with what is wrong.
    """
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= size - 8:
        raise ValueError("it is cut short or is no safetensors file")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"its header is larger than {MAX_HEADER_BYTES >> 10} KiB")
    text = file.read(length)
    try:
        header = parse_json(text)
    except ValueError as error:
        raise ValueError(f"its header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    _check_remarks(header.pop("__metadata__", {}))
    found = {name: _announced(name, entry) for name, entry in header.items()}
    _check_spans(sorted((first, last) for first, last, _ in found.values()), size - 8 - length)
    return start + text, {name: tensor for name, (_, _, tensor) in found.items()}


def _check_remarks(remarks: Any) -> None:
    if not isinstance(remarks, dict) or not all(isinstance(value, str) for value in remarks.values()):
        raise ValueError("the remarks in its header are not texts")


def _announced(name: str, entry: Any) -> tuple[int, int, Announced]:
    """Where a tensor's numbers begin and end, and what it is."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header says of {name!r:.80} something else than type, shape and place")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _are_whole(shape) or not _are_whole(place) or len(place) != 2:
        raise ValueError(f"its header gives {name!r:.80} no type, shape or place")
    return place[0], place[1], Announced(dtype, tuple(shape), place[1] - place[0])


def _are_whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _check_spans(spans: list[tuple[int, int]], room: int) -> None:
    """One after another, from the end of the header to the end of the file."""
    at = 0
    for first, last in spans:
        if first != at or last < first:
            raise ValueError("its tensors do not fill it: they overlap, or leave a gap")
        at = last
    if at != room:
        raise ValueError("its tensors do not fill it: it is cut short or has something added")

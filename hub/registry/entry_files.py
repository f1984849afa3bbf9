"""The files of a checkpoint as an index lists them: names that stay in their folder, sizes, sha256."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .fields import bad, is_whole

CONFIG_FILE = "config.json"
RECORD = "entry.json"  # the store's own, beside the files of a version
# One of these holds what a model learnt: tensors, XGBoost's trees, LightGBM's trees. Equal to `zoo.models`' own names
# (a test holds them together); importing those would import torch.
WEIGHT_FILES = ("model.safetensors", "model.json", "model.txt")
MAX_FILE_BYTES = 1 << 30  # the largest architecture of the zoo is a few MB; an index that claims more is wrong
_MAX_FILES = 32
# A flat folder of weights, JSON and text: no path can leave it, and no pickle can be named.
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.(?:json|safetensors|md|txt)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint: its size in bytes and its sha256 as lower-case hex."""

    size: int
    sha256: str


def read_files(raw: object, where: str) -> dict[str, FileRecord]:
    """The files of an entry; raises IndexFileError."""
    if not isinstance(raw, dict):
        raise bad(where, "files is missing")
    if CONFIG_FILE not in raw:
        raise bad(where, f"files lacks {CONFIG_FILE}")
    if sum(name in raw for name in WEIGHT_FILES) != 1:
        raise bad(where, f"files needs one of {', '.join(WEIGHT_FILES)}")
    if len(raw) > _MAX_FILES:
        raise bad(where, f"more than {_MAX_FILES} files")
    if len({name.lower() for name in raw}) < len(raw):
        raise bad(where, "two file names that differ in their case alone, which some file systems take for one")
    return {name: _file(name, record, where) for name, record in raw.items()}


def _file(name: str, record: object, where: str) -> FileRecord:
    if not _FILE.fullmatch(name) or name == RECORD:
        raise bad(where, f"file name {name[:80]!r} is not allowed")
    if not isinstance(record, dict) or not is_whole(record.get("size")) or not isinstance(record.get("sha256"), str):
        raise bad(where, f"{name} has no size or sha256")
    if not 0 <= record["size"] <= MAX_FILE_BYTES or not _SHA256.fullmatch(record["sha256"]):
        raise bad(where, f"{name} has an impossible size or sha256")
    return FileRecord(record["size"], record["sha256"])

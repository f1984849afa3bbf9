"""Names and versions of checkpoints: the index, resolution with reasons, sources, verification, stores.

Light on purpose: neither torch nor TVM is imported here.
"""

from .entry import CheckpointName, Entry, Version, describe
from .files import FileRecord, Outcome, Verification
from .index import Index
from .registry import PulledCheckpoint, Registry, find_checkpoint
from .resolve import Resolution, Verdict, resolve
from .sources import FolderSource, Source, parse_source
from .store import Store, cache_root, home_root

__all__ = [
    "CheckpointName",
    "Entry",
    "FileRecord",
    "FolderSource",
    "Index",
    "Outcome",
    "PulledCheckpoint",
    "Registry",
    "Resolution",
    "Source",
    "Store",
    "Verdict",
    "Verification",
    "Version",
    "cache_root",
    "describe",
    "find_checkpoint",
    "home_root",
    "parse_source",
    "resolve",
]

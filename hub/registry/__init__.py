"""Names and versions of checkpoints: the index, resolution with reasons, sources, verification, stores.

Light on purpose: neither torch nor TVM is imported here.
"""

from .entry import CheckpointName, Entry, Version, describe
from .files import Verification
from .index import Index
from .registry import PulledCheckpoint, Registry, find_checkpoint
from .resolve import Resolution, resolve
from .sources import FolderSource, parse_source
from .store import Store, cache_root, home_root

__all__ = [
    "CheckpointName",
    "Entry",
    "FolderSource",
    "Index",
    "PulledCheckpoint",
    "Registry",
    "Resolution",
    "Store",
    "Verification",
    "Version",
    "cache_root",
    "describe",
    "find_checkpoint",
    "home_root",
    "parse_source",
    "resolve",
]

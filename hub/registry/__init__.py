"""Names and versions of checkpoints: the index, resolution with reasons, sources, verification, stores.

Light on purpose: neither torch nor TVM is imported here.
"""

from .describe import describe
from .entry import Entry
from .entry_files import FileRecord
from .index import Index
from .judge import Verdict, judge
from .names import CheckpointName, Version
from .registry import PulledCheckpoint, Registry
from .resolve import Resolution, resolve
from .sources import FolderSource, Source, parse_source
from .store import Store, cache_root, home_root
from .verify import Outcome, Verification, verify_folder

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
    "home_root",
    "judge",
    "parse_source",
    "resolve",
    "verify_folder",
]

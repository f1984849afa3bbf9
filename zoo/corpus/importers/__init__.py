"""Measured programs of other tools' logs -> the Parquet layout; `import_corpus` does it whole."""

from .base import Broken, Entry, ImportContext
from .facts import read_facts, read_protocol
from .files import sniff_framework
from .run import ImportReport, import_corpus, read_entries

__all__ = [
    "Broken",
    "Entry",
    "ImportContext",
    "ImportReport",
    "import_corpus",
    "read_entries",
    "read_facts",
    "read_protocol",
    "sniff_framework",
]

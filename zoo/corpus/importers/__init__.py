"""Measured programs of other tools' logs -> the Parquet layout; `import_corpus` does it whole."""

from .records import Broken, Entry, ImportContext, TaskFacts, sniff_framework
from .run import ImportReport, import_corpus, read_entries, read_facts, read_protocol

__all__ = [
    "Broken",
    "Entry",
    "ImportContext",
    "ImportReport",
    "TaskFacts",
    "import_corpus",
    "read_entries",
    "read_facts",
    "read_protocol",
    "sniff_framework",
]

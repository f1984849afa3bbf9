"""Measured programs of other tools' logs -> the Parquet layout; `import_corpus` does it whole."""

from .records import Broken, ImportContext, LogEntry, TaskFacts, sniff_framework
from .run import ImportReport, import_corpus, read_entries, read_facts, read_protocol

__all__ = [
    "Broken",
    "ImportContext",
    "ImportReport",
    "LogEntry",
    "TaskFacts",
    "import_corpus",
    "read_entries",
    "read_facts",
    "read_protocol",
    "sniff_framework",
]

"""Measured programs of other tools' logs -> the Parquet layout; `import_corpus` does it whole."""

from .records import ImportContext
from .run import import_corpus, read_facts, read_protocol

__all__ = ["ImportContext", "import_corpus", "read_facts", "read_protocol"]

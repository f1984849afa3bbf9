"""Measured programs on disk (Parquet), their splits, and the reference workloads.

A corpus is a folder of one device's programs; `Corpus.open` reads it, `merge_corpus` grows it, and
`merge_corpora` makes one of several.
"""

from ..features.columns import OPS
from .check import CorpusFinding, check_corpus, corpus_stats
from .corpus import MIN_PROGRAMS, Corpus, Usable, sequence_of, usable_programs
from .merge import Merged, merge_corpora, merge_corpus
from .schema import (
    ERROR_KINDS,
    FORMAT,
    FRAMEWORKS,
    STRATEGIES,
    CorpusError,
    CorpusMismatchError,
    EmptyDatasetError,
    Program,
    Task,
)
from .splits import (
    HELD_OUT,
    Leak,
    Split,
    check_leaks,
    computations,
    exclude_computations,
    held_out_computations,
    is_held_out,
    metric_weight,
    split_tasks,
)
from .writer import CorpusWriter, write_corpus

__all__ = [
    "ERROR_KINDS",
    "FORMAT",
    "FRAMEWORKS",
    "HELD_OUT",
    "MIN_PROGRAMS",
    "OPS",
    "STRATEGIES",
    "Corpus",
    "CorpusError",
    "CorpusFinding",
    "CorpusMismatchError",
    "CorpusWriter",
    "EmptyDatasetError",
    "Leak",
    "Merged",
    "Program",
    "Split",
    "Task",
    "Usable",
    "check_corpus",
    "check_leaks",
    "computations",
    "corpus_stats",
    "exclude_computations",
    "held_out_computations",
    "is_held_out",
    "merge_corpora",
    "merge_corpus",
    "metric_weight",
    "sequence_of",
    "split_tasks",
    "usable_programs",
    "write_corpus",
]

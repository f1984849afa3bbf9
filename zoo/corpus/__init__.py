"""Measured programs on disk (Parquet), their splits, and the reference workloads.

A corpus is a folder of one device's programs; `Corpus.open` reads it, `merge_corpus` grows it, and
`merge_corpora` makes one of several.
"""

from .check import check_corpus
from .corpus import MIN_PROGRAMS, Corpus, sequence_of, usable_programs
from .merge import merge_corpora, merge_corpus
from .schema import CorpusError, Program, Task
from .splits import (
    HELD_OUT,
    check_leaks,
    computations,
    computed,
    exclude_computations,
    free_tasks,
    held_out_computations,
    metric_weight,
    split_tasks,
)
from .writer import CorpusWriter, write_corpus

__all__ = [
    "HELD_OUT",
    "MIN_PROGRAMS",
    "Corpus",
    "CorpusError",
    "CorpusWriter",
    "Program",
    "Task",
    "check_corpus",
    "check_leaks",
    "computations",
    "computed",
    "exclude_computations",
    "free_tasks",
    "held_out_computations",
    "merge_corpora",
    "merge_corpus",
    "metric_weight",
    "sequence_of",
    "split_tasks",
    "usable_programs",
    "write_corpus",
]

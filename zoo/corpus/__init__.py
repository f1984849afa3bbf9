"""Measured programs on disk (Parquet), their splits, and the reference workloads.

A corpus is a folder of one device's programs; `Corpus.open` reads it, `merge_corpus` grows it, and
`merge_corpora` makes one of several.
"""

from .check import Finding, check_corpus, corpus_stats
from .corpus import Corpus
from .dataset import MIN_PROGRAMS, Usable, iter_datasets, sequence_of, to_dataset, usable_programs
from .merge import Merged, merge_corpora, merge_corpus
from .schema import (
    ERROR_KINDS,
    FORMAT,
    FRAMEWORKS,
    OPS,
    STRATEGIES,
    CorpusError,
    CorpusMismatchError,
    CorpusWriteError,
    EmptyDatasetError,
    MixedDevicesError,
    NewerCorpusError,
    Program,
    Task,
    UnknownLogError,
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
    training_tasks,
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
    "CorpusMismatchError",
    "CorpusWriteError",
    "CorpusWriter",
    "EmptyDatasetError",
    "Finding",
    "Leak",
    "Merged",
    "MixedDevicesError",
    "NewerCorpusError",
    "Program",
    "Split",
    "Task",
    "UnknownLogError",
    "Usable",
    "check_corpus",
    "check_leaks",
    "computations",
    "corpus_stats",
    "exclude_computations",
    "held_out_computations",
    "is_held_out",
    "iter_datasets",
    "merge_corpora",
    "merge_corpus",
    "metric_weight",
    "sequence_of",
    "split_tasks",
    "to_dataset",
    "training_tasks",
    "usable_programs",
    "write_corpus",
]

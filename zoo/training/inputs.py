"""What a model reads, by the name of a feature schema: programs of a corpus in, matrices out."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..corpus import Corpus, Program
    from ..devices import Device
    from ..features import FeatureSchema


def resolve_schema(name: str, kind: str) -> FeatureSchema:
    """The schema of a recipe's name, which may leave the device's kind out: `tlp` is `tlp-cpu` or `tlp-gpu`.

    Raises:
        UnknownSchemaError: there is none.
    """
    from ..features import get_schema
    from ..features.schema import SCHEMAS

    full = f"{name}-{kind}"
    return get_schema(full if name not in SCHEMAS and full in SCHEMAS else name)


def is_statements(schema: FeatureSchema) -> bool:
    """Whether a row of the matrix is a lowered statement, not a primitive."""
    return schema.source == "statements"


@dataclass(frozen=True)
class StatementStore:
    """Where the features of replayed programs are kept, for a program takes 20 ms or more.

    Attributes:
        folder: None makes them anew.
        workers: processes that replay.
    """

    folder: Path | None = None
    workers: int = 1


def extract(
    corpus: Corpus, programs: Sequence[Program], schema: FeatureSchema, device: Device, store: StatementStore
) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of programs of a corpus.

    Returns:
        float32 (n, rows, width), and (N,) bool: which n of the N programs they are. A program is left out when
        its schema reads statements and the program cannot be replayed.
    """
    if is_statements(schema):
        return _statements(corpus, programs, schema, store)
    from ..corpus import sequence_of

    features = schema.extract([sequence_of(p) for p in programs], device if schema.hardware else None)
    return features, np.ones(len(programs), dtype=bool)


def _statements(
    corpus: Corpus, programs: Sequence[Program], schema: FeatureSchema, store: StatementStore
) -> tuple[np.ndarray, np.ndarray]:
    from ..corpus.replay.store import statement_features
    from ..corpus.schema import OPS
    from ..features.statements import statement_matrices

    with tempfile.TemporaryDirectory() as passing:
        made, failures = statement_features(corpus, programs, store.folder or passing, store.workers)
    usable = np.ones(len(programs), dtype=bool)
    usable[[failure.index for failure in failures]] = False
    kept = np.flatnonzero(usable).tolist()
    ops = [OPS.index(corpus.tasks[programs[i].task_id].op) for i in kept]
    return statement_matrices([made[i] for i in kept], ops, schema.rows), usable

"""What a model reads, by the name of a feature schema: programs of a corpus in, matrices out."""

from __future__ import annotations

from collections.abc import Sequence
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
    return schema.name.startswith("statements")


def extract(
    corpus: Corpus, programs: Sequence[Program], schema: FeatureSchema, device: Device
) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of programs of one task.

    Returns:
        float32 (n, rows, width), and (N,) bool: which n of the N programs they are. A program is left out when
        its schema reads statements and the program cannot be replayed.
    """
    if is_statements(schema):
        return _statements(corpus, programs)
    from ..corpus.dataset import sequence_of

    features = schema.extract([sequence_of(p) for p in programs], device if schema.hardware else None)
    return features, np.ones(len(programs), dtype=bool)


def _statements(corpus: Corpus, programs: Sequence[Program]) -> tuple[np.ndarray, np.ndarray]:
    raise NotImplementedError

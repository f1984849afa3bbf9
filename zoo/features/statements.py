"""Statement features: 164 columns that describe a statement and 10 that name the operator, as ATFormer reads them.

The 164 are those of Ansor, on which TenSet-MLP and ATFormer are built too (papers: ATFormer, section 3.2 and A.1).
TVM's PerStoreFeature gives the very same ones when it does not add its 8 columns of the workload (172 with them).
A statement is a buffer that the program stores to; `docs/language.md` has its columns, amounts as log2(1 + x).
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import last_line
from .columns import PERSTORE_WIDTH, STATEMENT_ROWS, STATEMENT_WIDTH

ITERATIONS = 161
"""The column that tells how often a statement runs, as log2(1 + n)."""


def statement_matrices(
    programs: Sequence[np.ndarray], ops: Sequence[int] | np.ndarray, rows: int = STATEMENT_ROWS
) -> np.ndarray:
    """Return programs as matrices of one shape: float32 (N, rows, 174).

    Programs with fewer statements are padded with zeros. Of those with more, the statements that run most often
    are kept (of equals the first), in the order of the program.

    Args:
        programs: one array (statements, 164) a program; without any statement its matrix is zero.
        ops: for every program its operator as an index into `OPS`.
    """
    matrices = np.zeros((len(programs), rows, STATEMENT_WIDTH), np.float32)
    for matrix, program, op in zip(matrices, programs, ops, strict=True):
        kept = program[np.sort(np.argsort(-program[:, ITERATIONS], kind="stable")[:rows])]
        matrix[: len(kept), :PERSTORE_WIDTH] = kept
        matrix[: len(kept), PERSTORE_WIDTH + op] = 1
    return matrices


def lowered_statements(context: Any, candidates: Sequence[Any]) -> Iterator[np.ndarray | str]:
    """Yield the statements of each program, float32 (statements, 164), or why TVM cannot lower it.

    One that it cannot lower fails a whole batch, which is halved.

    Args:
        context: MetaSchedule's `TuneContext`: target and number of threads.
        candidates: MetaSchedule's `MeasureCandidate`s, whose argument infos do not matter.
    """
    if not candidates:
        return
    try:
        matrices = _extractor().extract_from(context, list(candidates))
    except Exception as error:  # TVM raises errors of every class from its passes
        if len(candidates) == 1:
            yield last_line(error)
            return
        middle = len(candidates) // 2
        yield from lowered_statements(context, candidates[:middle])
        yield from lowered_statements(context, candidates[middle:])
        return
    yield from (features.numpy().astype(np.float32) for features in matrices)


@cache
def _extractor() -> Any:
    from tvm.s_tir import meta_schedule as ms

    return ms.feature_extractor.PerStoreFeature(extract_workload=False)

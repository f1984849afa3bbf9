"""Statement features: 164 columns that describe a statement and 10 that name the operator, as ATFormer reads them.

The 164 are those of Ansor, on which TenSet-MLP and ATFormer are built too (papers: ATFormer, section 3.2 and A.1).
TVM's PerStoreFeature gives the very same ones when it does not add its 8 columns of the workload (172 with them).
A statement is a buffer that the program stores to; its columns are, amounts as log2(1 + x) throughout:

| columns    | what                                                                                         |
|------------|----------------------------------------------------------------------------------------------|
| 0 to 15    | operations on floats (7), on integers (7), on booleans, selects                              |
| 16 to 48   | vectorized, unrolled and parallel loops: how many, product, innermost, where (one-hot of 8)  |
| 49 to 56   | whether for a GPU; extents of blockIdx and threadIdx x, y, z and of the virtual thread       |
| 57 to 146  | five buffers of 18: access type (3), bytes and cache lines, all and unique, reuse type (3),  |
|            | distance and count of reuse, the four amounts over the count, stride                         |
| 147 to 156 | the curve of arithmetic intensity, at 10 points                                              |
| 157 to 160 | the buffer allocated: its size and where                                                     |
| 161 to 163 | iterations of the statement, loops around it, unroll pragma                                  |

TVM leaves "where" a loop stands at its last value, mixed. The 10 columns of the operator differ from the paper's,
which names nine (max, min, add, Conv2dOutput, Conv2d_winograd, DepthwiseConv2d, dense, softmax, compute): they are a
one-hot of the operators of a corpus, which stay the same whatever a framework calls its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import TchubError
from .columns import OPS, PERSTORE_WIDTH, STATEMENT_ROWS, STATEMENT_WIDTH

ITERATIONS = 161
"""The column that tells how often a statement runs, as log2(1 + n)."""


def statement_matrices(
    programs: Sequence[np.ndarray], ops: Sequence[int] | np.ndarray, rows: int = STATEMENT_ROWS
) -> np.ndarray:
    """Return programs as matrices of one shape.

    Programs with fewer statements are padded with zeros. Of those with more, the statements that run most often
    are kept (of equals the first), in the order of the program.

    Args:
        programs: one array (statements, 164) a program; without any statement its matrix is zero.
        ops: for every program its operator as an index into `OPS`.
        rows: statements kept.

    Returns:
        float32 of shape (N, rows, 174).

    Raises:
        TchubError: an array of another width, or not as many operators as programs.
    """
    ops = np.asarray(ops, np.int64)
    if ops.shape != (len(programs),) or (len(ops) and not 0 <= ops.min() <= ops.max() < len(OPS)):
        raise _wrong_shape(f"{len(programs)} programs need as many operators from 0 to {len(OPS) - 1}")
    matrices = np.zeros((len(programs), rows, STATEMENT_WIDTH), np.float32)
    for matrix, program, op in zip(matrices, programs, ops, strict=True):
        if program.ndim != 2 or program.shape[1] != PERSTORE_WIDTH:
            raise _wrong_shape(f"statements have shape (n, {PERSTORE_WIDTH}), not {program.shape}")
        kept = program if len(program) <= rows else program[_busiest(program, rows)]
        matrix[: len(kept), :PERSTORE_WIDTH] = kept
        matrix[: len(kept), PERSTORE_WIDTH + op] = 1
    return matrices


def _wrong_shape(message: str) -> TchubError:
    return TchubError(message, remedy="Make them by PerStoreFeature(extract_workload=False), one array a program.")


def _busiest(program: np.ndarray, rows: int) -> np.ndarray:
    """Return the indices of the statements that run most often, in the order of the program."""
    return np.sort(np.argsort(-program[:, ITERATIONS], kind="stable")[:rows])

"""What PyTorch calls a library for and TVM lacks: linear algebra of small matrices, and gamma functions.

The elimination of a matrix is written out, a few operators for each column. A singular one gives numbers without
meaning, where PyTorch raises an error.
"""

import math
from typing import Any

import torch
from torch import Tensor

MOST = 32
"""Rows of a matrix: each takes ten operators or so, which are compiled one by one."""


def _rows(a: Tensor) -> tuple[range, Tensor]:
    """Return the numbers of a matrix's rows, for loops and as a column.

    Raises:
        ValueError: they are more than `MOST`; the message is that of TVM's importer for operators that it lacks.
    """
    size = a.shape[-1]
    if size > MOST:
        raise ValueError(f"Unsupported function types ['elimination of {size} rows (at most {MOST} are compiled)']")
    return range(size), torch.arange(size)[:, None]


def _eliminated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the solution of `a @ x = b` by Gauss and Jordan, and the pivots, of other sign where rows were swapped.

    The pivot of a column is its largest element that is left, as in LAPACK.
    """
    (steps, rows), x, pivots = _rows(a), torch.cat([a, b], -1), []
    for k in steps:
        best = x[..., k:, k].abs().argmax(-1, keepdim=True)[..., None] + k
        row = x.gather(-2, best.expand(*best.shape[:-1], x.shape[-1]))
        x = torch.where(rows == best, x[..., k : k + 1, :], x)
        pivot = row[..., k : k + 1]
        pivots.append(torch.where(best == k, pivot, -pivot))
        row = row / torch.where(pivot == 0, 1.0, pivot)  # the determinant of a singular matrix is 0, not NaN
        x = torch.where(rows == k, row, x - x[..., k : k + 1] * row)
    return x[..., len(steps) :], torch.cat(pivots, -1).squeeze(-2)


def inverse(a: Tensor) -> Tensor:
    return _eliminated(a, torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape))[0]


def solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """Solve `a @ x = b`, or `x @ a = b`; a vector `b` is one column for each matrix."""
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    a, right = (x.expand(*batch, *x.shape[-2:]) for x in (a, right))
    x = _eliminated(a, right)[0] if left else _eliminated(a.mT, right.mT)[0].mT
    return x.squeeze(-1) if is_vector else x


def determinant(a: Tensor) -> Any:
    """Return the determinant, and two tensors in place of the factors that PyTorch keeps for gradients."""
    return _eliminated(a, a[..., :0])[1].prod(-1), a, a


def log_determinant(a: Tensor) -> Any:
    """Return the determinant's sign, the logarithm of its absolute value, and two tensors as `determinant` does."""
    pivots = _eliminated(a, a[..., :0])[1]
    return pivots.sign().prod(-1), pivots.abs().log().sum(-1), a, a


def cholesky(a: Tensor, *, upper: bool = False) -> Tensor:
    """Return the lower factor of a positive definite matrix, of which its lower half alone is read."""
    (steps, rows), rest, columns = _rows(a), a.mT if upper else a, []
    for k in steps:
        column = torch.where(rows >= k, rest[..., k : k + 1], 0.0) / rest[..., k : k + 1, k : k + 1].sqrt()
        rest = rest - column * column.mT
        columns.append(column)
    factor = torch.cat(columns, -1)
    return factor.mT if upper else factor


def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    inverse = _inverse_of_lower(a.mT if upper else a, unitriangular)
    inverse = inverse.mT if upper else inverse
    return inverse @ b if left else b @ inverse


def _inverse_of_lower(a: Tensor, has_ones: bool) -> Tensor:
    """Return the inverse of a lower triangular matrix: of its diagonal, then of blocks around it of twice the size.

    The inverse of `[[A, 0], [B, C]]` has `-inverse(C) @ B @ inverse(A)` in place of `B`, which is as accurate as a
    substitution row by row. All blocks of a size are two products of whole matrices, whatever the number of rows.
    """
    size = a.shape[-1]
    numbers = torch.arange(size)
    diagonal = torch.ones_like(a[..., 0]) if has_ones else a.diagonal(dim1=-2, dim2=-1)
    a = a / diagonal.unsqueeze(-1)
    result = torch.eye(size, dtype=a.dtype)
    for power in range((size - 1).bit_length()):
        block = numbers >> power
        below = (block[:, None] == block + 1) & (block % 2 == 0)
        part = torch.where(below, a, 0.0)
        result = result - (result @ part @ result if power else part)
    return result / diagonal.unsqueeze(-2)


def solve_by_factor(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Solve by the Cholesky factor of a matrix."""
    lower = factor.mT if upper else factor
    return solve_triangular(lower.mT, solve_triangular(lower, b, upper=False), upper=True)


def inverse_by_factor(factor: Tensor, upper: bool = False) -> Tensor:
    return solve_by_factor(torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape), factor, upper)


# Gamma functions


def _upward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers of at least 0.5 (reflected), the same raised over 7, and the numbers that the raised ones passed.

    There the first terms of Stirling's series are right to the accuracy of float32.
    """
    y = torch.where(x < 0.5, 1 - x, x)
    few = y < 7
    passed = torch.where(few.unsqueeze(-1), y.unsqueeze(-1) + torch.arange(7), 1.0)
    return y, torch.where(few, y + 7, y), passed


def log_gamma(x: Tensor) -> Any:
    _, z, passed = _upward(x)
    series = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + 1 / (12 * z) - 1 / (360 * z**3)
    result = series - passed.log().sum(-1)
    return torch.where(x < 0.5, (math.pi / (math.pi * x).sin().abs()).log() - result, result)


def digamma(x: Tensor) -> Any:
    y, z, passed = _upward(x)
    series = z.log() - 1 / (2 * z) - 1 / (12 * z**2) + 1 / (120 * z**4)
    result = series - torch.where((y < 7).unsqueeze(-1), 1 / passed, 0.0).sum(-1)
    return torch.where(x < 0.5, result - math.pi / (math.pi * x).tan(), result)


def inverse_error_function(x: Tensor) -> Tensor:
    """Return M. Giles' approximation (2012), and two of Newton's steps for the last digits."""
    w = -((1 - x) * (1 + x)).log()
    parts = []
    for z, coefficients in ((w - 2.5, _NEAR), (w.sqrt() - 3, _FAR)):
        series = torch.full_like(x, coefficients[0])
        for coefficient in coefficients[1:]:
            series = series * z + coefficient
        parts.append(series)
    y = torch.where(w < 5, *parts) * x
    for _ in range(2):
        y = y - (y.erf() - x) / (2 / math.sqrt(math.pi) * (-y * y).exp())
    edge = torch.where(x.abs() == 1, x * math.inf, math.nan)
    return torch.where(x.abs() < 1, y, edge)


_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503),
    *(-0.00417768164, 0.246640727, 1.50140941),
)
_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613),
    *(0.00943887047, 1.00167406, 2.83297682),
)

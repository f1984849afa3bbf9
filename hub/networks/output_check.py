"""Check of a compiled network's output against the original's: one that can fail, on any scale of output."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .errors import OutputMismatchError

Arrays = Sequence[np.ndarray[Any, Any]]

# |ours - theirs| <= RTOL * spread + ATOL * largest, of each number of an output. Its spread is its distance from the
# mean, at least the output's standard deviation: most numbers of a softmax are tiny, and its few large ones are not
# rounded to those. Right networks of a few hundred layers in float32 stay a tenth of it. In float16 PyTorch's own mixed
# precision stays a sixth of it for ResNet-18 and BERT-tiny, and takes four times as much for an untrained MobileNet-V2.
# bfloat16 has three bits less.
RTOL = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 2e-1}
ATOL = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
# What the original's own float32 run is off from the exact one, or moves where its inputs do in their last digits, may
# be exceeded so many times where it is in doubt.
DOUBT = 4.0
# What PyTorch's own run in a lower precision is off may be exceeded so many times where a network is rounded more than
# others.
HALF_DOUBT = 2.0
# Nor may a difference exceed this share of the spread: beyond, the output is lost. In bfloat16 PyTorch's own mixed
# precision is off by 0.43 of it for an untrained ResNet-50; a wrong kernel is off by more than all of it.
MOST = 0.2
_MOST_HALVED = {"float16": MOST, "bfloat16": 0.9}
# Share of an output's numbers that are few.
FEW = 0.1
# An output whose numbers are all smaller, or all alike, would hide a wrong kernel.
LEAST_OUTPUT = 1e-6


@dataclass(frozen=True)
class OutputCheck:
    """Distance of a compiled network's output from the original's.

    Attributes:
        ok: every output is within the tolerance; integers and booleans are equal, and so are the places of values
            that are not finite.
        checked: the outputs say something about the network; see `unchecked`.
        max_abs_diff: largest difference; max_abs_output: largest finite number of the original's output.
        worst: largest difference in units of what is allowed; at most 1 where `ok`.
        unchecked: for each output that can not show an error, why, e.g. `output 0 is constant`.
        judged_by: the run of the original that decided: `float32`; where that differs, the lower precision, or `exact`,
            see `ReferenceNetwork.exact`; `its own moves`, see `ReferenceNetwork.shaken`; or `other inputs`, see
            `rivals.check_library`.
    """

    ok: bool
    checked: bool
    max_abs_diff: float
    max_abs_output: float
    worst: float
    unchecked: tuple[str, ...] = ()
    judged_by: str = "float32"

    @property
    def verdict(self) -> str:
        """`equal`, `not checked` or `WRONG`."""
        if not self.ok:
            return "WRONG"
        return "equal" if self.checked else "not checked"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {"verdict": self.verdict}


def check_output(
    ours: Arrays,
    theirs: Arrays,
    exact: Callable[[], Arrays | None] | None = None,
    precision: str = "float32",
    halved: Callable[[], Arrays | None] | None = None,
    shaken: Callable[[], Sequence[Arrays]] | None = None,
) -> OutputCheck:
    """Compare the outputs of a compiled network with the original's.

    Args:
        theirs: of the original, in float32.
        exact: gives the original's exact outputs, or None where it cannot; asked only where `ours` is not within the
            tolerance.
        precision: in which the compiled network multiplies; see `RTOL`.
        halved: gives the original's outputs in a precision other than float32, or None where it cannot; asked only
            where that is the precision, and `ours` is not within the tolerance.
        shaken: gives the original's outputs for inputs that are changed in their last digits, or none where they are
            known exactly; asked only where `ours` is not within the tolerance of `exact` either.
    """
    unchecked = tuple(f"output {number} {reason}" for number, x in enumerate(theirs) if (reason := _says_nothing(x)))
    largest = max((_largest(x) for x in theirs), default=0.0)

    def result(ok: bool, difference: float, worst: float, judge: str = "float32") -> OutputCheck:
        checked = len(unchecked) < len(theirs)
        return OutputCheck(ok, checked, difference, largest, worst, unchecked, judge)

    if len(ours) != len(theirs) or any(a.shape != b.shape for a, b in zip(ours, theirs, strict=False)):
        return result(False, float("inf"), float("inf"))
    pairs = list(zip(ours, theirs, strict=True))
    difference = max((_difference(a, b) for a, b in pairs), default=0.0)
    each = [_excess(a, b, _allowed(b, precision)) for a, b in pairs]
    if max(each, default=0.0) <= 1.0:
        return result(True, difference, max(each, default=0.0))
    own = halved() if halved is not None and precision != "float32" else None
    if own is not None:
        worst = max(_excess(a, b, _allowed_halved(b, h, precision)) for (a, b), h in zip(pairs, own, strict=True))
        return result(worst <= 1.0, difference, worst, precision)
    right, judge = exact() if exact is not None else None, "float32"
    if right is not None and all(a.shape == b.shape for a, b in zip(ours, right, strict=False)):
        judge = "exact"
        for number, ((a, b), c) in enumerate(zip(pairs, right, strict=True)):
            if _is_lost(b, c) and _difference(a, b) <= LEAST_OUTPUT * max(1.0, _largest(b)):
                each[number] = 0.0
            allowed = np.maximum(_allowed(b, precision), _allowed_in_doubt(b, c))
            # As near to the original's own run as that is to the exact one is right, too.
            near = np.maximum(_allowed(b, precision), _difference(b, c))
            each[number] = min(each[number], _excess(a, c, allowed), _excess(a, b, near))
    if max(each) > 1.0 and shaken is not None:
        moved = zip(*shaken(), strict=True)
        moves = [_excess_of_moves(a, b, [*next(moved, ())], precision) for a, b in pairs]
        least = [*map(min, each, moves)]
        each, judge = (least, "its own moves") if max(least) <= 1.0 else (each, judge)
    return result(max(each) <= 1.0, difference, max(each), judge)


def few_differ(ours: Arrays, theirs: Arrays, precision: str = "float32") -> bool:
    """Return whether outputs differ in a few of their numbers alone, as where two rows have changed places."""
    pairs = list(zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and (_distance(a, b) > _allowed(b, precision)).sum() <= FEW * b.size for a, b in pairs
    )


def require(check: OutputCheck, network: str) -> None:
    """Raises OutputMismatchError when the check failed."""
    if not check.ok:
        raise OutputMismatchError(
            f"the compiled {network} differs from the original by {check.max_abs_diff:.3g} at outputs up to "
            f"{check.max_abs_output:.3g}, {check.worst:.3g} times what is allowed",
            remedy="do not use the library; leave out --precision if it was given, else report the network and the "
            "output folder",
            **check.as_dict(),
        )


def _is_float(x: np.ndarray[Any, Any]) -> bool:
    return x.dtype.kind in "fcV"  # V: bfloat16 and floats of 8 bits, of ml_dtypes


def _finite(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = x.astype(np.float64)
    return wide[np.isfinite(wide)]


def _largest(x: np.ndarray[Any, Any]) -> float:
    return float(np.abs(_finite(x)).max(initial=0.0)) if _is_float(x) else float(np.abs(x).max(initial=0))


def _says_nothing(x: np.ndarray[Any, Any]) -> str | None:
    """Return why an output can not show that a kernel is wrong, or None."""
    if x.size == 0:
        return "is empty"
    if not _is_float(x):
        return "is constant" if x.size > 1 and (x == x.flat[0]).all() else None
    finite, largest = _finite(x), _largest(x)
    if finite.size == 0:
        return "has no finite number"
    if largest < LEAST_OUTPUT:
        return f"is below {LEAST_OUTPUT:g} everywhere" if largest else "is zero everywhere"
    if finite.size > 1 and float(finite.std()) <= LEAST_OUTPUT * largest:
        return "is constant"
    return None


def _allowed(x: np.ndarray[Any, Any], precision: str) -> np.ndarray[Any, Any]:
    """Return the largest difference that is allowed of each number of an output; 0 for integers."""
    if not _is_float(x):
        return np.zeros(())
    wide, finite = x.astype(np.float64), _finite(x)
    apart = np.abs(np.where(np.isfinite(wide), wide, 0.0) - (finite.mean() if finite.size > 1 else 0.0))
    return RTOL[precision] * np.maximum(apart, _spread(x)) + ATOL[precision] * _largest(x)


def _excess_of_moves(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], moved: Arrays, precision: str) -> float:
    """Return a difference in units of what is allowed where the original's output moves by itself.

    As many numbers as move so far may be off by `DOUBT` times as much.

    Args:
        moved: what `theirs` becomes where the inputs move in their last digits. That says nothing of integers, and of
            numbers that move further than rounding does, as where two rows change places.
    """
    distance, allowed = _distance(ours, theirs), _allowed(theirs, precision)
    if not moved or not _is_float(theirs):
        return _excess(ours, theirs, allowed)
    most, moves = MOST * _spread(theirs), np.max([_distance(theirs, one) for one in moved], axis=0)
    largest = np.sort(np.where(moves <= most, moves, 0.0), axis=None)[::-1]
    order = np.argsort(distance, axis=None)[::-1]
    off, allowed = distance.ravel()[order], allowed.ravel()[order]
    over = off > allowed
    allowed[over] = np.maximum(allowed[over], np.minimum(DOUBT * largest[: over.sum()], most))
    return _in_units(off, allowed)


def _allowed_in_doubt(x: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> float:
    """Return the largest difference from the exact output that is allowed of one that the original's own run misses."""
    off = _difference(x, exact)
    return min(DOUBT * off, max(off, MOST * _spread(exact))) if _is_float(exact) else DOUBT * off


def _is_lost(x: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> bool:
    """Return whether an output of the original that says nothing is only its own rounding error."""
    return _is_float(x) and _says_nothing(x) is not None and _difference(x, exact) > MOST * _spread(exact)


def _allowed_halved(x: np.ndarray[Any, Any], halved: np.ndarray[Any, Any], precision: str) -> np.ndarray[Any, Any]:
    """Return the largest difference that is allowed of each number in a precision, given PyTorch's own in it."""
    off = _difference(halved, x)
    if not _is_float(x) or not np.isfinite(off):
        return _allowed(x, precision)
    return np.maximum(_allowed(x, precision), min(HALF_DOUBT * off, _MOST_HALVED[precision] * _spread(x)))


def _spread(x: np.ndarray[Any, Any]) -> float:
    """Return the standard deviation; a single number has none, and is measured by its own size."""
    finite = _finite(x)
    return float(finite.std()) if finite.size > 1 else _largest(x)


def _difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of two arrays of one shape (of integers, their share)."""
    distance = _distance(a, b)
    return float(distance.max(initial=0.0)) if _is_float(b) else float(distance.mean()) if b.size else 0.0


def _distance(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the difference of each number of two arrays of one shape; inf where one of them alone is finite."""
    if not _is_float(b):
        return (a != b).astype(np.float64)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    finite, same = np.isfinite(wide_a) & np.isfinite(wide_b), np.isclose(wide_a, wide_b, equal_nan=True)
    return np.where(finite, np.abs(np.where(finite, wide_a - wide_b, 0.0)), np.where(same, 0.0, np.inf))


def _excess(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], allowed: np.ndarray[Any, Any]) -> float:
    """Return the largest difference in units of what is allowed; of integers their share of all."""
    return _in_units(_distance(a, b) if _is_float(b) else np.asarray(_difference(a, b)), allowed)


def _in_units(distance: np.ndarray[Any, Any], allowed: np.ndarray[Any, Any]) -> float:
    """Return the largest of some distances in units of what is allowed; inf where nothing is and one is not 0."""
    units = np.full(distance.shape, np.inf)
    np.divide(distance, allowed, out=units, where=allowed > 0.0)
    return float(np.where(distance == 0.0, 0.0, units).max(initial=0.0))

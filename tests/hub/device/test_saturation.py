"""Rounding to 8 bits by x86's instructions: the same numbers as by TVM's operations, by less of them."""

from typing import Any

import numpy as np
import pytest
import tvm
from tchub.hub.device.saturation import saturating
from tvm import te, tirx
from tvm_ffi import structural_equal

pytestmark = pytest.mark.x86

TARGETS = {name: tvm.target.Target({"kind": "llvm", "mcpu": name}) for name in ("x86-64-v2", "skylake-avx512")}
TARGET = TARGETS["x86-64-v2"]
# Ties, what is cut off, what has no number of 32 bits, and what is none.
VALUES = np.array(
    [*np.arange(-4, 4, 0.25), -128.5, -127.5, 126.5, 127.5, 254.5, 255.5, 3e9, -3e9, 3e38, -3e38, np.inf, -np.inf],
    np.float32,
)


def rounded(dtype: str, least: float, most: float, zero: Any = None, lanes: int = 1) -> Any:
    """Return a module that rounds numbers, adds a zero point, cuts off and casts; of constants or of an argument."""
    x = te.placeholder((VALUES.size,), "float32", "x")
    shift = te.placeholder((1,), "float32", "shift")

    def element(i: Any) -> Any:
        value = tirx.round(x[i])
        if zero is not None:
            value = value + (shift[0] if zero == "argument" else tirx.const(zero, "float32"))
        return te.min(te.max(value, tirx.const(least, "float32")), tirx.const(most, "float32")).astype(dtype)

    result = te.compute(x.shape, element, "result")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, shift, result]))
    if lanes > 1:
        _, inner = schedule.split(schedule.get_loops("result")[0], [None, lanes])
        schedule.vectorize(inner)
    return schedule.mod


def codes(mod: Any, dtype: str) -> list[int]:
    """Return what this CPU computes, whichever one a module is changed for."""
    result = tvm.runtime.empty((VALUES.size,), dtype)
    arguments = VALUES, np.zeros(1, np.float32)
    tvm.compile(mod, target=TARGET)["main"](*map(tvm.runtime.tensor, arguments), result)
    return result.numpy().tolist()


@pytest.mark.parametrize("lanes", [1, 4, 22])
@pytest.mark.parametrize(
    ("dtype", "least", "most", "zero"),
    [
        ("int8", -128, 127, None),
        ("uint8", 0, 255, None),
        ("int8", 0, 127, None),
        ("int8", -128, 127, -128.0),
        ("uint8", 0, 255, 128.0),
        ("uint8", 0, 127, 3.0),
    ],
)
def test_codes_are_the_same_by_fewer_operations(
    dtype: str, least: int, most: int, zero: float | None, lanes: int
) -> None:
    mod = rounded(dtype, least, most, zero, lanes)
    changed = [saturating(mod, target) for target in TARGETS.values()]
    assert not any("round" in str(one) for one in changed)
    assert [codes(one, dtype) for one in changed] == [codes(mod, dtype)] * 2


@pytest.mark.parametrize(
    ("dtype", "least", "most", "zero"),
    [
        ("int8", -200, 127, None),
        ("uint8", -1, 255, None),
        ("uint8", 0, 254.5, None),
        ("int16", -128, 127, None),
        ("int8", -128, 127, 0.5),
        ("int8", -128, 127, 2.0**25),
        ("int8", -128, 127, "argument"),
    ],
)
def test_what_may_not_be_whole_or_of_8_bits_stays(
    dtype: str, least: float, most: float, zero: float | str | None
) -> None:
    mod = rounded(dtype, least, most, zero)
    assert structural_equal(saturating(mod, TARGET), mod)


def test_programs_of_other_cpus_stay() -> None:
    mod, other = rounded("int8", -128, 127), {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic"}
    assert saturating(mod, tvm.target.Target(other)) is mod

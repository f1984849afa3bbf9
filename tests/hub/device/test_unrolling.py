"""A tile's sums are unrolled, loops whose bodies are long stay loops, and the program computes what it did."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tchub.hub.device.unrolling import MOST, bounded_unrolling, unrolled_sums
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target
from tvm_ffi import structural_equal

CPU = Target({"kind": "llvm", "mcpu": "x86-64-v3"})
ROWS, COLUMNS, INPUTS, LANES = 16, 128, 16, 8


def program(steps: int, *, activated: bool = True) -> tvm.IRModule:
    """Return a product, with an activation behind it, in loops that TVM unrolls up to so many steps."""
    a, b = te.placeholder((ROWS, INPUTS), name="a"), te.placeholder((INPUTS, COLUMNS), name="b")
    k = te.reduce_axis((0, INPUTS), name="k")
    product: Any = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")

    def activation(i: Any, j: Any) -> Any:
        x = product[i, j]
        for power in range(20):
            x = x * (product[i, j] + float(power)) * 0.01
        return x

    out: Any = te.compute((ROWS, COLUMNS), activation if activated else lambda i, j: product[i, j] * 2.0, name="out")
    schedule: Any = Schedule(tvm.IRModule({"main": te.create_prim_func([a, b, out])}))
    for name in ("product", "out"):
        block = schedule.get_sblock(name)
        i, j, *rest = schedule.get_loops(block)
        outer, lanes = schedule.split(j, [None, LANES])
        schedule.reorder(i, *rest, outer, lanes)
        schedule.vectorize(lanes)
        if steps:
            schedule.annotate(i, "pragma_auto_unroll_max_step", steps)
    return schedule.mod


def test_an_activation_stays_in_a_loop_and_computes_the_same(tmp_path: Path) -> None:
    mod = program(ROWS * COLUMNS // LANES)
    bounded = bounded_unrolling(mod)
    assert bounded_unrolling(bounded).script() == bounded.script(), "once is enough"
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, "float32") for shape in ((ROWS, INPUTS), (INPUTS, COLUMNS), (ROWS, COLUMNS))]
    results, sizes = [], []
    for one in (mod, bounded):
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        built = tvm.tirx.build(one, target=CPU)
        built["main"](*tensors)
        results.append(tensors[-1].numpy())
        built.write_to_file(str(tmp_path / "code.ll"), "ll")
        sizes.append((tmp_path / "code.ll").stat().st_size)
    np.testing.assert_array_equal(*results)
    assert results[0].std() > 0
    assert sizes[1] < sizes[0] / 4


@pytest.mark.parametrize("mod", [program(0), program(16), program(512, activated=False)])
def test_short_bodies_and_loops_that_are_not_unrolled_stay_as_they_are(mod: tvm.IRModule) -> None:
    assert bounded_unrolling(mod)["main"].same_as(mod["main"])


def test_loops_further_in_are_still_unrolled() -> None:
    """A row of the activation has a fraction of what may be written out; all rows together have more."""
    operations = 20 * 5 * COLUMNS // LANES
    assert operations < MOST < operations * ROWS
    steps = re.findall(r'"pragma_auto_unroll_max_step", (\d+)\)', bounded_unrolling(program(512)).script())
    assert steps.count(str(COLUMNS // LANES)) == 1


def tiled(rows: int) -> tvm.IRModule:
    """Return a product in tiles of so many rows, the steps of its sums outside of the tile."""
    schedule: Any = Schedule(program(0, activated=False))
    block = schedule.get_sblock("product")
    i, k, outer, lanes = schedule.get_loops(block)
    above, tile = schedule.split(i, [None, rows])
    schedule.reorder(above, outer, k, tile, lanes)
    schedule.decompose_reduction(block, k)
    return schedule.mod


@pytest.mark.parametrize(("reduction", "expected"), [(te.max, np.max), (te.min, np.min)])
def test_maxima_and_minima_that_llvm_would_not_compile_stay_loops(reduction: Any, expected: Any) -> None:
    x, j, k = te.placeholder((16, 40, 16), name="x"), te.reduce_axis((0, 16)), te.reduce_axis((0, 40))
    y: Any = te.compute((16,), lambda i: reduction(x[j, k, i], axis=[j, k]), name="y")
    schedule: Any = Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    block = schedule.get_sblock("y")
    lanes, *steps = schedule.get_loops(block)
    schedule.reorder(*steps, lanes)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block, steps[0])
    schedule.annotate(steps[0], "pragma_auto_unroll_max_step", 64)
    schedule.annotate(steps[0], "pragma_unroll_explicit", 1)
    bounded = bounded_unrolling(schedule.mod)
    assert not structural_equal(bounded, schedule.mod), "or it would be compiled for hours"
    numbers, result = np.random.default_rng(0).random((16, 40, 16), "float32"), np.zeros(16, "float32")
    tensors = [tvm.runtime.tensor(numbers), tvm.runtime.tensor(result)]
    tvm.tirx.build(bounded, target=CPU)["main"](*tensors)
    np.testing.assert_array_equal(tensors[1].numpy(), expected(numbers, axis=(0, 1)))


def test_the_loops_of_a_tiles_sums_are_unrolled_and_compute_the_same() -> None:
    mod = tiled(8)
    unrolled = unrolled_sums(mod)
    assert (mod.script().count("T.unroll(8)"), unrolled.script().count("T.unroll(8)")) == (0, 1)
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, "float32") for shape in ((ROWS, INPUTS), (INPUTS, COLUMNS), (ROWS, COLUMNS))]
    results = []
    for one in (mod, unrolled):
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        tvm.tirx.build(one, target=CPU)["main"](*tensors)
        results.append(tensors[-1].numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
    np.testing.assert_allclose(results[1], 2.0 * arrays[0] @ arrays[1], rtol=1e-5)


@pytest.mark.parametrize("mod", [program(16), tiled(1)], ids=["the steps are within the tile", "one row"])
def test_other_loops_stay_as_they_are(mod: tvm.IRModule) -> None:
    assert unrolled_sums(mod).script() == mod.script()

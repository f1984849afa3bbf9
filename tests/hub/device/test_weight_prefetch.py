"""Weights of a product are read one block ahead, all of them once, and the product stays what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tchub.hub.device.weight_prefetch import LEAST, MOST, WEIGHTS, prefetch_weights
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.sym import Analyzer
from tvm.target import Target
from tvm_ffi import structural_equal, structural_map, structural_walk

X86 = Target({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"})
ROWS, INPUTS, OUTPUTS = 24, 256, 512
COLUMNS, HEIGHT = 16, 4
LINE = 16  # floats of a line of the caches


def product(
    outputs: int = OUTPUTS, *, inputs: int = INPUTS, height: int = HEIGHT, weights: tuple[int, ...] = (1,)
) -> Any:
    """Return a scheduled product whose weights are permuted: (outputs / COLUMNS, inputs, COLUMNS)."""
    data = te.placeholder((ROWS, inputs), name="data")
    weight = te.placeholder((outputs // COLUMNS, inputs, COLUMNS), name="weight")
    k = te.reduce_axis((0, inputs), name="k")
    out: Any = te.compute(
        (ROWS, outputs), lambda i, j: te.sum(data[i, k] * weight[j // COLUMNS, k, j % COLUMNS], axis=k), name="out"
    )
    func = te.create_prim_func([data, weight, out]).with_attr({"global_symbol": "main", WEIGHTS: list(weights)})
    schedule: Any = Schedule(tvm.IRModule({"main": func}))
    block = schedule.get_sblock("out")
    i, j, reduced = schedule.get_loops(block)
    (above, rows), (panel, columns) = schedule.split(i, [None, height]), schedule.split(j, [None, COLUMNS])
    schedule.reorder(panel, above, reduced, rows, columns)
    schedule.vectorize(columns)
    schedule.parallel(panel)
    schedule.decompose_reduction(block, reduced)
    return schedule.mod


def prefetched(mod: Any) -> list[Any]:
    """Return a module's calls that prefetch."""
    statements = list[Any]()
    structural_walk(mod["main"].body, (tirx.Evaluate, statements.append))
    values = [one.value for one in statements]
    return [value for value in values if str(getattr(getattr(value, "op", None), "name", "")) == "tirx.prefetch"]


def test_each_step_reads_its_share_of_the_next_block() -> None:
    (call,) = prefetched(prefetch_weights(product(), X86))
    *rows, offset = call.args[0].args[0].indices
    assert [int(row) for row in rows] == [0, 0]
    block, panel = INPUTS * COLUMNS, 7

    def read(i: int, k: int) -> int:
        values = {"j_0": panel, "i_0": i, "k": k}
        constant = structural_map(offset, (tirx.Var, lambda var: tirx.IntImm(str(var.ty.dtype), values[str(var.name)])))
        value: Any = Analyzer().simplify(constant)
        return int(value)

    steps = [read(i, k) for i in range(ROWS // HEIGHT) for k in range(INPUTS)]
    assert steps[0] == block * (panel + 1)
    assert {step // LINE for step in steps} >= set(range(block * (panel + 1) // LINE, block * (panel + 2) // LINE))
    assert max(steps) < block * (panel + 2.1)


@pytest.mark.parametrize("height", [1, HEIGHT])
def test_the_product_and_its_registers_stay(height: int) -> None:
    before = product(height=height)
    after = prefetch_weights(before, X86)
    rng = np.random.default_rng(0)
    data = rng.standard_normal((ROWS, INPUTS), "float32")
    weight = rng.standard_normal((OUTPUTS // COLUMNS, INPUTS, COLUMNS), "float32")
    results = []
    for mod in (before, after):
        library = tvm.tirx.build(mod, target="llvm")
        out = tvm.runtime.tensor(np.full((ROWS, OUTPUTS), np.nan, "float32"))
        library["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight), out)
        results.append(out.numpy())
    expected = np.einsum("ik,pkt->ipt", data, weight).reshape(ROWS, OUTPUTS)
    assert np.abs(expected).max() > 10
    np.testing.assert_allclose(results[1], expected, atol=1e-4)
    np.testing.assert_array_equal(*results)
    code = tvm.tirx.build(after, target=X86).inspect_source()
    assert "llvm.prefetch" in code
    assert "TVMBackendAllocWorkspace" not in code, "accumulators in memory are written at each step"


def small() -> Any:
    return product(LEAST // 4 // INPUTS - COLUMNS)


def large_blocks() -> Any:
    """Return a product whose weights are two blocks, each too large for a cache."""
    return product(2 * COLUMNS, inputs=MOST // 4 // COLUMNS + 1)


def one_block() -> Any:
    """Return a product whose weights are one block, which no other follows."""
    return product(COLUMNS, inputs=LEAST // 4 // COLUMNS)


@pytest.mark.parametrize(
    ("mod", "target"),
    [
        pytest.param(small(), X86, id="weights that stay in the cache"),
        pytest.param(one_block(), X86, id="weights of one block"),
        pytest.param(large_blocks(), X86, id="blocks larger than the cache"),
        pytest.param(product(weights=()), X86, id="no weights"),
        pytest.param(product(), Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}), id="another CPU"),
    ],
)
def test_other_functions_stay_as_they_are(mod: Any, target: Any) -> None:
    assert structural_equal(prefetch_weights(mod, target), mod)

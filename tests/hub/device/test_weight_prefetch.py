"""Weights of a product are read one block ahead without a gap, and the product stays what it is."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from relax_kit import build
from tchub.hub.device import build_jobs, weight_prefetch
from tchub.hub.device.candidate import WEIGHTS
from tchub.hub.device.read_ahead import MAX_BLOCK
from tchub.hub.device.weight_prefetch import MIN_WEIGHT, prefetch_weights
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
    *,
    outputs: int = OUTPUTS,
    inputs: int = INPUTS,
    height: int = HEIGHT,
    columns: int = COLUMNS,
    weights: tuple[int, ...] = (1,),
    split: int = 1,
    first_apart: bool = True,
) -> Any:
    """Return a scheduled product whose weights are permuted: (outputs / columns, inputs, columns).

    Args:
        height, columns: of the tile of accumulators.
        weights: numbers of the arguments that are weights; with two, both are multiplied with the data in one sum.
        split: iterations of the inner one of two loops over the inputs.
        first_apart: set accumulators to 0 in loops of their own, not in the first iteration of the sum.
    """
    data = te.placeholder((ROWS, inputs), name="data")
    tensors = [te.placeholder((outputs // columns, inputs, columns)) for _ in weights or (1,)]
    k = te.reduce_axis((0, inputs), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(sum(data[i, k] * one[j // columns, k, j % columns] for one in tensors), axis=k)

    func = te.create_prim_func([data, *tensors, te.compute((ROWS, outputs), element, name="out")])
    func = func.with_attr({"global_symbol": "main", WEIGHTS: list(weights)})
    schedule: Any = Schedule(tvm.IRModule({"main": func}))
    block = schedule.get_sblock("out")
    i, j, reduced = schedule.get_loops(block)
    (above, rows), (panel, lanes) = schedule.split(i, [None, height]), schedule.split(j, [None, columns])
    outer, inner = schedule.split(reduced, [None, split])
    schedule.reorder(panel, above, outer, inner, rows, lanes)
    schedule.vectorize(lanes)
    schedule.parallel(panel)
    if first_apart:
        schedule.decompose_reduction(block, outer)
    return schedule.mod


def requests(mod: Any) -> list[Any]:
    """Return the offsets that a module prefetches, in floats."""
    statements = list[Any]()
    structural_walk(mod["main"].body, (tirx.Evaluate, statements.append))
    calls = [
        one.value for one in statements if str(getattr(getattr(one.value, "op", None), "name", "")) == "tirx.prefetch"
    ]
    return [call.args[0].args[0].indices[-1] for call in calls]


def at(offset: Any, **values: int) -> int:
    """Return an offset where its variables have these values; others are 0."""

    def value(var: Any) -> Any:
        return tirx.IntImm(str(var.ty.dtype), values.get(str(var.name), 0))

    number: Any = Analyzer().simplify(structural_map(offset, (tirx.Var, value)))
    return int(number)


@pytest.mark.parametrize(("height", "columns", "split"), [(4, 16, 1), (4, 16, 4), (8, 64, 1), (2, 128, 8)], ids=str)
def test_the_steps_of_a_block_read_the_next_one(height: int, columns: int, split: int) -> None:
    offsets = requests(prefetch_weights(product(height=height, columns=columns, split=split), X86))
    block, panel = INPUTS * columns, 2
    outer, inner = range(INPUTS // split), range(split)
    steps = [
        [at(offset, j_0=panel, i_0=i, k_0=k, k_1=k_in) for offset in offsets]
        for i in range(ROWS // height)
        for k in outer
        for k_in in inner
    ]
    read = {offset // LINE for step in steps for offset in step}
    assert read >= set(range(block * (panel + 1) // LINE, block * (panel + 2) // LINE))
    assert max(read) < block * (panel + 2.1) // LINE
    assert steps[0][0] == block * (panel + 1)


@pytest.mark.parametrize(
    ("height", "weights", "first_apart"),
    [(1, (1,), True), (HEIGHT, (1,), True), (HEIGHT, (1,), False), (HEIGHT, (1, 2), True)],
    ids=["one row", "several rows", "zeros in the sum", "two weights in one sum"],
)
def test_the_product_stays(height: int, weights: tuple[int, ...], first_apart: bool) -> None:
    before = product(height=height, weights=weights, first_apart=first_apart)
    after = prefetch_weights(before, X86)
    assert bool(requests(after)) == first_apart, "a sum that sets its first element itself stays as it is"
    rng = np.random.default_rng(0)
    data = rng.standard_normal((ROWS, INPUTS), "float32")
    tensors = [rng.standard_normal((OUTPUTS // COLUMNS, INPUTS, COLUMNS), "float32") for _ in weights]
    results = []
    for mod in (before, after):
        out = tvm.runtime.tensor(np.full((ROWS, OUTPUTS), np.nan, "float32"))
        build(mod)["main"](*map(tvm.runtime.tensor, (data, *tensors)), out)
        results.append(out.numpy())
    expected = np.einsum("ik,pkt->ipt", data, sum(tensors)).reshape(ROWS, OUTPUTS)
    assert np.abs(expected).max() > 10
    np.testing.assert_allclose(results[1], expected, atol=1e-3)
    np.testing.assert_array_equal(*results)


def test_accumulators_are_on_the_stack() -> None:
    """Those in memory would be written at each step: a prefetch may be of them, for all that LLVM knows."""
    code = tvm.tirx.build(prefetch_weights(product(), X86), target=X86).inspect_source()
    assert "llvm.prefetch" in code
    assert "TVMBackendAllocWorkspace" not in code


def gathered() -> Any:
    """Return a scheduled sum over rows of a table that the data choose."""
    table, rows = te.placeholder((4096, COLUMNS)), te.placeholder((ROWS, INPUTS), "int32")
    k = te.reduce_axis((0, INPUTS), name="k")
    out: Any = te.compute((ROWS, COLUMNS), lambda i, j: te.sum(table[rows[i, k], j], axis=k), name="out")
    func = te.create_prim_func([table, rows, out]).with_attr({"global_symbol": "main", WEIGHTS: [0]})
    schedule: Any = Schedule(tvm.IRModule({"main": func}))
    _, lanes, reduced = schedule.get_loops(schedule.get_sblock("out"))
    schedule.reorder(reduced, lanes)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(schedule.get_sblock("out"), reduced)
    return schedule.mod


ARM = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
IN_A_CACHE, BEYOND_A_CACHE = MIN_WEIGHT // 4 // INPUTS - COLUMNS, MAX_BLOCK // 4 // COLUMNS + 1


@pytest.mark.parametrize(
    ("make", "target"),
    [
        pytest.param(partial(product, outputs=IN_A_CACHE), X86, id="small weights"),
        pytest.param(partial(product, outputs=COLUMNS, inputs=MIN_WEIGHT // 4 // COLUMNS), X86, id="one block"),
        pytest.param(partial(product, outputs=2 * COLUMNS, inputs=BEYOND_A_CACHE), X86, id="blocks beyond the cache"),
        pytest.param(partial(product, weights=()), X86, id="no weights"),
        pytest.param(gathered, X86, id="rows that the data choose"),
        pytest.param(product, ARM, id="another CPU"),
    ],
)
def test_other_functions_stay_as_they_are(make: Any, target: Any) -> None:
    mod = make()
    assert structural_equal(prefetch_weights(mod, target), mod)


def test_programs_of_trials_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = list[Any]()
    monkeypatch.setattr(
        weight_prefetch, "prefetch_weights", lambda *args: passed.append(prefetch_weights(*args)) or passed[-1]
    )
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"}
    result = build_jobs.build(tvm.ir.save_json(product()), target, str(tmp_path / "program.so"))
    assert result.weights == (1,)
    assert requests(passed[0])

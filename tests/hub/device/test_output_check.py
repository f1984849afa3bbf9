"""Outputs: rounding passes, a wrong program does not, and the reference survives its file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.device.jobs import complaint, difference, load_reference, save_reference, tolerance
from tchub.hub.device.measure import Measurer
from tchub.hub.networks.tasks import make_task
from tchub.hub.search.candidates import random_candidates

pytestmark = pytest.mark.usefixtures("shared_zygote")


@given(st.integers(1, 4096), st.integers(0, 2**31))
def test_a_sum_in_another_order_is_right(terms: int, seed: int) -> None:
    values = np.random.default_rng(seed).random((4, terms), dtype=np.float32) + np.float32(0.1)
    forward = np.cumsum(values, axis=1, dtype=np.float32)[:, -1]
    backward = np.cumsum(values[:, ::-1], axis=1, dtype=np.float32)[:, -1]
    assert difference(forward, backward) <= tolerance(np.dtype(np.float32))


@pytest.mark.parametrize("wrong", [0.0, 0.5, np.nan, np.inf])
def test_one_wrong_element_is_found(wrong: float) -> None:
    right = np.linspace(1, 2, 1000, dtype=np.float32)
    output = right.copy()
    output[500] = wrong
    assert "argument 2" in str(complaint({2: output}, {2: right}))
    integers = np.arange(1000, 2000)
    assert complaint({0: integers + 1}, {0: integers}), "integers must be equal"


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float16"])
def test_small_floats_are_floats_in_a_file_too(tmp_path: Path, name: str) -> None:
    path, right = str(tmp_path / "reference.npz"), np.linspace(1, 2, 16, dtype=np.float32).astype(name)
    save_reference(path, [np.zeros_like(right)], [right])
    assert 0 < tolerance(right.dtype) < 1
    assert complaint({0: right}, load_reference(path)) is None
    assert complaint({0: (right.astype(np.float32) * 3).astype(name)}, load_reference(path)) is not None


def test_a_wrong_program_is_told_and_right_ones_pass(
    target_dict: dict[str, Any], small_task: Any, small_candidates: list[Any]
) -> None:
    import tvm
    from tvm import te

    a, b = te.placeholder((32, 16), name="a"), te.placeholder((16, 24), name="b")
    c: Any = te.compute((32, 24), lambda i, j: a[i, 0] * b[0, j], name="c")
    func = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    wrong = replace(small_candidates[0], key="wrong", mod=tvm.IRModule({"main": func}))
    with Measurer(target_dict) as measurer:
        measurer.refer(small_task.task_id, small_task.mod).result()
        results = {c.key: m for c, m in measurer.measure([small_candidates[1], wrong, small_candidates[2]])}
        assert measurer.watched["checked"] == 3
    assert results.pop("wrong").error == "wrong_output"
    assert [m.error for m in results.values()] == [None, None]


def test_a_program_with_permuted_weights_is_checked_too(target: Any, target_dict: dict[str, Any]) -> None:
    """Its library permutes the weights of the check as the compiled network's are; other weights give other outputs."""
    import tvm
    from tvm import te

    def product(transposed: bool) -> Any:
        a, b = te.placeholder((32, 16), name="a"), te.placeholder((16, 16), name="b")
        k = te.reduce_axis((0, 16), name="k")
        c: Any = te.compute((32, 16), lambda i, j: te.sum(a[i, k] * (b[j, k] if transposed else b[k, j]), axis=k))
        func = te.create_prim_func([a, b, c]).with_attrs({"global_symbol": "main", "layout_free_buffers": [1]})
        return make_task(tvm.IRModule({"main": func}), "product")

    task, other = product(False), product(True)
    candidates = [c for c in random_candidates(task, target, 8) if len(c.args_info[1][0]) > 2][:2]
    for reference, error in ((task, None), (other, "wrong_output")):
        with Measurer(target_dict) as measurer:
            measurer.refer(task.task_id, reference.mod).result()
            assert [m.error for _, m in measurer.measure(candidates)] == [error] * 2
            assert measurer.watched["checked"] == 2


def rounded(size: int = 4000) -> np.ndarray:
    """Return numbers of 8 bits, of many levels."""
    return np.random.default_rng(0).integers(3, 250, size).astype(np.uint8)


@pytest.mark.parametrize("scale", [None, np.float32(0.05)])
def test_a_few_rounded_numbers_may_be_on_the_next_level(scale: np.float32 | None) -> None:
    """Where a sum is halfway between two, as it is added up decides."""
    right = rounded()
    ours = right.copy()
    ours[[7, 99, 1234]] += 1
    if scale is not None:
        ours, right = ours * scale, right * scale
    assert complaint({0: ours}, {0: right}) is None


@pytest.mark.parametrize(
    ("change", "count"), [(2, 1), (1, 40), (-3, 4000)], ids=["two levels", "many numbers", "all numbers"]
)
def test_numbers_further_off_are_wrong(change: int, count: int) -> None:
    right = rounded()
    ours = right.copy()
    ours[:count] += np.array(change).astype(np.uint8)
    assert complaint({0: ours}, {0: right})


@pytest.mark.parametrize("right", [np.arange(4000) % 3 > 0, np.arange(4000, dtype=np.int32) % 5])
def test_integers_and_booleans_have_no_levels(right: np.ndarray) -> None:
    ours = right.copy()
    ours[0] = ours[1]
    assert complaint({0: ours}, {0: right})

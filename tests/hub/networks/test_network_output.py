"""A compiled network beside the original: the check of its output, the clock, and what ends a process."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
import torch
from relax_kit import compute, prepare, relax_of
from tchub.hub.networks import latency
from tchub.hub.networks.errors import LatencyError, OutputMismatchError
from tchub.hub.networks.latency import compare, measure
from tchub.hub.networks.output_check import OutputCheck, check_output, require
from tchub.hub.networks.rivals import ReferenceNetwork, answer, arrays, check_library, rival_runs
from tchub.hub.networks.sources import open_network
from torch import nn

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 50)).astype(np.float32)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_differences_count_relative_to_the_scale_of_the_output(scale: float) -> None:
    theirs = (X * scale).astype(np.float32)
    noise = RANDOM.uniform(-1, 1, X.shape).astype(np.float32)
    assert check_output([theirs + 5e-4 * scale * noise], [theirs]).verdict == "equal"
    assert check_output([theirs + 5e-3 * scale * noise], [theirs]).verdict == "WRONG"
    assert check_output([np.zeros_like(theirs)], [theirs]).verdict == "WRONG"


def test_a_large_constant_part_does_not_hide_a_difference() -> None:
    theirs = X + np.float32(20.0)
    assert not check_output([theirs + np.float32(5e-3)], [theirs]).ok


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (np.zeros((2, 3), np.float32), "is zero everywhere"),
        (np.full((2, 3), 7.0, np.float32), "is constant"),
        (X * np.float32(1e-21), "is below 1e-06 everywhere"),
        (np.full(3, np.inf, np.float32), "has no finite number"),
        (np.ones(5, np.int64), "is constant"),
        (np.zeros((0, 3), np.float32), "is empty"),
    ],
)
def test_an_output_that_can_not_show_an_error_is_said_and_does_not_count(output: np.ndarray, reason: str) -> None:
    check = check_output([output], [output])
    assert check.verdict == "not checked"
    assert check.unchecked == (f"output 0 {reason}",)
    with_another = check_output([output, X], [output, X])
    assert (with_another.verdict, with_another.unchecked) == ("equal", check.unchecked)


@pytest.mark.parametrize(
    "ours", [[np.array([np.nan, 1.0])], [np.ones(3)], [], [np.array([np.inf, 2.0])], [np.ones(2), np.ones(2)]]
)
def test_nan_another_shape_or_another_count_of_outputs_is_wrong(ours: list[np.ndarray]) -> None:
    assert not check_output(ours, [np.array([1.0, 2.0])]).ok


def test_masked_values_must_stand_where_they_stand_in_the_original() -> None:
    masked = np.where(X > 0, X, -np.inf)
    assert check_output([masked.copy()], [masked]).verdict == "equal"
    assert not check_output([np.where(X > 0, X, np.inf)], [masked]).ok
    assert not check_output([X], [masked]).ok


def test_integers_are_equal_or_wrong() -> None:
    indices = np.arange(10)
    assert check_output([indices], [indices]).verdict == "equal"
    other = indices.copy()
    other[3] += 1
    assert not check_output([other], [indices]).ok


def test_float64_judges_where_pytorchs_own_float32_is_off() -> None:
    exact = X.astype(np.float64)
    doubtful = X + 0.1 * RANDOM.uniform(-1, 1, X.shape).astype(np.float32)
    check = check_output([X], [doubtful], lambda: [exact])
    assert (check.verdict, check.judged_by) == ("equal", "exact")
    assert not check_output([X + np.float32(2.0)], [doubtful], lambda: [exact]).ok
    assert not check_output([X + np.float32(0.3)], [doubtful], lambda: [exact]).ok, "more than a fifth of the spread"
    assert not check_output([X], [doubtful], lambda: None).ok
    index, other = np.array([3]), np.array([4])
    both = check_output([X, index], [doubtful, index], lambda: [exact, other])
    assert both.ok, "an output that is the original's own is in no doubt"
    accurate = lambda: [exact]  # noqa: E731
    assert not check_output([X + np.float32(0.1)], [X], accurate).ok, "an exact original leaves no doubt"


def test_an_output_that_moves_with_the_last_digits_of_its_inputs_may_be_off_by_as_much() -> None:
    noise = RANDOM.uniform(-0.01, 0.01, X.shape).astype(np.float32)
    off, moved = X + noise, [[X - noise]]

    def verdict(ours: Any, moved: Any, exact: Any = None) -> str:
        check = check_output([ours], [X], lambda: exact, shaken=lambda: moved)
        assert check.judged_by == ("its own moves" if check.ok else "exact" if exact else "float32")
        return check.verdict

    one = X.copy()
    one.flat[0] += np.float32(0.1)
    assert verdict(off, [[one]]) == "WRONG", "as many numbers as move"
    assert verdict(np.roll(off - X, 1) + X, moved) == "equal", "others may"
    assert verdict(off, []) == verdict(off, [[X + noise / 10]]) == "WRONG"
    assert verdict(off, moved) == verdict(off, moved, [X]) == "equal"
    assert verdict(X + 10 * noise, moved) == "WRONG"
    assert verdict(off, [[X[::-1]]]) == "WRONG", "rows that change places say nothing about rounding"
    zeros = np.zeros_like(X)
    assert check_output([X], [zeros], shaken=lambda: [[zeros]]).verdict == "WRONG"
    whole = np.arange(6)
    assert check_output([whole + 1], [whole], shaken=lambda: [[whole + 1]]).verdict == "WRONG"


def test_each_output_is_excused_for_itself() -> None:
    noise = RANDOM.uniform(-0.01, 0.01, X.shape).astype(np.float32)
    lost = RANDOM.uniform(-1e-8, 1e-8, X.shape).astype(np.float32)
    ours, theirs, exact = [X + noise, 2 * lost], [X, lost], [X, np.zeros_like(X)]
    check = check_output(ours, theirs, lambda: exact, shaken=lambda: [[X - noise, lost]])
    assert (check.verdict, check.judged_by) == ("equal", "its own moves")
    still = check_output(ours, theirs, lambda: exact, shaken=lambda: [[X, lost]])
    assert (still.verdict, still.judged_by, still.worst < 100) == ("WRONG", "exact", True)


def test_the_large_numbers_of_a_softmax_are_compared_with_their_own_size() -> None:
    theirs = np.zeros((4, 5000), np.float32)
    theirs[:, 7] = 0.9
    assert check_output([theirs * (1 + 3e-4)], [theirs]).verdict == "equal"
    assert check_output([theirs + 3e-4], [theirs]).verdict == "WRONG"
    assert check_output([theirs * (1 + 3e-3)], [theirs]).verdict == "WRONG"


def test_an_output_of_nothing_but_rounding_is_not_checked() -> None:
    exact = X.astype(np.float64) * 1e-12
    theirs, ours = ((exact + RANDOM.uniform(-1e-11, 1e-11, X.shape)).astype(np.float32) for _ in range(2))
    assert check_output([ours], [theirs]).verdict == "WRONG"
    assert check_output([50 * ours], [theirs], lambda: [exact]).verdict == "not checked"
    assert check_output([ours, X + 1], [theirs, X], lambda: [exact, X.astype(np.float64)]).verdict == "WRONG"
    assert check_output([np.full_like(ours, np.nan)], [theirs], lambda: [exact]).verdict == "WRONG"
    half, thousandth = np.full((2, 3), 0.5, np.float32), np.full((2, 3), 0.001, np.float32)
    assert check_output([half], [thousandth], lambda: [np.full((2, 3), 0.001)]).verdict == "WRONG"
    assert check_output([half], [0 * half], lambda: [1e-60 * half.astype(np.float64)]).verdict == "WRONG"
    right = exact.astype(np.float32)
    assert check_output([2 * right], [right], lambda: [exact]).verdict == "WRONG", "small, but right to the last digit"


def test_a_check_is_the_same_after_a_report() -> None:
    check = check_output([X], [X + np.float32(1.0)])
    assert msgspec.convert(check.as_dict(), OutputCheck) == check
    with pytest.raises(OutputMismatchError, match=r"the compiled net differs .* times what is allowed"):
        require(check, "net")


def _shifted(func: Any) -> Any:
    """Return a kernel that adds 0.01 to all that it stores; a schedule that is wrong is off by more."""
    from tvm import tirx
    from tvm_ffi import structural_map

    def shifted(store: Any) -> Any:
        return tirx.BufferStore(store.buffer, store.value + tirx.const(0.01, "float32"), store.indices)

    return func.with_body(structural_map(func.body, (tirx.BufferStore, shifted)))


def test_a_wrong_kernel_is_found() -> None:
    import tvm
    from tvm import tirx

    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)
    network, x = nn.Sequential(*layers, nn.Conv2d(8, 4, 1)), torch.randn(1, 3, 12, 12)
    mod = prepare(relax_of(network, x))
    expected = [network(x).detach().numpy()]
    assert check_output(compute(mod, x), expected).verdict == "equal"
    kernels = [var for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    wrong = tvm.IRModule(dict(mod.functions_items()))
    wrong.update_func(kernels[-1], _shifted(mod[kernels[-1]]))
    assert check_output(compute(wrong, x), expected).verdict == "WRONG", kernels[-1]


class Best(nn.Module):
    """The rows of the forty highest scores of a hundred."""

    def forward(self, scores: torch.Tensor, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return rows[torch.topk(scores + mask, 40).indices]


@pytest.fixture
def best(tmp_path: Path) -> ReferenceNetwork:
    """`Best` on scores of which the two highest differ by rounding, and with a mask that hides half of them."""
    scores, rows, mask = torch.linspace(1, 2, 100), torch.randn(100, 8), torch.zeros(100)
    scores[-2] = scores[-1] * (1 - 1e-7)
    mask[:50] = -torch.inf
    torch.export.save(torch.export.export(Best(), (scores, rows, mask)), tmp_path / "best.pt2")
    torch.save([scores, rows, mask], tmp_path / "inputs.pt")
    return ReferenceNetwork({"reference": str(tmp_path / "best.pt2"), "inputs": str(tmp_path / "inputs.pt")})


def rounded(inputs: Any) -> torch.Tensor:
    """Compute it with the second highest score rounded up."""
    scores = inputs[0].clone()
    scores[-2] *= 1 + 2e-7
    return Best()(scores, *inputs[1:])


def exchanged(inputs: Any) -> torch.Tensor:
    """Compute it wrong in two rows."""
    return Best()(*inputs)[[1, 0, *range(2, 40)]]


def test_an_order_that_rounding_decides_is_judged_on_other_inputs(best: ReferenceNetwork) -> None:
    expected = arrays(best.run())
    assert not check_output(arrays(rounded(best.inputs)), expected, best.exact).ok
    check = check_library(rounded(best.inputs), rounded, best, expected)
    assert (check.verdict, check.judged_by) == ("equal", "other inputs")
    assert check_library(exchanged(best.inputs), exchanged, best, expected).verdict == "WRONG"


def test_more_than_a_few_wrong_numbers_are_no_order(best: ReferenceNetwork) -> None:
    nowhere = Mock()
    assert check_library(rounded(best.inputs) + 1, nowhere, best, arrays(best.run())).verdict == "WRONG"
    nowhere.assert_not_called()


def test_other_inputs_keep_their_range_and_masks_and_numbers_of_classes_stay(best: ReferenceNetwork) -> None:
    other = best.nearby(0)
    assert other is not None
    scores, rows, mask = other.inputs
    assert torch.equal(mask, best.inputs[2])
    assert not torch.equal(scores, best.inputs[0])
    assert scores.min() >= best.inputs[0].min()
    assert scores.max() <= best.inputs[0].max()
    torch.testing.assert_close(rows, best.inputs[1], rtol=0.0, atol=1e-2)
    best.inputs = [best.inputs[2], torch.arange(100)]
    assert best.nearby(0) is None


@pytest.mark.parametrize(("precision", "spread"), [("float16", 0.08), ("bfloat16", 0.4)])
def test_half_precision_is_judged_by_the_originals_own_where_a_network_is_rounded_more_than_others(
    precision: str, spread: float
) -> None:
    off = RANDOM.uniform(-spread, spread, X.shape).astype(np.float32) * X.std()

    def verdict(ours: Any, halved: Any) -> tuple[str, str]:
        check = check_output([ours], [X], precision=precision, halved=lambda: [halved])
        return check.verdict, check.judged_by

    assert verdict(X + off / 8, X) == ("equal", "float32"), "within the tolerance nobody is asked"
    assert verdict(X + off, X - off) == ("equal", precision)
    assert verdict(X + off, X) == ("WRONG", precision)
    assert check_output([X + off], [X], precision=precision, halved=lambda: None).verdict == "WRONG"
    assert verdict(X + off, X * np.float32(np.inf)) == ("WRONG", precision), "what is no judge allows nothing"
    assert verdict(X + 3 * off, X - off) == ("WRONG", precision)
    assert verdict(X + 8 * off, X - 8 * off) == ("WRONG", precision), "half precision has lost the output"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo boom >&2; kill -SEGV $$", "failed .* boom"),
        ("exit 0", "no message"),
        ("echo 'tchub.hub.networks.errors.NetworkImportError: net.onnx is none' >&2; exit 1", r"^net\.onnx is none"),
        ("while :; do :; done", "1 s of comput"),
    ],
)
def test_a_library_that_crashes_or_hangs_is_an_error(
    tmp_path: Path, pt2: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    (tmp_path / "tuned.so").touch()
    with pytest.raises(LatencyError, match=message):
        compare(open_network(pt2), lambda: {"tuned": python}, timeout=1.0)


@pytest.fixture
def reference(tmp_path: Path, pt2: Path) -> ReferenceNetwork:
    torch.save((torch.ones(16, 24),), tmp_path / "inputs.pt")
    return ReferenceNetwork({"reference": str(pt2), "inputs": str(tmp_path / "inputs.pt")})


def test_pytorchs_own_compiler_is_timed_and_its_failure_is_a_fact(
    reference: ReferenceNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = arrays(reference.run())
    monkeypatch.setattr(torch, "compile", lambda module, mode: module)
    runs, errors = rival_runs(["torch.compile"], reference, expected, 1)
    assert len(runs["torch.compile"]()) == 2
    assert not errors
    monkeypatch.setattr(torch, "compile", lambda module, mode: lambda *args: [x + 1 for x in arrays(module(*args))])
    assert "output is wrong" in rival_runs(["torch.compile"], reference, expected, 1)[1]["torch.compile"]

    def refuse(*_: Any) -> None:
        raise RuntimeError("no compiler\nfound")

    monkeypatch.setattr(torch, "compile", lambda module, mode: refuse)
    assert rival_runs(["torch.compile"], reference, expected, 1) == ({}, {"torch.compile": "RuntimeError: no compiler"})


def test_in_bfloat16_the_runtimes_that_can_compute_in_it_and_the_output_is_compared_with_float32(
    tmp_path: Path, pt2: Path
) -> None:
    torch.save((torch.randn(16, 24),), tmp_path / "inputs.pt")
    request = {"reference": str(pt2), "inputs": str(tmp_path / "inputs.pt"), "precision": "bfloat16"}
    request |= {"libraries": {}, "rivals": ["openvino", "onnxruntime"], "threads": 1}
    reference = ReferenceNetwork(request)
    exact = arrays(reference.run())
    halved = reference.halved()
    assert halved is not None
    assert 0 < max(np.abs(a - b).max() for a, b in zip(exact, halved, strict=True)) < 0.1
    result = answer(request | {"max_seconds": 0.0, "min_repeats": 1}, reference)
    assert {*result["seconds"], *result["errors"]} == {"pytorch", "openvino", "onnxruntime"}
    assert set(result["errors"]) <= {"openvino"}, "which may refuse bfloat16 where the CPU has none"
    assert all(np.array_equal(a, b) for a, b in zip(arrays(reference.run()), exact, strict=True))


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_other_runtimes_compute_the_same(reference: ReferenceNetwork, name: str) -> None:
    with torch.inference_mode():
        runs, errors = rival_runs([name], reference, arrays(reference.run()), 1)
    assert not errors
    assert len(arrays(runs[name]())) == 2


def test_onnx_runtime_may_round_its_own_file_more_than_what_it_is_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, path = torch.randn(64, 8), tmp_path / "net.onnx"
    torch.onnx.export(torch.nn.Linear(8, 3), (x,), str(path), dynamo=False)
    torch.save((x,), tmp_path / "inputs.pt")
    reference = ReferenceNetwork({"reference": str(path), "inputs": str(tmp_path / "inputs.pt")})
    other = [output + 0.1 * output.std() for output in arrays(reference.run())]
    monkeypatch.setattr(reference, "exact", lambda: other)
    monkeypatch.setattr(reference, "shaken", list)
    runs, errors = rival_runs(["onnxruntime", "openvino"], reference, other, 1)
    assert list(runs) == ["onnxruntime"]
    assert "output is wrong" in errors["openvino"]
    other[0][0, 0] = torch.nan
    assert rival_runs(["onnxruntime"], reference, other, 1)[0] == {}, "too much"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A clock that passes only where `sleep` is called."""
    clock = Mock(now=0.0)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(latency.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(latency.time, "sleep", clock.sleep)
    return clock


def test_slow_systems_leave_a_real_time_process_rests_that_keep_its_core(clock: Mock) -> None:
    busy = list[float]()
    runs = {"slow": lambda: busy.append(0.25) or clock.sleep(0.25)}
    assert measure(runs, max_seconds=5.0)["slow"] == [0.25] * 21
    assert sum(busy) / clock.now < 0.95, "Linux takes the core from it beyond"


def test_a_turn_begins_with_a_run_that_is_not_timed(clock: Mock) -> None:
    """It fetches what other systems have pushed out of the caches, 0.3 s of the 0.4 here."""
    order = ""

    def run(name: str) -> None:
        nonlocal order
        clock.sleep(0.1 if order.endswith(name) else 0.4)
        order += name

    seconds = measure({name: lambda name=name: run(name) for name in "ab"}, max_seconds=0.0, min_repeats=3)
    assert order == "aabb" * 4, "the first turns tell how often a quick system runs in each of the others"
    for repeats in seconds.values():
        assert repeats == pytest.approx([0.1] * 3)

"""Products on tile registers compute in bfloat16 what PyTorch does, whatever is their shape and what follows them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import Computed, compute, relax_of
from tchub.hub.device.tile_registers import has_tiles
from tchub.hub.networks.alternatives import find_shapes
from tchub.hub.networks.library import build_library
from tchub.hub.networks.tasks import network_tasks
from tchub.hub.networks.transform.prepare import for_inference
from tchub.hub.networks.weights import lift_weights, read_weights, weights_file, write_weights
from tchub.hub.search.candidates import random_candidates
from tchub.hub.search.roofline import Roofline
from tile_kit import RUNS, XEON, checked_programs, compiled, dtypes, lowered, tile_tasks
from torch import nn
from tvm.target import Target

CONV = nn.Conv2d
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows of no tile": (lambda: nn.Linear(40, 72), (1, 37, 40)),
    "columns of no tile": (lambda: nn.Linear(33, 50, bias=False), (40, 33)),
    "many terms": (lambda: nn.Sequential(nn.Linear(544, 96), nn.GELU()), (40, 544)),
    "a thousand terms": (lambda: nn.Linear(1056, 64), (70, 1056)),
    "whole tiles": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU()), (64, 64)),
    "3x3": (lambda: CONV(32, 64, 3, padding=1), (1, 32, 14, 14)),
    "3x3 of stride 2": (lambda: CONV(32, 32, 3, padding=1, stride=2), (1, 32, 15, 12)),
    "5x3 of strides 3 and 2": (lambda: CONV(20, 24, (5, 3), padding=(2, 0), stride=(3, 2)), (1, 20, 17, 21)),
    "dilated, of stride 2": (lambda: CONV(16, 16, 3, padding=2, stride=2, dilation=2), (1, 16, 13, 13)),
    "1x1 of stride 2": (lambda: CONV(32, 48, 1, stride=2), (1, 32, 10, 10)),
    "of a few channels": (lambda: CONV(3, 32, 7, padding=3, stride=2), (1, 3, 30, 26)),
    "of one channel": (lambda: CONV(1, 16, (3, 41), padding=(0, 20), dilation=(2, 1)), (2, 1, 9, 50)),
    "of one row": (lambda: CONV(16, 16, (1, 5), padding=(0, 2)), (1, 16, 1, 40)),
    "1x1": (lambda: CONV(24, 40, 1), (1, 24, 8, 9)),
}


class Block(nn.Module):
    """A residual block whose last product is also summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = CONV(32, 64, 1), CONV(64, 64, 3, padding=1), CONV(64, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = torch.relu(self.second(x))
        return torch.relu(self.third(y) + x).mean((2, 3))


def halved(x: Any) -> Any:
    """Return numbers rounded to bfloat16."""
    return torch.as_tensor(x).bfloat16().double()


def exact(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    """Return what a module gives whose weights and input alone are rounded."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name.endswith("weight"):
                weight.copy_(halved(weight))
        return module.double()(halved(x)).numpy()


@pytest.mark.parametrize("case", CASES)
def test_products_and_convolutions_read_bfloat16_and_add_up_in_float32(case: str) -> None:
    torch.manual_seed(0)
    make, shape = CASES[case]
    module, x = make(), torch.randn(shape)
    mod = lowered(module, x)
    (task,) = tile_tasks(mod)
    expected = exact(module, x)
    (ours,) = compute(mod, x)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    for assembly in checked_programs(task, 1, off=1e-4):
        assert "tdpbf16ps" in assembly
        assert "ldtilecfg" in assembly


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(64, 64), (4, 64)),
        (CONV(3, 32, 1), (1, 3, 20, 20)),
        (nn.Sequential(nn.ZeroPad2d((0, 0, 0, 1)), CONV(32, 32, 1)), (1, 32, 15, 16)),
        (CONV(32, 32, 3, groups=32), (1, 32, 20, 20)),
        (Computed(lambda x: (x @ x.T) @ torch.relu(x)), (30, 20)),
    ],
    ids=["few rows", "few channels", "rows of zeros", "groups", "no constant weights"],
)
def test_what_would_leave_most_of_a_tile_empty_stays_in_float32(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    mod = lowered(module, x)
    assert not tile_tasks(mod)
    expected = module(x).detach().numpy()
    np.testing.assert_allclose(compute(mod, x)[0], expected, rtol=1e-3, atol=1e-5)


def test_between_products_tensors_are_stored_in_bfloat16_and_sums_read_float32() -> None:
    torch.manual_seed(0)
    module, x = Block(), torch.randn(1, 32, 16, 16)
    mod = lowered(module, x)
    halves = {task.name.partition("tile_product")[2]: dtypes(task) for task in tile_tasks(mod)}
    product = ["bfloat16", "bfloat16", "float32", "bfloat16"]  # data, weights, bias and result, or a residual
    assert sorted(halves.values()) == [product, product, [*product, "float32"]], "of the third the result is summed"
    with torch.autocast("cpu", torch.bfloat16):
        expected = module(x).float().detach().numpy()
    spread = float(expected.std())
    assert np.abs(compute(mod, x)[0] - expected).max() < 0.05 * spread
    second = next(task for task in tile_tasks(mod) if dtypes(task).count("bfloat16") == 3)
    assert 'T.reinterpret("uint16"' in second.mod.script(), "what is rounded is not rounded again"
    (candidate,) = random_candidates(second, XEON, 1)
    assert "vcvtneps2bf16" in compiled(candidate.mod)[1]
    assert not find_shapes(for_inference(relax_of(module, x), precision="bfloat16"))


def test_what_has_several_results_reads_float32() -> None:
    def parts(first: nn.Module, last: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, two, three = torch.split(first(x), 64, dim=-1)
        return last(one), two.transpose(0, 1), three.sum(0)

    torch.manual_seed(0)
    module, x = Computed(parts, nn.Linear(64, 192), nn.Linear(64, 64)), torch.randn(128, 64)
    for ours, right in zip(compute(lowered(module, x), x), module(x), strict=True):
        assert np.abs(ours - right.detach().numpy()).max() < 0.05 * right.std()


def test_maxima_read_bfloat16_and_give_float32() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(CONV(32, 64, 1), nn.MaxPool2d(3, 2, 1), CONV(64, 32, 1)), torch.randn(1, 32, 32, 32)
    mod = lowered(module, x)
    (pool,) = (task for task in network_tasks(mod, XEON, "network") if "max_pool" in task.name)
    assert dtypes(pool) == ["bfloat16", "float32"]
    expected = module(x).detach().numpy()
    assert np.abs(compute(mod, x)[0] - expected).max() < 0.05 * expected.std()


def test_what_is_a_factor_and_a_residual_stays_float32() -> None:
    def post(norm: nn.Module, first: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = norm(x)
        return first(x) + x

    module = Computed(post, nn.LayerNorm(128), nn.Linear(128, 128))
    (task,) = tile_tasks(lowered(module, torch.randn(128, 128)))
    assert dtypes(task) == ["float32", "bfloat16", *["float32"] * 3], "input, weights, bias, residual and result"


def test_a_comparison_behind_a_product_stays_one() -> None:
    layers = CONV(32, 32, 3, padding=1), CONV(32, 32, 1), CONV(32, 32, 1)
    gated = Computed(lambda first, second, last, x: last(torch.where(first(x) > 2, second(x), 0.0)), *layers)
    mod = lowered(gated, torch.randn(1, 32, 24, 24))
    assert any("bool" in dtypes(task) for task in tile_tasks(mod)), "it is what the first product's kernel gives"


def test_a_stream_of_bfloat16_takes_what_is_added_to_it(run_library: Any, tmp_path: Path) -> None:
    def stream(first: Any, second: Any, third: Any, fourth: Any, last: Any, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(first(x))
        x = torch.relu(third(torch.relu(second(x))) + x)
        return last(torch.relu(fourth(x) + x)).mean((2, 3))

    torch.manual_seed(0)
    module, x = Computed(stream, *(CONV(32, 32, 1) for _ in range(5))), torch.randn(1, 32, 19, 18)
    mod, path = lowered(module, x), tmp_path / "net.so"
    (expected,) = compute(mod, x)
    build_library(mod, XEON, None, path)
    assert path.read_bytes().count(b"_in_place") > 1
    if RUNS:
        (ours,) = run_library(path, x)
        np.testing.assert_allclose(ours, expected, rtol=1e-2, atol=1e-2 * expected.std())


def test_a_pixel_that_is_no_number_reaches_those_around_it_alone() -> None:
    module, x = CONV(3, 32, 3, padding=1), torch.randn(1, 3, 12, 12)
    x[0, 1, 6, 6] = torch.nan
    (ours,) = compute(lowered(module, x), x)
    assert np.array_equal(np.isnan(ours), np.isnan(module(x).detach().numpy()))


def test_weights_that_products_share_are_stored_once(tmp_path: Path) -> None:
    """Also where they lie beside the library, which then has the same numbers."""
    shared = Computed(lambda layer, x: layer(torch.relu(layer(x))), nn.Linear(256, 256, bias=False))
    mod = lowered(shared, torch.randn(32, 256))
    _, (weight,) = lift_weights(mod, 0)
    assert (weight.dtype.name, weight.nbytes) == ("bfloat16", 2 * 256 * 256)
    write_weights(weights_file(tmp_path / "net.so"), [weight])
    (again,) = read_weights(tmp_path / "net.so")
    assert str(again.dtype) == "bfloat16"
    assert np.array_equal(np.asarray(again.numpy(), np.float32), weight.astype(np.float32))


def test_a_stored_program_is_replayed_in_a_process_that_knows_no_instruction_yet(tmp_path: Path) -> None:
    (task,) = tile_tasks(lowered(nn.Linear(64, 64), torch.randn(64, 64)))
    (candidate,) = random_candidates(task, XEON, 1)
    files = [tmp_path / "task.json", tmp_path / "trace.json"]
    for file, text in zip(files, (tvm.ir.save_json(task.mod), candidate.trace), strict=True):
        file.write_text(text, encoding="utf-8")
    script = (
        "import json, sys, tvm\nfrom pathlib import Path\nfrom tchub.hub.device.candidate import replayed\n"
        "task, trace = (Path(one).read_text() for one in sys.argv[1:])\n"
        "print(replayed(tvm.ir.load_json(task), json.loads(trace)).mod.script())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *files], capture_output=True, text=True, check=False)
    assert "tdpbf16ps" in done.stdout, done.stderr[-500:]


def test_a_product_of_tiles_may_be_faster_than_the_vector_registers() -> None:
    (task,) = tile_tasks(lowered(nn.Linear(512, 512, bias=False), torch.randn(512, 512)))
    flops = 2 * 512**3
    assert Roofline(flops=1e6, bandwidth=1e12).bound(task) == pytest.approx(flops / 16 / 1e6)
    assert Roofline(flops=1e6, bandwidth=1e12).raised(task, flops / 16 / 2e6).flops == pytest.approx(2e6)


def test_tile_registers_are_of_some_cpus() -> None:
    assert has_tiles(XEON)
    assert not has_tiles(Target({"kind": "llvm", "mcpu": "icelake-server"}))
    assert not has_tiles(Target({"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}))

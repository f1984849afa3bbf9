"""Attention on tile registers computes in bfloat16 what PyTorch does, whatever stands between product and softmax."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import Computed, compute
from tchub.hub.networks.library import build_library
from tchub.hub.networks.tasks import TuningTask, network_tasks
from tile_kit import RUNS, XEON, checked_programs, dtypes, lowered
from torch import nn

Mix = Callable[[torch.Tensor], torch.Tensor]
LEAST = float(torch.finfo(torch.float32).min)


class Attention(nn.Module):
    """Heads of `width` numbers in a key and 24 in a value; `mix` makes of scores what the softmax takes."""

    def __init__(self, mix: Mix, width: int, heads: int = 2) -> None:
        super().__init__()
        self.mix, self.width, self.heads = mix, width, heads

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        heads = [x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key, value)]
        scores = self.mix(heads[0] @ heads[1].transpose(-1, -2))
        return (torch.softmax(scores, -1) @ heads[2]).transpose(1, 2).flatten(2)


def network(
    mix: Mix, rows: int, columns: int, width: int = 20, batch: int = 1, heads: int = 2
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return an attention and its inputs."""
    torch.manual_seed(0)
    extents = (rows, heads * width), (columns, heads * width), (columns, heads * 24)
    return Attention(mix, width, heads).eval(), tuple(torch.randn(batch, *extent) for extent in extents)


def attention_tasks(mod: Any) -> list[TuningTask]:
    return [task for task in network_tasks(mod, XEON, "network") if "tile_attention" in task.name]


CAUSAL = torch.full((50, 50), -torch.inf).triu(1)
# The first row and another one are masked throughout, as padding tokens are.
COVERED = torch.full((50, 50), LEAST).triu(1)
COVERED[[0, 40]] = LEAST


def right(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> np.ndarray:
    """Return what an attention gives in float64 of inputs that are rounded to bfloat16."""
    return module.double()(*(x.bfloat16().double() for x in inputs)).numpy()


CASES: dict[str, tuple[Mix, dict[str, Any]]] = {
    "rows and keys of no tile": (lambda scores: scores * 0.2, {"rows": 37, "columns": 50}),
    "whole tiles": (lambda scores: scores * 0.2, {"rows": 64, "columns": 32, "width": 32}),
    "several batches": (lambda scores: scores / 5, {"rows": 33, "columns": 65, "batch": 2}),
    "no scale, and a row of more tiles than are unrolled": (lambda scores: scores, {"rows": 16, "columns": 300}),
    "one head of few rows": (lambda scores: scores, {"rows": 20, "columns": 40, "heads": 1}),
    "causal": (lambda scores: scores * 0.2 + CAUSAL, {"rows": 50, "columns": 50}),
    "rows that a mask covers wholly": (lambda scores: scores + COVERED, {"rows": 50, "columns": 50}),
    "a row of a mask": (lambda scores: scores + torch.linspace(-2, 2, 40), {"rows": 40, "columns": 40}),
    "small scores all": (lambda scores: scores * 0.2 + torch.full((40,), -300.0), {"rows": 40, "columns": 40}),
    "large scores all": (lambda scores: scores * 0.2 + torch.full((40,), 300.0), {"rows": 40, "columns": 40}),
    "negative": (lambda scores: scores * -3.0, {"rows": 40, "columns": 40}),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_reads_bfloat16_and_takes_the_softmax_in_float32(case: str) -> None:
    mix, extents = CASES[case]
    module, inputs = network(mix, **extents)
    mod = lowered(module, *inputs)
    (task,) = attention_tasks(mod)
    expected = right(module, inputs)
    assert expected.std() > 0.1
    (ours,) = compute(mod, *inputs)
    np.testing.assert_allclose(ours, expected, atol=0.01 * np.abs(expected).max())
    for assembly in checked_programs(task, 1, off=0.01):
        assert assembly.count("tdpbf16ps") >= 8
        assert "expf" not in assembly


@pytest.mark.parametrize(
    ("mix", "extents"),
    [
        (lambda scores: scores, {"rows": 12, "columns": 40}),
        (lambda scores: scores, {"rows": 40, "columns": 12}),
        (lambda scores: scores, {"rows": 40, "columns": 40, "width": 12}),
        (torch.tanh, {"rows": 40, "columns": 40}),
    ],
    ids=["few rows", "few keys", "short keys", "another operator between"],
)
def test_other_attention_stays_in_float32(mix: Mix, extents: dict[str, Any]) -> None:
    module, inputs = network(mix, **extents)
    mod = lowered(module, *inputs)
    assert not attention_tasks(mod)
    expected = module(*inputs).numpy()
    np.testing.assert_allclose(compute(mod, *inputs)[0], expected, atol=1e-5 * np.abs(expected).max())


def test_what_follows_attention_is_computed_with_it() -> None:
    def gated(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) * 0.2
        return torch.relu(torch.softmax(scores, -1) @ value + 0.1) * query[..., :24]

    torch.manual_seed(0)
    module = Computed(gated)
    inputs = tuple(torch.randn(3, 50, n) for n in (32, 32, 24))
    mod = lowered(module, *inputs)
    (task,) = attention_tasks(mod)
    assert "relu" in task.name
    expected = right(module, inputs)
    np.testing.assert_allclose(compute(mod, *inputs)[0], expected, atol=0.01 * np.abs(expected).max())
    assert "tdpbf16ps" in checked_programs(task, 1, off=0.01)[0]


def block(first: nn.Module, last: nn.Module, positions: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute attention between products, with a computed mask and positions that bfloat16 does not tell apart."""
    turned = (1000 * x).transpose(0, 1).contiguous()
    waves = positions(torch.sin(turned)) + positions(torch.cos(turned))
    heads = [part.unflatten(-1, (4, 32)).transpose(0, 1) for part in first(x).chunk(3, -1)]
    scores = heads[0] @ heads[1].transpose(-1, -2) / 32**0.5 + (1 - mask) * LEAST
    return last((torch.softmax(scores, -1) @ heads[2]).transpose(0, 1).flatten(1)) + waves


def test_what_a_product_rounds_is_stored_in_bfloat16_and_masks_and_positions_are_not(
    run_library: Any, tmp_path: Any
) -> None:
    torch.manual_seed(0)
    module, x = Computed(block, *(nn.Linear(128, n) for n in (384, 128, 128))).eval(), torch.rand(128, 128)
    mask = torch.ones(128, 128).tril()
    mod = lowered(module, x, mask)
    (task,) = attention_tasks(mod)
    assert dtypes(task) == [*["bfloat16"] * 3, "float32", "bfloat16"], "query, key, value, mask and result"
    expected = module(x, mask).detach().numpy()
    off = 0.02 * expected.std()
    assert np.abs(compute(mod, x, mask)[0] - expected).max() < 2 * off
    assert build_library(mod, XEON, None, tmp_path / "net.so").tuned == 0
    if RUNS:
        (ours,) = run_library(tmp_path / "net.so", x, mask)
        assert np.abs(ours - expected).max() < 2 * off

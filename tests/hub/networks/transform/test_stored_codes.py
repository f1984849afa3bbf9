"""Residuals that one product's kernel computes and another one's adds are stored in 8 bits."""

from typing import Any

import numpy as np
import pytest
import torch
from quantised_kit import SIGNED, UNSIGNED, Pair, Quantised, codes, conv, lowered
from relax_kit import Computed, compute
from tchub.zoo.tile_instructions import TILES
from torch import nn


def transition(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Add what two products give of one tensor, as where a residual network changes its channels."""
    return codes(first(x) + second(x), 0.2, 5) - 5


def products(limits: tuple[int, int], shift: int) -> tuple[Quantised, Quantised]:
    wide = Quantised(conv(padding=1), (32, 32, 3, 3), 7, limits, shift)
    return Quantised(conv(), (32, 32, 1, 1), 7, limits, shift), wide


def kernels(mod: Any) -> dict[str, str]:
    """Return the types of what the kernels of products give, by their names."""
    products = {var.name_hint: func for var, func in mod.functions_items() if "product" in var.name_hint}
    return {name: str(func.params[-1].ty.dtype) for name, func in products.items()}


@pytest.mark.parametrize(
    ("limits", "shift", "stored"),
    [(UNSIGNED, 0, "uint8"), (SIGNED, 0, "int8"), (UNSIGNED, 3, "int8"), (SIGNED, -128, "uint8")],
)
def test_a_sum_of_two_products_reads_one_in_8_bits(limits: tuple[int, int], shift: int, stored: str) -> None:
    """Numbers less their zero point may need other 8 bits; what is stored is exact all the same."""
    x = 3 * torch.from_numpy(np.random.default_rng(1).standard_normal((1, 32, 8, 8)).astype(np.float32))
    both = products(limits, shift)
    mod = lowered(Computed(transition, *both), x, of_bytes=TILES)
    assert sorted(kernels(mod).values()) == sorted(["float32", stored])
    assert not any("divide" in name for name in kernels(mod)), "of what is reshaped before it is added"
    scale = np.float32(0.1) / np.float32(0.2)
    parts = [(torch.from_numpy(one.exact(x)) / 0.1).round() * scale for one in both]
    np.testing.assert_array_equal(compute(mod, x)[0], ((sum(parts).round() + 5).clamp(*UNSIGNED) - 5).numpy())


def test_what_has_no_bound_stays() -> None:
    """Nor is there a type for it."""

    def unbounded(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
        parts = (torch.minimum((one(x) / 0.1).round().clamp(min=0), torch.tensor(torch.inf)) for one in (first, second))
        return sum(0.1 * part for part in parts)

    x = 3 * torch.randn(1, 32, 8, 8)
    mod = lowered(Computed(unbounded, *products(UNSIGNED, 0)), x, of_bytes=TILES)
    assert set(kernels(mod).values()) == {"float32"}


@pytest.mark.parametrize("of_bytes", [(), TILES], ids=["float32", "tiles"])
def test_what_is_read_elsewhere_too_stays(of_bytes: Pair) -> None:
    """So does everything on CPUs without products of 8 bits."""

    def also_read(first: nn.Module, second: nn.Module, x: torch.Tensor) -> Any:
        one = first(x)
        return codes(one + second(x), 0.2, 5) - 5, one

    x = 3 * torch.randn(1, 32, 8, 8)
    mod = lowered(Computed(also_read if of_bytes else transition, *products(UNSIGNED, 0)), x, of_bytes=of_bytes)
    assert not {"int8", "uint8"} & set(kernels(mod).values())

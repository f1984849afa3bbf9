"""Products of numbers of 8 bits by tile registers and by vectors, and their programs."""

import re
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from quantised_kit import (
    CASES,
    GRAVITON2,
    INSTRUCTIONS,
    SIGNED,
    UNSIGNED,
    Pair,
    Quantised,
    check_programs,
    conv,
    lowered,
    lowered_case,
    prepared,
)
from relax_kit import Computed, compute
from tchub.hub.device.tile_registers import byte_factors, instructions_of, with_tile_registers
from tchub.hub.device.weight_prefetch import prefetch_weights
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.tile_instructions import TILES, VECTORS
from tile_kit import X86, XEON, tile_tasks
from torch import nn
from torch.nn import functional
from tvm.target import Target
from tvm_ffi import structural_equal

_SOME = ["rows of no tile", "of either sign, shifted", "3x3 with a zero point around it", "of a few channels, 3x3"]
_FEW = ["rows of no tile", "3x3 of stride 2"]
PROGRAMS = {"tiles": [*CASES], "vectors": _SOME, "short vectors": _FEW, "Arm's vectors": _SOME}


@pytest.mark.parametrize(("instructions", "case"), [(name, case) for name in PROGRAMS for case in PROGRAMS[name]])
def test_each_program_computes_the_same(instructions: str, case: str) -> None:
    """Whatever numbers of tiles share rows and columns."""
    of_bytes = INSTRUCTIONS[instructions][0]
    check_programs(lowered_case(case, of_bytes), instructions, 1)


@pytest.mark.parametrize("kernel", [(1, 3), (3, 1)], ids=["one row", "one column"])
def test_images_of_one_row_or_column_are_computed_row_by_row(kernel: tuple[int, int]) -> None:
    """As those of networks of speech, whose first convolution is followed by another one."""
    padding, height, width = (kernel[0] // 2, kernel[1] // 2), *(64 if n > 1 else 1 for n in kernel)
    layers = (Quantised(conv(padding=padding), (32, 32, *kernel), 9) for _ in range(2))
    mod = lowered(nn.Sequential(*layers), torch.randn(1, 32, height, width), of_bytes=VECTORS[16])
    tasks = tile_tasks(mod)
    assert len(tasks) == 2
    for task in tasks:
        assert random_candidates(task, Target(X86 | {"mcpu": "cascadelake", "num-cores": 2}), 1)


@pytest.mark.parametrize(
    ("lanes", "cpu", "instruction", "stored"),
    [(16, X86 | {"mcpu": "cascadelake"}, "vpdpbusd", r"vmov.*\)$"), (4, GRAVITON2, "sdot", r"\sst[rp]\s+q|\sdup\s")],
)
def test_sums_of_vectors_stay_in_registers(lanes: int, cpu: dict[str, Any], instruction: str, stored: str) -> None:
    """And Arm's instruction takes a word of a register, which needs no copies of it."""
    (task,) = tile_tasks(lowered_case("3x3", VECTORS[lanes]))
    target = Target(cpu | {"num-cores": 2})
    (candidate,) = random_candidates(task, target, 1)
    assembly = tvm.tirx.build(candidate.mod, target=target).inspect_source("s").splitlines()
    products = [number for number, line in enumerate(assembly) if instruction in line]
    assert len(products) >= 56
    assert not [line for line in assembly[products[0] : products[-1]] if re.search(stored, line)]


def test_a_cpu_without_such_an_instruction_multiplies_float32() -> None:
    assert byte_factors(Target(X86 | {"mcpu": "x86-64-v3"})) == ()
    assert byte_factors(Target({"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"})) == ()


def test_rows_of_8_bits_are_read_where_they_lie() -> None:
    (task,) = tile_tasks(lowered_case("rows that are read where they lie", TILES))
    (candidate,) = random_candidates(task, XEON, 1)
    text = str(with_tile_registers(candidate.mod))
    assert str(task.mod["main"].params[0].ty.dtype) == "uint8"
    assert "T.address_of(p0[" in text


@pytest.mark.parametrize("of_bytes", [TILES, VECTORS[16]], ids=["tiles", "vectors"])
def test_a_network_of_real_numbers_is_computed_as_without_tiles(of_bytes: Pair) -> None:
    module, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Unflatten(1, (4, 24)), nn.Sigmoid()), torch.randn(64, 64)
    assert structural_equal(prepared(module, x, of_bytes=of_bytes), prepared(module, x), map_free_vars=True)


@pytest.mark.parametrize("of_bytes", [TILES, VECTORS[16]], ids=["tiles", "vectors"])
def test_weights_may_be_shared_by_data_with_a_sign_and_without(of_bytes: Pair) -> None:
    parts = [Quantised(functional.linear, (64, 64), 0, limits) for limits in (UNSIGNED, SIGNED)]
    module, x = (
        Computed(lambda *parts_and_x: torch.cat([one(parts_and_x[-1]) for one in parts]), *parts),
        torch.randn(32, 64),
    )
    mod = lowered(module, x, of_bytes=of_bytes)
    assert sum(task.weight for task in tile_tasks(mod)) == 2
    np.testing.assert_array_equal(compute(mod, x)[0], np.concatenate([one.exact(x) for one in parts]))


@pytest.mark.parametrize(
    ("channels", "outputs", "tiles"), [(64, 64, True), (24, 96, True), (16, 16, True), (9, 8, False)]
)
def test_vectors_compute_what_fills_their_tiles(channels: int, outputs: int, tiles: bool) -> None:
    """Padding to 64 terms and 32 columns would cost more than 8 bits save."""
    module, x = Quantised(conv(padding=1), (outputs, channels, 3, 3), 0), torch.randn(1, channels, 16, 16)
    mod = lowered(module, x, of_bytes=VECTORS[16])
    assert bool(tile_tasks(mod)) == tiles
    np.testing.assert_array_equal(compute(mod, x)[0], module.exact(x))


@pytest.mark.x86
@pytest.mark.parametrize("terms", [512, 528, 520])
def test_vectors_read_the_next_block_of_weights_ahead(terms: int) -> None:
    """Where rows of data go over the same block again and again, 64, 16 or 4 terms at a time."""
    of_bytes, cpu, *_ = INSTRUCTIONS["vectors"]
    module, x = Quantised(functional.linear, (256, terms)), torch.randn(64, terms)
    (task,) = tile_tasks(lowered(module, x, of_bytes=of_bytes))
    target = Target(cpu | {"num-cores": 1})
    ahead = {str(prefetch_weights(one.mod, target)).count("T.prefetch(") for one in random_candidates(task, target, 8)}
    assert max(ahead) in range(1, 9)


@pytest.mark.x86
@pytest.mark.parametrize(
    ("mcpu", "lanes", "pairs"),
    [("cascadelake", 16, True), ("haswell", 8, True), ("ivybridge", 8, False), ("x86-64-v2", 4, False)],
)
def test_a_cpu_multiplies_pairs_of_16_bits_in_whole_registers_or_not_at_all(mcpu: str, lanes: int, pairs: bool) -> None:
    instructions = instructions_of(Target({"kind": "llvm", "mcpu": mcpu, "mtriple": "x86_64-linux-gnu"}))
    assert (instructions["lanes"], instructions["pairs"]) == (lanes, pairs)

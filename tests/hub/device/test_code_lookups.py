"""Tables of codes of 8 bits are looked up by permutations, on CPUs that have them."""

from typing import Any

import numpy as np
import pytest
import tvm
from relax_kit import linked
from tchub.hub.device.code_lookups import looks_up, with_lookups
from tchub.hub.device.host_facts import read_host_facts
from tvm import te
from tvm.target import Target
from tvm_ffi import structural_equal

pytestmark = pytest.mark.x86

TARGET = Target({"kind": "llvm", "mcpu": "icelake-server", "mtriple": "x86_64-linux-gnu"})
SIZE = 320


def look(dtype: str, lanes: int, entries: int = 256, codes: str = "uint8") -> Any:
    """Return a scheduled module that looks up codes in a table, in vectors of some lanes."""
    index, table = te.placeholder((SIZE,), codes, "index"), te.placeholder((entries,), dtype, "table")
    result = te.compute(index.shape, lambda i: table[index[i].astype("int32")], "result")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([index, table, result]))
    if lanes > 1:
        _, inner = schedule.split(schedule.get_loops("result")[0], [None, lanes])
        schedule.vectorize(inner)
    return schedule.mod


def look_in_rows() -> Any:
    """Return a module that takes a row of a matrix, and adds a number that has no axis."""
    table, number = te.placeholder((4, 256), "uint8", "table"), te.placeholder((), "uint8", "number")
    result = te.compute((256,), lambda i: table[number(), i] + number(), "result")
    return tvm.s_tir.Schedule(te.create_prim_func([table, number, result])).mod


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("lanes", [8, 16, 32, 64])
def test_permutations_give_what_the_table_has(dtype: str, lanes: int) -> None:
    """A CPU that lacks the instruction compiles it."""
    code = tvm.tirx.build(with_lookups(look(dtype, lanes), TARGET), target=TARGET)
    assert "vperm" in code.inspect_source("s")
    if "avx512vbmi" in read_host_facts().flags:
        random = np.random.default_rng(0)
        index = random.permutation(np.r_[:256, : SIZE - 256]).astype("uint8")
        table = random.permutation(256).astype("uint8").view(dtype)
        result = tvm.runtime.empty((SIZE,), dtype)
        linked(code)["main"](tvm.runtime.tensor(index), tvm.runtime.tensor(table), result)
        np.testing.assert_array_equal(result.numpy(), table[index])


@pytest.mark.parametrize(
    ("mod", "mcpu"),
    [
        pytest.param(look("uint8", 16), "cascadelake", id="no permutations of bytes"),
        pytest.param(look("uint8", 16, entries=128), "icelake-server", id="a table of 128"),
        pytest.param(look("uint8", 16, codes="int32"), "icelake-server", id="numbers that are no codes"),
        pytest.param(look("float32", 16), "icelake-server", id="a table of floats"),
        pytest.param(look_in_rows(), "icelake-server", id="rows, and a number of no axis"),
    ],
)
def test_other_reads_stay(mod: Any, mcpu: str) -> None:
    assert structural_equal(with_lookups(mod, Target({"kind": "llvm", "mcpu": mcpu})), mod)


def test_single_numbers_are_read_one_by_one() -> None:
    """A loop that is no vector has nothing to permute."""
    assert "vperm" not in tvm.tirx.build(with_lookups(look("uint8", 1), TARGET), target=TARGET).inspect_source("s")


def test_a_card_has_no_such_instruction() -> None:
    assert not looks_up(Target("nvidia/nvidia-t4"))

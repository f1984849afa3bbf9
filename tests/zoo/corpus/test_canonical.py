"""Canonical names: equal tasks are equal to the letter, and traces follow their blocks to the new names."""

from typing import Any

import tvm
from tchub.hub.device.candidate import trace_json
from tchub.zoo.corpus.canonical import renamed_module, renamed_trace
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace
from tvm_ffi import structural_equal, structural_hash


def row_sums(data: str, total: str, scaled: str) -> tvm.IRModule:
    """Row sums of a matrix, halved; the tensors are called as told, and the blocks after them."""
    x = te.placeholder((32, 64), name=data)
    k = te.reduce_axis((0, 64), name=f"{data}_k")
    sums = te.compute((32,), lambda i: te.sum(x[i, k], axis=k), name=total)
    halves = te.compute((32,), lambda i: sums[i] * 0.5, name=scaled)
    return tvm.IRModule({"main": te.create_prim_func([x, halves])})


def test_equal_modules_are_equal_to_the_letter():
    one, other = row_sums("lv17", "lv17_sum", "lv18"), row_sums("lv3", "lv3_sum", "T_multiply")
    assert one.script() != other.script()
    assert renamed_module(one)[0].script() == renamed_module(other)[0].script()


def test_the_structure_stays_and_a_second_renaming_changes_nothing():
    mod = row_sums("x", "total", "half")
    renamed = renamed_module(mod)[0]
    assert structural_hash(renamed) == structural_hash(mod)
    assert structural_equal(renamed, mod)
    assert renamed_module(renamed)[0].script() == renamed.script()


def test_a_renamed_trace_makes_the_same_program():
    """It asks for blocks too which the schedule itself made."""
    mod = row_sums("lv17", "lv17_sum", "lv18")
    schedule: Any = Schedule(mod)
    _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("lv17_sum"))[1], [None, 8])
    schedule.rfactor(inner, 0)
    partial = schedule.get_sblock("lv17_sum_rf")
    schedule.decompose_reduction(partial, schedule.get_loops(partial)[0])
    schedule.unroll(schedule.get_loops(schedule.get_sblock("lv17_sum_rf_update"))[0])
    renamed, new_names = renamed_module(mod)
    trace = renamed_trace(trace_json(schedule.trace), new_names)
    again: Any = Schedule(renamed)
    Trace.apply_json_to_schedule(trace, again)
    assert structural_equal(again.mod, schedule.mod)
    blocks = [attributes[0] for kind, _, attributes, _ in trace[0] if kind == "GetSBlock"]
    assert blocks == ["reduce0", "reduce0_rf", "reduce0_rf_update"]

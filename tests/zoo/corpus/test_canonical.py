"""Canonical names: equal tasks are equal to the letter, and traces follow their blocks to the new names."""

import json
from typing import Any

import pytest
import tvm
from tchub.zoo.corpus import Program
from tchub.zoo.corpus.canonical import renamed_module, renamed_program, renamed_trace, trace_key
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


def test_a_name_tells_the_place_and_whether_a_block_reduces():
    _, new_names = renamed_module(row_sums("x", "total", "half"))
    assert new_names == {"root": "root", "x": "p0", "total": "reduce0", "half": "map1"}


@pytest.fixture
def scheduled() -> tuple[Any, Any]:
    """A module, and a schedule of it that asks for blocks which the schedule itself made."""
    mod = row_sums("lv17", "lv17_sum", "lv18")
    schedule: Any = Schedule(mod)
    _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("lv17_sum"))[1], [None, 8])
    schedule.rfactor(inner, 0)
    partial = schedule.get_sblock("lv17_sum_rf")
    schedule.decompose_reduction(partial, schedule.get_loops(partial)[0])
    schedule.unroll(schedule.get_loops(schedule.get_sblock("lv17_sum_rf_update"))[0])
    return mod, schedule


def test_a_renamed_trace_makes_the_same_program(scheduled: tuple[Any, Any]):
    mod, schedule = scheduled
    renamed, new_names = renamed_module(mod)
    trace = renamed_trace(json.loads(_plain(schedule)), new_names)
    again: Any = Schedule(renamed)
    Trace.apply_json_to_schedule(trace, again)
    assert structural_equal(again.mod, schedule.mod)
    assert _blocks(trace) == ["reduce0", "reduce0_rf", "reduce0_rf_update"]


def test_a_renamed_program_has_another_key_and_the_same_decisions(scheduled: tuple[Any, Any]):
    mod, schedule = scheduled
    text = _plain(schedule)
    program = Program(
        task_id="ab" * 8, key=trace_key(json.loads(text)), trace=text, strategy="random", latencies=(1e-3,),
        latency=1e-3, device="epyc-turin", target="{}", primitives="stale",
    )  # fmt: skip
    renamed = renamed_program(program, renamed_module(mod)[1])
    assert renamed.key == trace_key(json.loads(renamed.trace)) != program.key
    assert json.loads(renamed.trace)[1] == json.loads(program.trace)[1]
    assert "@reduce0" in str(renamed.primitives)
    assert renamed.latency == program.latency


def _blocks(trace: list[Any]) -> list[str]:
    return [attributes[0] for kind, _, attributes, _ in trace[0] if kind == "GetSBlock"]


def _plain(schedule: Any) -> str:
    """A schedule's trace as JSON text."""
    from tchub.hub.device.candidate import trace_json

    return json.dumps(trace_json(schedule.trace))

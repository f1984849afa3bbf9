"""Names of a task by position, so that equal tasks are equal to the letter, whatever network they come from.

TVM's structural hash, by which tasks are told apart, ignores names; the trace of a schedule finds blocks by name.
Every task that is tuned therefore has the names that this module gives. They are part of the format of a user's
history: a trace that was stored under other names does not apply. A corpus may hold a task under names of its own,
since it holds the module too: its programs are renamed where they meet those of a task with canonical names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..primitives import from_trace_json
from .schema import Program, Task

if TYPE_CHECKING:
    from tvm import IRModule

_Nodes = list[dict[str, Any]]
"""The objects of a function as TVM's JSON has them: each stands after all that it is made of."""


def renamed_module(mod: Any) -> tuple[IRModule, dict[str, str]]:
    """Return a TIR module with canonical names, and these names by the old ones of its blocks and buffers.

    A block that initialises its result is `reduce0`, `reduce3` ..., another one `map1`, `map2` ..., by its place in
    the function. A buffer has the name of the first block that writes it, or is `p0`, `p1` ... where none does.
    Functions, their attributes and the structural hash stay as they are.
    """
    import tvm

    functions: dict[Any, Any] = {}
    buffers: dict[str, str] = {}
    blocks: dict[str, str] = {}
    for var, func in mod.functions_items():
        graph = json.loads(tvm.ir.save_json(func))
        nodes: _Nodes = graph["nodes"]
        for index, (field, name) in dict(_names(nodes)).items():
            data = nodes[index]["data"]
            if field == "name_hint":
                blocks[nodes[data[field]]["data"]] = name
            elif _is_buffer(nodes, index):
                buffers[nodes[data[field]]["data"]] = name
            data[field] = len(nodes)
            nodes.append({"type": "ffi.String", "data": name})
        functions[var] = tvm.ir.load_json(json.dumps(graph))
    return tvm.IRModule(functions, attrs=mod.attrs), buffers | blocks


def renamed_trace(trace: Sequence[Any], new_names: Mapping[str, str]) -> list[Any]:
    """Return a trace `[instructions, decisions]` that finds its blocks under their new names.

    What a schedule adds, TVM names after a block or a buffer of the task with a suffix, e.g. `_rf`, `_update` or
    `_global`, which stays.

    `new_names` are by old names, see `renamed_module`.
    """
    instructions, decisions = trace
    return [[_renamed(instruction, new_names) for instruction in instructions], decisions]


def canonical_task(task: Task) -> tuple[Task, dict[str, str]]:
    """Return a MetaSchedule task of a corpus with canonical names, and these names by its own."""
    import tvm

    mod, new_names = renamed_module(tvm.ir.load_json(task.workload))
    return replace(task, workload=str(tvm.ir.save_json(mod))), new_names


def with_equal_names(tasks: Sequence[Task]) -> tuple[list[Task], list[dict[str, str]]]:
    """Return one MetaSchedule task, as several corpora hold it, under the same names, and the new names of each.

    No name is new where all corpora hold the same module.
    """
    if len({task.workload for task in tasks}) == 1:
        return list(tasks), [{} for _ in tasks]
    renamed = [canonical_task(task) for task in tasks]
    return [task for task, _ in renamed], [new_names for _, new_names in renamed]


def renamed_program(program: Program, new_names: Mapping[str, str]) -> Program:
    """Return a MetaSchedule program of a corpus under the new names of its task; its key changes with its trace."""
    if all(old == new for old, new in new_names.items()):
        return program
    trace = renamed_trace(json.loads(program.trace), new_names)
    primitives = None if program.primitives is None else from_trace_json(before_postproc(trace)).to_json()
    text = json.dumps(trace, separators=(",", ":"))
    return replace(program, trace=text, key=trace_key(trace), primitives=primitives)


def trace_key(trace: Sequence[Any]) -> str:
    """Return 16 hex digits of a trace up to its post-processing, which follows from the rest."""
    instructions, decisions = before_postproc(trace)
    text = json.dumps([instructions, sorted(decisions)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def before_postproc(trace: Sequence[Any]) -> list[Any]:
    """Return the part of a trace that was chosen, not derived."""
    instructions, decisions = trace
    end = next((i for i, step in enumerate(instructions) if step[0] == "EnterPostproc"), len(instructions))
    return [instructions[:end], [decision for decision in decisions if decision[0] < end]]


def _renamed(instruction: Sequence[Any], new_names: Mapping[str, str]) -> Sequence[Any]:
    kind, inputs, attributes, outputs = instruction
    if kind != "GetSBlock":
        return instruction
    name = stem = attributes[0]
    while stem and stem not in new_names:
        stem = stem.rpartition("_")[0]
    return [kind, inputs, [new_names.get(stem, "") + name[len(stem) :], *attributes[1:]], outputs]


def _names(nodes: _Nodes) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the place of each node that has a name, the field that holds it, and the new name.

    The order of nodes follows from the structure alone, and so does what is numbered by it.
    """
    named: set[int] = set()
    numbers = {letter: count() for letter in ("block", "p", "i", "a", "n")}
    places: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        places.setdefault(node["type"], []).append(index)

    def variable(index: int, name: str) -> Iterator[tuple[int, tuple[str, str]]]:
        if index not in named:
            named.add(index)
            yield index, ("name", name)

    body = nodes[next(node["data"] for node in reversed(nodes) if node["type"] == "tirx.PrimFunc")["body"]]
    root = body["data"]["block"] if body["type"] == "s_tir.SBlockRealize" else None  # the function's whole body
    for index in places.get("s_tir.SBlock", ()):
        block = nodes[index]["data"]
        if index == root:
            yield index, ("name_hint", "root")  # by which TVM's postprocessors look it up
            continue
        kind = "map" if nodes[block["init"]]["type"] == "None" else "reduce"
        name = f"{kind}{next(numbers['block'])}"
        yield index, ("name_hint", name)
        for number, region in enumerate(nodes[block["writes"]]["data"]):
            yield from variable(nodes[region]["data"]["source"], f"{name}_{number}" if number else name)
    for index in places.get("tirx.For", ()):
        yield from variable(nodes[index]["data"]["loop_var"], f"i{next(numbers['i'])}")
    for index in places.get("tirx.IterVar", ()):
        yield from variable(nodes[index]["data"]["var"], f"a{next(numbers['a'])}")
    for index in places.get("ir.Var", ()):
        if index not in named:
            letter = "p" if _is_buffer(nodes, index) else "n"
            yield from variable(index, f"{letter}{next(numbers[letter])}")


def _is_buffer(nodes: _Nodes, index: int) -> bool:
    return nodes[nodes[index]["data"]["ty"]]["type"] == "tirx.BufferType"

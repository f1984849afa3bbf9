"""The workloads of a MetaSchedule database as tasks."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .. import computation
from ..errors import CorpusError
from ..operator_class import class_of_computation, operator_class
from ..schema import OPS, Task
from ..tir import computation_of_module
from .base import MISSHAPEN, BadRecordError
from .files import PACKED_ERRORS, check_texts, find_packed, open_lines, open_text
from .tvmscript import read_script

if TYPE_CHECKING:
    from tvm import IRModule

SCRIPTS, TASKS = "workload_tvmscript.json", "tasks.json"
_LARGEST = 64 << 20  # characters of each; the script of a fused operator has 20,000


class Workloads:
    """Tasks by the workload index that the records name, each made when it is first asked for.

    Args:
        folder: the database; files beside it are looked for here.
        file: its workloads.
        facts: by structural hash (the text that leads a workload's line), any of `name`, `op`, `flops`,
            `networks`.
    """

    def __init__(self, folder: Path, file: Path, facts: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            with open_lines(file) as lines:
                self._lines = [line for line in lines if line.strip()]
        except PACKED_ERRORS as error:
            raise _unreadable(file, error) from error
        self._scripts = _beside(folder, SCRIPTS)
        told = (row for row in _beside(folder, TASKS) if isinstance(row, dict))
        self._told = {row["workload"]: row for row in told if isinstance(row.get("workload"), int)}
        self._facts = facts
        self._tasks: dict[int, Task] = {}

    def task(self, index: int, arguments: list[Any]) -> Task:
        """The task of a record with these arguments.

        Raises:
            BadRecordError: there is no such workload, or it cannot be read.
        """
        if not 0 <= index < len(self._lines):
            raise BadRecordError("unknown-workload", f"there is no workload {index}")
        if index not in self._tasks:
            try:
                self._tasks[index] = self._make(index, arguments)
            except (*MISSHAPEN, RuntimeError) as error:  # the last of TVM's own
                raise BadRecordError("unknown-workload", f"workload {index} cannot be read: {error!r:.200}") from error
        return self._tasks[index]

    def _make(self, index: int, arguments: list[Any]) -> Task:
        shash, packed = json.loads(self._lines[index])
        told = dict(self._told.get(index, {}))
        told |= {"name": told.get("task_name", f"workload-{index}")} | dict(self._facts.get(str(shash), {}))
        mod = self._module(index, packed)
        if mod is None:
            return _without_module(told, arguments)
        import tvm
        from tvm_ffi import structural_hash

        text = computation_of_module(mod)
        return Task(
            task_id=f"{structural_hash(mod) & (2**64 - 1):016x}",
            name=str(told["name"]),
            op=operator_class(mod, text),
            flops=float(told.get("flops", 0.0)) or _flops(mod),
            workload=str(tvm.ir.save_json(mod)),
            computation=text,
            networks=_networks(told),
        )

    def _module(self, index: int, packed: str) -> IRModule | None:
        """The module, from the database if this TVM can, else from the script beside it."""
        import tvm

        graph = base64.b64decode(packed)[8:].decode() if not packed.lstrip().startswith("{") else packed
        if '"root_index"' in graph[:200]:
            return cast("IRModule", tvm.ir.load_json(graph))
        if index >= len(self._scripts):
            return None
        return read_script(self._scripts[index])


def _beside(folder: Path, name: str) -> list[Any]:
    file = find_packed(folder, name)
    if file is None:
        return []
    try:
        with open_text(file) as text:
            told = text.read(_LARGEST + 1)
        if len(told) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST} characters")
        rows = json.loads(told)
        check_texts(told)
    except (*PACKED_ERRORS, ValueError, RecursionError) as error:
        raise _unreadable(file, error) from error
    return rows if isinstance(rows, list) else []


def _unreadable(file: Path, error: Exception) -> CorpusError:
    return CorpusError(f"{file} cannot be read: {error}", remedy="mend it or move it away", path=str(file))


def _without_module(told: Mapping[str, Any], arguments: list[Any]) -> Task:
    op = told.get("op", "other")
    shapes = [[int(extent) for extent in argument[2]] for argument in arguments if len(argument) == 3]
    shown = json.dumps(arguments, separators=(",", ":"))
    text = _of_shapes(op, shapes) or computation.unknown(hashlib.sha256(shown.encode()).hexdigest()[:16])
    return Task(
        task_id=hashlib.sha256(f"{text}|{shown}|{told['name']}".encode()).hexdigest()[:16],
        name=str(told["name"]),
        op=_operator(told, text),
        flops=float(told.get("flops", 0.0)),
        workload=shown,
        computation=text,
        networks=_networks(told),
    )


def _of_shapes(op: str, shapes: list[list[int]]) -> str | None:
    """The computation of inputs and output (last), where the operator is known; NCHW and NT, as in Relay."""
    if len(shapes) < 2:
        return None
    data, weight, out = shapes[0], shapes[1], shapes[-1]
    if op == "conv2d" and [len(s) for s in (data, weight, out)] == [4, 4, 4] and weight[0] == out[1]:
        stride = (max(1, round(data[2] / out[2])), max(1, round(data[3] / out[3])))
        n, c, h, w = data
        return computation.conv2d(n, c, h, w, out[1], (weight[2], weight[3]), stride, c // weight[1])
    if op in ("matmul", "dense") and len(data) == len(weight) == len(out) == 2:
        return computation.matmul(out[0], out[1], data[1])
    return None


def _operator(told: Mapping[str, Any], text: str) -> str:
    return class_of_computation(text) or next((word for word in OPS if word == told.get("op")), "other")


def _networks(told: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(count)) for name, count in told.get("networks", ()))


def _flops(mod: IRModule) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(mod))
    except Exception:  # TVM has no count for some intrinsics; the count is information, not a need
        return 0.0

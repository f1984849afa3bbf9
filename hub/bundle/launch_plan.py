"""What TVM's host code would do to run a CUDA program: which kernels it launches, how, and on which buffers.

A bundle carries this plan instead of the host code, so that the machine with the GPU needs the driver alone.
"""

from __future__ import annotations

import math
from typing import Any

_DATA, _ARGUMENT_VALUE = 1, 15  # fields of tvm_struct_get: DLTensor.data, and the value of a packed argument
_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_SHARED = "tirx.use_dyn_shared_memory"


class UnknownLaunchError(Exception):
    """The host code does something that a plan cannot say."""


def launch_plan(host: Any) -> dict[str, Any]:
    """Read the plan off a lowered host function.

    Args:
        host: the entry function, as the TIR pipeline leaves it before its last passes on the host.

    Returns:
        `workspaces`, the bytes of each buffer between kernels, and `launches` in order, each with `kernel`, `grid`,
        `block`, `shared` (bytes of dynamic shared memory) and `params`: ["arg", index], ["workspace", index] or
        [type, value].

    Raises:
        UnknownLaunchError: the host code does something else.
    """
    from tvm_ffi import Object, structural_walk

    reader = _Reader()
    structural_walk(host.body, (Object, reader.see))
    if not reader.launches:
        raise UnknownLaunchError("the program launches no kernel")
    return {"workspaces": reader.workspaces, "launches": reader.launches}


class _Reader:
    """Follows buffers from the function's arguments to the kernels' parameters."""

    def __init__(self) -> None:
        self.workspaces: list[int] = []
        self.launches: list[dict[str, Any]] = []
        self._handles: dict[Any, int] = {}  # variable of a tensor -> index of the argument
        self._buffers: dict[Any, list[Any]] = {}

    def see(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "Bind":
            index = _struct_field(node.value, _ARGUMENT_VALUE)
            if index is not None:
                self._handles[node.var] = int(index[1])
        elif kind == "AllocBuffer":
            shape, dtype = [int(n) for n in node.buffer.shape], node.buffer.dtype
            self._buffers[node.buffer] = ["workspace", len(self.workspaces)]
            self.workspaces.append(math.prod(shape) * _bytes(dtype))
        elif kind == "DeclBuffer":
            self._buffers[node.buffer] = self._source(node.data)
        elif kind == "Call" and _name(node) == "tirx.call_ffi_kernel":
            self.launches.append(self._launch(node))

    def _source(self, data: Any) -> list[Any]:
        if _name(data) == "tirx.buffer_data":
            return self._buffers[data.args[0]]
        field = _struct_field(data, _DATA)
        if field is None or field[0] not in self._handles:
            raise UnknownLaunchError(f"a buffer of unknown origin: {data}")
        return ["arg", self._handles[field[0]]]

    def _launch(self, call: Any) -> dict[str, Any]:
        axes = [str(axis) for axis in call.attrs.launch_params]
        values = list(call.args)[1:]
        params, extents = values[: len(values) - len(axes)], values[len(values) - len(axes) :]
        sizes = {axis: int(extent) for axis, extent in zip(axes, extents, strict=True)}
        unknown = sorted(set(sizes) - {*_AXES, _SHARED})
        if unknown:
            raise UnknownLaunchError(f"launch parameters that a plan cannot say: {', '.join(unknown)}")
        dimensions = [sizes.get(axis, 1) for axis in _AXES]
        return {
            "kernel": str(call.args[0].value),
            "grid": dimensions[:3],
            "block": dimensions[3:],
            "shared": sizes.get(_SHARED, 0),
            "params": [self._param(value) for value in params],
        }

    def _param(self, value: Any) -> list[Any]:
        if _name(value) == "tirx.buffer_data":
            return self._buffers[value.args[0]]
        if type(value).__name__ in ("IntImm", "FloatImm"):
            return [str(value.ty.dtype), value.value]
        raise UnknownLaunchError(f"a kernel parameter that a plan cannot say: {value}")


def _name(node: Any) -> str | None:
    """The operator of a call, or None."""
    return str(getattr(getattr(node, "op", None), "name", "")) or None


def _struct_field(expression: Any, field: int) -> tuple[Any, Any] | None:
    """The (structure, index) whose `field` an expression reads, however it is cast."""
    if _name(expression) == "tirx.tvm_struct_get" and int(expression.args[2]) == field:
        return expression.args[0], expression.args[1]
    found = (_struct_field(part, field) for part in getattr(expression, "args", ()) if hasattr(part, "args"))
    return next((part for part in found if part is not None), None)


def _bytes(dtype: Any) -> int:
    from tvm_ffi import dtype as make

    known = make(str(dtype))
    return -(-known.bits * known.lanes // 8)

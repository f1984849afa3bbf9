"""One CUDA program: its module, its buffers, and the kernels that it launches, one after the other."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .cuda_driver import CudaDriver
from .faults import ProgramError

_POINTER = ctypes.c_void_p
_STATIC_SHARED = 48 << 10
# Runs of a program in one graph: the GPU starts a graph's kernels itself, without waiting for Python and the driver,
# whose few microseconds a launch would otherwise be all that is measured of a short kernel.
_GRAPH_RUNS = 20
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_SCALARS: dict[str, Any] = {
    "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint32": ctypes.c_uint32, "float32": ctypes.c_float,
}  # fmt: skip


class CudaProgram:
    """A loaded program.

    Args:
        image: cubin or PTX.
        plan: from the manifest: `workspaces` (bytes of each buffer between kernels) and `launches`, each with
            `kernel`, `grid`, `block`, `shared` (bytes of dynamic shared memory) and `params`, in the order of the
            kernel's own: ["arg", i], ["workspace", i], or [type, value].
        arrays: one numpy array an argument.

    Raises:
        ProgramError: the driver refuses the program.
    """

    def __init__(self, driver: CudaDriver, image: bytes, plan: dict[str, Any], arrays: list[Any]) -> None:
        self._driver = driver
        self._host = arrays
        self._module, self._buffers = _POINTER(), []
        self._graph: Any = None
        driver.call("cuModuleLoadData", ctypes.byref(self._module), image + b"\0")
        try:
            self._args = [self._upload(array) for array in arrays]
            self._workspaces = [self._allocate(size) for size in plan["workspaces"]]
            self._launches = [self._prepare(launch) for launch in plan["launches"]]
        except ProgramError:
            self.close()
            raise

    def run(self, number: int) -> float:
        """Run about so often, after one run that is not timed; the mean seconds a run."""
        start, end = self._driver.events
        graphs = number // _GRAPH_RUNS
        if graphs and not self._graph:
            self._graph = self._captured()
        self._launch_all()
        self._driver.call("cuEventRecord", start, self._driver.stream)
        for _ in range(graphs):
            self._driver.call("cuGraphLaunch", self._graph, self._driver.stream)
        for _ in range(0 if graphs else number):
            self._launch_all()
        self._driver.call("cuEventRecord", end, self._driver.stream)
        self._driver.call("cuEventSynchronize", end)
        elapsed = ctypes.c_float()
        self._driver.call("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value * 1e-3 / (graphs * _GRAPH_RUNS or number)

    def _captured(self) -> Any:
        """An executable graph of `_GRAPH_RUNS` runs."""
        graph, executable, call = _POINTER(), _POINTER(), self._driver.call
        call("cuStreamBeginCapture_v2", self._driver.stream, _THREAD_LOCAL)
        for _ in range(_GRAPH_RUNS):
            self._launch_all()
        call("cuStreamEndCapture", self._driver.stream, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        call("cuGraphDestroy", graph)
        return executable

    def outputs(self) -> list[Any]:
        """The arguments as the last run left them, copied back."""
        found = [np.empty_like(array) for array in self._host]
        for array, address in zip(found, self._args, strict=True):
            self._driver.call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)
        return found

    def close(self) -> None:
        """Free the graph and the buffers, and unload the module."""
        if self._graph:
            self._driver.call("cuGraphExecDestroy", self._graph)
            self._graph = None
        for address in self._buffers:
            self._driver.call("cuMemFree_v2", address)
        self._buffers = []
        self._driver.call("cuModuleUnload", self._module)

    def _launch_all(self) -> None:
        launch = self._driver.launch_kernel
        for arguments, _ in self._launches:
            code = launch(*arguments)
            if code:
                self._driver.check("cuLaunchKernel", code)

    def _prepare(self, launch: dict[str, Any]) -> tuple[tuple[Any, ...], list[Any]]:
        """The arguments of cuLaunchKernel, made once; the second item keeps what they point to alive."""
        function = _POINTER()
        name = launch["kernel"].encode()
        self._driver.call("cuModuleGetFunction", ctypes.byref(function), self._module, name)
        if launch["shared"] > _STATIC_SHARED:
            self._driver.allow_shared(function, launch["shared"])
        values = [self._value(*param) for param in launch["params"]]
        packed = (_POINTER * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        arguments = (function, *launch["grid"], *launch["block"], launch["shared"], self._driver.stream, packed, None)
        return arguments, values

    def _value(self, kind: str, value: Any) -> Any:
        if kind == "arg":
            return ctypes.c_uint64(self._args[value])
        if kind == "workspace":
            return ctypes.c_uint64(self._workspaces[value])
        return _SCALARS[kind](value)

    def _allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._driver.call("cuMemAlloc_v2", ctypes.byref(address), max(size, 1))
        self._buffers.append(address.value)
        return address.value

    def _upload(self, array: Any) -> int:
        address = self._allocate(array.nbytes)
        self._driver.call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)
        return address

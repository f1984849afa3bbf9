"""CUDA's driver interface through ctypes: no toolkit, no TVM, only the driver that comes with the GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .files import OnsiteError, ProgramError

# What refuses one program only: an invalid value, image or PTX, no such kernel, more memory, registers or threads than
# there are. Whatever else a program meets breaks its context, or the GPU is lost.
_HARMLESS = {1, 2, 200, 209, 218, 500, 701}
_COMPUTE_MAJOR, _COMPUTE_MINOR, _MULTIPROCESSORS, _CLOCK_KHZ, _L2_BYTES = 75, 76, 16, 13, 38
_COMPUTE_MODE, _MEMORY_KHZ, _BUS_BITS = 20, 36, 37
_LIMITS = {
    "max_threads_per_block": 1, "max_shared_memory_per_block": 8, "registers_per_block": 12, "thread_warp_size": 10,
}  # fmt: skip
_SPIN_UP_SECONDS = 0.5
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_POINTER, _SIZE, _UINT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_LAUNCH = [_POINTER, *[_UINT] * 7, _POINTER, ctypes.POINTER(_POINTER), _POINTER]
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [_UINT],
    "cuDeviceGetCount": [ctypes.POINTER(ctypes.c_int)],
    "cuDeviceGet": [ctypes.POINTER(ctypes.c_int), ctypes.c_int],
    "cuDeviceGetName": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDeviceGetAttribute": [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "cuDeviceGetPCIBusId": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDeviceTotalMem_v2": [ctypes.POINTER(_SIZE), ctypes.c_int],
    "cuDriverGetVersion": [ctypes.POINTER(ctypes.c_int)],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(_POINTER), ctypes.c_int],
    "cuCtxSetCurrent": [_POINTER],
    "cuModuleLoadData": [ctypes.POINTER(_POINTER), ctypes.c_char_p],
    "cuModuleUnload": [_POINTER],
    "cuModuleGetFunction": [ctypes.POINTER(_POINTER), _POINTER, ctypes.c_char_p],
    "cuFuncSetAttribute": [_POINTER, ctypes.c_int, ctypes.c_int],
    "cuMemAlloc_v2": [ctypes.POINTER(ctypes.c_uint64), _SIZE],
    "cuMemFree_v2": [ctypes.c_uint64],
    "cuMemGetInfo_v2": [ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)],
    "cuMemsetD8Async": [ctypes.c_uint64, ctypes.c_ubyte, _SIZE, _POINTER],
    "cuMemcpyHtoD_v2": [ctypes.c_uint64, _POINTER, _SIZE],
    "cuMemcpyDtoH_v2": [_POINTER, ctypes.c_uint64, _SIZE],
    "cuMemcpyDtoDAsync_v2": [ctypes.c_uint64, ctypes.c_uint64, _SIZE, _POINTER],
    "cuLaunchKernel": _LAUNCH,
    "cuStreamCreate": [ctypes.POINTER(_POINTER), _UINT],
    "cuStreamBeginCapture_v2": [_POINTER, ctypes.c_int],
    "cuStreamEndCapture": [_POINTER, ctypes.POINTER(_POINTER)],
    "cuGraphInstantiateWithFlags": [ctypes.POINTER(_POINTER), _POINTER, ctypes.c_ulonglong],
    "cuGraphLaunch": [_POINTER, _POINTER],
    "cuGraphExecDestroy": [_POINTER],
    "cuGraphDestroy": [_POINTER],
    "cuEventCreate": [ctypes.POINTER(_POINTER), _UINT],
    "cuEventRecord": [_POINTER, _POINTER],
    "cuEventSynchronize": [_POINTER],
    "cuStreamWaitEvent": [_POINTER, _POINTER, _UINT],
    "cuEventElapsedTime": [ctypes.POINTER(ctypes.c_float), _POINTER, _POINTER],
}


class CudaDriver:
    """A GPU, with its primary context made current; an OnsiteError where there is none that can be used.

    Args:
        library: path of the driver's library; by default `libcuda.so.1` as the system finds it.
        number: of the GPU, as the driver counts the `count` that it may show.
        context: False to ask for facts only, which takes no memory of the GPU and disturbs nobody there.

    Attributes:
        stream: where everything is launched; it waits for copies, which go by the default stream.
    """

    def __init__(self, library: str | None = None, number: int = 0, *, context: bool = True) -> None:
        try:
            self._cuda = ctypes.CDLL(library or os.environ.get("TCHUB_LIBCUDA") or "libcuda.so.1")
            for name, types in _SIGNATURES.items():
                getattr(self._cuda, name).argtypes = types
                getattr(self._cuda, name).restype = ctypes.c_int
        except (OSError, AttributeError) as error:
            raise OnsiteError(f"the CUDA driver cannot be loaded: {error}", 3) from error
        self._device, self._flushed, self._pairs = 0, (0, 0), []
        try:
            self.call("cuInit", 0)
            device, count = ctypes.c_int(), ctypes.c_int()
            self.call("cuDeviceGetCount", ctypes.byref(count))
            self.count = count.value
            if number >= self.count:
                raise ProgramError(f"the driver shows {self.count}, and number {number} was asked for (from 0)")
            self.call("cuDeviceGet", ctypes.byref(device), number)
            self._device = device.value
            if context:
                primary, self.stream = _POINTER(), _POINTER()
                self.call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), self._device)
                self.call("cuCtxSetCurrent", primary)
                self.call("cuStreamCreate", ctypes.byref(self.stream), 0)
        except ProgramError as error:
            raise OnsiteError(f"no GPU can be used: {error}", 3) from error
        # Called thousands of times a second: looked up once.
        self.launch_kernel = self._cuda.cuLaunchKernel

    def spin_up(self) -> None:
        """Keep the GPU busy for half a second of its own clock: an idle one runs slowly; raises as `__init__`."""
        try:
            ((start, end),) = self.event_pairs(1)
            self.call("cuEventRecord", start, self.stream)
            busy = 0.0
            while busy < _SPIN_UP_SECONDS:
                self.flush()
                self.call("cuEventRecord", end, self.stream)
                busy = self.elapsed(start, end)
        except ProgramError as error:
            raise OnsiteError(f"no GPU can be used: {error}", 3) from error

    def call(self, name: str, *args: Any) -> None:
        """Call a driver function; its error is a ProgramError, fatal where the context may not be used again."""
        self.check(name, getattr(self._cuda, name)(*args))

    def check(self, name: str, code: int) -> None:
        """Raise a driver function's error code as a ProgramError."""
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            message = f"{name}: {(text.value or b'unknown error').decode()} ({code})"
            raise ProgramError(message, fatal=code not in _HARMLESS)

    def attribute(self, number: int) -> int:
        """An integer attribute of the GPU (CUdevice_attribute)."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def facts(self) -> dict[str, Any]:
        """Name, architecture, driver and size of the GPU."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, self._device)
        version, memory = ctypes.c_int(), _SIZE()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), self._device)
        return {
            "gpu": name.value.decode(),
            "arch": f"sm_{self.attribute(_COMPUTE_MAJOR)}{self.attribute(_COMPUTE_MINOR)}",
            "cuda_driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
            "multiprocessors": self.attribute(_MULTIPROCESSORS),
            "clock_mhz": self.attribute(_CLOCK_KHZ) // 1000,
            "memory_gib": round(memory.value / 2**30, 1),
        }

    def card(self) -> dict[str, Any]:
        """What a TVM target and a spec sheet need besides `facts`: `limits` of a block, rates, and `mode`.

        `mode` is 0 for a shared GPU, 2 for one that takes no programs, 3 for one that takes one process.
        """
        return {
            "limits": {name: self.attribute(number) for name, number in _LIMITS.items()},
            "mode": self.attribute(_COMPUTE_MODE),
            "memory_mhz": self.attribute(_MEMORY_KHZ) / 1000,
            "bus_bits": self.attribute(_BUS_BITS),
        }

    @property
    def bus_id(self) -> str:
        """Address on the PCI bus, by which NVML knows the GPU."""
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, 32, self._device)
        return text.value.decode()

    def free_bytes(self) -> int:
        """Memory of the GPU that nobody has taken."""
        free, total = _SIZE(), _SIZE()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def flush(self) -> None:
        """Queue a write of twice the size of the L2 cache, after which it holds nothing of what was there."""
        if not self._flushed[0]:
            address, size = ctypes.c_uint64(), 2 * self.attribute(_L2_BYTES)
            self.call("cuMemAlloc_v2", ctypes.byref(address), size)
            self._flushed = address.value, size
        self.call("cuMemsetD8Async", self._flushed[0], 0, self._flushed[1], self.stream)

    def event_pairs(self, count: int) -> list[tuple[Any, Any]]:
        """So many pairs of events, the same ones each time."""
        while len(self._pairs) < count:
            pair = _POINTER(), _POINTER()
            for event in pair:
                self.call("cuEventCreate", ctypes.byref(event), 0)
            self._pairs.append(pair)
        return self._pairs[:count]

    def elapsed(self, start: Any, end: Any) -> float:
        """Seconds between two events, once the second has happened."""
        milliseconds = ctypes.c_float()
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value * 1e-3


_STATIC_SHARED = 48 << 10  # dynamic shared memory that every kernel may have
_MOST_RUNS = 100  # of one repeat
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_SCALARS: dict[str, Any] = {
    "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint32": ctypes.c_uint32, "float32": ctypes.c_float,
}  # fmt: skip


class CudaLaunches:
    """Kernels that are launched one after the other, and the buffers that they read and write.

    Args:
        images: cubin or PTX of each function.
        functions: how each is launched: `workspaces` (bytes of each buffer between its kernels) and `launches`, each
            with `kernel`, `grid`, `block`, `shared` (bytes of dynamic shared memory) and `params`, in the order of the
            kernel's own: ["arg", i], ["workspace", i], or [type, value].
        sizes: bytes of each buffer.
        steps: the number of a function and those of the buffers that are its arguments, in order.

    Raises:
        ProgramError: the driver refuses a function, or the GPU has not the memory.
    """

    def __init__(
        self,
        driver: CudaDriver,
        images: Sequence[bytes],
        functions: Sequence[dict[str, Any]],
        sizes: Sequence[int],
        steps: Iterable[tuple[int, Iterable[int]]],
    ) -> None:
        self._driver, self._sizes = driver, sizes
        self._modules: list[Any] = []
        self._allocated: list[int] = []
        self._launches: list[tuple[tuple[Any, ...], list[Any]]] = []
        self._graph: Any = None
        try:
            modules = [self._load(image) for image in images]
            workspaces = [[self._allocate(size) for size in one["workspaces"]] for one in functions]
            self._buffers = [self._allocate(size) for size in sizes]
            for number, buffers in steps:
                args = [self._buffers[buffer] for buffer in buffers]
                for launch in functions[number]["launches"]:
                    self._launches.append(self._prepare(launch, modules[number], args, workspaces[number]))
        except ProgramError:
            self.close()
            raise

    def write(self, buffer: int, array: Any) -> None:
        """Fill a buffer from a contiguous array of its size."""
        if array.nbytes != self._sizes[buffer]:
            raise ProgramError(f"buffer {buffer} has {self._sizes[buffer]} bytes, and {array.nbytes} were given")
        self._driver.call("cuMemcpyHtoD_v2", self._buffers[buffer], array.ctypes.data, array.nbytes)

    def read(self, buffer: int, array: Any) -> Any:
        """Fill an array from a buffer, and return it."""
        self._driver.call("cuMemcpyDtoH_v2", array.ctypes.data, self._buffers[buffer], array.nbytes)
        return array

    def run(self, number: int) -> float:
        """Run so often, each time as one graph, after one run that is not timed; the mean seconds a run.

        The GPU starts a graph's kernels itself, without waiting for Python and the driver.
        """
        ((start, end),) = self._driver.event_pairs(1)
        self._graph = self._graph or self._captured()
        self._launch_all()
        self._driver.call("cuEventRecord", start, self._driver.stream)
        for _ in range(number):
            self._driver.call("cuGraphLaunch", self._graph, self._driver.stream)
        self._driver.call("cuEventRecord", end, self._driver.stream)
        return self._driver.elapsed(start, end) / number

    def run_cold(self, number: int) -> float:
        """Run so often, each time with an empty L2 cache; the mean seconds a run, the flushing left out.

        The launches wait in the queue behind the flushing, so that neither Python's nor the driver's time is measured.
        """
        driver, pairs = self._driver, self._driver.event_pairs(number)
        for start, end in pairs:
            driver.flush()
            driver.call("cuEventRecord", start, driver.stream)
            self._launch_all()
            driver.call("cuEventRecord", end, driver.stream)
        return sum(driver.elapsed(*pair) for pair in pairs) / number

    def _captured(self) -> Any:
        """An executable graph of a run."""
        graph, executable, call = _POINTER(), _POINTER(), self._driver.call
        call("cuStreamBeginCapture_v2", self._driver.stream, _THREAD_LOCAL)
        self._launch_all()
        call("cuStreamEndCapture", self._driver.stream, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        call("cuGraphDestroy", graph)
        return executable

    def close(self) -> None:
        """Free the graph and the buffers, and unload the modules."""
        if self._graph:
            self._driver.call("cuGraphExecDestroy", self._graph)
            self._graph = None
        while self._allocated:
            self._driver.call("cuMemFree_v2", self._allocated.pop())
        while self._modules:
            self._driver.call("cuModuleUnload", self._modules.pop())

    def _launch_all(self) -> None:
        launch = self._driver.launch_kernel
        for arguments, _ in self._launches:
            code = launch(*arguments)
            if code:
                self._driver.check("cuLaunchKernel", code)

    def _load(self, image: bytes) -> Any:
        module = _POINTER()
        self._driver.call("cuModuleLoadData", ctypes.byref(module), image + b"\0")
        self._modules.append(module)
        return module

    def _prepare(
        self, launch: dict[str, Any], module: Any, args: list[int], workspaces: list[int]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """The arguments of cuLaunchKernel, made once; the second item keeps what they point to alive."""
        function = _POINTER()
        self._driver.call("cuModuleGetFunction", ctypes.byref(function), module, launch["kernel"].encode())
        if launch["shared"] > _STATIC_SHARED:
            self._driver.call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, launch["shared"])
        buffers = {"arg": args, "workspace": workspaces}
        values: list[Any] = [
            ctypes.c_uint64(buffers[kind][value]) if kind in buffers else _SCALARS[kind](value)
            for kind, value in launch["params"]
        ]
        packed = (_POINTER * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        arguments = (function, *launch["grid"], *launch["block"], launch["shared"], self._driver.stream, packed, None)
        return arguments, values

    def _allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self._driver.call("cuMemAlloc_v2", ctypes.byref(address), max(size, 1))
        self._allocated.append(address.value)
        return address.value


class CudaProgram(CudaLaunches):
    """A loaded function and its arguments: one numpy array each."""

    def __init__(self, driver: CudaDriver, image: bytes, plan: dict[str, Any], arrays: list[Any]) -> None:
        super().__init__(driver, [image], [plan], [array.nbytes for array in arrays], [(0, range(len(arrays)))])
        self._host = arrays
        for number, array in enumerate(arrays):
            self.write(number, array)

    def repeats(self, number: int, count: int) -> list[float]:
        """Seconds a run, with an empty L2 cache, of so many repeats of so many runs; short runs are flushed longer."""
        return [self.run_cold(min(number, _MOST_RUNS)) for _ in range(count)]

    def outputs(self) -> list[Any]:
        """The arguments as the last run left them, copied back."""
        return [self.read(number, np.empty_like(array)) for number, array in enumerate(self._host)]

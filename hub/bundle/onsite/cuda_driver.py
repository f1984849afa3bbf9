"""CUDA's driver interface through ctypes: no toolkit, no TVM, only the driver that comes with the GPU."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .faults import OnsiteError, ProgramError

_SUCCESS = 0
# cuModuleLoadData and cuModuleGetFunction refuse one program only; whatever a kernel breaks breaks the context.
_HARMLESS = {"cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute"}
_COMPUTE_MAJOR, _COMPUTE_MINOR, _MULTIPROCESSORS, _CLOCK_KHZ = 75, 76, 16, 13
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_POINTER, _SIZE, _UINT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_LAUNCH = [_POINTER, *[_UINT] * 7, _POINTER, ctypes.POINTER(_POINTER), _POINTER]
_SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [_UINT],
    "cuDeviceGet": [ctypes.POINTER(ctypes.c_int), ctypes.c_int],
    "cuDeviceGetName": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDeviceGetAttribute": [ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "cuDeviceTotalMem_v2": [ctypes.POINTER(_SIZE), ctypes.c_int],
    "cuDriverGetVersion": [ctypes.POINTER(ctypes.c_int)],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(_POINTER), ctypes.c_int],
    "cuCtxSetCurrent": [_POINTER],
    "cuCtxSynchronize": [],
    "cuModuleLoadData": [ctypes.POINTER(_POINTER), ctypes.c_char_p],
    "cuModuleUnload": [_POINTER],
    "cuModuleGetFunction": [ctypes.POINTER(_POINTER), _POINTER, ctypes.c_char_p],
    "cuFuncSetAttribute": [_POINTER, ctypes.c_int, ctypes.c_int],
    "cuMemAlloc_v2": [ctypes.POINTER(ctypes.c_uint64), _SIZE],
    "cuMemFree_v2": [ctypes.c_uint64],
    "cuMemsetD8_v2": [ctypes.c_uint64, ctypes.c_ubyte, _SIZE],
    "cuMemcpyHtoD_v2": [ctypes.c_uint64, _POINTER, _SIZE],
    "cuMemcpyDtoH_v2": [_POINTER, ctypes.c_uint64, _SIZE],
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
    "cuEventElapsedTime": [ctypes.POINTER(ctypes.c_float), _POINTER, _POINTER],
}


class CudaDriver:
    """The first GPU, with its primary context made current.

    Args:
        library: path of the driver's library; by default `libcuda.so.1` as the system finds it.

    Attributes:
        stream: where everything is launched; it waits for copies, which go by the default stream.
        events: two, to time with.
        launch_kernel: cuLaunchKernel itself.

    Raises:
        OnsiteError: no driver, or no GPU.
    """

    def __init__(self, library: str | None = None) -> None:
        try:
            self._cuda = ctypes.CDLL(library or os.environ.get("TCHUB_LIBCUDA") or "libcuda.so.1")
            for name, types in _SIGNATURES.items():
                getattr(self._cuda, name).argtypes = types
                getattr(self._cuda, name).restype = ctypes.c_int
        except (OSError, AttributeError) as error:
            raise OnsiteError(f"the CUDA driver cannot be loaded: {error}", 3) from error
        self._device = 0
        try:
            self.call("cuInit", 0)
            device, context = ctypes.c_int(), _POINTER()
            self.call("cuDeviceGet", ctypes.byref(device), 0)
            self._device = device.value
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)
            self.stream = _POINTER()
            self.call("cuStreamCreate", ctypes.byref(self.stream), 0)
            self.events = self._event(), self._event()
        except ProgramError as error:
            raise OnsiteError(f"no GPU can be used: {error}", 3) from error
        # Called thousands of times a second: looked up once.
        self.launch_kernel = self._cuda.cuLaunchKernel

    def _event(self) -> Any:
        event = _POINTER()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def call(self, name: str, *args: Any) -> None:
        """Call a driver function.

        Raises:
            ProgramError: the driver's error; fatal where the context may not be used again.
        """
        self.check(name, getattr(self._cuda, name)(*args))

    def check(self, name: str, code: int) -> None:
        """Raise a driver function's error code as a ProgramError."""
        if code != _SUCCESS:
            raise ProgramError(f"{name}: {self._describe(code)}", fatal=name not in _HARMLESS)

    def _describe(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} ({code})"

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

    def allow_shared(self, function: Any, size: int) -> None:
        """Let a kernel have more dynamic shared memory than the 48 KiB that all may have."""
        self.call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, size)

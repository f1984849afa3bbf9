"""TVM's runtime through its C interface: two shared libraries, no Python package and no compiler.

The structures are those of `tvm/ffi/c_api.h`. A kernel is timed by the runtime's own time evaluator, the
instrument that MetaSchedule uses.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from pathlib import Path
from typing import Any

from .files import OnsiteError, ProgramError

_NONE, _INT, _TENSOR, _TEXT, _SMALL_BYTES, _BYTES = 0, 1, 7, 8, 12, 66
_FIRST_OBJECT = 64
_HEADER = 24  # bytes of TVMFFIObject, before an object's own fields
_CPU = 1
_LIBRARIES = (("tvm_ffi", "libtvm_ffi.so"), ("tvm", "libtvm_runtime.so"))
_DTYPE_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class _Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Value(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("small_length", ctypes.c_uint32), ("value", ctypes.c_uint64)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


def find_libraries(folder: str | None) -> list[str]:
    """Return the paths of TVM's ffi and runtime libraries: in `folder`, else in the installed packages.

    The packages are looked up, not imported: importing TVM would load its compiler. Raises an OnsiteError.
    """
    results = []
    for package, name in _LIBRARIES:
        folders = [Path(folder)] if folder else []
        spec = None if folder else importlib.util.find_spec(package)
        folders += [Path(folder) / "lib" for folder in (spec.submodule_search_locations or ())] if spec else []
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            where = folder or f"the installed package {package}"
            raise OnsiteError(f"{name} is not in {where}: name a folder that holds it with --runtime", 3)
        results.append(str(path))
    return results


class TvmRuntime:
    """The loaded runtime: paths of its two libraries."""

    def __init__(self, libraries: list[str]) -> None:
        try:
            self._ffi, self._runtime = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in libraries)
        except OSError as error:
            raise OnsiteError(f"TVM's runtime cannot be loaded: {error}", 3) from error
        self._ffi.TVMFFIErrorMoveFromRaised.restype = None
        self._functions: dict[str, ctypes.c_void_p] = {}

    def call(self, function: Any, *args: Any) -> Any:
        """Call a global function by name, or a function object; what TVM raises is a ProgramError."""
        handle = self._global(function) if isinstance(function, str) else ctypes.c_void_p(function.handle)
        keep: list[Any] = []
        packed = (_Value * max(1, len(args)))(*(self._pack(arg, keep) for arg in args))
        result = _Value(_NONE, 0, 0)
        if self._ffi.TVMFFIFunctionCall(handle, packed, ctypes.c_int32(len(args)), ctypes.byref(result)):
            raised = ctypes.c_void_p()
            self._ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(raised))
            if not raised.value:
                raise ProgramError("an error that TVM did not describe")
            kind, message = (_Bytes.from_address(raised.value + _HEADER + 16 * i) for i in range(2))
            text = b": ".join(ctypes.string_at(part.data, part.size) for part in (kind, message))
            self._ffi.TVMFFIObjectDecRef(raised)
            raise ProgramError(text.decode(errors="replace").strip())
        return self._unpack(result)

    def _global(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            text, handle = name.encode(), ctypes.c_void_p()
            buffer = ctypes.create_string_buffer(text)
            key = _Bytes(ctypes.addressof(buffer), len(text))
            if self._ffi.TVMFFIFunctionGetGlobal(ctypes.byref(key), ctypes.byref(handle)) or not handle:
                raise OnsiteError(f"this TVM runtime has no {name}", 3)
            self._functions[name] = handle
        return self._functions[name]

    def _pack(self, value: Any, keep: list[Any]) -> _Value:
        if isinstance(value, int):
            return _Value(_INT, 0, value & (2**64 - 1))
        if isinstance(value, str):
            keep.append(ctypes.create_string_buffer(value.encode()))
            return _Value(_TEXT, 0, ctypes.addressof(keep[-1]))
        if isinstance(value, _Tensor):
            return _Value(_TENSOR, 0, ctypes.addressof(value))
        return _Value(value.type_index, 0, value.handle)

    def _unpack(self, value: _Value) -> Any:
        if value.type_index == _SMALL_BYTES:
            return bytes(struct.pack("<Q", value.value)[: value.small_length])
        if value.type_index < _FIRST_OBJECT:
            return value.value if value.type_index else None
        results = _Object(self._ffi, value)
        if value.type_index != _BYTES:
            return results
        cell = _Bytes.from_address(results.handle + _HEADER)
        return ctypes.string_at(cell.data, cell.size)


class _Object:
    """A counted reference to an object of the runtime."""

    def __init__(self, ffi: Any, value: _Value) -> None:
        self._ffi, self.type_index, self.handle = ffi, value.type_index, value.value

    def __del__(self) -> None:
        self._ffi.TVMFFIObjectDecRef(ctypes.c_void_p(self.handle))


class CpuProgram:
    """A kernel of a shared library and its arguments, one numpy array each; it writes into the last ones.

    Args:
        permuted: arrays for the arguments that it takes permuted, by position, in the order of its function `prepack`.
    """

    def __init__(self, runtime: TvmRuntime, library: str, arrays: list[Any], permuted: dict[int, Any]) -> None:
        self._runtime = runtime
        self._module = runtime.call("ffi.ModuleLoadFromFile", library)
        self.arrays, self._permuted = arrays, permuted  # the tensors point into them
        self._tensors = [_tensor(array) for array in arrays]
        if permuted:
            tensors = {position: _tensor(array) for position, array in permuted.items()}
            prepack = runtime.call("ffi.ModuleGetFunction", self._module, "prepack", 0)
            runtime.call(prepack, *(self._tensors[position] for position in tensors), *tensors.values())
            self._tensors = [tensors.get(position, tensor) for position, tensor in enumerate(self._tensors)]

    def outputs(self) -> list[Any]:
        """The arguments as the last run left them."""
        return self.arrays

    def close(self) -> None:
        """Let go of the library."""
        self._module = None

    def repeats(self, number: int, count: int) -> list[float]:
        """Seconds a run of so many repeats of so many runs."""
        return [self._run(number) for _ in range(count)]

    def _run(self, number: int) -> float:
        """Run so often, after one run that is not timed; the mean seconds a run."""
        evaluator = self._runtime.call(
            "runtime.RPCTimeEvaluator", self._module, "main", _CPU, 0, number, 1, 0, 100, 0, 1, 0, ""
        )
        return struct.unpack("=d", self._runtime.call(evaluator, *self._tensors))[0]


def _tensor(array: Any) -> _Tensor:
    name = str(array.dtype)
    code = _DTYPE_CODES[name.rstrip("0123456789")]
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    return _Tensor(array.ctypes.data, _CPU, 0, array.ndim, code, array.dtype.itemsize * 8, 1, shape, None, 0)

"""Compiling scheduled modules for NVIDIA GPUs, without one: CUDA source by TVM, machine code by NVRTC or nvcc, a plan.

TVM's host code is not used: what it would do is read off it into a plan, which the driver's own interface carries out
(`onsite/cuda.py`).
"""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ...zoo.files import file_sha256
from .cubin_cache import CubinCache
from .errors import DeviceError

NVRTC = "nvrtc"
"""CUDA's run-time compiler, in place of nvcc's path."""
# nvcc warns of every unused variable that TVM leaves behind.
_NVCC = ("-O3", "-w", "-std=c++17")
_NVRTC = ("-default-device", "-w", "--std=c++17", "--device-int128")
# What TVM's source asks of the headers of CUDA's C++ library, which take half a second to read.
_RTC_HEADERS = re.compile(r"#ifdef __CUDACC_RTC__\n.*?#else\n.*?#endif\n", re.DOTALL)
_RTC_TYPES = """typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
#define INFINITY __int_as_float(0x7f800000)
"""


@lru_cache(maxsize=1)
def _nvrtc() -> Any | None:
    """Return cuda-bindings' module of NVRTC; None where it, or the library, is not installed."""
    try:
        from cuda.bindings import nvrtc  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

        nvrtc.nvrtcVersion()  # which loads the library
    except (ImportError, RuntimeError, OSError):
        return None
    return nvrtc


def find_compiler() -> str:
    """Return TCHUB_NVCC of the environment, or `NVRTC` where it is installed, or the path of nvcc, which takes longer.

    A DeviceError says that there is none.
    """
    path = os.environ.get("TCHUB_NVCC") or (NVRTC if _nvrtc() is not None else shutil.which("nvcc"))
    if path is None:
        raise DeviceError(
            "no nvcc and no NVRTC were found, one of which compiles CUDA programs",
            remedy="pip install 'tchub[cuda]', or install CUDA's toolkit and put nvcc on the PATH; neither needs a GPU",
        )
    return path


def check_compiler(compiler: str, arch: str, driver: str) -> None:
    """Refuse, by a DeviceError, a compiler whose programs a card cannot run, or that does not say.

    Args:
        compiler: as `find_compiler` returns it.
        arch: of the card, e.g. `sm_75`; driver: version of CUDA that its driver is for, e.g. `13.0`.
    """
    try:
        release, known = _nvrtc_facts() if compiler == NVRTC else _nvcc_facts(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        raise DeviceError(f"{compiler} does not run: {error}", remedy="install CUDA's compiler again") from error
    name, major = Path(compiler).name, driver.split(".", maxsplit=1)[0]
    other = f"install NVRTC (cuda-bindings, nvidia-cuda-nvrtc) or nvcc of CUDA {major}"
    if release and int(release.split(".")[0]) > int(major):
        raise DeviceError(
            f"the driver is for CUDA {driver}, and {name} is of CUDA {release}, whose programs it cannot load",
            remedy=f"install a newer driver, or {other}",
        )
    if known and arch not in known:
        raise DeviceError(
            f"{name} does not compile for {arch}",
            remedy=f"it compiles for {', '.join(known)}: install another release of CUDA's compiler",
        )


def _nvcc_facts(nvcc: str) -> tuple[str | None, list[str]]:
    """Return nvcc's release, and the architectures that it compiles for."""

    def ask(question: str) -> str:
        return subprocess.run([nvcc, question], capture_output=True, text=True, check=True, timeout=30).stdout

    version = re.search(r"release (\d+\.\d+)", ask("--version"))
    return version and version[1], ask("--list-gpu-code").split()


def _nvrtc_facts() -> tuple[str, list[str]]:
    nvrtc: Any = _nvrtc()
    _, major, minor = nvrtc.nvrtcVersion()
    _, count = nvrtc.nvrtcGetNumSupportedArchs()
    _, known = nvrtc.nvrtcGetSupportedArchs()
    return f"{major}.{minor}", [f"sm_{number}" for number in list(known)[:count]]


def compile_cuda(
    mod: Any, target: dict[str, Any], output: Path, code: str, compiler: str, cache: CubinCache | None = None
) -> dict[str, Any]:
    """Compile a scheduled module for one architecture, and return its launch plan; see `start_cuda`."""
    plan, finish = start_cuda(mod, target, output, code, compiler, cache)
    finish()
    return plan


def start_cuda(
    mod: Any, target: dict[str, Any], output: Path, code: str, compiler: str, cache: CubinCache | None
) -> tuple[dict[str, Any], Callable[[], object]]:
    """Return a module's launch plan, see `cuda_source`, and what writes its code, in any thread.

    Args:
        target: TVM's CUDA target as a dictionary; its `arch` is the GPU's, e.g. `sm_90`.
        code: `cubin`, or `ptx`, which the driver compiles when it loads it.
        compiler: as `find_compiler` returns it.
        cache: of what was compiled before, and takes this one.

    Raises:
        RuntimeError: the compiler does not take the program.
        ValueError: the program does what a plan cannot say.
    """
    name = cache.name(compile_facts(mod, target, code, compiler)) if cache else ""
    if cache and (known := cache.load(name)):
        return known[0], lambda: output.write_bytes(known[1])
    plan, source = cuda_source(mod, target)

    def finish() -> None:
        assemble(source, str(target["arch"]), output, code, compiler)
        if cache:
            cache.save(name, plan, output.read_bytes())

    return plan, finish


def compile_facts(mod: Any, target: Mapping[str, Any], code: str, compiler: str) -> dict[str, Any]:
    """Return what decides a compiled program: TVM's structural hash of the module (64 bits), and all that reads it."""
    from tvm.target import Target
    from tvm_ffi import structural_hash

    device = str(Target({name: value for name, value in target.items() if name != "host"}))  # as TVM completes it
    return {"module": structural_hash(mod), "target": device, "code": code, "made_by": _compiler_facts(compiler)}


@lru_cache(maxsize=4)
def _compiler_facts(compiler: str) -> list[Any]:
    """Return the versions of the compiler, of TVM and of this file; of nvcc size and time, which are had faster."""
    path = Path(shutil.which(compiler) or compiler)
    facts = [_nvrtc_facts()[0]] if compiler == NVRTC else [str(path), path.stat().st_size, path.stat().st_mtime_ns]
    versions = [metadata.version(package) for package in ("tchub", "apache-tvm", "apache-tvm-ffi")]
    return [compiler, *facts, *versions, file_sha256(__file__)]


def assemble(source: str, arch: str, output: Path, code: str, compiler: str) -> None:
    """Compile CUDA source for one architecture; see `compile_cuda`. An error is the compiler's first, or last line."""
    arch = arch.replace("sm_", "compute_") if code == "ptx" else arch
    if compiler == NVRTC:
        output.write_bytes(_compile_in_process(source, arch, code))
        return
    text = Path(f"{output}.cu")
    try:
        text.write_text(source)
        command = [compiler, f"-{code}", f"-arch={arch}", *_NVCC, "-o", str(output), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        text.unlink(missing_ok=True)
    if done.returncode:
        raise _compile_error("nvcc", done.stderr or done.stdout or f"exit code {done.returncode}")


def _compile_error(compiler: str, output: str) -> RuntimeError:
    lines = [line for line in output.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), lines[-1])[:400]
    lacks_header = compiler == "NVRTC" and "cannot open source file" in first.replace("could not", "cannot")
    remedy = "; CUDA's headers are not all installed: pip install 'tchub[cuda]'" if lacks_header else ""
    return RuntimeError(f"{compiler} failed: {first}{remedy}")


def _compile_in_process(source: str, arch: str, code: str) -> bytes:
    """Return the cubin or PTX of CUDA source, by NVRTC."""
    nvrtc: Any = _nvrtc()
    body = _RTC_HEADERS.sub(lambda _: _RTC_TYPES, source, count=1)
    if "std::" in body:
        body = source
    includes = _include_folders() if "#include" in body else ()
    options = [f"--gpu-architecture={arch}", *_NVRTC, *(f"-I{folder}" for folder in includes)]
    _, program = nvrtc.nvrtcCreateProgram(body.encode(), b"kernels.cu", 0, None, None)
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(error):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = bytearray(size)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise _compile_error("NVRTC", log.decode(errors="replace").strip("\0\n ") or str(error))
        size_of, read = ("nvrtcGetPTXSize", "nvrtcGetPTX") if code == "ptx" else ("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        _, size = getattr(nvrtc, size_of)(program)
        image = bytearray(size)
        getattr(nvrtc, read)(program, image)
        return bytes(image)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@lru_cache(maxsize=1)
def _include_folders() -> tuple[str, ...]:
    """Return the folders of CUDA's headers; PyTorch brings some packages, and a toolkit beside it has the others."""
    from cuda.pathfinder import find_nvidia_header_directory  # pyright: ignore[reportMissingImports]

    folders = [find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    if nvcc := shutil.which("nvcc"):
        folders.append(str(Path(nvcc).resolve().parents[1] / "include"))
    return tuple(dict.fromkeys(folder for folder in folders if folder))


def cuda_source(mod: Any, target: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the launch plan (see `CudaLaunches`) of a scheduled module, and the CUDA source of its kernels."""
    import tvm
    from tvm.tirx.build import split_host_device_mods
    from tvm_ffi import Object, structural_walk

    tvm_target = tvm.target.Target({**target, "host": {"kind": "llvm"}})
    config: dict[str, Any] = {}
    if tensor_cores := tensor_core_programs(mod):
        # cp.async fills their pipelines; and TVM would let buffers of two data types share shared memory by one name.
        config["tirx.use_async_copy"] = compute_capability(target) >= ASYNC_COPY
        config["tirx.disable_storage_rewrite"] = True
    if tensor_cores == "wmma":
        config["tirx.UnrollLoop"] = {"explicit_unroll": 0}
        mod = _unrolled_by_nvcc(mod)
    passes: Any = tvm.tirx.get_default_tir_pipeline(tvm_target)
    pipeline, _, finalize = passes
    with tvm.transform.PassContext(config=config):
        lowered = pipeline(tvm.tirx.transform.BindTarget(tvm_target)(mod))
    host, devices = split_host_device_mods(lowered)
    if not devices:
        raise ValueError("the program launches no kernel")
    ((device_target, device),) = devices.items()
    # TVM would compile the source at once where it finds a GPU's runtime; only the source is wanted.
    tvm.register_global_func("tvm_callback_cuda_compile", lambda _: b"", override=True)
    module = tvm.get_global_func("target.build.cuda")(finalize()(device), device_target)
    (entry,) = (function for _, function in host.functions_items())
    reader = _Reader()
    structural_walk(entry.body, (Object, reader.see))
    if not reader.launches:
        raise ValueError("the program launches no kernel")
    return {"workspaces": reader.workspaces, "launches": reader.launches}, str(module.inspect_source())


ASYNC_COPY = 80
"""The first compute capability that copies into shared memory while it computes, by `cp.async`."""
TENSOR_CORES = 70
"""The first compute capability that has tensor cores."""


def compute_capability(target: Mapping[str, Any]) -> int:
    """Return e.g. 90 for a target whose `arch` is `sm_90a`; 0 where it has none."""
    match = re.match(r"sm_(\d+)", str(target.get("arch", "")))
    return int(match[1]) if match else 0


def tensor_core_programs(mod: Any) -> str:
    """Return `wmma` or `mma` where a scheduled module computes with tensor cores by such instructions, else nothing.

    Their fragments are buffers in scopes of their own.
    """
    from tvm.s_tir import SBlock

    from .statements import nodes_in

    blocks = [block for function in mod.functions.values() for block in nodes_in(function.body, SBlock)]
    families = {str(buffer.scope()).partition(".")[0] for block in blocks for buffer in block.alloc_buffers}
    return "wmma" if "wmma" in families else "mma" if "m16n8k8" in families else ""


def _unrolled_by_nvcc(mod: Any) -> Any:
    """Return a module whose loops nvcc unrolls, not TVM.

    Of a loop that it unrolled itself, TVM loads a vector of shared memory once for all turns that read it from one
    place, although each turn may have stored another fragment there.
    """
    from tvm.tirx import For, IntImm
    from tvm_ffi import structural_map

    key = "pragma_unroll_explicit"

    def change(loop: Any) -> Any:
        if key not in loop.annotations:
            return loop
        annotations = dict(loop.annotations) | {key: IntImm("int32", 0)}
        return For(
            *(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding),
            *(annotations, loop.step, loop.span),
        )

    mod = mod.clone()
    for var, function in mod.functions_items():
        mod[var] = function.with_body(structural_map(function.body, (For, change)))
    return mod


_DATA, _ARGUMENT_VALUE = 1, 15  # fields of tvm_struct_get: DLTensor.data, and the value of a packed argument
_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_SHARED = "tirx.use_dyn_shared_memory"


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
            self.workspaces.append(math.prod(shape) * dtype_bytes(dtype))
        elif kind == "DeclBuffer":
            self._buffers[node.buffer] = self._source(node.data)
        elif kind == "Call" and _name(node) == "tirx.call_ffi_kernel":
            self.launches.append(self._launch(node))

    def _source(self, data: Any) -> list[Any]:
        if _name(data) == "tirx.buffer_data":
            return self._buffers[data.args[0]]
        field = _struct_field(data, _DATA)
        if field is None or field[0] not in self._handles:
            raise ValueError(f"a buffer of unknown origin: {data}")
        return ["arg", self._handles[field[0]]]

    def _launch(self, call: Any) -> dict[str, Any]:
        axes = [str(axis) for axis in call.attrs.launch_params]
        values = list(call.args)[1:]
        params, extents = values[: len(values) - len(axes)], values[len(values) - len(axes) :]
        sizes = {axis: int(extent) for axis, extent in zip(axes, extents, strict=True)}
        unknown = sorted(set(sizes) - {*_AXES, _SHARED})
        if unknown:
            raise ValueError(f"launch parameters that a plan cannot say: {', '.join(unknown)}")
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
        raise ValueError(f"a kernel parameter that a plan cannot say: {value}")


def _name(node: Any) -> str | None:
    """The operator of a call, or None."""
    return str(getattr(getattr(node, "op", None), "name", "")) or None


def _struct_field(expression: Any, field: int) -> tuple[Any, Any] | None:
    """The (structure, index) whose `field` an expression reads, however it is cast."""
    if _name(expression) == "tirx.tvm_struct_get" and int(expression.args[2]) == field:
        return expression.args[0], expression.args[1]
    plan = (_struct_field(part, field) for part in getattr(expression, "args", ()) if hasattr(part, "args"))
    return next((part for part in plan if part is not None), None)


def dtype_bytes(dtype: Any) -> int:
    """Return the bytes of one element of a data type."""
    from tvm_ffi import dtype as make

    known = make(str(dtype))
    return -(-known.bits * known.lanes // 8)

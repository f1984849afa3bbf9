"""Jobs of a worker: compile a scheduled module, run a compiled program, and check what it computes."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...zoo.files import file_sha256
from .candidate import WEIGHTS
from .cubin_cache import CubinCache
from .cuda_compile import compile_cuda
from .errors import DeviceError
from .onsite.runs import ArgsInfo, TimingConfig, random_values
from .timing import DriftWatch, make_reference_kernel, measure_watched, time_in_turn, time_kernel, turns_of

Array = np.ndarray[Any, Any]

PREPACK = "prepack"
"""Function of a library that permutes weights: takes them as the task has them, then arrays for the permuted ones."""
PREPACKED = "meta_schedule.layout_rewrite_preproc"


@dataclass(frozen=True)
class BuildResult:
    """A compiled program.

    Attributes:
        sha256: of the library, by which it is loaded; None for one that its user names.
        prepacked: places of the arguments that it takes permuted, as its `PREPACK` makes them.
        weights: places of the arguments that are constants of its network.
        plan: how a card launches it, see `CudaLaunches`; None on a CPU.
    """

    seconds: float = 0.0
    sha256: str | None = None
    prepacked: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    plan: dict[str, Any] | None = None


@lru_cache(maxsize=16)
def _target(text: str) -> Any:
    import tvm

    return quickly_scheduled(tvm.target.Target(json.loads(text)))


def quickly_scheduled(target: Any) -> Any:
    """Return a target whose instructions LLVM puts in order with fewer comparisons of memory accesses.

    It compares each access of a block with the 1,000 before it, which for unrolled kernels took half of a program's
    compilation (3 s for some). With 200 nine of ten programs come out the same, the others as long.
    LLVM's options are the whole process's, so that no other thread may compile meanwhile.
    """
    import tvm

    options = ["-dag-maps-huge-region:uint=200", *target.attrs.get("cl-opt", ())]  # of two values the last counts
    return tvm.target.Target({**target.export(), "cl-opt": options})


def build(
    module_json: str,
    target: dict[str, Any],
    library: str,
    linker: str | Sequence[str] | None = None,
    code: str = "cubin",
    cubins: CubinCache | None = None,
) -> BuildResult:
    """Compile a scheduled module into the shared library `library`, or for a card into machine code.

    The passes are those of stock's `LocalBuilder`, with `prefetch_weights` before them. Where the schedule permutes
    weights, which the compiled network does once, the program takes them permuted. The write is atomic: a killed build
    leaves nothing that looks whole.

    Args:
        linker: for another architecture, with its options; None for this machine's own. For a card: `find_compiler`.
        code: for a card `cubin`, or `ptx`.
        cubins: for a card: of programs that were compiled before.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    from .weight_prefetch import prefetch_weights  # imports TVM

    start = time.perf_counter()
    scheduled: Any = tvm.ir.load_json(module_json)
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(scheduled)
    prepacked: tuple[int, ...] = ()
    plan = None
    unfinished = Path(f"{library}.{os.getpid()}.so")
    try:
        if target["kind"] == "cuda":
            plan = compile_cuda(mod, target, unfinished, code, str(linker), cubins)
        else:
            if PREPACKED in module_json:
                mod[PREPACK], prepacked = _prepack(scheduled["main"])
            cpu = _target(json.dumps(target))
            _export(tvm.tirx.build(prefetch_weights(mod, cpu), target=cpu), unfinished, linker or shutil.which("ld"))
        sha256 = file_sha256(unfinished)
        os.replace(unfinished, library)
    finally:
        unfinished.unlink(missing_ok=True)
    return BuildResult(time.perf_counter() - start, sha256, prepacked, weight_arguments(scheduled), plan)


def compile_kernel(module_json: str, target: str, path: str) -> None:
    """Compile a lowered function of a network, which keeps its name, into the object file `path`, as `build` does.

    Args:
        target: as JSON.
    """
    import tvm

    cpu, mod = _target(target), cast("tvm.IRModule", tvm.ir.load_json(module_json))
    with cpu, tvm.transform.PassContext(opt_level=3):
        with_aligned_stack(tvm.tirx.build(mod, target=cpu)).write_to_file(path, "o")


def weight_arguments(mod: Any) -> tuple[int, ...]:
    """Return the positions of a task's arguments that are constants of its network, as Relax marks them."""
    return tuple(int(position) for position in (mod["main"].attrs or {}).get(WEIGHTS, ()))


def _prepack(func: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the part of a scheduled function that permutes weights, and the places of these among its arguments.

    Relax splits it off, as it does when a network is compiled.
    """
    from tvm import relax
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    infos: Any = ArgInfo.from_prim_func(func)
    tensor: Any = relax.TensorType
    types = [tensor([int(extent) for extent in info.shape], str(info.dtype)) for info in infos]
    builder: Any = relax.BlockBuilder()
    call: Any = relax.call_tir
    main = builder.add_func(func, "main")
    inputs = [relax.Var(f"input{i}", one) for i, one in enumerate(types[:-1])]
    with builder.function("network", inputs):
        builder.emit_func_output(builder.emit(call(main, inputs, types[-1])))
    split = relax.transform.SplitLayoutRewritePreproc()(builder.get())
    prepack = next(f for var, f in split.functions_items() if var.name_hint.endswith("_weight_prepack"))
    names = [str(param.name) for param in func.params]
    weights = prepack.params[: len(prepack.params) // 2]
    return prepack.with_attr("global_symbol", PREPACK), tuple(names.index(str(weight.name)) for weight in weights)


_ATTRIBUTES = re.compile(r"^(attributes #\d+ = \{ )", re.MULTILINE)


def with_aligned_stack(built: Any) -> Any:
    """Return compiled code for x86 whose functions align their stack frames; other modules as they are.

    LLVM learns that a function spills vectors when it has given the register that an aligned frame needs to something
    else, and then spills them at multiples of 16 bytes. In three processes of four they straddle cache lines: a matrix
    product took 455 us there and 270 us in the fourth.
    """
    import tvm

    if built.kind != "llvm":
        return built
    with tempfile.TemporaryDirectory(prefix="tchub-code-") as folder:
        path = Path(folder, "code.ll")
        built.write_to_file(str(path), "ll")
        text = path.read_text(encoding="utf-8")
        if 'target triple = "x86_64' not in text:
            return built
        path.write_text(_ATTRIBUTES.sub(r'\1"stackrealign" ', text), encoding="utf-8")
        return tvm.runtime.load_module(str(path))


def _export(built: Any, library: Path, linker: str | Sequence[str] | None) -> None:
    """Write a library, with `ld` itself where it can be: the driver that TVM calls costs a tenth of a second.

    What the kernel takes from libc and libm is resolved when it is loaded into this interpreter.
    """
    built = with_aligned_stack(built)
    if built.imports or built.kind != "llvm" or linker is None:
        built.export_library(str(library))
        return
    compiled = library.with_suffix(".o")
    try:
        built.write_to_file(str(compiled), "o")
        linked_by(linker)(str(library), [str(compiled)])
    finally:
        compiled.unlink(missing_ok=True)


def linked_by(linker: str | Sequence[str]) -> Callable[..., None]:
    """Return a function, as TVM's `export_library` takes one, that runs `LINKER -shared -o LIBRARY OBJECTS`."""
    command = [linker] if isinstance(linker, str) else linker

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        subprocess.run([*command, "-shared", "-o", output, *objects], check=True, capture_output=True)

    return link


def warm_compiler() -> None:
    """Compile a small program, so that forked workers need not set LLVM up (0.1 s each)."""
    import tvm
    from tvm import te

    a = te.placeholder((16,))
    b: Any = te.compute((16,), lambda i: a[i] + 1.0)
    func = te.create_prim_func([a, b])
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    # Without a linker that works, every program will say so itself; LLVM is set up before it is called.
    tolerated = contextlib.suppress(subprocess.CalledProcessError, RuntimeError, OSError)
    with tempfile.TemporaryDirectory() as folder, tolerated:
        build(tvm.ir.save_json(module), {"kind": "llvm"}, f"{folder}/warm.so")


# Loading --------------------------------------------------------------------------------------------


def open_library(path: Path | str, sha256: str | None) -> Any:
    """Return a compiled library as a TVM module. To load one is to run its code, and nothing else here does it.

    Raises a DeviceError where it has not the sha256 that was built, or that its user names by it.
    """
    import tvm

    if sha256 is not None and file_sha256(path) != sha256:
        raise DeviceError(f"{path} is not the library that was built: its sha256 differs", remedy="build it again")
    return tvm.runtime.load_module(str(path))


# Running --------------------------------------------------------------------------------------------

# Arguments of recent tasks stay, since the programs of a task take the same ones, up to this size.
_KEPT_BYTES = 256 << 20
_arguments: dict[str, tuple[int, list[Any]]] = {}


@dataclass(frozen=True)
class RunResult:
    """Result of running one program; no latencies where its output is `wrong`, which says how.

    Attributes:
        latencies: seconds a run, one entry a repeat.
        repeated: times that it was timed again because the machine was disturbed.
        disturbed: whether the machine was disturbed at the end too.
        bus_id: PCI bus address of the card that ran it.
    """

    latencies: list[float]
    seconds: float
    wrong: str | None = None
    repeated: int = 0
    disturbed: bool = False
    bus_id: str = ""


def _tensors(args_info: ArgsInfo) -> list[Any]:
    import tvm

    key = repr(args_info)
    if key not in _arguments:
        values = random_values(args_info)
        size = sum(contents.nbytes for contents in values)
        if size + sum(kept for kept, _ in _arguments.values()) > _KEPT_BYTES:
            _arguments.clear()
        _arguments[key] = size, [tvm.runtime.tensor(contents) for contents in values]
    return _arguments[key][1]


@lru_cache(maxsize=1)
def _watcher() -> tuple[DriftWatch, Callable[[], float]]:
    several = int(os.environ.get("TVM_NUM_THREADS", "1")) > 1
    return DriftWatch(), make_reference_kernel(sorted(os.sched_getaffinity(0)) if several else ())


def run(
    library: str,
    args_info: ArgsInfo,
    config: TimingConfig,
    best: float | None,
    reference: tuple[ArgsInfo, str] | None = None,
    built: BuildResult | None = None,
) -> RunResult:
    """Time a compiled program on random inputs; see `take_repeats`.

    Args:
        reference: the task's arguments and the file with its right outputs; None: not checked.
    """
    import tvm

    start = time.perf_counter()
    built = built or BuildResult()
    module = open_library(library, built.sha256)
    args = _tensors(args_info)
    wrong = None
    if reference is not None:
        wrong = _check(module, args, _tensors(reference[0]), built.prepacked, load_reference(reference[1]))
    if wrong is not None:
        _arguments.clear()  # it may have written its inputs
        return RunResult([], time.perf_counter() - start, wrong)
    watch, kernel = _watcher()
    measure = partial(time_kernel, module, args, tvm.cpu(), config, best)
    if config.weights and built.weights:
        turns = turns_of(args_info, args, built.weights, config.weights)
        measure = partial(time_in_turn, module["main"], turns, config, best)
    latencies, repeated, disturbed = measure_watched(measure, kernel, watch)
    return RunResult(latencies, time.perf_counter() - start, None, repeated, disturbed)


# Checking -------------------------------------------------------------------------------------------

# Wrong programs are wrong by far. A float32 sum of 25,000 terms in another order is off by a tenth of what is allowed,
# a half-precision one by up to 5%.
_ALLOWED_EPSILONS, _MOST = 4096.0, 0.05


def make_reference(library: str, sha256: str, args_info: ArgsInfo, path: str) -> int:
    """Run a task's unscheduled program once and write its outputs to `path`; returns how many there are."""
    import tvm

    before = random_values(args_info)
    args = [tvm.runtime.tensor(contents) for contents in before]
    open_library(library, sha256)["main"](*args)
    save_reference(path, before, [arg.numpy() for arg in args])
    return len(load_reference(path))


def save_reference(path: str, before: Sequence[Array], after: Sequence[Array]) -> None:
    """Write those arguments that a right program has changed to a file that `load_reference` reads."""
    changed = {i: a for i, (b, a) in enumerate(zip(before, after, strict=True)) if not np.array_equal(b, a)}
    # numpy's format has no name for the types of ml_dtypes.
    plain = {str(i): a.astype(np.float32) if a.dtype.kind == "V" else a for i, a in changed.items()}
    with Path(path).open("wb") as file:
        np.savez(file, **plain)  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def load_reference(path: str) -> dict[int, Array]:
    """Return right outputs by the number of the argument, kept in memory for the programs to come."""
    with np.load(path) as data:
        return {int(name): data[name] for name in data.files}


def _check(
    module: Any, args: Sequence[Any], inputs: Sequence[Any], prepacked: Sequence[int], right: Mapping[int, Array]
) -> str | None:
    """Return what is wrong with the outputs for a task's `inputs`; `args` have the shapes that the program takes."""
    if prepacked:
        module[PREPACK](*(inputs[i] for i in prepacked), *(args[i] for i in prepacked))
    inputs = [args[i] if i in prepacked else value for i, value in enumerate(inputs)]
    for argument in right:
        inputs[argument].copyfrom(np.zeros_like(inputs[argument].numpy()))  # what the program before left is right
    module["main"](*inputs)
    return complaint({argument: inputs[argument].numpy() for argument in right}, right)


def complaint(outputs: Mapping[int, Array], right: Mapping[int, Array]) -> str | None:
    """Return what is wrong with a program's outputs, or None."""
    for argument, values in right.items():
        allowed, distance = tolerance(outputs[argument].dtype), difference(outputs[argument], values)
        if distance > allowed:
            return f"argument {argument} is off by {distance:.2g} (allowed {allowed:.2g})"
    return None


def tolerance(dtype: np.dtype[Any]) -> float:
    """Return the largest relative difference of two right outputs of a dtype; 0 for integers."""
    if not _is_float(dtype):
        return 0.0
    from ml_dtypes import finfo

    return float(min(_MOST, _ALLOWED_EPSILONS * float(finfo(dtype).eps)))


def _is_float(dtype: np.dtype[Any]) -> bool:
    # numpy's floats, and those that ml_dtypes adds: bfloat16, and floats of 8 bits
    return np.issubdtype(dtype, np.floating) or (dtype.kind == "V" and "float" in dtype.name)


def difference(output: Array, right: Array) -> float:
    """Return the largest difference, relative to the right values and their mean size; inf where only one is finite."""
    if right.size == 0:
        return 0.0
    if not _is_float(right.dtype):
        return 0.0 if np.array_equal(output, right) else math.inf
    ours, theirs = output.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return math.inf
    ours, theirs = ours[finite], theirs[finite]
    if ours.size == 0:
        return 0.0
    size = np.abs(theirs)
    return float(np.max(np.abs(ours - theirs) / np.maximum(size + size.mean(), np.finfo(np.float64).tiny)))

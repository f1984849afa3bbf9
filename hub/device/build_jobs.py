"""Jobs of a worker that compile: a scheduled module into a library, a kernel of a network into an object file."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...zoo.files import file_sha256
from .candidate import WEIGHTS
from .cubin_cache import CubinCache
from .cuda_compile import compile_cuda

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

    The passes are those of stock's `LocalBuilder`, with `unrolled_sums`, `bounded_unrolling`, `prefetch_weights`,
    `saturating` and `with_tile_registers` before them. Where the schedule permutes weights, which the compiled network
    does once, the program takes them permuted. The write is atomic: a killed build leaves nothing that looks whole.

    Args:
        linker: for another architecture, with its options; None for this machine's own. For a card: `find_compiler`.
        code: for a card `cubin`, or `ptx`.
        cubins: for a card: of programs that were compiled before.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    from .code_lookups import with_lookups
    from .saturation import saturating
    from .tile_registers import with_tile_registers
    from .unrolling import bounded_unrolling, unrolled_sums  # imports TVM
    from .weight_prefetch import prefetch_weights

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
            mod = prefetch_weights(bounded_unrolling(unrolled_sums(mod)), cpu)
            mod = with_tile_registers(saturating(mod, cpu), int(target.get("num-cores", 1)))
            mod = with_lookups(mod, cpu)
            _export(tvm.tirx.build(mod, target=cpu), unfinished, linker or shutil.which("ld"))
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

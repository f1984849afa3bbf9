"""Compiling one scheduled module to a shared library, as stock MetaSchedule does, without the compiler driver."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=16)
def _target(text: str) -> Any:
    import tvm

    return tvm.target.Target(json.loads(text))


def build(module_json: str, target: dict[str, Any], library: str) -> float:
    """Compile a scheduled module into the shared library `library`; returns seconds.

    The passes are those of stock's `LocalBuilder`. The write is atomic: a killed build leaves no library that
    looks whole.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    start = time.perf_counter()
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module_json))
    built = tvm.tirx.build(mod, target=_target(json.dumps(target)))
    partial = Path(f"{library}.{os.getpid()}.so")
    try:
        _export(built, partial)
        os.replace(partial, library)
    finally:
        partial.unlink(missing_ok=True)
    return time.perf_counter() - start


def _export(built: Any, library: Path) -> None:
    """Write a library.

    With `ld` itself where it can be: the compiler driver that TVM calls costs a tenth of a second. What the kernel
    takes from libc and libm is resolved when it is loaded into this interpreter.
    """
    linker = _linker()
    if built.imports or built.kind != "llvm" or linker is None:
        built.export_library(str(library))
        return
    compiled = library.with_suffix(".o")
    try:
        built.write_to_file(str(compiled), "o")
        subprocess.run([linker, "-shared", "-o", str(library), str(compiled)], check=True, capture_output=True)
    finally:
        compiled.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _linker() -> str | None:
    return shutil.which("ld")


def warm_compiler() -> None:
    """Compile a small program, so that forked workers need not set LLVM up (0.1 s each)."""
    import tempfile

    import tvm
    from tvm import te

    a = te.placeholder((16,), name="a")
    b: Any = te.compute((16,), lambda i: a[i] + 1.0, name="b")
    func = te.create_prim_func([a, b])
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    # Without a linker that works, every program will say so itself; LLVM is set up before it is called.
    tolerated = contextlib.suppress(subprocess.CalledProcessError, RuntimeError, OSError)
    with tempfile.TemporaryDirectory() as folder, tolerated:
        build(tvm.ir.save_json(module), {"kind": "llvm"}, f"{folder}/warm.so")

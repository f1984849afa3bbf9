"""Compiling one program of a bundle, in a worker process (`tchub.hub.device.worker` runs these jobs)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .launch_plan import launch_plan
from .target import BundleTarget, find_linker

# nvcc warns of every unused variable that TVM leaves behind.
_NVCC = ("-O3", "-w", "-std=c++17")


def compile_program(module_json: str, target: BundleTarget, file: str) -> dict[str, Any]:
    """Compile a scheduled module for a bundle.

    Args:
        module_json: `tvm.ir.save_json` of the module.
        file: where the library, object, cubin or PTX goes; written atomically.

    Returns:
        for CUDA `plan`, see `launch_plan`; else nothing.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module_json))
    partial = Path(f"{file}.{os.getpid()}.partial")
    try:
        found = (_compile_cuda if target.device_kind == "cuda" else _compile_cpu)(mod, target, partial)
        os.replace(partial, file)
    finally:
        for rest in partial.parent.glob(f"{partial.name}*"):
            rest.unlink(missing_ok=True)
    return found


def _compile_cpu(mod: Any, target: BundleTarget, output: Path) -> dict[str, Any]:
    import tvm
    from tvm.driver import build

    built = build(mod, target=tvm.target.Target(target.target))
    objects = Path(f"{output}.o")
    built.write_to_file(str(objects), "o")
    if target.code == "object":
        os.replace(objects, output)
        return {}
    linker = find_linker(target.arch)
    assert linker is not None  # `resolve_target` found it
    # Symbols that nothing outside needs, and the time of the link, would make every archive larger and different.
    _run([linker, "-shared", "--build-id=none", "--strip-all", "-o", str(output), str(objects)])
    return {}


def _compile_cuda(mod: Any, target: BundleTarget, output: Path) -> dict[str, Any]:
    plan, source = cuda_source(mod, target)
    code, ptx = Path(f"{output}.cu"), Path(f"{output}.ptx")
    code.write_text(source)
    virtual = target.arch.replace("sm_", "compute_")
    _run(["nvcc", "-ptx", f"-arch={virtual}", *_NVCC, "-o", str(ptx), str(code)])
    if target.code == "ptx":
        os.replace(ptx, output)
    else:
        _run([assembler(), f"-arch={target.arch}", "-o", str(output), str(ptx)])
    return {"plan": plan}


def cuda_source(mod: Any, target: BundleTarget) -> tuple[dict[str, Any], str]:
    """The launch plan of a scheduled module, and the CUDA source of its kernels."""
    import tvm
    from tvm.tirx.build import split_host_device_mods

    made = tvm.target.Target({**target.target, "host": {"kind": "llvm"}})
    passes: Any = tvm.tirx.get_default_tir_pipeline(made)
    pipeline, _, finalize = passes
    lowered = pipeline(tvm.tirx.transform.BindTarget(made)(mod))
    host, devices = split_host_device_mods(lowered)
    ((device_target, device),) = devices.items()
    # TVM would compile the source at once where it finds a GPU's runtime; only the source is wanted.
    tvm.register_global_func("tvm_callback_cuda_compile", lambda _: b"", override=True)
    module = tvm.get_global_func("target.build.cuda")(finalize()(device), device_target)
    (entry,) = (function for _, function in host.functions_items())
    return launch_plan(entry), str(module.inspect_source())


def assembler() -> str:
    """The path of ptxas, which lies beside nvcc."""
    return shutil.which("ptxas") or str(Path(shutil.which("nvcc") or "nvcc").resolve().with_name("ptxas"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-1:]
        raise RuntimeError(f"{Path(command[0]).name} failed: {''.join(last)[:400]}")

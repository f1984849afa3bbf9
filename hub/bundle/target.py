"""The target of a bundle (a device of the zoo, this machine, or a target of TVM), and the compiling for it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...zoo.devices import UnknownDeviceError, get_device
from ...zoo.errors import TchubError
from ..device.cuda_compile import compile_cuda, find_nvcc, run_tool
from ..device.detect import detect_local
from ..device.device_choice import parse_target
from ..device.errors import DeviceError
from ..device.local_target import architecture_of
from ..device.onsite.files import OnsiteError
from ..device.onsite.tvm_runtime import find_libraries


class BundleError(TchubError):
    """A bundle, its target, its results or TVM's runtime libraries cannot be used. Fields: path, target, device."""


@dataclass(frozen=True)
class BundleTarget:
    """A target and how programs for it travel.

    Attributes:
        target: TVM's target as a dictionary.
        device: the device of the zoo that it is the target of; None where only a target was given.
        device_kind: `cpu` or `cuda`.
        code: `library`, `cubin` or `ptx`.
        arch: `x86_64` or `aarch64` for a CPU, `sm_90` and its like for a GPU.
        threads: threads of a program on a CPU.
    """

    target: dict[str, Any]
    device: str | None
    device_kind: str
    code: str
    arch: str
    threads: int = 1


def resolve_target(text: str, threads: int | None = None, code: str | None = None) -> BundleTarget:
    """The target of a name.

    Args:
        text: `local`, a device of `tchub devices`, or TVM's target as JSON.
        threads: threads of a program on a CPU, the target's `num-cores`; None for those of the device: this machine's
            physical cores that may be used, or the `num-cores` of its target, 1 where it names none.
        code: `cubin` (the default) or `ptx` for a GPU; None for a CPU, whose programs are libraries.

    Raises:
        BundleError: no such target, one that is neither LLVM's nor CUDA's, or its linker is missing.
        DeviceError: no nvcc.
    """
    target, device = _lookup(text, threads)
    if target.get("kind") == "cuda":
        return _cuda(target, device, code or "cubin")
    if target.get("kind") == "llvm":
        threads = threads or int(target.get("num-cores", 1))
        return _cpu({**target, "num-cores": threads}, device, threads)
    raise BundleError(
        f"bundles are built for llvm and cuda, not for {target.get('kind')!r}",
        remedy="name an x86-64, AArch64 or NVIDIA device",
        target=text,
    )


def _lookup(text: str, threads: int | None) -> tuple[dict[str, Any], str | None]:
    if text == "local":
        local = detect_local(threads)
        return dict(local.target), local.device.name
    try:
        device = get_device(text)
    except UnknownDeviceError as error:
        try:
            return dict(parse_target(text) or {}), None
        except DeviceError:
            raise BundleError(f"{error.message}, and it is no target", remedy=error.remedy, target=text) from error
    return dict(device.target), device.name


def _cuda(target: dict[str, Any], device: str | None, code: str) -> BundleTarget:
    arch = target.get("arch")
    if not arch or code not in ("cubin", "ptx"):
        raise BundleError(
            f"a CUDA bundle needs the target's arch and cubin or ptx, not {arch!r} and {code!r}",
            remedy='for example --target h200, or \'{"kind": "cuda", "arch": "sm_90", ...}\'',
            target=json.dumps(target),
        )
    find_nvcc()
    return BundleTarget(target, device, "cuda", code, str(arch))


def _cpu(target: dict[str, Any], device: str | None, threads: int) -> BundleTarget:
    arch = architecture_of(target)
    if arch not in ("x86_64", "aarch64"):
        raise BundleError(
            f"a CPU bundle is for x86_64 or aarch64, not for {arch!r}",
            remedy="for example --target graviton2",
            target=json.dumps(target),
        )
    if find_linker(arch) is None:
        raise BundleError(
            f"no linker for {arch} was found",
            remedy=f"install {arch}-linux-gnu-ld (Debian: binutils-{arch.replace('_', '-')}-linux-gnu) or ld.lld",
            target=json.dumps(target),
        )
    return BundleTarget(target, device, "cpu", "library", arch, threads)


def find_linker(arch: str) -> str | None:
    names = [f"{arch}-linux-gnu-ld", "ld.lld", *(["ld"] if arch == platform.machine() else [])]
    return next((name for name in names if shutil.which(name)), None)


def copy_runtime(folder: Path) -> list[Path]:
    """Copy TVM's ffi and runtime libraries of this installation into a folder; return the copies.

    Raises:
        BundleError: they are not installed, or cannot be written.
    """
    try:
        sources = [Path(path) for path in find_libraries(None)]
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy2(source, folder / source.name)) for source in sources]
    except OnsiteError as error:
        raise BundleError(str(error), remedy="install tchub with TVM: see `tchub doctor`") from error
    except OSError as error:
        raise BundleError(
            f"cannot copy TVM's runtime to {folder}: {error}", remedy="choose another folder", path=str(folder)
        ) from error


# Compiling, in a worker process (`tchub.hub.device.worker` runs these jobs) -------------------------------


def compile_program(module_json: str, target: BundleTarget, file: str) -> dict[str, Any]:
    """Compile a scheduled module for a bundle.

    Args:
        file: where the library, cubin or PTX goes; written atomically, and its outcome beside it.

    Returns:
        for CUDA `plan`, see `launch_plan`; else nothing.
    """
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module_json))
    partial = Path(f"{file}.{os.getpid()}.partial")
    try:
        if target.device_kind == "cuda":
            outcome = {"plan": compile_cuda(mod, target.target, partial, target.code)}
        else:
            outcome = _compile_cpu(mod, target, partial)
        os.replace(partial, file)
        partial.write_text(json.dumps(outcome))
        os.replace(partial, outcome_file(Path(file)))  # last: it says that the program is whole
    finally:
        for rest in partial.parent.glob(f"{partial.name}*"):
            rest.unlink(missing_ok=True)
    return outcome


def outcome_file(program: Path) -> Path:
    """Return the file that says that a program is compiled, with its launch plan."""
    return program.with_suffix(".json")


def _compile_cpu(mod: Any, target: BundleTarget, output: Path) -> dict[str, Any]:
    import tvm

    objects = Path(f"{output}.o")
    tvm.tirx.build(mod, target=tvm.target.Target(target.target)).write_to_file(str(objects), "o")
    # Symbols that nothing outside needs, and the time of the link, would make every archive larger and different.
    flags = ["-shared", "--build-id=none", "--strip-all"]
    run_tool([str(find_linker(target.arch)), *flags, "-o", str(output), str(objects)])
    return {}

"""The target of a bundle (a device of the zoo, this machine, or a target of TVM), and the compiling for it."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...zoo.devices import UnknownDeviceError, get_device
from ...zoo.errors import TchubError
from ..device.cuda_compile import find_compiler
from ..device.detect import detect_local
from ..device.device_choice import architecture_of, parse_target
from ..device.errors import DeviceError
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
        threads: of a program on a CPU.
    """

    target: dict[str, Any]
    device: str | None
    device_kind: str
    code: str
    arch: str
    threads: int = 1


def resolve_target(text: str, threads: int | None = None, code: str | None = None) -> BundleTarget:
    """Return the target of a name: `local`, a device of `tchub devices`, or TVM's target as JSON.

    Args:
        threads: of a program on a CPU, the target's `num-cores`; None for those of the device: this machine's physical
            cores that may be used, or the `num-cores` of its target, 1 where it names none.
        code: `cubin` (the default) or `ptx` for a GPU; None for a CPU, whose programs are libraries.

    Raises:
        BundleError: no such target, one that is neither LLVM's nor CUDA's, or its linker is missing.
        DeviceError: nothing compiles CUDA.
    """
    target, device = _lookup(text, threads)
    kind, wrong = target.get("kind"), f"bundles are built for llvm and cuda, not for {target.get('kind')!r}"
    resolved = None
    if kind == "cuda":
        arch, code = target.get("arch"), code or "cubin"
        wrong = f"a CUDA bundle needs the target's arch and cubin or ptx, not {arch!r} and {code!r}"
        if arch and code in ("cubin", "ptx"):
            resolved = BundleTarget(target, device, "cuda", code, str(arch))
    elif kind == "llvm":
        arch, threads = architecture_of(target), threads or int(target.get("num-cores", 1))
        wrong = f"a CPU bundle is for x86_64 or aarch64, not for {arch!r}"
        if arch in ("x86_64", "aarch64"):
            resolved = BundleTarget({**target, "num-cores": threads}, device, "cpu", "library", arch, threads)
    if resolved is None:
        remedy = 'for example --target h200, graviton2, or \'{"kind": "cuda", "arch": "sm_90", ...}\''
        raise BundleError(wrong, remedy=remedy, target=json.dumps(target))
    compiler_of(resolved)
    return resolved


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


def compiler_of(target: BundleTarget) -> str | tuple[str, ...]:
    """Return what compiles CUDA, or the command that links a CPU's programs; an error where there is none."""
    if target.device_kind == "cuda":
        return find_compiler()
    arch = target.arch
    names = [f"{arch}-linux-gnu-ld", "ld.lld", *(["ld"] if arch == platform.machine() else [])]
    linker = next((name for name in names if shutil.which(name)), None)
    if linker is None:
        raise BundleError(
            f"no linker for {arch} was found",
            remedy=f"install {arch}-linux-gnu-ld (Debian: binutils-{arch.replace('_', '-')}-linux-gnu) or ld.lld",
            target=json.dumps(target.target),
        )
    # Symbols that nothing outside needs, and the time of the link, would make every archive larger and different.
    return linker, "--build-id=none", "--strip-all"


def copy_runtime(folder: Path) -> list[Path]:
    """Copy TVM's ffi and runtime libraries of this installation into a folder; return the copies."""
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

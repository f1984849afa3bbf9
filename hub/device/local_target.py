"""This machine with a target of the user's: what its programs may use, and whether this CPU can run them."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

from ...zoo.errors import last_line
from .detect import LocalDevice
from .errors import DeviceError
from .host_facts import HostFacts

# LLVM names the extensions of a CPU, its habits of tuning, and what only the system uses; these begin an extension
# that compiled programs may use.
_EXTENSIONS = {
    "x86_64": (
        *("sse", "ssse", "avx", "amx", "fma", "f16c", "bmi", "popcnt", "lzcnt", "movbe", "gfni", "vaes", "vpclmul"),
        *("cx16", "xop"),
    ),
    "aarch64": ("neon", "dotprod", "fullfp16", "i8mm", "bf16", "sve", "sme"),
}
# AVX10 repeats what AVX-512 has names for, and systems list it in other ways.
_NOT_LISTED = ("avx10",)
# Where the system's word for an extension is another than LLVM's.
_SYSTEM_WORDS = {
    **{"sse3": "pni", "lzcnt": "abm", "bmi": "bmi1"},
    **{"neon": "asimd", "dotprod": "asimddp", "fullfp16": "fphp"},
}
_SIMD_BYTES = (("avx512f", 64.0), ("avx", 32.0), ("sse2", 16.0), ("neon", 16.0))
_OTHER_TARGET = 'give a level such as x86-64-v2, or JSON such as {"kind": "llvm", "mcpu": "x86-64-v3"}'


def architecture_of(target: dict[str, Any]) -> str:
    """Return e.g. `aarch64`: by the target's triple, this machine's where it has none."""
    triple = target.get("mtriple")
    return str(triple).partition("-")[0] if triple else platform.machine()


def with_target(local: LocalDevice, target: dict[str, Any], facts: HostFacts) -> LocalDevice:
    """This machine as programs for a target see it.

    Its SIMD width and its extensions are those that LLVM may use for the target; all else stays as measured, and
    num-cores is that of `local`, so that a target of another machine's cores can be named too.

    Args:
        facts: of this machine; without flags nothing is known to be missing.

    Raises:
        DeviceError: no target of LLVM's, another architecture's, or one with extensions that this CPU lacks.
    """
    chosen = {**({"mtriple": local.target["mtriple"]} if "mtriple" in local.target else {}), **target}
    chosen["num-cores"] = local.cores
    extensions = _extensions(chosen)
    if missing := missing_extensions(chosen, facts):
        raise DeviceError(
            f"programs for {_name(chosen)} may use {', '.join(missing)}, which this CPU lacks",
            remedy=_OTHER_TARGET + "; or measure on a machine that has them, with --device rpc://HOST:PORT/KEY",
            target=chosen,
            missing=missing,
        )
    kept = {_plain(name) for name in extensions} | set(extensions.values())
    width = next((bytes_ for name, bytes_ in _SIMD_BYTES if name in extensions), None)
    spec = local.device.spec
    if width is not None:
        spec = spec.with_values({"simd_bytes": width}, f"the target's: {_name(chosen)}")
    why = f"target {_name(chosen)}: asked for" + (f", {8 * width:.0f}-bit vectors" if width else "")
    return replace(
        local,
        device=replace(local.device, target=chosen, spec=spec),
        isa=tuple(flag for flag in local.isa if _plain(flag) in kept),
        mcpu=_name(chosen),
        target=chosen,
        reasons=(*local.reasons, why),
    )


def missing_extensions(target: dict[str, Any], facts: HostFacts) -> list[str]:
    """Return the instruction-set extensions that programs for a target may use and this CPU lacks.

    Args:
        facts: of this machine; without flags nothing is known to be missing.

    Raises:
        DeviceError: no target of LLVM's, or another architecture's.
    """
    extensions = _extensions(target)
    flags = {_plain(flag) for flag in facts.flags}
    return sorted(name for name in extensions if flags and not {_plain(name), extensions[name]} & flags)


def cpu_target(name: str) -> dict[str, Any] | None:
    """The target of a CPU or level that LLVM knows for this architecture, e.g. `x86-64-v2`; None for no such name."""
    from tvm.target import codegen

    if not codegen.llvm_version_major(allow_none=True):
        return None
    known = codegen.llvm_is_valid_cpu(name, str(codegen.llvm_get_system_triple()))
    return {"kind": "llvm", "mcpu": name} if known else None


def _extensions(target: dict[str, Any]) -> dict[str, str]:
    """Return the extensions that LLVM may use for a target: its names, and the system's names for them."""
    import tvm
    from tvm.target import codegen

    if target.get("kind") != "llvm":
        raise _refused(target, f"{target.get('kind')!r} is no kind of program that this CPU runs")
    architecture = architecture_of(target)
    if architecture != platform.machine():
        raise _refused(target, f"the target is for {architecture}, and this machine is {platform.machine()}")
    triple = str(target.get("mtriple") or codegen.llvm_get_system_triple())
    if "mcpu" in target and not codegen.llvm_is_valid_cpu(str(target["mcpu"]), triple):
        raise _refused(target, f"LLVM knows no CPU {target['mcpu']!r} of {architecture}")
    try:
        features = codegen.llvm_get_cpu_features(tvm.target.Target(target))
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise _refused(target, f"TVM does not take the target: {last_line(error)}") from error
    begins = _EXTENSIONS.get(architecture, ())
    names = [name for name in map(str, features) if name.startswith(begins) and not name.startswith(_NOT_LISTED)]
    return {name: _plain(_SYSTEM_WORDS.get(name, name)) for name in names}


def _plain(name: str) -> str:
    """A name without the marks that LLVM and the system set differently: sse4.2 and sse4_2, avx512bf16."""
    return name.translate(str.maketrans("", "", "._-"))


def _name(target: dict[str, Any]) -> str:
    return str(target.get("mcpu", "generic"))


def _refused(target: dict[str, Any], why: str) -> DeviceError:
    return DeviceError(why, remedy=_OTHER_TARGET, target=target, missing=[])

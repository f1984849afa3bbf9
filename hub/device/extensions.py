"""Instruction-set extensions: those that programs for a target may use, and those that this CPU has."""

import platform
from typing import Any

from ...zoo.errors import last_line
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
# AVX10 repeats what AVX-512 has names for, and systems list it in other ways; Linux leaves the others out of its list.
_NOT_LISTED = ("avx10", "amx-fp16", "amx-complex", "avxifma", "avxneconvert", "avxvnniint8", "avxvnniint16")
# What LLVM's extensions give a core: vector registers, and floats of one.
_REGISTERS = (("avx512f", (32, 16)), ("avx", (16, 8)), ("sse", (16, 4)), ("neon", (32, 4)))
# Where the system's word for an extension is another than LLVM's.
_SYSTEM_WORDS = {
    **{"sse3": "pni", "lzcnt": "abm", "bmi": "bmi1"},
    **{"neon": "asimd", "dotprod": "asimddp", "fullfp16": "fphp"},
}
# LLVM's names of CPUs, of which one describes a CPU that hides its number or extensions; newest first.
_LEVELS = {
    "x86_64": (
        *("sapphirerapids", "icelake-server", "cascadelake", "skylake-avx512"),
        *("x86-64-v3", "x86-64-v2", "x86-64"),
    ),
    "aarch64": ("neoverse-v2", "neoverse-v1", "neoverse-n1", "generic"),
}
OLD_CPU = {"aarch64": "cortex-a72"}.get(platform.machine(), "x86-64-v2")
"""LLVM's name of a CPU or level of this architecture, whose programs other CPUs run too."""
OTHER_TARGET = f'give a CPU or level such as {OLD_CPU}, or JSON such as {{"kind": "llvm", "mcpu": "{OLD_CPU}"}}'


def architecture_of(target: dict[str, Any]) -> str:
    """Return e.g. `aarch64`: by the target's triple, this machine's where it has none."""
    triple = target.get("mtriple")
    return str(triple).partition("-")[0] if triple else platform.machine()


def cpu_name(named: str, facts: HostFacts) -> tuple[str, str]:
    """Return LLVM's name of this CPU, and why it is that.

    LLVM goes by the CPU's number alone, and a virtual machine may show another's number, or hide extensions. Where
    another name has more of the extensions that this CPU has, or `named` has some that it lacks, the other is taken.
    """
    architecture = platform.machine()
    listed = {
        name: extensions_of({"kind": "llvm", "mcpu": name, "mtriple": f"{architecture}-linux-gnu"})
        for name in (named, *_LEVELS.get(architecture, ()))
    }
    fitting = {name: len(extensions) for name, extensions in listed.items() if not _missing(extensions, facts)}
    best = max(fitting, key=lambda name: fitting[name], default=named)  # the first of those with as many
    if best == named or not facts.flags:
        return named, "LLVM's name of this CPU"
    return best, f"this CPU's extensions are not those of {named}, which is LLVM's name of its number"


def missing_extensions(target: dict[str, Any], facts: HostFacts) -> list[str]:
    """Return the extensions that programs for a target may use and this CPU lacks; none where its flags are unknown.

    A target that is not LLVM's, or another architecture's, is a DeviceError.
    """
    return _missing(extensions_of(target), facts)


def extensions_of(target: dict[str, Any]) -> dict[str, str]:
    """Return the extensions that LLVM may use for a target: its names, and the system's names for them."""
    import tvm
    from tvm.target import codegen

    if target.get("kind") != "llvm":
        raise _refused(f"{target.get('kind')!r} is no kind of program that this CPU runs")
    architecture = architecture_of(target)
    if architecture != platform.machine():
        raise _refused(f"the target is for {architecture}, and this machine is {platform.machine()}")
    triple = str(target.get("mtriple") or codegen.llvm_get_system_triple())
    if "mcpu" in target and not codegen.llvm_is_valid_cpu(str(target["mcpu"]), triple):
        raise _refused(f"LLVM knows no CPU {target['mcpu']!r} of {architecture}")
    try:
        features = codegen.llvm_get_cpu_features(tvm.target.Target(target))
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise _refused(f"TVM does not take the target: {last_line(error)}") from error
    begins = _EXTENSIONS.get(architecture, ())
    names = [name for name in map(str, features) if name.startswith(begins) and not name.startswith(_NOT_LISTED)]
    return {name: plain_name(_SYSTEM_WORDS.get(name, name)) for name in names}


def is_x86(target: Any) -> bool:
    """Return whether a `tvm.target.Target` of a CPU is one of x86-64; one without a triple is this machine's."""
    from tvm.target import codegen

    return str(target.attrs.get("mtriple", "") or codegen.llvm_get_system_triple()).startswith("x86_64")


def vector_registers(target: Any) -> tuple[int, int] | None:
    """Return how many vector registers a CPU has, and the floats of one; None where its target says neither."""
    from tvm.target import codegen

    if target.kind.name != "llvm":
        return None
    features = codegen.llvm_get_cpu_features(target)
    return next((registers for extension, registers in _REGISTERS if extension in features), None)


def vector_lanes(target: Any) -> int:
    """Return the floats of a CPU's vector register, of AVX-512's where its target says none."""
    return (vector_registers(target) or (0, 16))[1]


def _missing(extensions: dict[str, str], facts: HostFacts) -> list[str]:
    flags = {plain_name(flag) for flag in facts.flags}
    return sorted(name for name, word in extensions.items() if flags and not {plain_name(name), word} & flags)


def plain_name(name: str) -> str:
    """Return a name without the marks that LLVM and the system set differently: sse4.2 and sse4_2, avx512bf16."""
    return name.translate(str.maketrans("", "", "._-"))


def _refused(why: str) -> DeviceError:
    return DeviceError(why, remedy=OTHER_TARGET)

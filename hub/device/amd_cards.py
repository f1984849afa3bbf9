"""AMD's cards: which this machine has, and what the TVM that is installed can do for them. tchub measures on none."""

from __future__ import annotations

import re
from pathlib import Path

from ...zoo.devices import list_devices
from .errors import DeviceError

ROCM = "rocm"
KFD = Path("/sys/class/kfd/kfd/topology/nodes")
REMEDY = (
    "measure on an NVIDIA card or a CPU (--device cuda or cpu); programs that were measured on AMD's cards elsewhere "
    "can be imported (`tchub corpus import`), trained on, and adapted to (`tchub adapt --corpus`)"
)


def amd_cards(root: Path = KFD) -> list[str]:
    """Return the architectures of AMD's cards, e.g. `gfx906`, in the order of the kernel's driver."""
    texts = (file.read_text(encoding="utf-8") for file in sorted(root.glob("*/properties")))
    versions = (re.search(r"^gfx_target_version (\d+)", text, re.MULTILINE) for text in texts)
    # 90006 is gfx906, 110001 gfx1101, 90010 gfx90a; a CPU has 0.
    numbers = (int(match[1]) for match in versions if match and match[1] != "0")
    return [f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}" for number in numbers]


def describe_amd(arch: str, *, ask_tvm: bool = True) -> str:
    """Return in a sentence what a card of an architecture is, what TVM can do for it, and what is lacking.

    Args:
        ask_tvm: whether TVM may be imported, which is asked for its code generator, LLVM, linker and runtime.
    """
    sheets = [device.name for device in list_devices("gpu") if device.target.get("mcpu") == arch]
    known = f"{arch} of AMD ({', '.join(sheets) or 'no spec sheet'})"
    if not ask_tvm:
        return f"{known}: tchub measures on no card of AMD"
    import tvm
    from tvm.support.rocm import find_lld
    from tvm.target import codegen

    release = codegen.llvm_version_major(allow_none=True)
    generated = tvm.get_global_func("target.build.rocm", allow_missing=True) is not None
    if generated and release and codegen.llvm_is_valid_cpu(arch, "amdgcn-amd-amdhsa"):
        able = f"TVM's LLVM {release} has code for it"
        linker = next(iter(find_lld(required=False)), None)
        able += f", and {linker} links it" if linker else ", but no ld.lld is here to link it"
    else:
        able = "TVM has no code for it" if not generated else f"TVM's LLVM {release} knows no {arch}"
    runs = tvm.get_global_func("device_api.rocm", allow_missing=True) is not None
    runtime = "has a runtime for AMD's cards, which tchub does not use" if runs else "has no runtime for AMD's cards"
    return f"{known}: {able}; it {runtime}, and tchub measures on none"


def refuse_amd(number: int, root: Path = KFD) -> DeviceError:
    """Return the error of `--device rocm:NUMBER`."""
    cards = amd_cards(root)
    if number >= len(cards):
        problem = f"the kernel's driver shows {len(cards)} cards of AMD, and number {number} was asked for (from 0)"
        return DeviceError(problem, remedy=f"see {root} and `tchub doctor`; or {REMEDY}")
    return DeviceError(f"{ROCM}:{number} cannot be measured on: {describe_amd(cards[number])}", remedy=REMEDY)

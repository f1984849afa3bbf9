"""AMD's cards: which this machine has, and what the TVM that is installed can do for them. tchub measures on none."""

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
    """Return in a sentence what a card of an architecture is, and what TVM, where it may be imported, lacks for it."""
    sheets = [device.name for device in list_devices("gpu") if device.target.get("mcpu") == arch]
    known = f"{arch} of AMD ({', '.join(sheets) or 'no spec sheet'})"
    if not ask_tvm:
        return f"{known}: tchub measures on no card of AMD"
    import tvm
    from tvm.support.rocm import find_lld
    from tvm.target import codegen

    release = codegen.llvm_version_major(allow_none=True)
    parts = {
        "code for AMD's cards": tvm.get_global_func("target.build.rocm", allow_missing=True),
        f"{arch} in its LLVM": release and codegen.llvm_is_valid_cpu(arch, "amdgcn-amd-amdhsa"),
        "a linker (ld.lld)": find_lld(required=False),
        "a runtime for AMD's cards": tvm.get_global_func("device_api.rocm", allow_missing=True),
    }
    has, lacks = (", ".join(name for name, part in parts.items() if bool(part) is there) for there in (True, False))
    return f"{known}: TVM has {has or 'nothing for it'} and lacks {lacks or 'nothing'}; tchub measures on none"


def refuse_amd(number: int, root: Path = KFD) -> DeviceError:
    """Return the error of `--device rocm:NUMBER`."""
    cards = amd_cards(root)
    if number >= len(cards):
        problem = f"the kernel's driver shows {len(cards)} cards of AMD, and number {number} was asked for (from 0)"
        return DeviceError(problem, remedy=f"see {root} and `tchub doctor`; or {REMEDY}")
    return DeviceError(f"{ROCM}:{number} cannot be measured on: {describe_amd(cards[number])}", remedy=REMEDY)

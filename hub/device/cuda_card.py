"""NVIDIA cards of this machine: which one `--device cuda:N` is, its TVM target, and the spec sheet that fits it."""

import re
from dataclasses import replace
from typing import Any

from ...zoo.devices import Device, distance, get_device, list_devices
from .cuda_compile import check_compiler, find_compiler
from .detect import LocalDevice, match_gpu, stand_in
from .errors import DeviceError
from .onsite.cuda import CudaDriver
from .onsite.files import OnsiteError

CUDA = "cuda"
# Ordinary cores of a multiprocessor by compute capability; of later ones 128 are taken for granted.
_CORES = {(3, 5): 192, (3, 7): 192, (6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_MODES = {2: "no programs (compute mode prohibited)", 3: "one process only (compute mode exclusive)"}
_NO_CARD = "run `nvidia-smi`; without a card, measure on the CPU (--device local), or send a bundle (`tchub bundle`)"


def card_number(text: str, kind: str = CUDA) -> int | None:
    """Return the number of a card in `cuda` or `cuda:1`; None for another device."""
    match = re.fullmatch(rf"{kind}(?::(\d+))?", text)
    return int(match[1] or 0) if match else None


def card_count() -> int:
    """Return how many cards the driver shows to this process; 0 without a driver."""
    try:
        return CudaDriver(context=False).count
    except OnsiteError:
        return 0


def describe_card(number: int) -> LocalDevice:
    """Return a card of this machine; asks its driver, and takes nothing of the card.

    The spec sheet is that of the card where the zoo has it; else the nearest one's, with what the driver says put in.
    A DeviceError says what forbids tuning on it: no driver or card, its mode, a slice (MIG), or nvcc.
    """
    try:
        driver = CudaDriver(number=number, context=False)
        facts, card = driver.facts(), driver.card()
    except OnsiteError as error:
        raise DeviceError(f"{CUDA}:{number} cannot be used: {error}", remedy=_NO_CARD) from error
    name = facts["gpu"]
    if " MIG " in f" {name} ":
        raise DeviceError(
            f"{CUDA}:{number} is a slice of a card ({name}), whose latencies are those of no known device",
            remedy=f"turn slicing off (nvidia-smi -i {number} -mig 0), or name another card",
        )
    if mode := _MODES.get(card["mode"]):
        raise DeviceError(
            f"{CUDA}:{number} ({name}) takes {mode}, and tuning needs two processes there",
            remedy=f"nvidia-smi -i {number} -c DEFAULT",
        )
    check_compiler(find_compiler(), facts["arch"], facts["cuda_driver"])
    device, reason = _sheet(name, facts, card)
    # MetaSchedule's rules and its check of GPU code read the limits.
    device = replace(device, target={"kind": CUDA, "arch": facts["arch"], **card["limits"]})
    return LocalDevice(
        device=device,
        cpu_model=name,
        exact=device.name == match_gpu(name),
        reasons=(reason, f"{facts['arch']}, {facts['memory_gib']} GiB, driver for CUDA {facts['cuda_driver']}"),
    )


def _sheet(name: str, facts: dict[str, Any], card: dict[str, Any]) -> tuple[Device, str]:
    """Return the spec sheet of a card, and why it is this one."""
    known = match_gpu(name)
    if known is not None:
        return get_device(known), f"{known}: the driver calls the card {name}"
    major, minor = divmod(int(facts["arch"].removeprefix("sm_")), 10)
    cores = facts["multiprocessors"] * _CORES.get((major, minor), 128)
    values = {
        "cuda_cores": cores,
        "boost_mhz": facts["clock_mhz"],
        "memory_clock_mhz": card["memory_mhz"],
        "memory_gib": facts["memory_gib"],
        "memory_bus_bits": card["bus_bits"],
        "memory_bandwidth_gbs": 2 * card["memory_mhz"] * card["bus_bits"] / 8000,
        "fp32_tflops": 2 * cores * facts["clock_mhz"] / 1e6,
    }
    values, source = {key: value for key, value in values.items() if value > 0}, "measured: the CUDA driver"
    cards = [one for one in list_devices("gpu") if one.target["kind"] == CUDA]
    blank = replace(cards[0], name=name, family=name, spec=cards[0].spec.with_values(values, source))
    near = min(cards, key=lambda one: distance(blank, one).gap)
    return stand_in(near, name, values, source), f"no spec sheet for {name}; nearest: {near.name}"

"""Preflight checks as data: will tchub work on this machine, and are its measurements worth something?"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np

from ..registry.store import cache_root, home_root
from .card_state import AMD_REMEDY, KFD, LEAST_BYTES, amd_cards, card_state, describe_amd
from .cuda_card import card_count, describe_card
from .cuda_compile import NVRTC, TENSOR_CORES, compute_capability, find_compiler
from .detect import LocalDevice, detect_local
from .errors import DeviceError
from .host_facts import usable_cpus
from .onsite.cuda import CudaDriver
from .pool import COMPILERS
from .timing import product_kernel

PINNED = {"apache-tvm": "tvm", "apache-tvm-ffi": "tvm_ffi"}
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_NOISE, _BUSY, _STOLEN = 0.05, 0.25, 0.02  # shares from which on a machine is too restless
_DISK_WARN_GIB, _DISK_FAIL_GIB = 5, 0.5

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """One check: what was found, and what to do where it is not ok; `warn` where it works, but worse."""

    name: str
    status: Status
    value: str
    remedy: str | None = None


def _judged(name: str, value: str, remedy: str, *, warn: bool = False, fail: bool = False) -> Check:
    status: Status = "fail" if fail else "warn" if warn else "ok"
    return Check(name, status, value, None if status == "ok" else remedy)


def run_checks() -> Iterator[Check]:
    """Run all checks, in the order of what depends on what; they take some seconds."""
    yield Check("python", "ok", ".".join(map(str, sys.version_info[:3])))
    pins = {}  # exact versions that tchub's own metadata asks for, by package
    for requirement in metadata.requires("tchub") or []:
        if match := re.match(r"([\w.-]+)==([\w.]+)$", requirement.split(";")[0].strip()):
            pins[match[1].lower()] = match[2]
    versions = [check_version(package, pins.get(package)) for package in PINNED]
    yield from versions
    sound = all(check.status == "ok" for check in versions)
    llvm = [check_llvm()] if sound else []
    yield from llvm
    yield check_compiler()
    local = detect_local(ask_llvm=sound)  # a TVM that does not fit its ffi is not imported: it may crash
    yield check_device(local, ask_llvm=any(check.status == "ok" for check in llvm))
    cores = f"{usable_cpus()} usable of {os.cpu_count()}"
    yield _judged("cores", cores, "with one, compiling disturbs measuring: allow two or more", warn=usable_cpus() < 2)
    yield check_business(*watch_business())
    yield check_noise(*measure_spread())
    yield check_governor()
    yield check_disk(cache_root())
    yield check_disk(Path(tempfile.gettempdir()), "temporary files", "TMPDIR")
    yield check_writable("cache", cache_root(), "TCHUB_CACHE")
    yield check_writable("adapted checkpoints", home_root(), "TCHUB_HOME")
    yield from check_cards(len(local.gpus))
    yield from check_amd(ask_tvm=sound)


def check_version(package: str, pin: str | None) -> Check:
    """Check that a package is installed, of the pinned version, and importable."""
    remedy = f"pip install '{package}=={pin}'" if pin else f"pip install {package}"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Check(package, "fail", "not installed", remedy)
    if pin is not None and version != pin:
        return Check(package, "fail", f"{version}, but tchub needs {pin}", remedy)
    try:
        importlib.import_module(PINNED.get(package, package))
    except (ImportError, OSError, RuntimeError) as error:
        return Check(package, "fail", f"{version} does not import: {error}", remedy)
    return Check(package, "ok", f"{version} (pinned)" if pin else version)


def check_llvm() -> Check:
    """Check that TVM has LLVM, without which no CPU program can be compiled."""
    from tvm.target import codegen

    version = codegen.llvm_version_major(allow_none=True)
    if version is None:
        return Check("llvm", "fail", "TVM was built without LLVM", "install the apache-tvm wheel that tchub pins")
    return Check("llvm", "ok", f"{version}, CPU {codegen.llvm_get_system_cpu()}")


def check_compiler() -> Check:
    """Check that a compiler links a shared library: TVM calls it for every program."""
    remedy = "install one, e.g. `apt install g++`, or set CXX to one"
    asked = os.environ.get("CXX") or os.environ.get("CC")
    path = asked or next((p for name in COMPILERS if (p := shutil.which(name))), None)
    if path is None:
        return Check("compiler", "fail", f"none of {', '.join(COMPILERS)} found", remedy)
    with tempfile.TemporaryDirectory(prefix="tchub-doctor-") as folder:
        source, output = Path(folder, "t.cc"), Path(folder, "t.so")
        source.write_text('extern "C" int tchub_doctor(void) { return 7; }\n', encoding="utf-8")
        if (why := _why_not(path, "-shared", "-fPIC", "-o", str(output), str(source))) is not None:
            return Check("compiler", "fail", f"{path} cannot link a shared library: {why}", remedy)
        # In a process of its own, which may crash.
        call = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).tchub_doctor() != 7)"
        if (why := _why_not(sys.executable, "-c", call, str(output))) is not None:
            what = f"a program that was compiled in {tempfile.gettempdir()} cannot be loaded: {why}"
            return Check("compiler", "fail", what, "set TMPDIR to a folder whose disk is not mounted noexec")
    return Check("compiler", "ok", path)


def _why_not(*command: str) -> str | None:
    """Run a command; return why it failed, with its last words, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else None


def check_device(local: LocalDevice, ask_llvm: bool = True) -> Check:
    """Check that this machine is a known device.

    Args:
        ask_llvm: name the instruction by which its programs multiply numbers of 8 bits, which depends on TVM's LLVM.
    """
    value = f"{local.device.name} ({local.cpu_model}), mcpu {local.mcpu}"
    value += ", --precision bfloat16" if {"amx_bf16", "avx512_bf16"} <= set(local.isa) else ""
    if ask_llvm:
        from tvm.target import Target

        from .tile_registers import byte_factors

        if of_bytes := byte_factors(Target(local.target)):
            names = {0: "AMX", 4: "SDOT"}
            value += f", 8 bits by {names.get(of_bytes[0].lanes, 'VNNI')}"
    remedy = "no spec sheet for this CPU: adapt a checkpoint before you trust it"
    return _judged("device", value, remedy, warn=not local.exact)


def watch_business(seconds: float = 0.5) -> tuple[float, float, float]:
    """Return the shares of the CPUs' time that are taken, and given to others by the hypervisor, and the load a CPU."""
    import psutil

    share = psutil.cpu_times_percent(seconds)
    stolen = getattr(share, "steal", 0.0)
    busy = max(0.0, 100.0 - share.idle - getattr(share, "iowait", 0.0) - stolen)
    return busy / 100, stolen / 100, os.getloadavg()[0] / usable_cpus()


def check_business(busy: float, stolen: float, load: float) -> Check:
    """Check that nobody else runs on the cores that are to measure."""
    value = f"{busy:.0%} busy, {stolen:.1%} stolen, load {load:.2f} per core"
    if stolen > _STOLEN:
        return Check("neighbours", "warn", value, "the host gives time to others: measure at another hour")
    remedy = "stop what else runs here before measuring"
    return _judged("neighbours", value, remedy, warn=busy > _BUSY or load > 1)


def measure_spread(repeats: int = 30) -> tuple[float, float]:
    """Return how far repeats of a matrix product are from their median: the median and the 90th percentile."""
    kernel = product_kernel(160)
    seconds = np.array([kernel() for _ in range(3 + repeats)][3:])
    p50, p90 = np.percentile(np.abs(seconds / np.median(seconds) - 1), [50, 90])
    return float(p50), float(p90)


def check_noise(p50: float, p90: float) -> Check:
    """Check that repeats of one kernel agree."""
    value = f"repeats differ by {p50:.1%} (median), {p90:.1%} (90th percentile)"
    remedy = "quieten the machine, or expect more repeats a program"
    return _judged("clock noise", value, remedy, warn=p90 > _NOISE)


def check_governor(path: Path = GOVERNOR) -> Check:
    """Check that the clock does not wander; virtual machines do not say."""
    governor = path.read_text(encoding="utf-8").strip() if path.is_file() else "not reported by this system"
    remedy = "set it to performance: `cpupower frequency-set -g performance`"
    return _judged("governor", governor, remedy, warn=governor in ("powersave", "ondemand", "conservative"))


def check_disk(path: Path, name: str = "disk", variable: str = "TCHUB_CACHE") -> Check:
    """Check the room for checkpoints and journals, or for the programs that are compiled."""
    existing = next(p for p in (path, *path.resolve().parents) if p.exists())
    free = shutil.disk_usage(existing).free / 2**30
    value, remedy = f"{free:.1f} GiB free for {path}", f"free some space, or set {variable} to a larger disk"
    return _judged(name, value, remedy, warn=free < _DISK_WARN_GIB, fail=free < _DISK_FAIL_GIB)


def check_writable(name: str, path: Path, variable: str) -> Check:
    """Check that a folder can be made and written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".doctor-") as file:
            file.write(b"tchub")
            file.flush()
    except OSError as error:
        reason = error.strerror or str(error)
        return Check(name, "fail", f"{path} cannot be written: {reason}", f"set {variable} to a folder you may write")
    return Check(name, "ok", str(path))


def check_cards(known: int) -> Iterator[Check]:
    """Check that programs can be compiled for each NVIDIA card and measured on it; none is no fault.

    `known` cards are those of the system, whether or not CUDA's driver shows them.
    """
    count = card_count()
    if not count:
        value = f"CUDA's driver shows none of {known} cards" if known else "none found (none is needed)"
        remedy = "see CUDA_VISIBLE_DEVICES and `nvidia-smi`; MIG without an instance hides a card (nvidia-smi -mig 0)"
        yield _judged("gpu", value, remedy, warn=known > 0)
    for number in range(count):
        try:
            card = describe_card(number)
        except DeviceError as error:
            yield Check("gpu", "warn", error.message, error.remedy)
        else:
            known_as = card.device.name if card.exact else f"no spec sheet, nearest: {card.family}"
            compiler = "NVRTC" if (path := find_compiler()) == NVRTC else path
            value = f"{card.cpu_model} ({known_as}), {card.mcpu}, compiled by {compiler}: --device cuda:{number}"
            tensor_cores = compute_capability(card.target) >= TENSOR_CORES
            value += ", --precision float16" if tensor_cores else "; no tensor cores: float32 alone"
            yield Check("gpu", "ok", value)
            yield check_card_state(number)


def check_card_state(number: int) -> Check:
    """What a card does now, and whether anybody else uses it."""
    if (state := card_state(CudaDriver(number=number, context=False).bus_id)) is None:
        remedy = "pip install 'tchub[cuda]': NVML says why a card slows down"
        return Check(f"cuda:{number}", "warn", "clocks and power are unknown: no NVML", remedy)
    value = f"{state}, {state.processes} processes" if state.processes else str(state)
    if (free := state.free_bytes) is not None and free < LEAST_BYTES:
        remedy = "adapt and tune need 1 GiB of its memory: stop what else runs there (nvidia-smi)"
        return Check(f"cuda:{number}", "warn", value, remedy)
    remedy = "let the card cool, raise its power limit (nvidia-smi -pl), or stop what else runs there (nvidia-smi)"
    return _judged(f"cuda:{number}", value, remedy, warn=bool(state.slowed_by or state.processes))


def check_amd(root: Path = KFD, *, ask_tvm: bool = True) -> Iterator[Check]:
    """AMD's cards, which the kernel's driver lists, and what would work on them."""
    for arch in amd_cards(root):
        yield Check("gpu", "warn", describe_amd(arch, ask_tvm=ask_tvm), AMD_REMEDY)

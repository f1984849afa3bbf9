"""`tchub doctor` and `tchub devices`: each check's three outcomes, the exit code, and the JSON."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paper_card import PaperCard
from tchub.hub.device import doctor, tile_registers
from tchub.hub.device.card_state import card_names, card_state, refuse_amd
from tchub.hub.device.detect import detect_local
from tchub.hub.device.doctor import Check
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.host_facts import HostFacts
from tchub.zoo.devices import list_devices


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's is touched."""
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))


TURIN = HostFacts("x86-64", "AuthenticAMD", "AMD EPYC", 26, 2, usable=2)


def local(**more: object):
    return detect_local(facts=HostFacts(**(vars(TURIN) | more)), ask_llvm=False)


def governor(path: Path, text: str) -> Check:
    path.write_text(text)
    return doctor.check_governor(path)


def disk(path: Path, free_gib: float) -> Check:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_gib * 2**30))
        return doctor.check_disk(path / "not" / "yet")


# What is looked at -> whether it is well, may be well, or stops tchub; those of `run_checks` look at this machine.
OUTCOMES: list[tuple[str, Callable[[Path], Check], str]] = [
    ("another version than the pin", lambda _: doctor.check_version("apache-tvm-ffi", "0.1.13"), "fail"),
    ("a package that is not installed", lambda _: doctor.check_version("no-such-package-of-tchub", "1.0"), "fail"),
    ("a known CPU", lambda _: doctor.check_device(local()), "ok"),
    ("an unknown CPU", lambda _: doctor.check_device(local(brand="Some CPU", vendor_id="Some")), "warn"),
    ("no neighbours", lambda _: doctor.check_business(0.05, 0.0, 0.1), "ok"),
    ("a high load", lambda _: doctor.check_business(0.05, 0.0, 2.0), "warn"),
    ("busy cores", lambda _: doctor.check_business(0.9, 0.0, 0.1), "warn"),
    ("stolen time", lambda _: doctor.check_business(0.05, 0.1, 0.1), "warn"),
    ("little noise", lambda _: doctor.check_noise(0.006, 0.04), "ok"),
    ("noise over 5 %", lambda _: doctor.check_noise(0.006, 0.12), "warn"),
    ("no governor", lambda path: doctor.check_governor(path / "none"), "ok"),
    ("a governor for speed", lambda path: governor(path / "governor", "performance\n"), "ok"),
    ("a governor that saves power", lambda path: governor(path / "governor", "powersave\n"), "warn"),
    ("a full disk", lambda path: disk(path, 0.1), "fail"),
    ("a disk with little room", lambda path: disk(path, 2), "warn"),
    ("a disk with room", lambda path: disk(path, 50), "ok"),
]


@pytest.mark.parametrize(("check", "status"), [(c, s) for _, c, s in OUTCOMES], ids=[name for name, *_ in OUTCOMES])
def test_each_check_has_its_outcome(tmp_path: Path, check: Callable[[Path], Check], status: str) -> None:
    assert check(tmp_path).status == status


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        ("sapphirerapids", "AMX"),
        ("znver4", "VNNI"),
        ("alderlake", "VNNI"),
        ("x86-64-v3", ""),
        ("neoverse-n1", "SDOT"),
        ("cortex-a72", ""),
    ],
)
def test_the_instruction_for_numbers_of_8_bits_is_named(cpu: str, name: str) -> None:
    architecture = "aarch64" if cpu.startswith(("neoverse", "cortex")) else "x86_64"
    target = {"kind": "llvm", "mcpu": cpu, "mtriple": f"{architecture}-linux-gnu"}
    here = local()
    device = replace(here, device=replace(here.device, target=target))
    assert doctor.check_device(device).value.partition(", 8 bits by ")[2] == name


@pytest.mark.parametrize("broken", ["check_version", "check_llvm"])
def test_a_tvm_that_is_not_well_is_not_asked(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may crash: `tchub doctor` shows the other checks all the same."""
    monkeypatch.setattr(doctor, broken, lambda *_: Check("apache-tvm", "fail", "not well", "install it"))
    monkeypatch.setattr(tile_registers, "byte_factors", lambda _: pytest.fail("asked"))
    checks = list(doctor.run_checks())
    assert {check.name for check in checks if check.status == "fail"} == {"apache-tvm"}
    assert "device" in {check.name for check in checks}


def test_what_this_machine_needs_for_tchub_is_here_and_whatever_is_not_ok_has_a_remedy() -> None:
    for check in doctor.run_checks():
        assert check.status != "fail", check
        assert check.status == "ok" or check.remedy, check


@pytest.mark.parametrize(
    ("name", "known", "state", "status", "value"),
    [
        ("Tesla T4", 0, "lost", "ok", "none is needed"),
        ("Tesla T4", 1, "lost", "warn", "CUDA's driver shows none of 1 cards"),
        ("Tesla T4", 1, None, "ok", "Tesla T4 (t4), sm_75, compiled by "),
        ("Tesla T4", 1, None, "ok", ": --device cuda:0, --precision float16"),
        ("Tesla T4", 1, "private", "warn", "one process only"),
        ("Tesla T4", 1, "old", "warn", "for CUDA 12.4, and nvcc is of CUDA 13.0"),
        ("GeForce GTX 1080", 1, None, "ok", "--device cuda:0; no tensor cores: float32 alone"),
    ],
)
def test_cards_are_told_with_what_they_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, known: int, state: str | None, status: str, value: str
) -> None:
    card = PaperCard.install(tmp_path, monkeypatch, name, 75 if name == "Tesla T4" else 61)
    if name != "Tesla T4":
        monkeypatch.setattr("tchub.hub.device.cuda_card.check_compiler", lambda *_: None)  # no nvcc of today has it
    if state is not None:
        card.becomes(state)
    check, *_ = doctor.check_cards(known)
    assert (check.status, value in check.value) == (status, True), check
    assert (check.remedy is None) == (status == "ok")


@pytest.mark.parametrize(
    ("state", "status", "value"),
    [
        (None, "ok", "1590 of 1590 MHz, 70 of 70 W, 141.0 GiB free"),
        ("slow", "warn", "990 of 1590 MHz, 70 of 70 W, 141.0 GiB free, slowed by its power limit and its heat"),
        ("shared", "warn", "1590 of 1590 MHz, 70 of 70 W, 141.0 GiB free, 2 processes"),
        ("full", "warn", "1590 of 1590 MHz, 70 of 70 W, 0.1 GiB free"),
    ],
)
def test_a_card_that_slows_down_or_is_not_alone_is_told(
    card: PaperCard, monkeypatch: pytest.MonkeyPatch, state: str | None, status: str, value: str
) -> None:
    card.has_nvml(monkeypatch)
    if state is not None:
        card.becomes(state)
    check = doctor.check_card_state(0)
    assert (check.name, check.status, check.value, bool(check.remedy)) == ("cuda:0", status, value, status == "warn")
    assert card_state("0000:00:00.0") is None, "another card's address"
    assert card_names() == ("Tesla T4",)


def test_a_card_of_amd_is_told_with_what_would_work(tmp_path: Path) -> None:
    assert list(doctor.check_amd(tmp_path)) == []
    for node, version in enumerate((0, 90006, 110001)):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(f"simd_count 240\ngfx_target_version {version}\n")
    checks = list(doctor.check_amd(tmp_path))
    assert [(check.status, check.value.split(":")[0]) for check in checks] == [
        *(("warn", "gfx906 of AMD (mi50)"), ("warn", "gfx1101 of AMD (no spec sheet)"))
    ]
    assert all("TVM has" in check.value and "tchub measures on none" in check.value for check in checks)
    assert "gfx906 in its LLVM" in checks[0].value
    (untold, _) = doctor.check_amd(tmp_path, ask_tvm=False)  # a TVM that is broken is not imported
    assert untold.value == "gfx906 of AMD (mi50): tchub measures on no card of AMD"
    with pytest.raises(DeviceError, match="rocm:1 cannot be measured on: gfx1101 of AMD") as caught:
        raise refuse_amd(1, tmp_path)
    assert "tchub corpus import" in caught.value.remedy


def test_a_folder_that_can_be_written_is_left_clean_and_another_fails(tmp_path: Path) -> None:
    assert doctor.check_writable("cache", tmp_path / "a" / "b", "TCHUB_CACHE").status == "ok"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    check = doctor.check_writable("cache", tmp_path / "file" / "cache", "TCHUB_CACHE")
    assert (check.status, "TCHUB_CACHE" in str(check.remedy)) == ("fail", True)


@pytest.mark.parametrize(
    ("script", "remarks"),
    [
        # As on a disk that is mounted noexec; here the linker makes a library without the function.
        ('exec g++ -shared -o "$4" -x c++ /dev/null', ("cannot be loaded", "undefined symbol: tchub_doctor")),
        ("echo 'ld: cannot find crti.o' >&2; exit 1", ("cannot link", "cannot find crti.o")),
        (None, ("does not run",)),
    ],
)
def test_a_compiler_whose_programs_do_not_run_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, remarks: tuple[str, ...]
) -> None:
    compiler = tmp_path / "c++"
    if script is not None:
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    check = doctor.check_compiler()
    assert (check.status, bool(check.remedy)) == ("fail", True)
    assert all(remark in check.value for remark in remarks), check
    assert ("noexec" in str(check.remedy)) == ("loaded" in check.value)


def test_without_nvml_the_kernels_driver_tells_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tchub.hub.device.card_state._nvml", lambda: None)
    assert card_names(tmp_path) == ()
    for number, name in enumerate(("Tesla T4", "NVIDIA L4")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 35\n")
    assert card_names(tmp_path) == ("Tesla T4", "NVIDIA L4")
    assert card_state("0000:65:00.0") is None


def test_doctor_ends_with_1_only_if_a_check_failed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("a", "ok", "x"), Check("b", "fail", "[y]", "do z")]
    monkeypatch.setattr(doctor, "run_checks", lambda: iter(checks))
    code, printed = run.json("doctor")
    assert (code, printed["ok"]) == (1, False)
    assert printed["checks"][1] == {"name": "b", "status": "fail", "value": "[y]", "remedy": "do z"}
    assert "-> do z" in run("doctor")[1]
    checks[1] = Check("b", "warn", "y", "do z")
    code, _, err = run("doctor", "--quiet")
    assert (code, err) == (0, "")


def test_devices_lists_all(run: Any) -> None:
    assert [d["name"] for d in run.json("devices")[1]] == [d.name for d in list_devices()]
    _, shown, _ = run("devices", "--kind", "gpu")
    assert ("h200" in shown, "epyc" in shown) == (True, False)

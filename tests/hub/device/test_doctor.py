"""`tchub doctor` and `tchub devices`: each check's three outcomes, the exit code, and the JSON."""

from __future__ import annotations

import json
import stat
from importlib import metadata
from pathlib import Path

import pytest
from tchub.hub.cli import main
from tchub.hub.device import doctor
from tchub.hub.device.detect import detect_local
from tchub.hub.device.doctor import Check
from tchub.hub.device.host_facts import GpuFacts, HostFacts
from tchub.zoo.devices import list_devices


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's is touched."""
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "home"))


TURIN = HostFacts("x86-64", "AuthenticAMD", "AMD EPYC", 26, 2, 1, usable=2)


def local(**more: object):
    return detect_local(facts=HostFacts(**(vars(TURIN) | more)), ask_llvm=False)


# One check after the other


def test_python() -> None:
    assert doctor.check_python().status == "ok"
    assert doctor.check_python((3, 10)).status == "fail"


def test_the_pins_are_read_from_the_package_itself() -> None:
    pins = doctor.read_pins()
    assert set(doctor.PINNED) <= set(pins)
    for package in doctor.PINNED:
        assert doctor.check_version(package, pins[package]).status == "ok"


def test_another_version_than_the_pin_fails_and_says_what_to_install() -> None:
    check = doctor.check_version("apache-tvm-ffi", "0.1.13")
    assert check.status == "fail"
    assert check.remedy == "pip install 'apache-tvm-ffi==0.1.13'"
    assert metadata.version("apache-tvm-ffi") in check.value


def test_a_package_that_is_not_installed_fails() -> None:
    assert doctor.check_version("no-such-package-of-tchub", "1.0").value == "not installed"


def test_llvm() -> None:
    check = doctor.check_llvm()
    assert check.status == "ok"
    assert "CPU" in check.value


def test_the_compiler_links_a_library() -> None:
    assert doctor.check_compiler().status == "ok"


def test_programs_that_cannot_be_loaded_fail_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is mounted noexec; here the linker makes a library without the function."""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\nexec g++ -shared -o "$4" -x c++ /dev/null\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    check = doctor.check_compiler()
    assert check.status == "fail"
    assert "cannot be loaded" in check.value
    assert "undefined symbol: tchub_doctor" in check.value
    assert "noexec" in str(check.remedy)


def test_no_compiler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    check = doctor.check_compiler(find=lambda name: None)
    assert (check.status, "g++" in check.value) == ("fail", True)


def test_a_compiler_that_cannot_link_fails_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'ld: cannot find crti.o' >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(broken))
    check = doctor.check_compiler()
    assert check.status == "fail"
    assert "cannot find crti.o" in check.value
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert "does not run" in doctor.check_compiler().value


def test_an_unknown_cpu_is_a_warning() -> None:
    assert doctor.check_device(local()).status == "ok"
    assert doctor.check_device(local(brand="Some CPU", vendor_id="Some")).status == "warn"


def test_one_core_is_a_warning() -> None:
    assert doctor.check_cores(2, 2).status == "ok"
    assert doctor.check_cores(1, 2).status == "warn"


@pytest.mark.parametrize(
    ("busy", "stolen", "load", "status"),
    [(0.05, 0.0, 0.1, "ok"), (0.05, 0.0, 2.0, "warn"), (0.9, 0.0, 0.1, "warn"), (0.05, 0.1, 0.1, "warn")],
)
def test_neighbours(busy: float, stolen: float, load: float, status: str) -> None:
    assert doctor.check_business(busy, stolen, load).status == status


def test_noise_over_five_percent_is_a_warning() -> None:
    assert doctor.check_noise(0.006, 0.04).status == "ok"
    assert doctor.check_noise(0.006, 0.12).status == "warn"


@pytest.mark.parametrize(("governor", "status"), [(None, "ok"), ("performance", "ok"), ("powersave", "warn")])
def test_governor(governor: str | None, status: str, tmp_path: Path) -> None:
    file = tmp_path / "scaling_governor"
    if governor:
        file.write_text(f"{governor}\n")
    assert doctor.check_governor(file).status == status


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free_gib, status in ((0.1, "fail"), (2, "warn"), (50, "ok")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free_gib: _Usage(free))
        assert doctor.check_disk(tmp_path / "not" / "yet").status == status


class _Usage:
    def __init__(self, free_gib: float) -> None:
        self.free = free_gib * 2**30


def test_a_folder_that_can_be_written_is_left_clean(tmp_path: Path) -> None:
    assert doctor.check_writable("cache", tmp_path / "a" / "b", "TCHUB_CACHE").status == "ok"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = doctor.check_writable("cache", tmp_path / "file" / "cache", "TCHUB_CACHE")
    assert check.status == "fail"
    assert "TCHUB_CACHE" in (check.remedy or "")


def test_a_gpu_is_optional_and_nvcc_matters_only_with_one() -> None:
    with_gpu = local(gpus=(GpuFacts("NVIDIA H200", 141.0, "570"), GpuFacts("NVIDIA X1", 8.0, "570")))
    assert doctor.check_gpu(local()).status == "ok"
    assert doctor.check_gpu(with_gpu).value == "NVIDIA H200 (h200, 141 GiB), NVIDIA X1 (no spec sheet, 8 GiB)"
    assert doctor.check_nvcc(True, find=lambda _: None).status == "warn"
    assert doctor.check_nvcc(False, find=lambda _: None).status == "ok"


def test_whatever_is_not_ok_has_a_remedy() -> None:
    for check in doctor.run_checks():
        assert check.status == "ok" or check.remedy, check


# Noise


def test_the_spread_and_the_business_of_this_machine_are_shares() -> None:
    p50, p90 = doctor.measure_spread(5)
    assert 0 <= p50 <= p90
    busy, stolen, load = doctor.watch_business(0.05)
    assert 0 <= busy <= 1
    assert 0 <= stolen <= 1
    assert load >= 0


# The command line


def checks(*found: Check):
    return lambda: iter(found)


def test_doctor_ends_with_1_if_a_check_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(doctor, "run_checks", checks(Check("a", "ok", "x"), Check("b", "fail", "[y]", "do z")))
    assert main(["doctor", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    assert printed["checks"][1] == {"name": "b", "status": "fail", "value": "[y]", "remedy": "do z"}
    assert main(["doctor"]) == 1
    assert "-> do z" in capsys.readouterr().out


def test_doctor_ends_with_0_on_warnings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(doctor, "run_checks", checks(Check("a", "warn", "x", "y")))
    assert main(["doctor", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_devices_lists_all(capsys: pytest.CaptureFixture) -> None:
    assert main(["devices", "--json"]) == 0
    assert [d["name"] for d in json.loads(capsys.readouterr().out)] == [d.name for d in list_devices()]
    assert main(["devices", "--kind", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert "h200" in shown
    assert "epyc" not in shown


def test_devices_shows_one_with_its_sources(capsys: pytest.CaptureFixture) -> None:
    assert main(["devices", "epyc-7452"]) == 0
    shown, said = capsys.readouterr()
    assert "llvm -mcpu=znver2 -num-cores=32" in shown
    assert "204.8" in shown
    assert "epyc-turin" in said


def test_devices_local_says_why(capsys: pytest.CaptureFixture) -> None:
    assert main(["devices", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reasons"]
    assert main(["devices", "local"]) == 0
    assert "reason 1" in capsys.readouterr().out


def test_an_unknown_device_is_one_line_and_a_remedy(capsys: pytest.CaptureFixture) -> None:
    assert main(["devices", "epik", "--json"]) == 1
    shown, said = capsys.readouterr()
    assert json.loads(shown)["error"] == "UnknownDeviceError"
    assert said.count("\n") == 2


def test_kind_and_name_together_are_wrong_usage() -> None:
    assert main(["devices", "t4", "--kind", "cpu"]) == 2

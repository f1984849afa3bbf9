"""`--device rpc://`: addresses, what an RPC device is, and programs for another architecture. No server is needed."""

import platform
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.device.build_jobs import build
from tchub.hub.device.detect import detect_local
from tchub.hub.device.device_choice import choose_device, describe_remote, find_linker, parse_target
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.rpc_session import RpcAddress, ServerFacts, parse_device
from tchub.hub.records.scope import MeasurementScope

ADDRESS = RpcAddress("tracker.lan", 9190, "turin")
GRAVITON = {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}
HERE = ServerFacts("znver5", f"{platform.machine()}-linux-gnu", 2)
AARCH64_IN_ELF = 183


@pytest.mark.parametrize("host", ["tracker.lan", "10.0.0.7", "::1"])
def test_an_address_is_read_as_it_is_written(host: str) -> None:
    address = RpcAddress(host, 65535, "Az09_.+-")
    assert parse_device(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "Local", "v100", "cuda:", "cuda:x", "cuda1", "rpc:", "rpc://host:9190", "rpc://host:9190/"),
        *(
            "rpc://host/k",
            "rpc://:9190/k",
            "rpc://host:x/k",
            "rpc://host:70000/k",
            "http://host:9190/k",
            "rpc://[::1:9190/k",
        ),
        *("rpc://host:9190/a/b", "rpc://host:9190/a b", "rpc://host:9190/a:b", "rpc://h:1/k?x=1"),
    ],
)
def test_a_malformed_device_is_said_with_the_right_form(text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        choose_device(text)
    assert "rpc://host:port/key" in str(caught.value.remedy)


def test_a_server_that_names_its_cpu_needs_no_target() -> None:
    device = describe_remote(ADDRESS, HERE, 2)
    assert device.target == {"kind": "llvm", "mcpu": "znver5", "num-cores": 2}
    assert device.family == "epyc"


def test_threads_are_those_that_were_asked_for_whatever_the_target_says() -> None:
    assert describe_remote(ADDRESS, HERE, 1, {"kind": "llvm", "num-cores": 64}).target["num-cores"] == 1
    with pytest.raises(DeviceError, match="2 threads at most, not 4"):
        describe_remote(ADDRESS, HERE, 4)


def test_a_server_of_another_architecture_gets_its_triple_and_no_target_of_a_third() -> None:
    other = "aarch64" if platform.machine() != "aarch64" else "x86_64"
    device = describe_remote(ADDRESS, ServerFacts("generic", f"{other}-unknown-linux-gnu"), 1)
    assert device.target["mtriple"] == f"{other}-linux-gnu"
    with pytest.raises(DeviceError, match="riscv64"):
        describe_remote(ADDRESS, HERE, 1, {"kind": "llvm", "mtriple": "riscv64-linux-gnu"})


def test_a_server_without_llvm_needs_a_target() -> None:
    with pytest.raises(DeviceError) as caught:
        describe_remote(ADDRESS, ServerFacts(), 1)
    assert "--target" in str(caught.value.remedy)
    assert describe_remote(ADDRESS, ServerFacts(), 1, GRAVITON).family == "graviton"


def test_a_scope_is_of_a_key_wherever_the_tracker_is_and_never_of_this_machine() -> None:
    local = detect_local(1)
    same_cpu = ServerFacts(local.mcpu, f"{platform.machine()}-linux-gnu")
    here, other, moved = (replace(ADDRESS, **change) for change in ({}, {"key": "other"}, {"host": "10.0.0.9"}))
    remotes = [describe_remote(address, same_cpu, 1, local.target) for address in (here, other, moved)]
    first, second, third = (MeasurementScope.of_device(device) for device in remotes)
    assert first == third
    own = MeasurementScope.of_device(local)
    assert (
        len({own.device, first.device, second.device}) == len({own.cpu_model, first.cpu_model, second.cpu_model}) == 3
    )


def test_a_target_is_json_a_file_or_a_device_of_the_zoo(tmp_path: Path) -> None:
    file = tmp_path / "target.json"
    file.write_text('{"kind": "llvm", "mcpu": "neoverse-n1"}')
    assert parse_target(None) is None
    assert parse_target(str(file)) == parse_target('{"kind": "llvm", "mcpu": "neoverse-n1"}')
    assert parse_target("graviton2") == GRAVITON | {"num-cores": 64}
    assert parse_target("x86-64-v2") == {"kind": "llvm", "mcpu": "x86-64-v2"}
    for wrong in ("no-such-device", "[1]", '{"mcpu": "x"}'):
        with pytest.raises(DeviceError):
            parse_target(wrong)


def test_own_programs_need_no_linker_and_others_one_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_linker({"kind": "llvm"}, None) is None
    with pytest.raises(DeviceError, match="riscv64") as caught:
        find_linker({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, None)
    assert "--linker" in str(caught.value.remedy)


def test_programs_for_another_architecture_are_compiled_here(tmp_path: Path, small_candidates: list[Any]) -> None:
    """The stand-in for a cross linker hands on the first object: what TVM compiled, to be looked at."""
    import tvm

    linker = tmp_path / "linker"
    linker.write_text('#!/bin/sh\n[ "$1 $2" = "-shared -o" ] && cp "$4" "$3"\n')
    linker.chmod(0o755)
    library = tmp_path / "program.so"
    using = find_linker(GRAVITON, str(linker))
    assert using is not None
    built = build(tvm.ir.save_json(small_candidates[0].mod), GRAVITON, str(library), using)
    (machine,) = struct.unpack_from("<H", library.read_bytes(), 18)
    assert machine == AARCH64_IN_ELF
    assert built.seconds > 0

"""Detection of this machine, of its cores, of machines made up for the test, and of devices of a user's own."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tchub.hub import api
from tchub.hub.bundle.build import resolve_target
from tchub.hub.device import host_facts
from tchub.hub.device.detect import add_device, detect_local, match_gpu
from tchub.hub.device.device_choice import choose_device
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.extensions import cpu_name
from tchub.hub.device.host_facts import (
    HostFacts,
    cpu_quota,
    physical_cores,
    read_caches,
    read_host_facts,
    usable_cores,
)
from tchub.hub.device.onsite.files import OnsiteError
from tchub.hub.device.onsite.worker import CpuBench
from tchub.hub.search.cost_model import choose_model
from tchub.zoo.devices import Device, UnknownDeviceError, distance, get_device, list_devices, own_folder
from tchub.zoo.errors import TchubError
from tchub.zoo.machine import first_processor, x86_facts

AVX512 = frozenset({"sse2", "sse4_2", "avx", "avx2", "fma", "bmi1", "bmi2", "movbe", "f16c", "avx512f"}) | {
    *("avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "ssse3", "popcnt", "cx16")
}
AVX2 = frozenset(f for f in AVX512 if not f.startswith("avx512"))


def amd(family: int, model: int, brand: str, **more: object) -> HostFacts:
    facts: dict = {"flags": AVX512, "cores": 4, "threads": 8, "usable": 8, "l1_kib": 32.0, "l2_kib": 1024.0}
    return HostFacts("x86-64", "AuthenticAMD", brand, family, model, **(facts | more))


def intel(model: int, brand: str, **more: object) -> HostFacts:
    facts: dict = {"flags": AVX512, "cores": 4, "threads": 8, "usable": 8}
    return HostFacts("x86-64", "GenuineIntel", brand, 6, model, **(facts | more))


def arm(part: str, sys_vendor: str) -> HostFacts:
    flags = frozenset({"asimd", "fphp", "asimddp"})
    return HostFacts("aarch64", "ARM", arm_part=part, sys_vendor=sys_vendor, flags=flags, cores=4, threads=4, usable=4)


@pytest.mark.parametrize(
    ("facts", "device"),
    [
        (amd(26, 2, "AMD EPYC"), "epyc-turin"),  # a virtual machine that hides the part
        (amd(25, 17, "AMD EPYC 9R14"), "epyc-genoa"),
        (amd(23, 49, "AMD EPYC 7452 32-Core Processor", flags=AVX2), "epyc-7452"),
        (amd(23, 113, "AMD Ryzen 7 3700X 8-Core Processor", flags=AVX2), "ryzen-3700x"),
        (intel(85, "Intel(R) Xeon(R) Platinum 8272CL CPU @ 2.60GHz"), "xeon-8272cl"),
        (intel(85, "Intel(R) Xeon(R) Processor @ 2.50GHz"), "xeon-cascadelake"),
        (intel(106, "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"), "xeon-icelake"),
        (intel(143, "Intel(R) Xeon(R) Processor"), "xeon-sapphirerapids"),
        (intel(207, "Intel(R) Xeon(R) PLATINUM 8581C CPU @ 2.10GHz"), "xeon-emeraldrapids"),
        (intel(173, "Intel(R) Xeon(R) 6985P-C"), "xeon-graniterapids"),
        (intel(79, "Intel(R) Xeon(R) CPU E5-2673 v4 @ 2.30GHz", flags=AVX2), "xeon-e5-2673"),
        (arm("0xd08", "Amazon EC2"), "graviton1"),
        (arm("0xd0c", "Amazon EC2"), "graviton2"),
        (arm("0xd40", "Amazon EC2"), "graviton3"),
        (arm("0xd4f", "Amazon EC2"), "graviton4"),
    ],
)
def test_known_machines_are_recognised_by_their_marks(facts: HostFacts, device: str) -> None:
    local = detect_local(facts=facts, host_cpu=get_device(device).target["mcpu"])
    assert (local.device.name, local.exact) == (device, True)
    assert local.family == get_device(device).family
    assert local.target == get_device(device).target | {"num-cores": facts.usable}
    assert distance(local.device, get_device(device)).rank == 0


def test_what_is_measured_replaces_the_sheet_and_says_so() -> None:
    local = detect_local(facts=amd(26, 2, "AMD EPYC", l3_mib=16.0), host_cpu="znver5").device
    spec, sheet = local.spec, get_device("epyc-turin").spec
    assert (spec.values()["cores"], spec.values()["l3_mib"]) == (4.0, 16.0)
    assert spec.sources["l3_mib"] == "measured: this machine"
    assert spec.values()["memory_bandwidth_gbs"] == sheet.values()["memory_bandwidth_gbs"]
    assert spec.sources["memory_bandwidth_gbs"] == sheet.sources["memory_bandwidth_gbs"]


def test_an_unknown_part_of_a_known_family_takes_the_nearest_sheet_and_marks_it() -> None:
    local = detect_local(facts=amd(25, 1, "AMD EPYC 7763 64-Core Processor", flags=AVX2), host_cpu="znver3")
    assert (local.device.name, local.family, local.exact) == ("epyc-other", "epyc", False)
    ryzen = amd(26, 8, "AMD Ryzen Threadripper 9980X 64-Cores")
    assert detect_local(facts=ryzen, host_cpu="znver5").family == "ryzen", "of the same CPUID family as an EPYC"
    assert local.mcpu == "znver3"
    assert local.device.spec.sources["memory_bandwidth_gbs"].startswith("stands in: epyc-")
    assert local.device.spec.sources["cores"] == "measured: this machine"
    assert distance(local.device, get_device("epyc-7452")).rank == 1
    core = detect_local(facts=arm("0xd0c", "Ampere"), host_cpu="neoverse-n1")
    assert (core.device.name, core.exact) == ("graviton-other", False), "another maker's machine with the same cores"
    assert core.reasons[0].endswith("nearest of the family graviton: graviton2")


@pytest.mark.parametrize(
    "facts",
    [HostFacts("x86-64"), intel(198, "Intel(R) Core(TM) Ultra 9"), arm("0xac3", "Ampere")],
    ids=["unnamed", "desktop", "arm server"],
)
def test_any_other_machine_gets_a_generic_device(facts: HostFacts) -> None:
    local = detect_local(facts=facts, host_cpu="generic")
    assert local.device.name == f"generic-{facts.arch}"
    assert not local.exact
    assert local.device.hardware_row().shape == (22,)
    assert Device.from_dict(json.loads(json.dumps(local.device.to_dict()))) == local.device


def test_this_machine_is_detected_with_its_physical_cores() -> None:
    tvm = pytest.importorskip("tvm")
    local = choose_device("local").facts
    assert local.cores == local.target["num-cores"] == usable_cores() <= len(os.sched_getaffinity(0))
    assert local.mcpu == cpu_name(tvm.target.codegen.llvm_get_system_cpu(), read_host_facts())[0]
    assert local.mcpu == tvm.target.Target(local.target).attrs["mcpu"]
    assert local.device.hardware_row().any()
    json.dumps(local.to_dict(), allow_nan=False)
    assert resolve_target("local").threads == usable_cores()
    assert choose_device("local", 1).facts.target["num-cores"] == 1


def test_an_arm_machine_that_hides_its_extensions_is_compiled_for_those_that_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tvm.target import codegen

    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "neoverse-v1")
    graviton3 = replace(arm("0xd40", "Amazon EC2"), flags=frozenset({"fp", "asimd"}))
    assert detect_local(facts=graviton3).mcpu == "generic"


def test_a_machine_that_hides_its_number_is_nearest_to_its_microarchitecture() -> None:
    facts = intel(167, "Intel(R) Xeon(R) Processor", cores=2, l2_kib=2048.0)
    assert detect_local(facts=facts, host_cpu="sapphirerapids").reasons[0].endswith("xeon-sapphirerapids")


def test_without_llvm_a_known_machine_keeps_its_own_target_and_another_is_generic() -> None:
    assert detect_local(facts=amd(25, 17, "AMD EPYC 9R14"), ask_llvm=False).mcpu == "znver4"
    assert detect_local(facts=intel(198, "Intel(R) Core(TM)"), ask_llvm=False).mcpu == "generic"


def test_cores_can_be_asked_for_within_what_is_usable() -> None:
    facts = amd(26, 2, "AMD EPYC")
    assert detect_local(3, facts=facts, host_cpu="znver5").target["num-cores"] == 3
    assert detect_local(facts=replace(facts, usable_cores=4), host_cpu="znver5").target["num-cores"] == 4
    for cores in (0, -1, 9):
        with pytest.raises(DeviceError, match=f"cannot use {cores} cores: this process may run on 8"):
            detect_local(cores, facts=facts, host_cpu="znver5")


@pytest.mark.parametrize(
    ("threads_per_core", "caches", "sizes"),
    [
        pytest.param(
            2,
            lambda cpu, pair: [("32K", pair), ("1M", pair), ("16384K", pair)],
            {"l1_kib": 32, "l2_kib": 1024, "l3_mib": 32},
            id="two threads share an L2, and there are two slices of L3",
        ),
        pytest.param(
            1,
            lambda cpu, pair: [("32K", str(cpu)), ("2048K", "0-3")],
            {"l1_kib": 32, "l2_kib": 512, "l3_mib": None},
            id="four cores share an L2",
        ),
    ],
)
def test_caches_are_per_core_and_the_last_level_is_summed(
    tmp_path: Path, threads_per_core: int, caches: Any, sizes: dict[str, Any]
) -> None:
    for cpu, pair in enumerate(("0,2", "1,3", "0,2", "1,3")):
        levels = [(number, "Unified", *cache) for number, cache in enumerate(caches(cpu, pair), start=1)]
        for i, facts in enumerate([(1, "Instruction", "64K", pair), *levels]):
            (index := tmp_path / f"cpu{cpu}" / "cache" / f"index{i}").mkdir(parents=True)
            for name, text in zip(("level", "type", "size", "shared_cpu_list"), facts, strict=True):
                (index / name).write_text(f"{text}\n")
    assert read_caches(tmp_path, threads_per_core) == sizes


@pytest.mark.parametrize(
    ("name", "device"),
    [("Tesla T4", "t4"), ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"), ("Tesla V100-SXM2-16GB", "v100"),
     ("NVIDIA T400", None), ("NVIDIA GeForce RTX 4090", None)],
)  # fmt: skip
def test_gpus_are_known_by_whole_words_of_their_name(name: str, device: str | None) -> None:
    assert match_gpu(name) == device


def test_linux_tells_all_of_an_x86(tmp_path: Path) -> None:
    processor = "vendor_id : AuthenticAMD\ncpu family : 26\nmodel : {}\nmodel name : AMD EPYC\nflags : fpu avx2\n\n"
    (tmp_path / "x86").write_text(processor.format(2) + processor.format(3))
    names = {"vendor_id_raw": "AuthenticAMD", "brand_raw": "AMD EPYC", "flags": ["fpu", "avx2"]}
    assert x86_facts(first_processor(tmp_path / "x86")) == names | {"family": 26, "model": 2}
    (tmp_path / "arm").write_text("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c\n")
    arm = first_processor(tmp_path / "arm")
    assert (arm["CPU part"], x86_facts(arm), first_processor(tmp_path / "none")) == ("0xd0c", None, {})


def test_the_nearest_devices_numbers_stand_in_and_say_so():
    added = add_device("rtx4090", "rtx3090")
    assert added == get_device("rtx4090")
    assert (added.family, added.target) == ("rtx4090", get_device("rtx3090").target)
    assert added.spec.values() == get_device("rtx3090").spec.values()
    assert set(added.spec.sources.values()) == {"assumed: as rtx3090"}
    assert added in list_devices("gpu")


def test_a_sheet_from_a_file_is_validated(tmp_path: Path):
    file, sheet = tmp_path / "sheet.json", get_device("t4").to_dict()
    file.write_text(json.dumps(sheet))
    assert add_device("t4g", str(file)).spec.values() == get_device("t4").spec.values()
    sheet["spec"]["cuda_cores"] = {"value": -1, "source": "nowhere"}
    for text in (json.dumps(sheet), "{", "[]"):
        file.write_text(text)
        with pytest.raises(TchubError):
            add_device("t4h", str(file))
    assert not (own_folder() / "t4h.json").exists()


@pytest.mark.parametrize("name", ["t4", "epyc", "../evil", "", "Upper", "tesla-k80"])
def test_a_name_that_is_taken_or_none_is_refused(name: str):
    with pytest.raises(DeviceError, match="can be called"):
        add_device(name, "t4")
    with pytest.raises(UnknownDeviceError, match="nowhere"):
        add_device("fresh", "nowhere")


def test_hyper_threads_are_of_one_core(tmp_path: Path) -> None:
    for cpu in range(4):
        (topology := tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert physical_cores([0, 1, 2, 3], tmp_path) == [(0, 2), (1, 3)]
    assert physical_cores([1, 2, 3], tmp_path) == [(1, 3), (2,)]
    assert physical_cores([4, 6], tmp_path) == [(4,), (6,)], "nothing is known of these"


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/pod/app\n", {"pod/cpu.max": "200000 100000", "pod/app/cpu.max": "max 100000"}, 2.0),
        ("1:cpu:/far\n", {"far/cpu.max": "100000 100000"}, None),  # version 1 is not read
    ],
)
def test_a_containers_quota_is_read(tmp_path: Path, own: str, files: dict[str, str], quota: float | None) -> None:
    cgroups = tmp_path / "own"
    cgroups.write_text(own)
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(f"{text}\n")
    assert cpu_quota(tmp_path / "cgroup", cgroups) == quota


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (2.5, 2), (0.5, 1), (64.0, 4)])
def test_the_default_is_what_affinity_and_quota_leave(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(host_facts, "physical_cores", lambda cpus: [(cpu, cpu + 4) for cpu in cpus[:4]])
    monkeypatch.setattr(host_facts, "cpu_quota", lambda: quota)
    assert usable_cores() == cores


def test_a_bundle_for_more_threads_than_the_machine_has_is_refused() -> None:
    with pytest.raises(OnsiteError, match=r"use 4096 threads.*build it with --threads"):
        CpuBench({"threads": 4096, "libraries": []})


def test_a_checkpoint_of_another_number_of_threads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(api.__file__).parents[1] / "zoo" / "checkpoints" / "tcl-epyc" / "1.0.0"
    reasons = ("tcl-epyc@1.0.0: of this family", "tcl-xeon@1.0.0: of another")
    base: Any = replace(api.choose_checkpoint(str(folder)), reasons=reasons)
    monkeypatch.setattr(api, "choose_checkpoint", lambda _: base)
    assert choose_model("tcl-epyc", threads=1).reasons == reasons
    first, other = choose_model("tcl-epyc", threads=2).reasons
    assert first.startswith(reasons[0])
    assert "learnt from programs of 1 thread, these have 2 threads" in first
    assert other == reasons[1]

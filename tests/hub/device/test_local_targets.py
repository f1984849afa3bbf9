"""`--device local --target`: what a restricted target of this machine may use, what cannot run here, nothing mixed."""

import json
import platform
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.device.detect import LocalDevice, detect_local
from tchub.hub.device.device_choice import ChosenDevice, choose_device, parse_target, with_target
from tchub.hub.device.errors import DeviceError
from tchub.hub.device.extensions import cpu_name
from tchub.hub.device.host_facts import HostFacts, usable_cores
from tchub.hub.networks.errors import NetworkLoadError
from tchub.hub.records.store import FILE, home_file
from tchub.hub.tuning import collect as collecting
from tchub.hub.tuning import tune as tuning

FOREIGN = "aarch64" if platform.machine() == "x86_64" else "x86_64"
FOREIGN_CPU = {"aarch64": "neoverse-n1", "x86_64": "znver4"}[FOREIGN]
# A device of the other architecture, and the word of its target that no CPU here answers to.
FOREIGN_DEVICE, ITS_WORD = {"aarch64": ("graviton2", "aarch64"), "x86_64": ("epyc", "znver")}[FOREIGN]

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
# All that the highest level may use, in the system's words.
V4 = frozenset({"sse", "sse2", "pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "movbe", "bmi1", "bmi2"}) | {
    *("abm", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
}
FACTS = HostFacts("x86-64", "AuthenticAMD", "AMD EPYC", 26, 2, flags=V4, cores=8, threads=8, usable=8)


@pytest.fixture(scope="module")
def local() -> LocalDevice:
    """A made-up machine of the fourth level, detected for two threads."""
    return detect_local(2, facts=FACTS, host_cpu="x86-64-v4")


def level(local: LocalDevice, name: str, facts: HostFacts = FACTS, **more: Any) -> LocalDevice:
    return with_target(local, {"kind": "llvm", "mcpu": name, **more}, facts)


@pytest.mark.x86
@pytest.mark.parametrize(("name", "bytes_"), [*zip(LEVELS, (16, 16, 32, 64), strict=True)])
def test_the_spec_sheet_has_the_simd_width_of_the_target(local: LocalDevice, name: str, bytes_: int) -> None:
    device = level(local, name).device
    assert device.spec.values() == local.device.spec.values() | {"simd_bytes": float(bytes_)}
    assert name in device.spec.sources["simd_bytes"]
    assert device.target["mcpu"] == name
    same_row = (device.hardware_row() == local.device.hardware_row()).all()
    assert same_row == (bytes_ == local.device.spec.values()["simd_bytes"])


@pytest.mark.x86
def test_a_level_has_the_extensions_of_the_one_below_and_more_and_attributes_count(local: LocalDevice) -> None:
    extensions = [set(level(local, name).isa) for name in LEVELS]
    assert all(low < high for low, high in pairwise(extensions))
    assert extensions[-1] <= set(local.isa)
    assert level(local, "x86-64-v2", mattr=["+avx"]).device.spec.values()["simd_bytes"] == 32


@pytest.mark.x86
def test_the_cores_are_those_asked_for_not_those_of_the_targets_own_machine(local: LocalDevice) -> None:
    target = parse_target("xeon-e5-2673")
    assert target is not None
    assert target["num-cores"] != 2
    assert with_target(local, target, replace(FACTS, flags=frozenset())).target == target | {"num-cores": 2}


@pytest.mark.x86
def test_extensions_that_the_cpu_lacks_are_named(local: LocalDevice) -> None:
    older = replace(FACTS, flags=frozenset(flag for flag in V4 if not flag.startswith("avx512")))
    assert level(local, "x86-64-v3", older).mcpu == "x86-64-v3"
    with pytest.raises(DeviceError, match="use avx512bw, avx512cd, avx512dq, avx512f, avx512vl, which") as caught:
        level(local, "x86-64-v4", older)
    assert "x86-64-v2" in str(caught.value.remedy)
    hidden = replace(FACTS, flags=frozenset())
    assert level(local, "x86-64-v4", hidden).mcpu == "x86-64-v4", "a machine that hides its flags may have all"


# What a Sapphire Rapids has besides; a virtual machine may show it with the number of a Rocket Lake.
SAPPHIRE = V4 | {
    *("avx512_vnni", "avx512_vbmi2", "avx512vbmi", "avx512ifma", "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16"),
    *("avx512_fp16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "gfni", "vaes", "vpclmulqdq"),
}


@pytest.mark.x86
@pytest.mark.parametrize(
    ("named", "flags", "name"),
    [
        ("rocketlake", SAPPHIRE, "sapphirerapids"),
        ("graniterapids", SAPPHIRE, "graniterapids"),
        ("graniterapids", SAPPHIRE - {"amx_tile", "amx_int8", "amx_bf16"}, "icelake-server"),
        ("rocketlake", SAPPHIRE - {"amx_tile"}, "rocketlake"),
        ("sapphirerapids", V4, "skylake-avx512"),
        ("skylake-avx512", V4, "skylake-avx512"),
        ("znver4", V4 - {f for f in V4 if f.startswith("avx512")}, "x86-64-v3"),
        ("znver4", frozenset(), "znver4"),
    ],
)
def test_a_cpu_whose_number_and_extensions_differ_goes_by_its_extensions(
    named: str, flags: frozenset[str], name: str
) -> None:
    assert cpu_name(named, replace(FACTS, flags=flags))[0] == name


# Graviton2 to Graviton4, in Linux's words.
NEOVERSE = {"n1": frozenset({"asimd", "fphp", "asimddp"})}
NEOVERSE["v1"] = NEOVERSE["n1"] | {"sve", "i8mm", "bf16"}
NEOVERSE["v2"] = NEOVERSE["v1"] | {"sve2", "svebitperm"}


@pytest.mark.parametrize(
    ("named", "flags", "name"),
    [
        *((f"neoverse-{core}", flags, f"neoverse-{core}") for core, flags in NEOVERSE.items()),
        ("cortex-a72", frozenset({"asimd"}), "cortex-a72"),
        ("ampere1", NEOVERSE["v1"] - {"sve"}, "ampere1"),
        ("generic", NEOVERSE["n1"], "neoverse-n1"),
        ("neoverse-v1", NEOVERSE["n1"], "neoverse-n1"),
        ("generic", frozenset({"asimd"}), "generic"),
    ],
)
def test_so_does_an_arm_cpu_that_hides_its_number_or_extensions(
    named: str, flags: frozenset[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu_name(named, HostFacts("aarch64", "ARM", flags=flags))[0] == name


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"kind": "llvm", "mcpu": FOREIGN_CPU, "mtriple": f"{FOREIGN}-linux-gnu"}, FOREIGN),
        ({"kind": "llvm", "mcpu": FOREIGN_CPU}, FOREIGN_CPU),
        ({"kind": "llvm", "mcpu": "x86-64-v9"}, "x86-64-v9"),
        ({"kind": "cuda"}, "cuda"),
        ({"kind": "llvm", "colour": 1}, "colour"),
    ],
)
def test_what_is_no_target_of_this_machine_is_refused(target: dict[str, Any], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        choose_device("local", 1, target=target)


@pytest.mark.parametrize("command", ["tune bert-tiny", "adapt tcl-epyc", "collect --out corpus --workload bert-tiny"])
def test_every_command_refuses_it_before_anything_is_measured(
    command: str, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ChosenDevice, "measurer", lambda *_: pytest.fail("it measures"))
    code, _, err = run(*command.split(), "--target", FOREIGN_DEVICE)
    assert (code, ITS_WORD in err) == (1, True)
    assert not list(tmp_path.rglob("*.sqlite"))


@pytest.mark.x86
def test_tune_searches_for_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, sheets = list[ChosenDevice](), list[Any]()

    class Enough(Exception):
        """The call got as far as the test looks."""

    def open_run(_network: Any, device: ChosenDevice, *_: Any) -> None:
        seen.append(device)
        raise Enough

    monkeypatch.setattr(tuning, "_Run", open_run)
    monkeypatch.setattr(tuning, "choose_model", lambda *_, runs_on, **__: sheets.append(runs_on))
    with pytest.raises(Enough):
        tuning.tune("bert-tiny", target=parse_target("x86-64-v2"), out=tmp_path)
    assert sheets == [seen[0].facts.device]
    assert seen[0].facts.target == {"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": usable_cores()}
    assert seen[0].facts.device.spec.values()["simd_bytes"] == 16
    assert seen[0].options == ["--device", "local", "--target", '{"kind": "llvm", "mcpu": "x86-64-v2"}']


@pytest.mark.x86
def test_collect_keeps_a_scope_for_each_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_load_tasks", lambda *_: [])
    for target in (None, "x86-64-v2", "x86-64"):
        with pytest.raises(NetworkLoadError):
            collecting.collect("bert-tiny", 8, tmp_path, target=parse_target(target))
    for file in (tmp_path / FILE, home_file()):
        with closing(sqlite3.connect(file)) as db:
            facts = [json.loads(text) for (text,) in db.execute("SELECT facts FROM scopes")]
        assert len({str(scope["target"]) for scope in facts}) == len(facts) == 3

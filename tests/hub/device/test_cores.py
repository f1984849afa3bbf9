"""By default a program has a thread for each physical core that this process may use."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tchub.hub import api
from tchub.hub.bundle.build import resolve_target
from tchub.hub.device import host_facts
from tchub.hub.device.device_choice import choose_device
from tchub.hub.device.host_facts import cpu_quota, physical_cores, usable_cores
from tchub.hub.device.onsite.files import OnsiteError
from tchub.hub.device.onsite.worker import CpuBench
from tchub.hub.search.models import choose_model


def hyper_threaded(root: Path, cores: int) -> Path:
    """Sysfs of a machine on which CPU i and CPU i + cores share a core."""
    for cpu in range(2 * cores):
        topology = root / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % cores},{cpu % cores + cores}\n")
    return root


def test_hyper_threads_are_of_one_core(tmp_path: Path) -> None:
    root = hyper_threaded(tmp_path, 2)
    assert physical_cores([0, 1, 2, 3], root) == [(0, 2), (1, 3)]
    assert physical_cores([1, 2, 3], root) == [(1, 3), (2,)]
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


def test_the_default_is_the_physical_cores_of_this_machine() -> None:
    found = choose_device("local").facts
    assert found.cores == found.target["num-cores"] == usable_cores()
    assert resolve_target("local").threads == usable_cores()
    assert choose_device("local", 1).facts.target["num-cores"] == 1


def test_a_bundle_for_more_threads_than_the_machine_has_is_refused() -> None:
    with pytest.raises(OnsiteError, match=r"use 4096 threads.*build it with --threads"):
        CpuBench({"threads": 4096, "libraries": []})


@pytest.mark.parametrize("reasons", [(), ("tcl-epyc@1.0.0: of this family", "tcl-xeon@1.0.0: of another")])
def test_a_checkpoint_of_another_number_of_threads_says_so(
    monkeypatch: pytest.MonkeyPatch, reasons: tuple[str, ...]
) -> None:
    folder = Path(api.__file__).parents[1] / "zoo" / "checkpoints" / "tcl-epyc" / "1.0.0"
    base: Any = replace(api.choose_checkpoint(str(folder)), reasons=reasons)
    assert base.checkpoint.config.training["corpus"]["threads"] == 1
    monkeypatch.setattr(api, "choose_checkpoint", lambda _: base)
    assert choose_model("tcl-epyc", threads=1).reasons == reasons
    first, *others = choose_model("tcl-epyc", threads=2).reasons
    assert first.startswith(reasons[0] if reasons else "tcl-epyc@1.0.0 learnt")
    assert "learnt from programs of 1 thread, these have 2 threads" in first
    assert tuple(others) == reasons[1:]

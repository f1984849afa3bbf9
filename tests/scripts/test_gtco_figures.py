"""Figures of the ablation and of the two ways to fuse operators, and the parts that a setting leaves out."""

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import tvm
from tchub.hub.networks.alternatives import find_shapes
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.tasks import network_tasks
from tchub.hub.networks.transform import prepare
from tchub.hub.networks.transform.fused_depthwise import DepthwiseShape
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.networks.transform.winograd import ConvShape
from tchub.hub.search import scheduler
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.decision_search import DecisionSearch
from tchub.hub.search.scheduler import TaskProgress
from tchub.hub.search.settings import DecisionSettings
from tchub.hub.tuning import tune
from torch import nn
from tvm import tirx

from scripts.benchmarks import fusion
from scripts.benchmarks.common import write_text
from scripts.benchmarks.fusion import BY_TIME, GREEDY, differing, fused
from scripts.benchmarks.fusion import summary as fusion_summary
from scripts.benchmarks.gtco import (
    NOTHING,
    PARTS,
    REMOVED,
    SETTINGS,
    STOCK,
    left_out,
    summary,
    table,
    without,
    without_one,
)
from scripts.benchmarks.rivals import at_peak


def row(network: str, setting: str, ms: float, kernels: int = 10, threads: int = 1, **others: float) -> dict[str, Any]:
    facts = {"network": network, "setting": setting, "threads": threads, "kernels": kernels, "worst_error": ms * 1e-6}
    return facts | {"ms": {"tuned": ms} | others}


ROWS = [
    row("bert-tiny", NOTHING, 9.0, 40),
    row("bert-tiny", STOCK, 3.0, 12),
    row("bert-tiny", SETTINGS[-1], 2.0, 6, pytorch=4.0, openvino=3.0),
    row("resnet-50", STOCK, 8.0, 20),
    row("resnet-50", SETTINGS[-1], 4.0, 10, pytorch=6.0, openvino=2.0),
]


def test_gains_are_over_tvms_fusion_alone_and_rivals_are_those_of_the_last_setting() -> None:
    figures = summary([*ROWS, row("bert-tiny", SETTINGS[-1], 2.0, threads=2, pytorch=1.0)])
    assert figures == {
        "networks": 2,
        "gain": pytest.approx((1.5 * 2) ** 0.5, abs=1e-3),
        "versus_best_rival": pytest.approx((1.5 * 0.5) ** 0.5, abs=1e-3),
        "slower_than_best_rival": 1,
        "kernels_ratio": 2.0,
        "versus_best_rival_all_cores": 0.5,
        "slower_than_best_rival_all_cores": 1,
        "worst_error": 9e-6,
    }
    assert summary(ROWS[:2]) == {"networks": 0, "worst_error": 9e-6}, "a run that was cut short"


def test_speedups_are_over_the_setting_without_parts() -> None:
    cells = {"network": "bert-tiny", "threads": 1, NOTHING: 1.0, STOCK: 3.0, SETTINGS[-1]: 4.5}
    assert table(ROWS) == [cells], "resnet-50 has no such run"


def test_a_part_alone_is_worth_what_its_lack_costs() -> None:
    whole, *others = (row("vit-tiny", name, ms) for name, ms in zip(("Winograd", *REMOVED), (2, 3, 4, 5), strict=True))
    costs = dict(zip(REMOVED, (1.5, 2.0, 2.5), strict=True))
    assert without_one([whole, *others]) == [{"network": "vit-tiny", "all parts, ms": 2} | costs]


def test_what_is_removed_changes_the_search_alone() -> None:
    """Programs take their weights as stored; tasks take turns by the model's promise; weights are in the caches."""
    target: Any = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
    network = open_network(torch.nn.Linear(32, 64).eval(), torch.randn(48, 32))
    (task,) = network_tasks(lower(for_inference(network.imported())), target, "linear")

    def permuted() -> bool:
        context = tune_context(task, target, "replay-trace", 0)
        schedules, postprocs = context.generate_design_space(), context.space_generator.postprocs
        (space,) = DecisionSearch(task.mod, schedules[-1:], postprocs, DecisionSettings(), 0, target).spaces
        programs = [space.replay(decisions) for decisions in space.random(Random(0), 8)]
        return any("layout_rewrite" in str(one.sch.mod) for one in programs if one is not None)

    assert permuted()
    with without(left_out("prepacked weights")):
        assert not permuted()
    near, far = (TaskProgress(1, bound=bound, history=[1.0, 1.0], trials=2) for bound in (0.9, 0.1))
    assert scheduler.next_round([near, far], 8, 1) == [(1, 8)]
    with without(left_out("trials by headroom")):
        assert scheduler.next_round([near, far], 8, 1) == [(0, 8)], "as good as each other"
    with without(left_out("weights out of the caches")):
        assert tune.weights_between(1 << 24) == 0


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))
        self.pixels = torch.nn.Conv1d(32, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one(x).view(1, 53, 2, 16).transpose(1, 2) for one in self.qkv)
        x = ((q @ k.transpose(2, 3)).softmax(-1) @ v).transpose(1, 2).reshape(1, 53, 32)
        return self.pixels(x.transpose(1, 2))


def test_each_setting_adds_a_part() -> None:
    imported = open_network(Attention().eval(), torch.randn(1, 53, 32)).imported()

    def kernels(setting: str) -> list[str]:
        with without(left_out(setting)):
            graph = for_inference(imported)
            mod = lower(graph, find_shapes(graph))
        return sorted(f.script() for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))

    every = [kernels(setting) for setting in SETTINGS]
    assert len(every[0]) > len(every[1]) > len(every[-1]), "operators alone, then fused"
    changed = [after != before for before, after in pairwise(every)]
    assert dict(zip(PARTS, changed, strict=True)) == dict.fromkeys(PARTS, True) | dict.fromkeys(OF_IMAGES, False)


OF_IMAGES = {"Winograd": ConvShape, "fused bottlenecks": DepthwiseShape}


def test_ways_to_compute_convolutions_are_parts_too() -> None:
    layers = nn.Conv2d(8, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 64, 3, padding=1)
    network = open_network(nn.Sequential(*layers).eval(), torch.randn(1, 8, 24, 24))
    for part, shape in OF_IMAGES.items():
        before = SETTINGS[PARTS.index(part)]
        for setting in (before, part):
            with without(left_out(setting)):
                shapes = find_shapes(for_inference(network.imported()))
            assert any(isinstance(one, shape) for one in shapes) == (setting == part)


def test_time_at_the_peak_is_that_of_called_programs_with_nearly_all_flops_per_second() -> None:
    fast, slow = {"weight": 2, "best": 1e-3, "flops": 9e7}, {"weight": 1, "best": 2e-3, "flops": 9e7}
    assert at_peak([fast, slow, slow | {"weight": 0}], 1e11) == 0.5
    assert at_peak([slow], 1e11) == 0.0


def fused_row(
    network: str, kernels: tuple[int, int], equal: int, ms: tuple[float, float] | None = None
) -> dict[str, Any]:
    facts: dict[str, Any] = {"network": network, "equal": equal}
    for at, name in enumerate((GREEDY, BY_TIME)):
        facts |= {f"{name}, kernels": kernels[at], f"{name}, predicted ms": 4.0 - at, f"{name}, s": 0.1 * (at + 1)}
        facts |= {f"{name}, ms": ms[at]} if ms else {}
    return facts


def test_gains_are_those_of_networks_whose_kernels_differ() -> None:
    rows = [
        fused_row("a", (9, 9), 9),
        fused_row("b", (9, 8), 5, (2.0, 1.0)),
        fused_row("c", (9, 9), 7, (1.0, 2.0)),
        fused_row("d", (9, 8), 4),
    ]
    same = {"networks_with_the_same_kernels": 1, "seconds_of_the_pass": 0.2}
    assert fusion_summary(rows[:1]) == {"networks": 1} | same
    assert fusion_summary(rows) == {"networks": 4, "predicted_gain": pytest.approx(4 / 3, abs=1e-3), "gain": 1.0} | same


def test_kernels_that_both_networks_call_do_not_count(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in (GREEDY, BY_TIME)}
    tasks = {GREEDY: [("a", 1, 5e-6), ("b", 2, 3e-6), ("c", 0, 9e-6)], BY_TIME: [("a", 1, 7e-6), ("d", 1, 4e-6)]}
    for name, folder in folders.items():
        own = [{"id": identity, "weight": weight, "best": best} for identity, weight, best in tasks[name]]
        write_text(folder / "report.json", json.dumps({"runs": {"tuned": {"tasks": own}}}))
    assert differing(folders) == pytest.approx({f"{GREEDY}, differing us": 6.0, f"{BY_TIME}, differing us": 4.0})


def test_networks_are_lowered_by_the_pass_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "measured_rates", lambda: None)

    def names() -> list[str]:
        return [one.info.name for one in prepare._tensor_functions(cpu=True) if hasattr(one, "info")]

    with fused(GREEDY):
        assert "FuseOps" in names()
    with fused(BY_TIME):
        assert "TchubFuseByTime" in names()
        assert "FuseOps" not in names()
    assert "FuseOps" in names()

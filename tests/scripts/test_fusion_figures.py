"""Figures of the two ways to fuse operators, from runs that can be checked by hand, and what is patched meanwhile."""

import json
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.networks.transform import prepare

from scripts.benchmarks import fusion
from scripts.benchmarks.common import write_text
from scripts.benchmarks.fusion import BY_TIME, GREEDY, differing, fused, summary


def row(network: str, kernels: tuple[int, int], equal: int, ms: tuple[float, float] | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"network": network, "equal": equal}
    for at, name in enumerate((GREEDY, BY_TIME)):
        facts |= {f"{name}, kernels": kernels[at], f"{name}, predicted ms": 4.0 - at, f"{name}, s": 0.1 * (at + 1)}
        facts |= {f"{name}, ms": ms[at]} if ms else {}
    return facts


def test_gains_are_those_of_networks_whose_kernels_differ() -> None:
    rows = [row("a", (9, 9), 9), row("b", (9, 8), 5, (2.0, 1.0)), row("c", (9, 9), 7, (1.0, 2.0)), row("d", (9, 8), 4)]
    same = {"networks_with_the_same_kernels": 1, "seconds_of_the_pass": 0.2}
    assert summary(rows[:1]) == {"networks": 1} | same
    assert summary(rows) == {"networks": 4, "predicted_gain": pytest.approx(4 / 3, abs=1e-3), "gain": 1.0} | same


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

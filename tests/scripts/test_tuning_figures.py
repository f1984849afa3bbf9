"""Curves and ratios of the tuning benchmark, from runs that can be checked by hand."""

from typing import Any

import pytest

from scripts.benchmarks import tuning
from scripts.benchmarks.report import blocks, picture, shapes
from scripts.benchmarks.rivals import AVX2
from scripts.benchmarks.tuning import OURS, REFERENCE, Point

# After trials and seconds: the sum of two tasks, and how many of them have no program of their own.
SLOW = [(0, 0, 90, 2), (1, 10, 50, 1), (2, 11, 8, 0), (100, 60, 6, 0), (150, 80, 4.1, 0), (200, 100, 4, 0)]
FAST = [(0, 0.0, 90.0, 2), (1, 1.0, 40.0, 1), (2, 2.0, 5.0, 0), (50, 20.0, 4.0, 0), (200, 50.0, 2.0, 0)]
LATE = [(0, 0.0, 90.0, 2), (1, 10.0, 50.0, 1), (150, 90.0, 8.0, 0), (200, 100.0, 4.0, 0)]


def run(system: str, curve: Any, network: str = "bert-tiny", seed: int = 0, ms: float = 1.0) -> dict[str, Any]:
    key = {"network": network, "system": system, "seed": seed, "trials": 500, "model": "tilenet-epyc@1.4.0"}
    ends = {"spent": curve[-1][0], "seconds": curve[-1][1] + 1.0, "sum_of_tasks_ms": curve[-1][2]}
    return key | ends | {"curve": curve, "tasks": 2, "ms": {"tuned": ms}}


@pytest.mark.parametrize(
    ("mine", "theirs", "reached", "trials", "time", "latency"),
    [
        (FAST, SLOW, True, 200 / 50, 100 / 20, (4 / 2, 8 / 4, 6 / 4)),
        (SLOW, FAST, False, 200 / 200, 50 / 101, (2 / 4, 4 / 8, 4 / 6)),  # all that it spent stands
        (FAST, LATE, True, 200 / 50, 100 / 20, (4 / 2, None, None)),  # an untuned task says nothing of a model
        (FAST[:4], SLOW, True, 200 / 50, 100 / 20, (8 / 4, None, None)),  # at 50 trials, where the shorter ends
        (FAST, [*SLOW[:1], (1, 6.0, 90.0, 1)], True, 1, 6 / 1, (None, None, None)),  # the untuned start is no trial
    ],
)
def test_a_run_beside_the_reference(
    mine: Any, theirs: Any, reached: bool, trials: float, time: float, latency: Any
) -> None:
    row = tuning.versus(run(OURS, mine, ms=2.0), run(REFERENCE, theirs, ms=5.0))
    assert row["network_ratio"] == 2.5
    assert (row["reached"], row["trials_ratio"], row["time_ratio"]) == (reached, trials, time)
    assert tuple(row[f"latency_ratio_{at}_trials"] for at in ("equal", 64, 128)) == latency


def test_means_are_geometric_over_networks_and_seeds() -> None:
    rows = [run(REFERENCE, SLOW), run(REFERENCE, SLOW, seed=1), run(OURS, FAST), run(OURS, SLOW, seed=1)]
    summary, details = tuning.figures([*rows, run(REFERENCE, SLOW, "vit-tiny"), run(OURS, SLOW, "vit-tiny")])
    assert (summary["time_ratio"] ** 4, summary["trials_ratio_near"] ** 4) == pytest.approx((5, 3)), "within 5%: at 150"
    assert (summary["networks"], summary["compared"], summary["reached"]) == (2, 3, 3)
    assert details["systems_held_out"][0]["time_ratio"] == pytest.approx(5**0.5), "vit-tiny is no held-out network"
    assert summary["time_ratio_held_out"] == pytest.approx(5**0.5)


def test_a_network_with_one_system_has_no_ratio_and_breaks_no_report() -> None:
    summary, details = tuning.figures([run(OURS, FAST, "resnet-18"), run(REFERENCE, SLOW, "vit-tiny")])
    machine = {"device": "epyc-turin", "cpu_model": "a CPU", "cores": 2}
    run_of = {"benchmark": "tuning", "machine": machine, "seeds": [0], "command": "run"}
    job = run_of | {"summary": summary, "details": details}
    assert "| resnet-18 | - | 51 | - | - | - | - | - | - | **1 ms** |" in blocks.speed({"tuning": job})
    assert not [*shapes.lost_tuning(job), *picture.curves({"tuning": job})]


def test_a_thinned_curve_keeps_its_ends_and_where_it_falls() -> None:
    curve = [Point(trials, float(trials), 100.0 - trials // 3, 0) for trials in range(300)]
    assert tuning.thin(curve[:7]) == [curve[0], curve[3], curve[6]]
    kept = tuning.thin(curve)
    assert (len(kept), kept[0], kept[-1]) == (tuning.MOST_POINTS, curve[0], curve[-1])


def test_the_table_of_runtimes_has_a_column_of_ratios_for_each_machine_that_was_measured() -> None:
    def row(network: str, ours: float, threads: int = 1, target: str | None = None) -> dict[str, Any]:
        ms = {"pytorch": 9.0, "openvino": 4.0, "tuned": ours}
        facts = {"trials": 500, "tuning_seconds": 60.0, "model": "tilenet-epyc@1.4.0"}
        return facts | {"network": network, "threads": threads, "target": target, "ms": ms}

    def job(*rows: dict[str, Any]) -> dict[str, Any]:
        machine = {"device": "a-cpu", "cpu_model": "a CPU", "mcpu": "x86-64-v4", "cores": 2}
        return {"details": {"rivals": rows}, "machine": machine, "seeds": [0], "command": "run"}

    own = job(row("bert-tiny", 2.0), row("vit-tiny", 5.0), row("bert-tiny", 1.0, 2), row("bert-tiny", 3.2, 1, AVX2))
    others = {"rivals_intel": job(row("vit-tiny", 8.0)), "rivals_amx": job(row("bert-tiny", 1.6))}
    others |= {"rivals_bfloat16": job(row("vit-tiny", 4.0)), "rivals_int8": job(row("vit-tiny", 2.0))}
    text = blocks.rivals({"rivals": own} | others)
    head, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    assert head.endswith("| tchub | gain, EPYC | EPYC, 2 cores | EPYC, AVX2 | Xeon | Xeon, AMX | bfloat16 | int8 |"), (
        "no column without a run"
    )
    assert lines[0].endswith("| **2** | 2 | 4 | 1.25 | - | 2.5 | - | - |")
    assert lines[1].endswith("| **5** | 0.8 | - | - | 0.5 | - | 1 | 2 |"), "tchub loses here"

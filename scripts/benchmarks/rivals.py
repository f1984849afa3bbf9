"""Whole networks, tuned, beside the runtimes that a user would install instead: one run of `tchub tune` each.

Every system computes the same inputs with the same threads in one process, in turn, and its outputs are checked.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any
from unittest.mock import patch

import click

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, lacking, note, on_family, work_option
from scripts.benchmarks.quantised import QUANTISED, quantised

NETWORKS = (
    *("bert-tiny", "resnet-18", "resnet-50", "mobilenet-v2", "vit-tiny", "convnext-atto"),
    *("gpt2-48", "whisper-tiny-encoder", "segformer-b0-160", "bert-base"),
)
TRIALS, SEED, THREADS = 500, 0, (1, 2)
RIVALS = ("pytorch", "torch.compile", "onnxruntime", "openvino")
NEAR = 0.85  # share of the peak
# What most x86 CPUs of users have, and those with VNNI; programs are tuned for it on one thread, too.
AVX2, VNNI = "x86-64-v3", "cascadelake"
# By these PyTorch and OpenVINO use no more than that. ONNX Runtime knows no such setting, nor does torch.compile.
HELD = {
    AVX2: {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    VNNI: {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
}


def tuned(
    network: Any, threads: int, trials: int, seed: int, folder: Path, target: str | None = None, **options: Any
) -> dict[str, Any]:
    """Tune a network with the checkpoint that fits this machine, from nothing; milliseconds of every system.

    Args:
        target: of tchub's programs, as for `tchub tune --target`; None for this machine's. The others are held to it,
            too, as far as they can be.
        options: further ones of `tune`; without `compare`, all runtimes are compared.
    """
    from tchub import hub
    from tchub.hub.device.device_choice import parse_target

    options = {"compare": RIVALS[1:], "target": parse_target(target)} | options
    with patch.dict(os.environ, HELD.get(target, {}) if target else {}):
        result = hub.tune(network, trials=trials, threads=threads, seed=seed, reuse=False, out=folder, **options)
    report, run = result.report, result.report["runs"]["tuned"]
    checks, pairwise = report["output_check"].values(), run["prediction"]["pairwise_accuracy"]
    return {
        "model": run["model"],
        "tuning_seconds": round(run["tuning_seconds"], 1),
        "narrowed_pairwise": pairwise and round(pairwise, 3),
        "sum_of_tasks_ms": round(1e3 * run["sum_of_tasks"], 3),
        "ms": {name: round(1e3 * median, 3) for name, median in result.latency.items()},
        "not_compared": report["not_compared"],
        "worst_of_allowed": max(check["worst"] for check in checks),
        "worst_error": max(check["max_abs_diff"] / (check["max_abs_output"] or 1.0) for check in checks),
        "kernels": sum(task["weight"] for task in run["tasks"]),
        "gflops": round(report["roofline"]["flops"] / 1e9, 1),
        # The roofline is of float32.
        "at_peak": None if "precision" in options else round(at_peak(run["tasks"], report["roofline"]["flops"]), 3),
    }


def at_peak(tasks: Sequence[dict[str, Any]], peak: float) -> float:
    """Return the share of the tasks' time in programs that have `NEAR` of the peak FLOP/s: no schedule gains there.

    FLOPs are those of the program as it is computed, by Winograd's algorithm for instance, an exponential being one.
    """
    called = [task for task in tasks if task["weight"] and task["best"]]
    seconds = [task["weight"] * task["best"] for task in called]
    near = [one for one, task in zip(seconds, called, strict=True) if task["flops"] >= NEAR * peak * task["best"]]
    return sum(near) / sum(seconds)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the rows come to; a ratio over 1: tchub is faster.

    `narrowed_pairwise` is the share of pairs of measured programs that the model's scores, as they were when it chose
    them, order rightly, of networks that no checkpoint learns from: programs that the search has narrowed down to.
    """
    from tchub.zoo.corpus import HELD_OUT

    held = {target: [row for row in rows if row["target"] == target] for target in HELD}
    one = [row for row in rows if row["threads"] == 1 and not row["target"]]
    several = [row for row in rows if row["threads"] > 1]
    figures: dict[str, Any] = {"networks": len(one)}
    for suffix, part in (("", one), ("_all_cores", several), ("_avx2", held[AVX2]), ("_vnni", held[VNNI])):
        if part:
            ratios = [best_rival(row)[1] / row["ms"]["tuned"] for row in part]
            figures[f"versus_best_rival{suffix}"] = round(geometric_mean(ratios), 3)
            figures[f"slower_than_best_rival{suffix}"] = sum(ratio < 1 for ratio in ratios)
            eager = [(row["ms"]["tuned"], row["ms"]["pytorch"]) for row in part if "pytorch" in row["ms"]]
            figures |= {f"slower_than_pytorch{suffix}": sum(ours > other for ours, other in eager)} if eager else {}
            sums = [row["ms"]["tuned"] / row["sum_of_tasks_ms"] for row in part]
            figures[f"network_over_sum_of_tasks{suffix}"] = round(geometric_mean(sums), 3)
    pairwise = [row["narrowed_pairwise"] for row in one if row["network"] in HELD_OUT]
    shares = [row["at_peak"] for row in one if row["at_peak"] is not None]
    figures |= {"at_peak": round(fmean(shares), 3)} if shares else {}
    return figures | ({"narrowed_pairwise": round(fmean(pairwise), 3)} if pairwise else {})


def best_rival(row: dict[str, Any]) -> tuple[str, float]:
    """Return the fastest of the other systems, and its milliseconds."""
    return min(((name, row["ms"][name]) for name in RIVALS if name in row["ms"]), key=lambda pair: pair[1])


def measure(
    clock: Clock,
    work: Path,
    family: str,
    networks: Sequence[str] = NETWORKS,
    threads: Sequence[int] = THREADS,
    held: str | None = None,
    opened: Callable[[str, Path], Any] | None = None,
    **options: Any,
) -> Document:
    """Tune and time what is not in the journal of `work` yet, on a machine of the device family that is asked for.

    Args:
        held: a target, see `HELD`, for which networks are tuned on one thread, too.
        opened: gives what `tune` takes for a name, from a folder; None for the network of the zoo.
        options: of `tune`.
    """
    on_family(family)
    cases: list[tuple[int, str, str | None]] = [(count, network, None) for count in threads for network in networks]
    cases = sorted([*cases, *((1, network, held) for network in networks if held)], key=lambda case: case[0])
    journal, rows = Journal(work / "results.jsonl"), []
    for count, network, target in cases:
        key = {"network": network, "threads": count, "trials": TRIALS, "seed": SEED, "target": target}
        folder = work / "-".join(str(value) for value in key.values() if value is not None)
        source = {} if opened is None else {"network": opened(network, work)}
        if row := journal.get(lambda k=key | source, f=folder: tuned(**k, folder=f, **options), clock, **key):
            rows.append(key | row | ({} if opened is None else {"at_peak": None}))  # the roofline is of float32
            note(f"{network}, {count} threads{f', {target}' if target else ''}: {row['ms']}")
    return (
        summary(rows),
        {"rivals": rows, "not_done": lacking(len(cases) - len(rows), len(cases), "runs")},
        [SEED],
    )


def command(name: str, **settings: Any) -> click.Command:
    """Return the command that makes one table; settings are those of `measure`."""

    @benchmark(name, CLOCK, work_option(name))
    def run(clock: Clock, work: Path) -> Document:
        """Tune networks and time them beside other runtimes; write the table to docs/benchmarks."""
        return measure(clock, work, **settings)

    return run


main = command("rivals", family="epyc", held=AVX2)
# Another maker's CPU. Of one with AMX, a core has up to twice the FLOP/s of the others.
rivals_intel = command("rivals_intel", family="xeon", held=AVX2)
rivals_amx = command("rivals_amx", family="xeon", threads=(1,))
# OpenVINO's default on CPUs with AMX. An untrained MobileNet-V2 loses its output in bfloat16, in PyTorch's too.
_IN_HALVES = tuple(network for network in NETWORKS if network != "mobilenet-v2")
rivals_bfloat16 = command("rivals_bfloat16", family="xeon", networks=_IN_HALVES, precision="bfloat16")
# By AMX and by VNNI. PyTorch, which cannot read the files, is left out.
rivals_int8 = command(
    "rivals_int8", family="xeon", networks=QUANTISED, held=VNNI, opened=quantised, compare=("onnxruntime", "openvino")
)

"""What each part of a network's preparation is worth: GTCO's ablation (Bai et al. 2024, table III), on this machine.

A setting has the parts of those before it and one more. Each is tuned from nothing by `tchub tune` with the same trials
and seed, in a process of its own in which the other parts are passes that change nothing; where a part changes nothing
of a network, the run before it counts for it. At the end one process times the programs of all settings and the other
runtimes in turn: from one run to the next the machine is not the same. Then, on three networks, all parts but one of
those that concern weights and trials. Weights are prefetched in all of them: the workers that compile programs do so.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import click

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, in_process, lacking, note, work_option
from scripts.benchmarks.rivals import RIVALS, SEED, TRIALS, best_rival, tuned

DETR = "detr-encoder"
NETWORKS = ("resnet-50", "mobilenet-v2", "vit-tiny", "bert-tiny", "bert-base", DETR, "convnext-atto")
# Feature map of an image of 800 x 1066 pixels, the size at which DETR is reported.
DETR_MAP = (25, 34)
NOTHING, STOCK = "no part", "operator fusion"
# Each setting has one part more than the one before it.
PARTS = (
    *(STOCK, "joint projections", "padded attention", "softmax by lanes", "fused attention", "Winograd"),
    *("1x1 convolutions as products", "padded rows", "fused bottlenecks"),
)
SETTINGS = (NOTHING, *PARTS)
# Left out one at a time, of the last setting, on these networks and one thread.
REMOVED = ("prepacked weights", "trials by headroom", "weights out of the caches")
REMOVED_OF = ("resnet-50", "vit-tiny", "mobilenet-v2")

Row = dict[str, Any]


@contextmanager
def without(parts: Sequence[str]) -> Iterator[None]:
    """Leave parts of the preparation out of every network that this process imports meanwhile."""
    import tvm
    from tchub.hub.networks import alternatives
    from tchub.hub.networks.transform import prepare
    from tchub.hub.search import decision_search, scheduler
    from tchub.hub.tuning import tune

    space = decision_search.DesignSpace

    def unchanged() -> Any:
        return tvm.transform.Sequential([])

    def none(_: Any) -> set[Any]:
        return set()

    def as_stored(mod: Any, postprocs: Sequence[Any], *rest: Any) -> Any:
        return space(mod, [one for one in postprocs if type(one).__name__ != "RewriteLayout"], *rest)

    stand_ins = {
        STOCK: (prepare.transform, "FuseOps", partial(prepare.transform.FuseOps, 0)),  # each operator stays alone
        "joint projections": (prepare, "join_projections", unchanged),
        "padded attention": (prepare, "pad_attention", unchanged),
        "softmax by lanes": (prepare, "by_lanes", unchanged),
        "fused attention": (alternatives, "attentions", none),
        "Winograd": (alternatives, "convolutions", none),
        "1x1 convolutions as products": (prepare, "pointwise_products", unchanged),
        "padded rows": (prepare, "pad_rows", unchanged),
        "fused bottlenecks": (alternatives, "depthwise_convolutions", none),
        "prepacked weights": (decision_search, "DesignSpace", as_stored),
        "trials by headroom": (scheduler, "priority", scheduler.gain),  # by what the model's scores promise alone
        "weights out of the caches": (tune, "weights_between", lambda total: 0),
    }
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(patch.object(*stand_ins[part]))
        yield


def left_out(setting: str) -> tuple[str, ...]:
    """Return the parts that a setting lacks; the name of a part that was removed is its setting."""
    return (setting,) if setting in REMOVED else PARTS[SETTINGS.index(setting) :]


def source_of(network: str) -> dict[str, Any]:
    """Return the arguments by which `tune` takes a network: its name, or DETR's encoder with its positions."""
    if network != DETR:
        return {"network": network}
    import torch
    from transformers import DetrConfig
    from transformers.models.detr.modeling_detr import DetrEncoder

    class Encoder(torch.nn.Module):
        """Calls the encoder on a feature map, with positions as constants."""

        def __init__(self) -> None:
            super().__init__()
            config = DetrConfig(use_timm_backbone=False, backbone_config={"model_type": "resnet"})
            config._attn_implementation = "eager"
            self.encoder = DetrEncoder(config)
            self.register_buffer("positions", torch.randn(1, DETR_MAP[0] * DETR_MAP[1], config.d_model))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x, spatial_position_embeddings=self.positions).last_hidden_state

    torch.manual_seed(0)
    encoder = Encoder().eval()
    return {"network": encoder, "example_inputs": (torch.randn_like(encoder.positions),), "name": DETR}


def graphs(network: str) -> dict[str, str]:
    """Return a text for each setting: settings of one text run the same kernels, and may choose among the same."""
    import tvm
    from tchub.hub.device.detect import detect_local
    from tchub.hub.device.extensions import vector_lanes
    from tchub.hub.networks.alternatives import find_shapes
    from tchub.hub.networks.sources import open_network
    from tchub.hub.networks.tasks import network_tasks
    from tchub.hub.networks.transform.prepare import for_inference, lower

    source = source_of(network)
    opened = open_network(source["network"], source.get("example_inputs"), name=source.get("name"))
    imported, target, texts = opened.imported(), tvm.target.Target(detect_local(1).target), {}
    for setting in SETTINGS:
        with without(left_out(setting)):
            graph = for_inference(imported, lanes=vector_lanes(target))
            tasks = network_tasks(lower(graph), target, network)
            texts[setting] = str((sorted((task.task_id, task.weight) for task in tasks), find_shapes(graph)))
    return texts


def tuned_with(network: str, setting: str, threads: int, trials: int, seed: int, folder: Path) -> Row:
    """Tune a network with the parts of a setting; kernels of a run, and the error."""
    with without(left_out(setting)):
        source = source_of(network)
        return tuned(**source, threads=threads, trials=trials, seed=seed, folder=folder, compare=())


def timed_in_turn(network: str, folders: dict[str, Path], threads: int, rivals: Sequence[str]) -> Row:
    """Return the milliseconds of what was tuned in the folders, by setting, and of other runtimes."""
    from tchub.hub.networks.latency import compare
    from tchub.hub.networks.output_check import require
    from tchub.hub.networks.sources import open_network

    source = source_of(network)
    opened = open_network(source["network"], source.get("example_inputs"), name=source.get("name"))
    libraries = {setting: next(folder.glob("*.so")) for setting, folder in folders.items()}
    compared = compare(opened, lambda: libraries, threads=threads, max_seconds=90, rivals=rivals)
    for check in compared.checks.values():
        require(check, network)
    ms = {name: round(1e3 * one.median, 3) for name, one in compared.latencies.items()}
    return {"ms": ms, "not_compared": compared.errors}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the rows come to, for one thread and for several; a ratio over 1: all parts together are better.

    `gain` and `kernels_ratio` compare the latency and the kernels of a run with those of TVM's fusion alone,
    `worst_error` is the largest difference from PyTorch, as a share of the largest output.
    """
    figures: dict[str, Any] = {"networks": len({row["network"] for row in rows if row["setting"] == SETTINGS[-1]})}
    for suffix, part in (
        ("", [row for row in rows if row["threads"] == 1]),
        ("_all_cores", [row for row in rows if row["threads"] > 1]),
    ):
        ends = {row["network"]: row for row in part if row["setting"] == SETTINGS[-1]}
        starts = {row["network"]: row for row in part if row["setting"] == STOCK and row["network"] in ends}
        if starts:
            pairs = [(start, ends[name]) for name, start in starts.items()]
            gains = [start["ms"]["tuned"] / end["ms"]["tuned"] for start, end in pairs]
            figures[f"gain{suffix}"] = round(geometric_mean(gains), 3)
        if ends:
            ratios = [best_rival(row)[1] / row["ms"]["tuned"] for row in ends.values()]
            figures[f"versus_best_rival{suffix}"] = round(geometric_mean(ratios), 3)
            figures[f"slower_than_best_rival{suffix}"] = sum(ratio < 1 for ratio in ratios)
        if starts and not suffix:
            kernels = [start["kernels"] / end["kernels"] for start, end in pairs]
            figures["kernels_ratio"] = round(geometric_mean(kernels), 3)
    return figures | {"worst_error": max(row["worst_error"] for row in rows)}


def table(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each network and number of threads: how many times each setting is as fast as the first."""
    result = []
    for network, threads in dict.fromkeys((row["network"], row["threads"]) for row in rows):
        ms = {r["setting"]: r["ms"]["tuned"] for r in rows if (r["network"], r["threads"]) == (network, threads)}
        if first := ms.get(NOTHING):
            result.append({"network": network, "threads": threads} | {name: first / one for name, one in ms.items()})
    return result


@benchmark(
    "gtco",
    click.option("--network", "networks", multiple=True, default=NETWORKS, type=click.Choice(NETWORKS)),
    click.option("--threads", "counts", multiple=True, type=int, default=(1, 2), show_default=True),
    CLOCK,
    work_option("gtco"),
)
def main(networks: Sequence[str], counts: Sequence[int], clock: Clock, work: Path) -> Document:
    """Tune networks with one part of their preparation after the other; write docs/benchmarks/gtco.json."""
    runs, rows = _Runs(Journal(work / "results.jsonl"), clock, work), []
    for threads, network in product(counts, networks):
        known = runs.journal.get(lambda n=network: {"graphs": in_process(graphs, n)}, clock, graphs_of=network)
        texts = known["graphs"] if known else {}
        run_as = {setting: next(one for one in SETTINGS if texts[one] == texts[setting]) for setting in texts}
        rows += runs.timed(network, threads, run_as, RIVALS[1:])
    if not rows:
        raise click.ClickException("no run is done")
    removed: list[Row] = []
    whole = {row["network"]: row["run_as"] for row in rows if row["threads"] == 1 and row["setting"] == SETTINGS[-1]}
    for network in [one for one in REMOVED_OF if one in whole]:
        removed += runs.timed(network, 1, {one: one for one in (whole[network], *REMOVED)}, ())
    asked = len(SETTINGS) * len(networks) * len(counts)
    details = {"speedup": table(rows), "removed": without_one(removed), "runs": rows}
    return summary(rows), details | {"not_done": lacking(asked - len(rows), asked, "settings")}, [SEED]


@dataclass(frozen=True)
class _Runs:
    """What was tuned and timed, kept in a journal."""

    journal: Journal
    clock: Clock
    work: Path

    def timed(self, network: str, threads: int, run_as: dict[str, str], rivals: Sequence[str]) -> list[Row]:
        """Return the row of each setting; none where one of them is not done.

        Args:
            run_as: setting -> the setting that is run for it.
        """
        done: dict[str, Row] = {}
        names = {one: (*SETTINGS, *REMOVED).index(one) for one in run_as.values()}
        folders = {one: self.work / f"{network}-{names[one]}-{threads}-{TRIALS}" for one in names}
        for setting, folder in folders.items():
            key = {"network": network, "setting": setting, "threads": threads, "trials": TRIALS, "seed": SEED}
            make = partial(in_process, tuned_with, *key.values(), folder, log=folder.with_suffix(".log"))
            if row := self.journal.get(make, self.clock, **key):
                done[setting] = row
        if not folders or len(done) < len(folders):
            return []
        log = self.work / f"{network}-{threads}{'' if rivals else '-removed'}.log"
        make = partial(in_process, timed_in_turn, network, folders, threads, rivals, log=log)
        which = None if rivals else "removed"
        key = {"timed": network, "threads": threads, "trials": TRIALS, "seed": SEED, "which": which}
        if not (timed := self.journal.get(make, self.clock, **key)):
            return []
        note(f"{network}, {threads} threads: {timed['ms']}")
        others = {name: ms for name, ms in timed["ms"].items() if name not in folders}
        return [
            done[one] | timed | {"setting": setting, "run_as": one, "ms": {"tuned": timed["ms"][one]} | others}
            for setting, one in run_as.items()
        ]


def without_one(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each network: its latency without a part over that with all of them."""
    result = []
    for network in dict.fromkeys(row["network"] for row in rows):
        own = {row["setting"]: row for row in rows if row["network"] == network}
        whole = next(row for setting, row in own.items() if setting not in REMOVED)
        ratios = {name: own[name]["ms"]["tuned"] / whole["ms"]["tuned"] for name in REMOVED}
        result.append({"network": network, "all parts, ms": whole["ms"]["tuned"]} | ratios)
    return result

"""Config and metrics with everything that a card can show."""

import copy
from typing import Any

from hypothesis import strategies as st
from tchub.zoo.devices import get_device


def scores(pairwise: float, top1: float = 0.8) -> dict[str, float]:
    """Return the five scores, of which two are given."""
    return {"top1": top1, "top5": 0.95, "mean_top1": top1, "mean_top5": 0.96, "pairwise": pairwise}


def transfer_row(corpus: str, pairwise: float, top1: float, **facts: Any) -> dict[str, Any]:
    """Return scores on another corpus."""
    return {
        "corpus": corpus, "device": corpus, "device_learnt": False, "split": "test", "tasks": 6, "tasks_known": 0,
        "tasks_left_out": 0, "programs": 600, "metrics": scores(pairwise, top1), "random": scores(0.5, 0.3), **facts,
    }  # fmt: skip


CONFIG: dict[str, Any] = {
    "format": 1, "name": "tilenet-epyc", "version": "1.0.0", "arch": "tilenet", "family": "epyc",
    "feature_schema": "nest-cpu", "tvm": "0.27.0", "model": {"hidden": 256},
    "device": get_device("epyc-turin").to_dict(),
    "lineage": {"weights_licence": "Apache-2.0", "authors": "the authors", "limits": ["Only float32."]},
    "training": {
        "command": "tchub train tilenet --corpus epyc-turin --seed 3", "seed": 3, "seconds": 91.2,
        "machine": "AMD EPYC 9B45, one core", "kilojoules": 4.21, "parameters": 189_510,
        "corpus": {
            "name": "epyc-turin", "device": "epyc-turin", "licence": "Apache-2.0", "programs": 9_070, "tasks": 46,
            "how": "one core, 3 repeats at least",
        },
    },
}  # fmt: skip
BARE = {key: CONFIG[key] for key in ("name", "version", "arch", "family", "feature_schema")}
METRICS: dict[str, Any] = {
    "format": 1, "corpus": "epyc-turin", "split": "test", "device": "epyc-turin", "seed": 3, "tasks": 12,
    "programs": 940,
    "results": {"model": scores(0.86, 0.9), "random": scores(0.5, 0.2), "xgboost": scores(0.8, 0.7)},
    "siblings": {"tcl-epyc": scores(0.88, 0.7) | {"parameters": 92_353, "learnt": 9_200}},
    "validation": scores(0.87, 0.91),
    "seeds": {"count": 3, "pairwise": {"mean": 0.88, "stdev": 0.0031}, "top1": {"mean": 0.9, "stdev": 0.02}},
    "heads": {"latency": 0.61, "memory": 0.72, "core": 0.83},
    "few_shot": {"16": scores(0.93), "4": scores(0.89)},
    "curves": {
        "programs": 940, "tasks": 12,
        "top_k": [{"k": k, "model": 0.9 + k / 200, "random": 0.1 + k / 30} for k in (1, 2, 3, 5, 10, 20)],
        "scatter": {"seed": 0, "predicted": [0.1, 0.5, 0.9], "measured": [0.2, 0.4, 1.0]},
        "calibration": [
            {"least": i / 10, "most": (i + 1) / 10, "programs": 94, "mean": 0.1 + i / 20, "stdev": 0.05,
             "perfect": 0.05 + i / 15}
            for i in range(10)
        ],
        "failures": {
            "tasks": [{"corpus": "epyc-turin", "task": "0" * 16, "operator": "conv2d", "programs": 64,
                       "words": "convolution of 1x64x56x56, 64 filters of 3x3, stride 1x1", "pairwise": 0.41,
                       "top1": 0.33}],
            "operators": [{"operator": "conv2d", "tasks": 11, "programs": 900, "pairwise": 0.84, "top1": 0.8},
                          {"operator": "softmax", "tasks": 1, "programs": 40, "pairwise": 0.9, "top1": 0.7}],
        },
    },
    "transfer": [
        transfer_row("xeon-4210", 0.6, 0.2, tasks_left_out=2),
        transfer_row("ryzen-3700x", 0.9, 0.8, device_learnt=True),
        transfer_row("graviton1", 0.7, 0.7, split="all", tasks_known=1, programs_per_task=64),
    ],
    "tuning": [
        {"network": "bert-tiny", "device": "epyc-turin", "trials": 16, "seconds": [0.0, 9.5], "ms": [70.0, 2.1],
         "rival": {"name": "stock MetaSchedule", "seconds": [0.0, 80.0], "ms": [70.0, 5.3]}},
        {"network": "vit-tiny", "seconds": [0.0, 7.0], "ms": [30.0, 4.0]},
    ],
}  # fmt: skip


def corpus(name: str, device: str, programs: int, licence: str = "MIT", **facts: Any) -> dict[str, Any]:
    """Return the facts of a corpus as a training config holds them."""
    return {
        "name": name, "device": device, "licence": licence, "programs": programs, "tasks": 12, "networks": [],
        "programs_without_features": 0, "how": "imported from a log of ansor; latency is the median of the repeats",
        "held_out": [], "framework": "ansor", "source": f"owner/{name}@0a1b2c", **facts,
    }  # fmt: skip


T4_CONFIG: dict[str, Any] = CONFIG | {
    "name": "tilenet-t4", "family": "t4", "feature_schema": "nest-gpu", "device": get_device("t4").to_dict(),
    "lineage": {"weights_licence": "Apache-2.0", "data": "measured", "measured_on": ["t4", "rtx2080ti", "v100"]},
    "training": {
        "command": "tchub train tilenet --corpus t4 --seed 2", "seed": 2, "stages": 2, "programs_fraction": 0.1,
        "corpus": corpus("t4", "t4", 90, "none found"),
        "sources": [
            corpus("rtx2080ti", "rtx2080ti", 4_000, "GPL-3.0", programs_without_features=17),
            corpus("v100", "v100", 30_000),
        ],
    },
}  # fmt: skip
T4_METRICS: dict[str, Any] = METRICS | {"corpus": "t4", "device": "t4"}


def changed(document: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in which entries of the named parts are others."""
    copied = copy.deepcopy(document)
    for name, entries in parts.items():
        copied[name] |= entries
    return copied


def without(document: dict[str, Any], *paths: tuple[str, ...]) -> dict[str, Any]:
    """Return a copy that lacks the fields at some paths."""
    copied = copy.deepcopy(document)
    for *parents, last in paths:
        parent = copied
        for key in parents:
            parent = parent.get(key, {})
        parent.pop(last, None)
    return copied


def paths_of(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the path of every field."""
    paths: list[tuple[str, ...]] = []
    for key, value in document.items():
        paths.append((key,))
        if isinstance(value, dict):
            paths += [(key, *path) for path in paths_of(value)]
    return paths


def subsets(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return documents that lack some fields."""
    removed = st.lists(st.sampled_from(paths_of(document)), max_size=6)
    return removed.map(lambda paths: without(document, *paths))


def spoiled(document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return documents with a value of any JSON type in place of one field."""
    values = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
        st.just([{}]), st.just([1, "a"]), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    )  # fmt: skip

    def put(path: tuple[str, ...], value: Any) -> dict[str, Any]:
        copied = copy.deepcopy(document)
        parent = copied
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = value
        return copied

    return st.builds(put, st.sampled_from(paths_of(document)), values)

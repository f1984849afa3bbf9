"""Reference workloads, read from `workloads.toml`: the networks and operators that corpora are collected from.

A network is named by a `transformers` configuration (random weights: latency does not depend on their
values), so that nothing has to be downloaded. `hub.networks.frontend.network` turns a `NetworkSpec` into a program.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec


@dataclass(frozen=True)
class NetworkSpec:
    """A network at one input shape, batch 1, float32.

    Attributes:
        model: class name in `transformers`, or `resnext` for the one network that it lacks.
        config: keyword arguments of the model's configuration class.
        input: `image` (1, 3, size, size), `tokens` (1, size) or `audio` (1, mel bins, size).
        size: side of the image in pixels, length of the token sequence, or audio frames.
    """

    name: str
    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    input: str = "image"
    size: int = 224


@dataclass(frozen=True)
class OperatorSpec:
    """One operator written in TVM's tensor-expression language.

    Attributes:
        op: `conv2d`, `depthwise`, `dense`, `batch_matmul`, `softmax` or `pool`.
        shape: the operator's sizes, by name (see `hub.networks.workloads`).
    """

    name: str
    op: str
    shape: Mapping[str, int]


class _Workloads(msgspec.Struct, forbid_unknown_fields=True):
    held_out: tuple[NetworkSpec, ...]
    train: tuple[NetworkSpec, ...]
    operator: tuple[OperatorSpec, ...]


_WORKLOADS = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Workloads)

HELD_OUT_NETWORKS, TRAIN_NETWORKS = _WORKLOADS.held_out, _WORKLOADS.train
NETWORKS: dict[str, NetworkSpec] = {spec.name: spec for spec in (*HELD_OUT_NETWORKS, *TRAIN_NETWORKS)}
OPERATORS: dict[str, OperatorSpec] = {spec.name: spec for spec in _WORKLOADS.operator}

_HELD_OUT, _TRAIN = (tuple(spec.name for spec in specs) for specs in (HELD_OUT_NETWORKS, TRAIN_NETWORKS))
SUITES: dict[str, tuple[str, ...]] = {
    "reference": ("resnet-18", "mobilenet-v1", "bert-mini-64"),
    "papers": _HELD_OUT,
    "train": (*_TRAIN, *OPERATORS),
    "operators": tuple(OPERATORS),
    "full": (*_HELD_OUT, *_TRAIN, *OPERATORS),
}
"""What `tchub collect` and `tchub adapt` measure, by name."""

"""Reference workloads as data: the networks and operators that corpora are collected from.

A network is named by a `transformers` configuration (random weights: latency does not depend on their
values), so that nothing has to be downloaded. `hub.networks.network` turns a `NetworkSpec` into a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class NetworkSpec:
    """A network at one input shape, batch 1, float32.

    Attributes:
        name: the name that commands take.
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
        name: the name that commands take.
        op: `conv2d`, `depthwise`, `dense`, `batch_matmul`, `softmax` or `pool`.
        shape: the operator's sizes, by name (see `hub.networks.operators`).
    """

    name: str
    op: str
    shape: Mapping[str, int]


def _bert(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        **more,
    }


_BASIC = {"hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
_DEIT = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}

# The five networks that the papers hold out (papers TLP 6.1, TCL 7.1.1): batch 1, 224x224 or length 128.
HELD_OUT_NETWORKS = (
    NetworkSpec("resnet-50", "ResNetForImageClassification", {"depths": [3, 4, 6, 3]}),
    NetworkSpec("mobilenet-v2", "MobileNetV2ForImageClassification", {"image_size": 224}),
    NetworkSpec("resnext-50", "resnext", {"groups": 32, "width_per_group": 4}),
    NetworkSpec("bert-tiny", "BertModel", _bert(128, 2, 2), "tokens", 128),
    NetworkSpec("bert-base", "BertModel", _bert(768, 12, 12), "tokens", 128),
)

TRAIN_NETWORKS = (
    NetworkSpec("resnet-18", "ResNetForImageClassification", {**_BASIC, "depths": [2, 2, 2, 2]}),
    NetworkSpec("resnet-34-160", "ResNetForImageClassification", {**_BASIC, "depths": [3, 4, 6, 3]}, size=160),
    NetworkSpec("resnet-50-192", "ResNetForImageClassification", {"depths": [3, 4, 6, 3]}, size=192),
    NetworkSpec("mobilenet-v1", "MobileNetV1ForImageClassification", {"image_size": 192}, size=192),
    NetworkSpec(
        "mobilenet-v2-075-160",
        "MobileNetV2ForImageClassification",
        {"image_size": 160, "depth_multiplier": 0.75},
        size=160,
    ),
    NetworkSpec("resnext-26-176", "resnext", {"groups": 16, "width_per_group": 8, "depths": [2, 2, 2, 2]}, size=176),
    NetworkSpec(
        "regnet-x-400mf",
        "RegNetForImageClassification",
        {"hidden_sizes": [32, 64, 160, 384], "depths": [1, 2, 7, 12], "groups_width": 16, "layer_type": "x"},
    ),
    NetworkSpec(
        "convnext-atto",
        "ConvNextForImageClassification",
        {"hidden_sizes": [40, 80, 160, 320], "depths": [2, 2, 6, 2], "image_size": 224},
    ),
    NetworkSpec("vit-tiny", "ViTForImageClassification", {**_DEIT, "image_size": 224, "patch_size": 16}),
    NetworkSpec(
        "vit-small-160",
        "ViTForImageClassification",
        {
            "hidden_size": 384,
            "num_hidden_layers": 12,
            "num_attention_heads": 6,
            "intermediate_size": 1536,
            "image_size": 160,
            "patch_size": 16,
        },
        size=160,
    ),
    NetworkSpec("segformer-b0-160", "SegformerForImageClassification", {"image_size": 160}, size=160),
    NetworkSpec("bert-mini-64", "BertModel", _bert(256, 4, 4), "tokens", 64),
    NetworkSpec("bert-small-96", "BertModel", _bert(512, 4, 8), "tokens", 96),
    NetworkSpec("distilbert-64", "DistilBertModel", {"n_layers": 6}, "tokens", 64),
    NetworkSpec("electra-small-160", "ElectraModel", _bert(256, 12, 4, embedding_size=128), "tokens", 160),
    NetworkSpec("gpt2-48", "GPT2Model", {"n_layer": 12, "use_cache": False}, "tokens", 48),
    NetworkSpec(
        "whisper-tiny-encoder",
        "WhisperEncoder",
        {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536},
        "audio",
        600,
    ),
)

NETWORKS: Mapping[str, NetworkSpec] = MappingProxyType(
    {spec.name: spec for spec in (*HELD_OUT_NETWORKS, *TRAIN_NETWORKS)}
)


def _conv(n: str, c: int, h: int, k: int, r: int, s: int) -> OperatorSpec:
    return OperatorSpec(n, "conv2d", {"channels": c, "size": h, "filters": k, "kernel": r, "stride": s})


OPERATORS: Mapping[str, OperatorSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _conv("conv2d-3x3", 48, 28, 96, 3, 1),
            _conv("conv2d-1x1", 96, 28, 192, 1, 1),
            _conv("conv2d-3x3-s2", 64, 40, 80, 3, 2),
            _conv("conv2d-5x5", 24, 36, 48, 5, 1),
            _conv("conv2d-7x7-s2", 3, 128, 48, 7, 2),
            _conv("conv2d-1x1-wide", 320, 10, 640, 1, 1),
            OperatorSpec("depthwise-3x3", "depthwise", {"channels": 120, "size": 28, "kernel": 3, "stride": 1}),
            OperatorSpec("depthwise-5x5-s2", "depthwise", {"channels": 72, "size": 56, "kernel": 5, "stride": 2}),
            OperatorSpec("depthwise-7x7", "depthwise", {"channels": 96, "size": 24, "kernel": 7, "stride": 1}),
            OperatorSpec("dense-small", "dense", {"m": 16, "n": 320, "k": 640}),
            OperatorSpec("dense-square", "dense", {"m": 256, "n": 256, "k": 256}),
            OperatorSpec("dense-row", "dense", {"m": 1, "n": 1000, "k": 1280}),
            OperatorSpec("dense-tall", "dense", {"m": 400, "n": 96, "k": 288}),
            OperatorSpec("batch-matmul-scores", "batch_matmul", {"batch": 6, "m": 96, "n": 96, "k": 48}),
            OperatorSpec("batch-matmul-context", "batch_matmul", {"batch": 10, "m": 80, "n": 48, "k": 80}),
            OperatorSpec("softmax-rows", "softmax", {"rows": 384, "columns": 96}),
            OperatorSpec("softmax-wide", "softmax", {"rows": 24, "columns": 4000}),
            OperatorSpec("pool-max-3x3", "pool", {"channels": 48, "size": 80, "kernel": 3, "stride": 2}),
            OperatorSpec("pool-average-7x7", "pool", {"channels": 320, "size": 7, "kernel": 7, "stride": 7}),
        )
    }
)

# Suites name what `tchub collect` and `tchub adapt` measure.
SUITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "reference": ("resnet-18", "mobilenet-v1", "bert-mini-64"),
        "papers": tuple(spec.name for spec in HELD_OUT_NETWORKS),
        "train": (*(spec.name for spec in TRAIN_NETWORKS), *OPERATORS),
        "operators": tuple(OPERATORS),
        "full": (
            *(spec.name for spec in HELD_OUT_NETWORKS),
            *(spec.name for spec in TRAIN_NETWORKS),
            *OPERATORS,
        ),
    }
)

"""Reference workloads by name: networks of PyTorch and transformers, and single operators of TVM."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import tvm
from torch import nn
from tvm import IRModule, te, topi
from tvm.te import placeholder

from ...zoo.corpus.workloads import NETWORKS, OPERATORS, SUITES, NetworkSpec, OperatorSpec
from . import LAYOUTS
from .alternatives import extract
from .errors import NetworkLoadError
from .frontend.exported_file import export_module
from .frontend.network import Network
from .frontend.transformers_config import settle_batch_norms
from .tasks import TuningTask, make_task, merge


def load_network(name: str) -> Network:
    """Return the reference network of this name: random weights, batch 1, its first output alone.

    Raises:
        NetworkLoadError: no such network; the error names the nearest.
    """
    if name in NETWORKS:
        built = cache(partial(_build, NETWORKS[name]))
        return Network(name, cache(lambda: export_module(*built(), {}, name)), lambda: built()[1])
    near = difflib.get_close_matches(name, [*NETWORKS, *SUITES], n=3, cutoff=0.4)
    raise NetworkLoadError(
        f"no network is called {name!r}",
        remedy=f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(NETWORKS)}",
        network=name,
        nearest=near,
    )


def tasks_of(workload: str, target: Any, layout: str = LAYOUTS[0], precision: str = "float32") -> list[TuningTask]:
    """Return the tasks of networks, operators or suites, by names with commas between, merged.

    Args:
        target: a `tvm.target.Target`.
        layout: of a network's convolutions, one of `networks.LAYOUTS`; single operators are as they are.
        precision: of a network, see `prepare.for_inference`; single operators are float32.

    Raises:
        NetworkLoadError: no such workload, or nothing to tune in it.
    """
    parts = workload_parts(workload)
    if parts != [workload]:
        return merge(task for name in parts for task in tasks_of(name, target, layout, precision))
    if workload in OPERATORS:
        return [replace(make_task(operator_module(OPERATORS[workload]), workload), networks={workload: 1})]
    return extract(load_network(workload), target, layout, precision)


def workload_parts(workload: str) -> list[str]:
    """Return the networks and operators of a workload: what its commas part, a suite being its members."""
    return [name for part in workload.split(",") for name in SUITES.get(part, (part,))]


def workload_names() -> list[str]:
    """Return every name that `tasks_of` takes."""
    return [*NETWORKS, *SUITES, *OPERATORS]


class _FirstOutput(nn.Module):
    """Calls a transformers model with one positional tensor and returns its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, return_dict=False)[0]


def _build(spec: NetworkSpec) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the module in inference mode and its example inputs."""
    generator = torch.Generator().manual_seed(0)
    if spec.model == "resnext":
        torch.manual_seed(0)
        module: nn.Module = ResNeXt(**spec.config)
        example = torch.randn(1, 3, spec.size, spec.size, generator=generator)
    else:
        import transformers

        model_class = getattr(transformers, spec.model, None)
        if model_class is None:  # transformers does not export Whisper's encoder at its top
            from transformers.models.whisper import modeling_whisper

            model_class = getattr(modeling_whisper, spec.model)
        audio = {"max_source_positions": spec.size // 2} if spec.input == "audio" else {}
        config = model_class.config_class(**{**spec.config, **audio})
        config._attn_implementation = "eager"  # plain matmul and softmax, which TVM can tune
        torch.manual_seed(0)
        module = _FirstOutput(model_class(config))
        if spec.input == "tokens":
            example = torch.randint(0, config.vocab_size, (1, spec.size), generator=generator)
        else:
            shape = (config.num_mel_bins, spec.size) if spec.input == "audio" else (3, spec.size, spec.size)
            example = torch.randn(1, *shape, generator=generator)
    return settle_batch_norms(module.eval(), example), (example,)


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1x1 reduce, grouped 3x3, 1x1 expand, and the shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.reduce = _conv_norm(inputs, width, 1)
        self.grouped = _conv_norm(width, width, 3, stride, groups)
        self.expand = _conv_norm(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.grouped(torch.relu(self.reduce(x))))
        return torch.relu(self.expand(y) + self.shortcut(x))


class ResNeXt(nn.Module):
    """ResNeXt for image classification: (1, 3, H, W) to (1, labels).

    Args:
        groups: cardinality; `width_per_group`: channels a group in the first stage.
        depths: blocks a stage.
    """

    def __init__(
        self, groups: int = 32, width_per_group: int = 4, depths: Sequence[int] = (3, 4, 6, 3), labels: int = 1000
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, depth in enumerate(depths):
            width, outputs = groups * width_per_group * 2**stage, 256 * 2**stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(inputs, width, outputs, stride, groups))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def operator_module(spec: OperatorSpec) -> IRModule:
    """Return the operator as an `IRModule` with one TIR function `main`, unscheduled, float32."""
    function = te.create_prim_func(_operator(spec.op, spec.shape))
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _operator(op: str, s: Mapping[str, int]) -> list[Any]:
    """Return inputs and output of an operator in TVM's tensor expressions."""
    match op:
        case "conv2d" | "depthwise":
            data = placeholder((1, s["channels"], s["size"], s["size"]), name="data")
            kernel_shape = (s["channels"], 1) if op == "depthwise" else (s["filters"], s["channels"])
            kernel = placeholder((*kernel_shape, s["kernel"], s["kernel"]), name="kernel")
            convolve = topi.nn.depthwise_conv2d_nchw if op == "depthwise" else topi.nn.conv2d_nchw
            return [data, kernel, convolve(data, kernel, s["stride"], s["kernel"] // 2, 1)]
        case "dense":
            a, b = placeholder((s["m"], s["k"]), name="a"), placeholder((s["k"], s["n"]), name="b")
            return [a, b, topi.matmul(a, b)]
        case "batch_matmul":
            a = placeholder((s["batch"], s["m"], s["k"]), name="a")
            b = placeholder((s["batch"], s["k"], s["n"]), name="b")
            return [a, b, topi.nn.batch_matmul(a, b, transpose_a=False, transpose_b=False)]
        case "softmax":
            x = placeholder((s["rows"], s["columns"]), name="x")
            return [x, topi.nn.softmax(x, axis=-1)]
        case "pool":
            x = placeholder((1, s["channels"], s["size"], s["size"]), name="x")
            kind, pad = ("avg", 0) if s["stride"] == s["kernel"] else ("max", s["kernel"] // 2)
            sizes = [s["kernel"]] * 2, [s["stride"]] * 2
            return [x, topi.nn.pool2d(x, *sizes, [1, 1], [pad] * 4, kind, layout="NCHW")]
    raise NetworkLoadError(f"no operator {op!r}", remedy="choose one of `OPERATORS`", op=op)

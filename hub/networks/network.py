"""Networks by name: from a `NetworkSpec` to a PyTorch module, an exported program and a Relax module."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...zoo.corpus.workloads import NETWORKS, SUITES, NetworkSpec
from ...zoo.errors import TchubError, last_line
from .blame import where_in_network
from .decompose import converters, decomposed
from .errors import NetworkImportError, NetworkLoadError
from .fold import fold_constants
from .prepare import LAYOUTS, check_layout, prepare
from .signature import Signature, drop_constants

if TYPE_CHECKING:
    import torch
    from tvm import IRModule


@dataclass(frozen=True)
class Network:
    """A network that can be tuned.

    Attributes:
        name: how reports call it.
        export: makes the `torch.export.ExportedProgram`; called once per use, nothing is cached.
        origin: where it came from: `suite`, `pt2`, `onnx`, `transformers` or `torch`.
        make_inputs: makes the example inputs, seeded, so that two runs compare the same numbers.
        fixed: the network at each of the sizes that were given for its dynamic shapes; the first is this one.
        caller: makes the program as the user calls it, where `export` computes with other data types.
        notes: what the user should know about how the network is computed, a sentence each.
    """

    name: str
    export: Callable[[], Any]
    make_inputs: Callable[[], tuple[torch.Tensor, ...]]
    origin: str = "suite"
    fixed: tuple[Network, ...] = ()
    caller: Callable[[], Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def variants(self) -> tuple[Network, ...]:
        """The networks of fixed shapes to tune: several where sizes were given for a dynamic shape, else itself."""
        return self.fixed or (self,)

    def signature(self) -> Signature:
        """Return how the network is called."""
        exported = self.export()
        return Signature.of_exported(self.caller() if self.caller else exported, exported)

    def module(self) -> torch.nn.Module:
        """The network as a PyTorch module in inference mode."""
        return self.export().module()

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Example inputs, the same on each call."""
        return self.make_inputs()

    def imported(self) -> IRModule:
        """Return the network as Relax operators, weights as constants; its function takes the inputs one by one.

        Raises:
            NetworkImportError: TVM has no translation of an operator, or the network changes its state or inputs.
        """
        return import_exported(self.export(), self.name)

    def relax_module(self, layout: str = LAYOUTS[0]) -> IRModule:
        """Return the network in TVM: ready for inference, legalised and fused, weights as constants.

        Args:
            layout: of its convolutions, one of `prepare.LAYOUTS`.

        Raises:
            NetworkImportError: TVM has no translation of an operator of the network.
            NetworkLoadError: no such layout.
        """
        check_layout(layout)
        mod = self.imported()
        with refused(self.name, "lower", self.where):
            return prepare(mod, layout)

    def where(self, operator: str) -> str:
        """Say where an operator of TVM's error stands in the network, or nothing; see `blame.where_in_network`."""
        return where_in_network(self.export(), operator)


@contextmanager
def refused(network: str, step: str, where: Callable[[str], str]) -> Iterator[None]:
    """Turn whatever TVM or PyTorch raises inside into a NetworkImportError that names the network and the step.

    Args:
        network: its name.
        step: what TVM cannot do with it, e.g. `import`.
        where: says where an operator stands in the network; an empty text if that is not known.
    """
    try:
        yield
    except TchubError:
        raise
    except Exception as error:
        operator = operator_in(str(error))
        location = where(operator) if operator else ""
        raise NetworkImportError(
            f"TVM cannot {step} {network}: {operator or last_line(error)}" + (f" ({location})" if location else ""),
            remedy="write the operator with others that TVM has, or leave it out of what is tuned",
            network=network,
            operator=operator,
            location=location,
        ) from error


def operator_in(message: str) -> str | None:
    """Return the operator that TVM complains of, or None: `aten.foo.default` of PyTorch or `R.foo` of Relax."""
    for pattern in (r"Unsupported function types? \['?([^\]']+)", r"\b(R\.[\w.]+)\("):
        if match := re.search(pattern, message):
            return match.group(1)
    return None


def import_exported(exported: Any, name: str) -> IRModule:
    """Import an exported program into Relax.

    Raises:
        NetworkImportError: TVM has no translation of an operator, or the program changes its state or its inputs.
    """
    from tvm.relax.frontend.torch import from_exported_program

    with refused(name, "import", lambda operator: where_in_network(exported, operator)), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own pytree deprecation, not ours
        exported = decomposed(exported)
        _check_stateless(exported, name)
        program = drop_constants(fold_constants(exported))
        return from_exported_program(program, run_ep_decomposition=False, custom_convert_map=converters())


def _check_stateless(exported: Any, name: str) -> None:
    """Refuse what TVM's importer would drop: only a decomposed program says what it writes besides its outputs."""
    signature = exported.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise NetworkImportError(
            f"{name} writes to {', '.join(written)} when it is called, and a compiled network keeps no state",
            remedy="export it after .eval(), or take what it changes as an input and return it as a new tensor",
            network=name,
            written=written,
        )


def _example(spec: NetworkSpec, vocabulary: int, mel_bins: int) -> tuple[torch.Tensor, ...]:
    import torch

    generator = torch.Generator().manual_seed(0)
    if spec.input == "tokens":
        return (torch.randint(0, vocabulary, (1, spec.size), generator=generator),)
    if spec.input == "audio":
        return (torch.randn(1, mel_bins, spec.size, generator=generator),)
    return (torch.randn(1, 3, spec.size, spec.size, generator=generator),)


def _transformers_module(spec: NetworkSpec) -> tuple[torch.nn.Module, Any]:
    import torch
    import transformers

    model_class = getattr(transformers, spec.model, None)
    if model_class is None:  # an encoder that transformers does not export at its top
        from transformers.models.whisper import modeling_whisper

        model_class = getattr(modeling_whisper, spec.model)
    options = dict(spec.config)
    if spec.input == "audio":
        options["max_source_positions"] = spec.size // 2
    config = model_class.config_class(**options)
    config._attn_implementation = "eager"  # plain matmul and softmax, which TVM can tune
    torch.manual_seed(0)
    return model_class(config), config


def _build(spec: NetworkSpec) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import torch

    from .random_weights import settle_batch_norms

    class FirstOutput(torch.nn.Module):
        """Calls a transformers model with one positional tensor and returns its first output."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x, return_dict=False)[0]

    if spec.model == "resnext":
        torch.manual_seed(0)
        example = _example(spec, 0, 0)
        return settle_batch_norms(ResNeXt(**spec.config).eval(), *example), example
    model, config = _transformers_module(spec)
    example = _example(spec, getattr(config, "vocab_size", 0), getattr(config, "num_mel_bins", 80))
    return settle_batch_norms(FirstOutput(model).eval(), *example), example


def from_spec(spec: NetworkSpec) -> Network:
    """A `Network` of the reference workloads."""

    def export() -> Any:
        import torch

        module, example = _build(spec)
        try:
            with torch.no_grad():
                return torch.export.export(module, example)
        except Exception as error:
            raise NetworkImportError(
                f"PyTorch cannot export {spec.name}: {error}",
                remedy="export it yourself and pass the .pt2 file",
                network=spec.name,
            ) from error

    return Network(spec.name, export, lambda: _build(spec)[1])


def load_network(name: str) -> Network:
    """The reference network of this name.

    Raises:
        NetworkLoadError: no such network; the error names the nearest.
    """
    if name in NETWORKS:
        return from_spec(NETWORKS[name])
    near = difflib.get_close_matches(name, [*NETWORKS, *SUITES], n=3, cutoff=0.4)
    raise NetworkLoadError(
        f"no network is called {name!r}",
        remedy=f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(NETWORKS)}",
        network=name,
        nearest=near,
    )


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
        labels: classes.
    """

    def __init__(
        self,
        groups: int = 32,
        width_per_group: int = 4,
        depths: Sequence[int] = (3, 4, 6, 3),
        labels: int = 1000,
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

"""Networks by name: from a `NetworkSpec` to a PyTorch module, an exported program and a Relax module."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...zoo.corpus.workloads import NETWORKS, SUITES, NetworkSpec
from ...zoo.errors import last_line
from .errors import NetworkImportError, UnknownNetworkError
from .prepare import LAYOUTS, check_layout, prepare

if TYPE_CHECKING:
    import torch
    from tvm import IRModule


@dataclass(frozen=True)
class Network:
    """A network that can be tuned.

    Attributes:
        name: how reports call it.
        export: makes the `torch.export.ExportedProgram`; called once per use, nothing is cached.
        origin: where it came from: `suite`, `pt2`, `onnx` or `transformers`.
        make_inputs: makes the example inputs, seeded, so that two runs compare the same numbers.
    """

    name: str
    export: Callable[[], Any]
    make_inputs: Callable[[], tuple[torch.Tensor, ...]]
    origin: str = "suite"

    def module(self) -> torch.nn.Module:
        """The network as a PyTorch module in inference mode."""
        return self.export().module()

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Example inputs, the same on each call."""
        return self.make_inputs()

    def relax_module(self, layout: str = LAYOUTS[0]) -> IRModule:
        """The network in TVM: ready for inference, legalised and fused, weights as constants.

        Args:
            layout: of its convolutions, one of `graph.LAYOUTS`.

        Raises:
            NetworkImportError: TVM has no translation of an operator of the network.
            UnknownLayoutError: no such layout.
        """
        return to_relax(self.export(), self.name, check_layout(layout))


def to_relax(exported: Any, name: str, layout: str = LAYOUTS[0]) -> IRModule:
    """Import an exported program into Relax and lower it to tasks.

    Raises:
        NetworkImportError: TVM has no translation of an operator, or the program changes its state or its inputs.
    """
    from tvm.relax.frontend.torch import from_exported_program

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own pytree deprecation, not ours
            exported = exported.run_decompositions()
            _check_stateless(exported, name)
            mod = from_exported_program(exported, run_ep_decomposition=False)
        return prepare(mod, layout)
    except NetworkImportError:
        raise
    except Exception as error:
        raise NetworkImportError(
            f"TVM cannot import {name}: {last_line(error)}",
            remedy="decompose the operator in PyTorch (torch.export's run_decompositions) or leave it out",
            network=name,
        ) from error


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

    class FirstOutput(torch.nn.Module):
        """Calls a transformers model with one positional tensor and returns its first output."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x, return_dict=False)[0]

    if spec.model == "resnext":
        from .resnext import ResNeXt

        torch.manual_seed(0)
        return ResNeXt(**spec.config).eval(), _example(spec, 0, 0)
    model, config = _transformers_module(spec)
    example = _example(spec, getattr(config, "vocab_size", 0), getattr(config, "num_mel_bins", 80))
    return FirstOutput(model).eval(), example


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
        UnknownNetworkError: no such network; the error names the nearest.
    """
    if name in NETWORKS:
        return from_spec(NETWORKS[name])
    near = difflib.get_close_matches(name, [*NETWORKS, *SUITES], n=3, cutoff=0.4)
    raise UnknownNetworkError(
        f"no network is called {name!r}",
        remedy=f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(NETWORKS)}",
        network=name,
        nearest=near,
    )

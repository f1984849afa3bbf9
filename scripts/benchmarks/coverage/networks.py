"""The networks of the coverage benchmark, each as a user brings it: as a configuration, module or file.

The same network may come twice: what PyTorch exports, what its ONNX exporter makes of it and what transformers' own
attention writes differ in their operators. `transformers.json` has a configuration a model type, two layers each, with
the head sizes and the ratios of hidden and feed-forward sizes of the real models, a small vocabulary and few pixels.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scripts.benchmarks.common import read_json
from scripts.benchmarks.coverage.heads import HEADS
from scripts.benchmarks.coverage.modules import MODULES, Brought, Factory, Function

# For the test suite: one of each way to bring a network, and of each kind of input and output.
SAMPLE = (
    *("roberta", "lstm-state", "decode-step", "detector", "top-k", "text-and-numbers", "bfloat16"),
    *("perceptron-batch.pt2", "mlp-mixer.onnx"),
)


@dataclass(frozen=True)
class CoverageNetwork:
    """A network of the benchmark.

    Attributes:
        name: unique; ends as the file does where it is one.
        family: how the summary groups it.
        brought: `config`, `module`, `pt2` or `onnx`.
        bring: writes its file to a folder, if it is one; gives the first argument of `tune`, and further ones by name.
    """

    name: str
    family: str
    brought: str
    bring: Callable[[Path], tuple[Any, dict[str, Any]]]


def _config(model_type: str, family: str, fields: dict[str, Any]) -> CoverageNetwork:
    def bring(folder: Path) -> tuple[Path, dict[str, Any]]:
        path = folder / model_type
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps({"model_type": model_type} | fields))
        return path, {}

    return CoverageNetwork(model_type, family, "config", bring)


def _module(name: str, family: str, make: Factory) -> CoverageNetwork:
    def bring(_: Path) -> tuple[torch.nn.Module, dict[str, Any]]:
        module, inputs, named = make()
        return module, {"example_inputs": inputs, **({"example_kwargs": named} if named else {})}

    return CoverageNetwork(name, family, "module", bring)


def _exported(
    name: str, family: str, make: Factory, dynamic: Any = None, shapes: dict[str, Any] | None = None
) -> CoverageNetwork:
    """A `.pt2` file; `dynamic` as torch.export's `dynamic_shapes`, and the sizes that it is tuned at."""

    def bring(folder: Path) -> tuple[Path, dict[str, Any]]:
        module, inputs, named = make()
        path = folder / f"{name}.pt2"
        with torch.no_grad():
            program = torch.export.export(module, inputs, named, dynamic_shapes=dynamic)
        torch.export.save(program, path)
        return path, {"shapes": shapes} if shapes else {}

    return CoverageNetwork(f"{name}.pt2", family, "pt2", bring)


def _onnx(name: str, family: str, make: Factory) -> CoverageNetwork:
    def bring(folder: Path) -> tuple[Path, dict[str, Any]]:
        module, inputs, named = make()
        path = folder / f"{name}.onnx"
        with torch.no_grad():
            torch.onnx.export(module, inputs, path, kwargs=named, dynamo=True, external_data=False, verbose=False)
        return path, {}

    return CoverageNetwork(f"{name}.onnx", family, "onnx", bring)


def _transformer(fields: dict[str, Any], mask: bool = True) -> Factory:
    """A transformers model as its users export it: attention as transformers chooses, a mask, a named output."""

    def make() -> Brought:
        import transformers

        model_class = getattr(transformers, fields["architectures"][0])
        torch.manual_seed(0)
        config = model_class.config_class(**fields)
        config.use_cache = False
        module = model_class(config).eval()
        if module.main_input_name == "pixel_values":
            return module, (), {"pixel_values": torch.randn(1, 3, config.image_size, config.image_size)}
        tokens = torch.randint(3, config.vocab_size, (1, 24))
        return module, (), {"input_ids": tokens} | ({"attention_mask": torch.ones_like(tokens)} if mask else {})

    return make


def _logits(make: Factory) -> Factory:
    """The same, in a module that gives the logits alone, as `.onnx` files are exported."""

    def changed() -> Brought:
        model, inputs, named = make()
        return Function(lambda self, *x, **options: self.model(*x, **options).logits, model=model), inputs, named

    return changed


def _all() -> Iterator[CoverageNetwork]:
    configs = read_json(Path(__file__).with_name("transformers.json"))
    for family, group in configs.items():
        yield from (_config(name, family, fields) for name, fields in group.items())
    modules = MODULES | HEADS
    yield from (_module(name, *modules[name]) for name in modules)

    llama = _transformer(configs["decoders"]["llama"])
    gpt2 = _transformer(configs["decoders"]["gpt2"], mask=False)
    bert = _transformer(configs["encoders"]["bert"])
    vit = _transformer(configs["vision"]["vit"])
    yield _exported("llama", "decoders", llama)
    yield _exported("gpt2", "decoders", _logits(gpt2))
    yield _exported("bert", "encoders", bert)
    yield _exported("bilstm", *modules["bilstm"])
    yield _exported("transformer-encoder", *modules["transformer-encoder"])
    yield _exported("text-and-numbers", *modules["text-and-numbers"])
    batch = torch.export.Dim("batch", min=1, max=64)
    family, perceptron = modules["perceptron"]
    yield _exported("perceptron-batch", family, perceptron, ({0: batch},), {"batch": [1, 8]})

    for name, factory in {"llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit}.items():
        family = {"bert": "encoders", "vit": "vision"}.get(name, "decoders")
        yield _onnx(name, family, _logits(factory))
    for name in ("lstm", "transformer-encoder", "unet", "super-resolution", "gan-generator", "depthwise",
                 "mlp-mixer", "dlrm", "detector", "temporal-convolutions"):  # fmt: skip
        yield _onnx(name, *modules[name])


def networks() -> dict[str, CoverageNetwork]:
    """Every network of the benchmark, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {network.name: network for network in _all()}

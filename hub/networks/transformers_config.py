"""Networks from a transformers `config.json`: any model that transformers itself holds, and none that brings code."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from inspect import Parameter, signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .blame import export_module
from .errors import NetworkImportError
from .network import Network
from .precision import precision_notes
from .shapes import Shapes

if TYPE_CHECKING:
    import torch

DEFAULT_TOKENS = 128
DEFAULT_PIXELS = 224
DEFAULT_SAMPLES = 16_000
"""One second of speech."""

MAX_LAYERS = 1000
COPIES = 3
"""Weights are in memory as PyTorch's, as TVM's constants and in the library that is written."""

_HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class _Model:
    """A class of transformers, its configuration, and the folder with its weights or None."""

    kind: Any
    config: Any
    weights: Path | None

    def build(self, inputs: Mapping[str, torch.Tensor]) -> torch.nn.Module:
        """The model in inference mode, float32; random weights are seeded, and suit the inputs."""
        import torch

        from .random_weights import settle_batch_norms

        if self.weights is not None:
            return self.kind.from_pretrained(
                self.weights, config=self.config, local_files_only=True, use_safetensors=True, dtype=torch.float32
            ).eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return settle_batch_norms(self.kind(self.config).float().eval(), **inputs)


def read_config(path: Path, shapes: Shapes | None = None) -> Network:
    """Return the network of a transformers configuration, batch 1 and 128 tokens unless `shapes` says otherwise.

    Weights are those of `model.safetensors` beside the configuration, else random. Inputs are given by name, as the
    model's `forward` has them; all tensors of its output are returned.

    Args:
        path: of the `config.json`.
        shapes: sizes of `batch` and, for texts, `seq`.

    Raises:
        NetworkImportError: transformers has no such model, it would run code of a repository, or the machine has not
            the memory for it.
    """
    fields = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise NetworkImportError(
            f"{path} is no transformers configuration: it has no model_type",
            remedy="give the config.json of a transformers model",
            path=str(path),
        )
    config = _config(path, fields)
    stored = [path.with_name(f"model.safetensors{end}") for end in ("", ".index.json")]
    model = _Model(_model_class(path, fields, config), config, path.parent if any(map(Path.is_file, stored)) else None)
    _check_memory(path, model)
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    notes = tuple(_notes(path, fields, model))
    results = [_network(model, label, sizes, notes) for label, sizes in _sizes(name, shapes or {})]
    first = replace(results[0], name=name)
    return replace(first, fixed=tuple(results)) if len(results) > 1 else first


def _network(model: _Model, name: str, sizes: Mapping[str, int], notes: tuple[str, ...]) -> Network:
    @cache
    def inputs() -> dict[str, torch.Tensor]:
        return example_inputs(model.kind, model.config, sizes.get("batch", 1), sizes.get("seq"))

    @cache  # an export takes seconds, and the network is asked for it by the import, the signature and the comparison
    def export() -> Any:
        return export_module(model.build(inputs()), (), inputs(), name)

    return Network(name, export, lambda: tuple(inputs().values()), "transformers", notes=notes)


def _sizes(name: str, shapes: Shapes) -> list[tuple[str, dict[str, int]]]:
    if unknown := sorted(set(shapes) - {"batch", "seq"}):
        raise NetworkImportError(
            f"a transformers configuration has no free size {unknown[0]}",
            remedy="give --shape batch=1,8 or --shape seq=128; other sizes stand in the configuration",
        )
    results = [dict(zip(shapes, values, strict=True)) for values in product(*shapes.values())]
    if not results or any(value < 1 for sizes in results for value in sizes.values()):
        raise NetworkImportError("a size is 1 or more", remedy="give --shape batch=1,8")
    return [("-".join([name, *(f"{key}{value}" for key, value in sizes.items())]), sizes) for sizes in results]


def _config(path: Path, fields: dict[str, Any]) -> Any:
    import transformers

    kind, known = fields["model_type"], [*transformers.CONFIG_MAPPING]
    if kind not in known:
        if "auto_map" in fields:
            raise NetworkImportError(
                f"{path} would run code of its repository, which tchub never does: transformers "
                f"{transformers.__version__} has no model {kind!r}",
                remedy="export the model yourself and give the .pt2 file",
                model_type=kind,
            )
        near = difflib.get_close_matches(kind, known, n=3)
        raise NetworkImportError(
            f"transformers {transformers.__version__} has no model {kind!r}",
            remedy=f"did you mean {', '.join(near)}?"
            if near
            else "install the version that has it, or give a .pt2 file",
            model_type=kind,
            nearest=near,
        )
    if "quantization_config" in fields:
        raise NetworkImportError(
            f"{path} is of quantised weights, which TVM does not compute with",
            remedy="take the model's original weights",
            path=str(path),
        )
    left_out = ("model_type", "torch_dtype", "dtype", "auto_map", "use_pretrained_backbone")
    config = transformers.AutoConfig.for_model(kind, **{k: v for k, v in fields.items() if k not in left_out})
    config._attn_implementation = "eager"  # plain matmul and softmax, which TVM can tune
    for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
        if part is not None:
            part.use_cache = part.output_hidden_states = part.output_attentions = False
    return config


def _model_class(path: Path, fields: dict[str, Any], config: Any) -> Any:
    """The class that `architectures` names, if it is a model of transformers; else the model without a head."""
    import transformers

    named = fields.get("architectures")
    if not named:
        try:
            plain = transformers.AutoModel._model_mapping[type(config)]
            return plain[0] if isinstance(plain, tuple) else plain
        except KeyError:
            raise NetworkImportError(
                f"transformers has no plain model of the type {fields['model_type']!r}",
                remedy='name its class in the configuration: "architectures": ["..."]',
                model_type=fields["model_type"],
            ) from None
    results = getattr(transformers, str(named[0]), None) if isinstance(named, list) else None
    if not (isinstance(results, type) and issubclass(results, transformers.PreTrainedModel)):
        raise NetworkImportError(
            f"{path} names the architecture {str(named[0] if isinstance(named, list) else named)[:80]!r}, which is no "
            f"model of transformers {transformers.__version__}"
            + ("; it would run code of its repository, which tchub never does" if "auto_map" in fields else ""),
            remedy="name a model class of transformers, or export the model yourself and give the .pt2 file",
            path=str(path),
        )
    return results


def _check_memory(path: Path, model: _Model) -> None:
    """Count the weights without allocating them."""
    import torch

    config = model.config
    layers = [getattr(config, key, None) for key in ("num_hidden_layers", "encoder_layers", "decoder_layers")]
    if (most := max((n for n in layers if isinstance(n, int)), default=0)) > MAX_LAYERS:
        raise NetworkImportError(f"{path} has {most} layers", remedy=f"take a network of at most {MAX_LAYERS}")
    with torch.device("meta"):
        weights = sum(p.numel() for p in model.kind(config).parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if COPIES * 4 * weights > memory:
        raise NetworkImportError(
            f"{path} has {weights / 1e9:.3g} billion weights, which take {COPIES * 4 * weights / 1e9:.3g} GB of memory "
            f"while they are compiled; this machine has {memory / 1e9:.3g}",
            remedy="take a smaller configuration, or a machine with more memory",
            weights=weights,
            memory=memory,
        )


def _notes(path: Path, fields: dict[str, Any], model: _Model) -> list[str]:
    notes = []
    if (dtype := str(fields.get("dtype", fields.get("torch_dtype"))).removeprefix("torch.")) in _HALF:
        notes += precision_notes([dtype])
    if model.weights is None and any(path.parent.glob("pytorch_model*.bin")):
        notes.append("weights are random: those in the folder are pickled, and only model.safetensors is loaded")
    if "auto_map" in fields:
        notes.append(f"the model is transformers' own {model.kind.__name__}: no code of the repository is run")
    return notes


def example_inputs(kind: Any, config: Any, batch: int = 1, tokens: int | None = None) -> dict[str, torch.Tensor]:
    """Return seeded inputs of a model of transformers, by name, in the order of its `forward`.

    Args:
        kind: the model's class.
        config: its configuration.
        batch: first axis of each input.
        tokens: length of texts; None for 128, or the largest power of two that the model takes.

    Raises:
        NetworkImportError: the configuration does not tell an input's shape.
    """
    import torch

    parameters = signature(kind.forward).parameters
    text = config.get_text_config()
    wanted = {kind.main_input_name} | {
        name for name, p in parameters.items() if p.default is Parameter.empty and p.kind == p.POSITIONAL_OR_KEYWORD
    }
    if "pixel_values" in parameters and hasattr(config, "vision_config"):
        wanted |= {"pixel_values", "input_ids"}
    if config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted.add("decoder_input_ids")
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for name in parameters:
        if name not in wanted - {"self"}:
            continue
        shape = _SHAPES.get(name)
        sizes = None if shape is None else shape(config, text, tokens)
        if sizes is None:
            raise NetworkImportError(
                f"{kind.__name__} takes {name}, whose shape the configuration does not tell",
                remedy="export the model with example inputs, and give the .pt2 file",
                input=name,
            )
        if name.endswith("input_ids"):
            inputs[name] = torch.randint(0, text.vocab_size, (batch, *sizes), generator=generator)
        else:
            inputs[name] = torch.randn(batch, *sizes, generator=generator)
    return inputs


def _tokens(_: Any, text: Any, tokens: int | None) -> tuple[int, ...]:
    keys = ("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len")
    limits = (getattr(text, key, None) for key in keys)
    most = min([DEFAULT_TOKENS, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])
    return (tokens or 1 << most.bit_length() - 1,)  # a power of two: RoBERTa's positions start at 2, in a table of 514


def _pixels(config: Any, _text: Any, _tokens: int | None) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or DEFAULT_PIXELS
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return getattr(vision, "num_channels", 3), height, width


def _features(config: Any, _text: Any, _tokens: int | None) -> tuple[int, ...] | None:
    """Spectrograms: of Whisper's kind (bins, frames), else (frames, bins)."""
    if (bins := getattr(config, "num_mel_bins", None)) and hasattr(config, "max_source_positions"):
        return bins, 2 * config.max_source_positions
    for key in ("input_feat_per_channel", "feature_projection_input_dim", "input_channels"):
        if bins := getattr(config, key, None):
            return DEFAULT_TOKENS, bins
    return None


def _samples(config: Any, _text: Any, _tokens: int | None) -> tuple[int, ...]:
    """A waveform, or the frames of a spectrogram."""
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
        return config.max_length, config.num_mel_bins
    channels = getattr(config, "audio_channels", None)
    return (DEFAULT_SAMPLES,) if channels is None else (channels, DEFAULT_SAMPLES)


_SHAPES: dict[str, Callable[[Any, Any, int | None], tuple[int, ...] | None]] = {
    "input_ids": _tokens,
    "decoder_input_ids": _tokens,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _samples,
}
"""Shape of an input without its batch, from the configuration, that of its text part, and the wanted tokens."""

"""Networks from a transformers `config.json`: any model that transformers itself holds, and none that brings code."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from inspect import Parameter, signature
from math import prod
from pathlib import Path
from typing import Any

import torch

from ....zoo.untrusted import parse_json, read_plain
from ..errors import NetworkImportError, file_error, reading
from ..weights import weights_on_disk
from .exported_file import export_module, precision_notes
from .network import Network, at_sizes, check_memory
from .shapes import FreeSize, Shapes

DEFAULT_TOKENS = 128
DEFAULT_PIXELS = 224
DEFAULT_SAMPLES = 16_000
"""One second of speech."""

MAX_BYTES = 16 << 20
MAX_PARTS, MAX_LABELS = 1000, 1_000_000
_PARTS = re.compile(r"(layers?|depths?|blocks|stages|experts|codebooks|quantizers|levels)$")
_EXPORT = "export the model yourself and give the .pt2 file"
_OWN_CONFIG = f"give the model's own config.json, for the version of transformers that it names, or {_EXPORT}"
_SAVE = "save the model again with save_pretrained"


def _special_float(fields: dict[str, Any]) -> Any:
    """Return the infinity or NaN that transformers writes as `{"__float__": "Infinity"}`, any other object as it is."""
    return float(fields["__float__"]) if fields.keys() == {"__float__"} else fields


def read_config(path: Path, shapes: Shapes | None = None) -> Network:
    """Return the network of a transformers configuration, batch 1 and 128 tokens unless `shapes` says otherwise.

    Weights are those of `model.safetensors` beside the configuration, else random. Inputs are given by name, as the
    model's `forward` has them; all tensors of its output are returned.

    Args:
        shapes: sizes of `batch` and, for texts, `seq`.

    Raises:
        NetworkImportError: transformers has no such model, it would run code of a repository, or the machine has not
            the memory for it.
    """
    fields = json.loads(read_plain(path, MAX_BYTES), object_hook=_special_float)
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise file_error(path, "is no transformers configuration: it has no model_type", "give a model's config.json")
    _check_fields(path, fields)
    stored = _has_weights(path)
    with reading(path, "makes no model", _OWN_CONFIG), _no_server(path):
        try:
            config = _config(path, fields)
            kind = _model_class(path, fields, config)
            if kind._can_set_experts_implementation():
                config._experts_implementation = "grouped_mm"  # rather than a loop over the experts that values choose
            with torch.device("meta"):  # counts the weights without allocating them
                check_memory(path, sum(p.numel() for p in kind(config).parameters()))
        except ImportError as error:  # some models need a package that transformers does not bring
            problem = next((line.strip() for line in str(error).splitlines() if line.strip()), "a package is missing")
            raise file_error(path, f"makes no model here: {problem}", f"install what it names, or {_EXPORT}") from error
    dtype = str(fields.get("dtype", fields.get("torch_dtype"))).removeprefix("torch.")
    notes = precision_notes([dtype] if dtype in ("bfloat16", "float16") else [])
    if not stored and any(path.parent.glob("pytorch_model*.bin")):
        notes += ("weights are random: those in the folder are pickled, and only model.safetensors is loaded",)
    if "auto_map" in fields:
        notes += (f"the model is transformers' own {kind.__name__}: no code of the repository is run",)

    def make(name: str, sizes: Mapping[str, int]) -> Network:
        @cache
        def inputs() -> dict[str, torch.Tensor]:
            with reading(path):
                return example_inputs(path, kind, config, sizes["batch"], sizes.get("seq"))

        @cache  # an export takes seconds; the import, the signature and the comparison ask for it
        def export() -> Any:
            with reading(path, "or the weights beside it do not make a network"), _no_server(path):
                model = _model(kind, config, path.parent if stored else None, inputs())
            return weights_on_disk(export_module(model, (), inputs(), name))

        return Network(name, export, lambda: tuple(inputs().values()), notes=notes)

    given = {"batch": [1], **(shapes or {})}
    free = [FreeSize(key, ((where, axis),)) for axis, (key, where) in enumerate(_FREE.items()) if key in given]
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    return at_sizes(name, free, given, make)


_FREE = {"batch": "all inputs", "seq": "texts"}


def _model(kind: Any, config: Any, folder: Path | None, inputs: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """Return a model in inference mode, float32: with a folder's weights, or random ones that suit the inputs."""
    if folder is not None:
        return kind.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, dtype=torch.float32
        ).eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return settle_batch_norms(kind(config).float().eval(), **inputs)


def _config(path: Path, fields: dict[str, Any]) -> Any:
    import transformers

    kind, known = fields["model_type"], [*transformers.CONFIG_MAPPING]
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=3)
        remedy = f"did you mean {', '.join(near)}?" if near else "install the version that has it, or give a .pt2 file"
        own = "auto_map" in fields
        raise file_error(
            path,
            f"is of a model that transformers {transformers.__version__} does not have: {kind[:80]!r}"
            + ("; it would run code of its repository, which tchub never does" if own else ""),
            _EXPORT if own else remedy,
        )
    left_out = ("model_type", "torch_dtype", "dtype", "auto_map", "use_pretrained_backbone", "transformers_weights")
    config = transformers.AutoConfig.for_model(kind, **{k: v for k, v in fields.items() if k not in left_out})
    config._attn_implementation = "eager"  # plain matmul and softmax, which TVM can tune
    for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
        if part is not None:
            part.use_cache = part.output_hidden_states = part.output_attentions = False
    return config


def _model_class(path: Path, fields: dict[str, Any], config: Any) -> Any:
    """Return the class that `architectures` names, if it is a model of transformers; else the model without a head."""
    import transformers

    named = fields.get("architectures")
    if named:
        first = str(named[0] if isinstance(named, list) else named)[:80]
        kind: Any = getattr(transformers, first, None) if isinstance(named, list) else None
    else:
        first, kind = "", transformers.AutoModel._model_mapping.get(type(config), None)
        kind = kind[0] if isinstance(kind, tuple) else kind
    is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if is_model and isinstance(config, kind.config_class or ()):
        return kind
    problem = f"the architecture {first!r}, which is no model" if named else "no architecture, and needs one"
    raise file_error(
        path,
        f"names {problem} of transformers {transformers.__version__} for {fields['model_type']}"
        + ("; it would run code of its repository, which tchub never does" if "auto_map" in fields else ""),
        f'name a model class of transformers, "architectures": ["..."], or {_EXPORT}',
    )


def _check_fields(path: Path, fields: Any) -> None:
    """Refuse quantised weights, and numbers of parts that transformers would make one by one, at any depth."""
    for key, value in fields.items() if isinstance(fields, dict) else ():
        _check_fields(path, value)
        if key == "quantization_config":
            raise file_error(
                path, "is of quantised weights, which TVM does not compute with", "take the model's original weights"
            )
        numbers = [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, int)]
        most = MAX_LABELS if key == "num_labels" else MAX_PARTS if _PARTS.search(key) else None
        if most is not None and sum(numbers) > most:
            raise file_error(path, f"has {sum(numbers)} {key}", f"take a network of at most {most}")


def _has_weights(path: Path) -> bool:
    """Return whether safetensors lie beside a configuration; of an index, each file that transformers would open.

    Raises:
        NetworkImportError: the index names a file of another folder or kind, which could be pickled, or an adapter
            would be loaded with the weights.
    """
    whole, index = path.with_name("model.safetensors"), path.with_name("model.safetensors.index.json")
    if not whole.is_file() and index.is_file():
        with reading(index):
            names = set(parse_json(read_plain(index, MAX_BYTES))["weight_map"].values())
        for name in names:
            if not re.fullmatch(r"[\w.-]+\.safetensors", str(name)) or not path.with_name(name).is_file():
                raise file_error(index, f"names {str(name)[:80]!r}, which is no file of safetensors beside it", _SAVE)
    elif not whole.is_file():
        return False
    if path.with_name("adapter_config.json").exists():
        raise file_error(path, "has an adapter (PEFT) beside it, which is not loaded", f"merge it, and {_SAVE}")
    return True


@contextmanager
def _no_server(path: Path) -> Iterator[None]:
    """Inside, huggingface_hub asks no server: some configurations name a backbone that lies in another repository."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    except OfflineModeIsEnabled:
        remedy = f"write the part's configuration into this one, as backbone_config, or {_EXPORT}"
        raise file_error(path, "names a part that lies in another repository, which is not asked", remedy) from None
    finally:
        constants.HF_HUB_OFFLINE = before


def example_inputs(path: Path, kind: Any, config: Any, batch: int, tokens: int | None) -> dict[str, torch.Tensor]:
    """Return seeded inputs of a model of transformers, by name, in the order of its `forward`.

    Args:
        path: of the configuration, for errors.
        kind, config: the model's class and its configuration.
        batch: first axis of each input.
        tokens: length of texts; None for 128, or the largest power of two that the model takes.

    Raises:
        NetworkImportError: the configuration does not tell an input's shape, or no memory holds it.
    """
    parameters = signature(kind.forward).parameters
    text = config.get_text_config()
    main = kind.main_input_name
    wanted = {*([main] if isinstance(main, str) else main)} | {
        name for name, p in parameters.items() if p.default is Parameter.empty and p.kind == p.POSITIONAL_OR_KEYWORD
    }
    if "pixel_values" in parameters and (hasattr(config, "vision_config") or hasattr(config, "image_size")):
        wanted |= {"pixel_values", "input_ids"}
    if config.is_encoder_decoder and "decoder_input_ids" in parameters:
        wanted.add("decoder_input_ids")
    if "past_time_features" in parameters:  # a forecast goes on from the covariates of the time to come
        wanted |= {"future_values", "future_time_features"}
    if config.model_type in ("longt5", "switch_transformers"):  # make no masks when they are exported
        wanted |= {"attention_mask", "decoder_attention_mask"}
    generator = torch.Generator().manual_seed(0)
    inputs = {}
    for name in parameters:
        if name not in wanted - {"self"}:
            continue
        sizes = _sizes(name, config, tokens)
        if sizes is None:
            raise NetworkImportError(
                f"{kind.__name__} takes {name}, whose shape the configuration does not tell",
                remedy="export the model with example inputs, and give the .pt2 file",
                input=name,
            )
        check_memory(path, batch * prod(sizes))
        if name.endswith("input_ids"):
            vocabulary = getattr(text, "vocab_size", 256)  # CANINE reads characters and has no vocabulary
            inputs[name] = torch.randint(0, vocabulary, (batch, *sizes), generator=generator)
        elif name.endswith("_mask"):
            inputs[name] = torch.ones(batch, *sizes)
        else:
            inputs[name] = torch.randn(batch, *sizes, generator=generator)
    return inputs


def _sizes(name: str, config: Any, tokens: int | None) -> tuple[int, ...] | None:
    """Return the shape of an input without its batch; None where the configuration does not tell it."""
    match name:
        case "input_ids" | "decoder_input_ids" | "attention_mask" | "decoder_attention_mask":
            text = config.get_text_config()
            keys = ("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len")
            limits = (getattr(text, key, None) for key in keys)
            most = min([DEFAULT_TOKENS, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])
            # A power of two: RoBERTa's positions start at 2, in a table of 514.
            return (tokens or 1 << most.bit_length() - 1,)
        case "pixel_values" | "pixel_values_videos":
            vision = getattr(config, "vision_config", config)
            size = getattr(vision, "image_size", None) or DEFAULT_PIXELS
            frames = getattr(vision, "num_frames", None) or getattr(vision, "frames_per_clip", None)  # of a video
            channels = getattr(vision, "num_channels", 3)
            image = channels, *(size if isinstance(size, list | tuple) else (size, size))
            return image if frames is None else (frames, *image)
        case "input_features":  # spectrograms: of Whisper's kind (bins, frames), else (frames, bins)
            if (bins := getattr(config, "num_mel_bins", None)) and hasattr(config, "max_source_positions"):
                return bins, 2 * config.max_source_positions
            keys = ("input_feat_per_channel", "feature_projection_input_dim", "input_channels", "num_mel_bins")
            bins = next(filter(None, (getattr(config, key, None) for key in keys)), None)
            return (DEFAULT_TOKENS, bins) if bins else None
        case "input_values":  # a waveform, or the frames of a spectrogram
            if hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
                return config.max_length, config.num_mel_bins
            channels = getattr(config, "audio_channels", None)
            return (DEFAULT_SAMPLES,) if channels is None else (channels, DEFAULT_SAMPLES)
        case "task_inputs":
            return (config.task_seq_len,)
        case "past_values" | "past_time_features" | "past_observed_mask" | "future_values" | "future_time_features":
            return _series(name, config)
    return None


def _series(name: str, config: Any) -> tuple[int, ...] | None:
    """Return steps and channels of a time series; the past is as long as its context and the longest lag."""
    lags = getattr(config, "lags_sequence", None)
    steps = config.prediction_length if name.startswith("future") else config.context_length + max(lags or [0])
    if name.endswith("time_features"):
        return steps, config.num_time_features
    channels = getattr(config, "num_input_channels" if lags is None else "input_size", None)
    if channels is None:
        return None
    return (steps,) if lags is not None and channels == 1 else (steps, channels)


def settle_batch_norms(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Give the batch norms of an untrained network the statistics of what they see, by one forward pass.

    A fresh network has a mean of 0 and a variance of 1 there: dozens of layers deep, the activations of a MobileNet
    then vanish (1e-22), and an output of zeros would pass for right. Where a norm sees less than its epsilon, as all
    of an EfficientNet's do, its weight makes up for that; small biases keep an average behind a norm from being zero
    but for rounding.

    Args:
        module: in inference mode; changed in place.
        args, kwargs: the inputs of the pass.

    Returns:
        `module`.
    """

    generator, settled = torch.Generator().manual_seed(0), set[torch.nn.Module]()
    norm_types = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)

    def settle(norm: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        (x,) = inputs
        axes = [axis for axis in range(x.dim()) if axis != 1]
        # One number a channel has no variance: all channels together have.
        variance, mean = torch.var_mean(x, axes if x.numel() > x.shape[1] else None, correction=0)
        variance = variance + 1e-4 * mean.square()  # a norm would amplify the rounding of nearly equal numbers
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        if norm.affine and norm not in settled:
            settled.add(norm)
            norm.bias.add_(torch.randn(norm.bias.shape, generator=generator), alpha=0.1)
            if 0.0 < (seen := float(variance.mean())) < norm.eps:
                norm.weight.mul_((1 + norm.eps / seen) ** 0.5)

    norms = [m for m in module.modules() if isinstance(m, norm_types) and m.track_running_stats]
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    try:
        with torch.no_grad():
            if hooks:
                module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return module

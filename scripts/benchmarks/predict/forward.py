"""The forward pass alone, in the forms that it could have: what the benchmark chose by.

Each is told on one thread, with the greatest difference of its scores from PyTorch's eager ones, for a form that is
fast and wrong is no choice. ONNX Runtime is timed where it is installed; tchub does not need it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from scripts.benchmarks.predict.subjects import clock, microseconds

Forward = Callable[[], np.ndarray]


def forms(name: str, sizes: tuple[int, ...], repeats: int, seed: int) -> list[dict[str, Any]]:
    """Microseconds a program of every form of a checkpoint's forward pass, for each batch."""
    from tchub import hub
    from tchub.zoo.features import get_schema

    model = hub.load(name).model.eval()
    schema = get_schema(hub.load(name).config.feature_schema)
    rows = []
    torch.set_num_threads(1)
    for size in sizes:
        x = _inputs(schema, size, seed)
        eager = _eager(model, x)
        wanted = eager()
        for form, make in _makers(model).items():
            row: dict[str, Any] = {"model": name, "batch": size, "form": form}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call = make(model, x)
                    error = float(np.abs(call() - wanted).max())
                row |= {"us": microseconds(clock(call, repeats), size), "error": error}
            except ImportError as missing:  # ONNX Runtime is no dependency
                row["unavailable"] = f"{type(missing).__name__}: {missing}"[:120]
            rows.append(row)
    return rows


def _inputs(schema: Any, size: int, seed: int) -> np.ndarray:
    """Random numbers in as many rows as a program fills: 15 primitives, or 4 statements."""
    x = np.random.default_rng(seed).random((size, schema.rows, schema.width), np.float32)
    filled = {"primitives": 15, "statements": 4, "nest": 1}[schema.source]
    x[:, filled : schema.rows - schema.hardware * (schema.rows > 1)] = 0
    return x


def _eager(model: nn.Module, x: np.ndarray) -> Forward:
    return lambda: _run(model, x)


def _run(model: Any, x: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.from_numpy(x)).numpy()


def _compiled(model: nn.Module, x: np.ndarray) -> Forward:
    torch._dynamo.reset()
    made = torch.compile(model)
    _run(made, x)
    return lambda: _run(made, x)


def _int8(model: nn.Module, x: np.ndarray) -> Forward:
    made = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return lambda: _run(made, x)


def _onnx(model: nn.Module, x: np.ndarray) -> Forward:
    import onnxruntime

    buffer = io.BytesIO()
    torch.onnx.export(model, (torch.from_numpy(x),), buffer, dynamo=False, input_names=["x"], output_names=["y"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(buffer.getvalue(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0]


def _makers(model: Any) -> dict[str, Callable[[Any, np.ndarray], Forward]]:
    """The forms that a model has. NumPy would step through a scan in Python: only MLPs have that form."""
    numpy = {"tilenet": _numpy_tilenet, "tenset-mlp": _numpy_tenset}
    common = {"eager": _eager, "compile": _compiled, "onnxruntime": _onnx, "int8": _int8}
    return common | ({"numpy": numpy[model.arch]} if model.arch in numpy else {})


def _weights(layers: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (m.weight.detach().numpy().T, m.bias.detach().numpy()) for m in layers.modules() if isinstance(m, nn.Linear)
    ]


def _numpy_tilenet(model: Any, x: np.ndarray) -> Forward:
    from scipy.special import erf

    body, head = _weights(model.body), _weights(model.head)[0]
    mean, scale, root = model.mean.numpy(), model.scale.numpy(), np.float32(0.5**0.5)

    def call() -> np.ndarray:
        h = (x[:, 0] - mean) * scale
        for weight, bias in body:
            h = h @ weight + bias
            h = h * (1 + erf(h * root)) / 2
        return (h @ head[0] + head[1])[:, 0]

    return call


def _numpy_tenset(model: Any, x: np.ndarray) -> Forward:
    encoder, residuals, decoder = _weights(model.encoder), _weights(model.residuals), _weights(model.decoder)[0]
    mean, std = model.mean.numpy(), model.std.numpy()

    def call() -> np.ndarray:
        mask = (x != 0).any(axis=-1)
        h = (x[mask] - mean) / std
        for weight, bias in encoder:
            h = np.maximum(h @ weight + bias, 0)
        rows = np.zeros((*mask.shape, h.shape[1]), np.float32)
        rows[mask] = h
        h = rows.sum(axis=1)
        for weight, bias in residuals:
            h = h + np.maximum(h @ weight + bias, 0)
        return (h @ decoder[0] + decoder[1])[:, 0]

    return call

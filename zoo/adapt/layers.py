"""Layers of a network: the head, the features it reads, and the inputs of its last layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..models import CostModel, Ensemble
from ..models.base import row_mask
from ..training.dataset import RankingDataset
from .errors import AdaptError

# Names of the submodules that turn the encoding into a score; the rest is the encoder.
HEAD_NAMES = frozenset({"decoder", "head"})


def in_head(name: str) -> bool:
    """Return whether a parameter of this dotted name belongs to the layers that turn the encoding into a score."""
    return not HEAD_NAMES.isdisjoint(name.split("."))


def check_features(model: CostModel, *sets: RankingDataset | None) -> None:
    """Raise AdaptError for programs of other features than the model reads."""
    for data in sets:
        if data is not None and data.features.shape[2] != model.config.width:
            raise AdaptError(
                f"the programs have {data.features.shape[2]} columns a row, this {model.arch} reads "
                f"{model.config.width}",
                remedy="extract the features of the model's own schema, on a device of its kind (the card names both)",
                expected=model.config.width,
                actual=data.features.shape[2],
            )


def last_layer_inputs(model: CostModel, features: np.ndarray, batch: int = 1024) -> np.ndarray:
    """Return the inputs of the layer that computes a program's score, in evaluation mode.

    A network that scores rows and adds them up is linear in the sum of the rows' inputs, which is returned; an
    ensemble in the inputs of all members side by side, each multiplied by the weight of the member.

    Args:
        features: (N, rows, width); rows of zeros are padding.
        batch: programs a pass.

    Returns:
        (N, d) float32; AdaptError if the score is not the output of a linear layer.
    """
    if isinstance(model, Ensemble):
        shares = model.shares.float().cpu().numpy()
        members = [last_layer_inputs(member, features, batch) for member in model.each]
        return np.concatenate([share * part for share, part in zip(shares, members, strict=True)], axis=1)
    seen: list[Tensor] = []
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    weight, was_training = next(model.parameters()), model.training
    model.eval()
    parts: list[np.ndarray] = []
    try:
        with torch.inference_mode():
            for start in range(0, len(features), batch):
                x = torch.from_numpy(features[start : start + batch]).to(weight.device, weight.dtype)
                seen.clear()
                model(x)
                parts.append(_by_program(seen[-1] if seen else x.new_empty(0), x).float().cpu().numpy())
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return np.concatenate(parts) if parts else np.zeros((0, layers[-1].in_features if layers else 0), np.float32)


def _by_program(h: Tensor, x: Tensor) -> Tensor:
    """(batch, d) of a layer's inputs: of programs, of rows (batch, rows, d), of filled or of all rows, flat."""
    if h.ndim == 2 and len(h) == len(x):
        return h
    filled = row_mask(x)
    counts = filled.sum(dim=1)
    if h.ndim == 3:
        # Rows of padding lie after the others, and perhaps those of the whole batch were cut off.
        inside = torch.arange(h.shape[1], device=h.device) < counts[:, None]
        return (h * inside[:, :, None]).sum(dim=1)
    if h.ndim == 2 and len(h) == int(counts.sum()):
        program = torch.repeat_interleave(torch.arange(len(x), device=h.device), counts)
        return h.new_zeros(len(x), h.shape[1]).index_add_(0, program, h)
    if h.ndim == 2 and len(h) % len(x) == 0:
        return h.unflatten(0, (len(x), -1)).sum(dim=1)
    raise AdaptError(
        f"the score of {len(x)} programs is not the output of a linear layer: the last one read {tuple(h.shape)}",
        remedy="choose a sampler that needs no embedding: random, stratified or rdu",
        shape=tuple(h.shape),
    )

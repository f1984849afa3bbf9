"""Embeddings of programs: what the last linear layer of a network reads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..models import Committee, CostModel
from ..models.base import row_mask
from .errors import EmbeddingError
from .fine_tune import check_trainable


def last_layer_inputs(model: CostModel, features: np.ndarray, batch: int = 1024) -> np.ndarray:
    """The inputs of the layer that makes a program's score, in evaluation mode.

    A network that scores rows and adds them up is linear in the sum of the rows' inputs, which is returned; a committee
    in the inputs of all members side by side, each multiplied by what the member counts.

    Args:
        model: any network of the zoo.
        features: (N, rows, width); rows of zeros are padding.
        batch: programs a pass.

    Returns:
        (N, d) float32.

    Raises:
        NotTrainableError: the model is made of trees.
        EmbeddingError: the score does not come out of a linear layer.
    """
    check_trainable(model)
    if isinstance(model, Committee):
        parts = [last_layer_inputs(member, features, batch) for member in model.each]
        return np.concatenate(
            [share * part for share, part in zip(model.shares.float().cpu().numpy(), parts, strict=True)], axis=1
        )
    seen: list[Tensor] = []
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    hooks = [layer.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for layer in layers]
    place, was_training = next(model.parameters()), model.training
    model.eval()
    parts: list[np.ndarray] = []
    try:
        with torch.inference_mode():
            for start in range(0, len(features), batch):
                x = torch.from_numpy(features[start : start + batch]).to(place.device, place.dtype)
                seen.clear()
                model(x)
                parts.append(_by_program(seen[-1] if seen else x.new_empty(0), x).float().cpu().numpy())
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return np.concatenate(parts) if parts else np.zeros((0, layers[-1].in_features if layers else 0), np.float32)


def _by_program(h: Tensor, x: Tensor) -> Tensor:
    """(batch, d) of what a layer read: of programs, of rows (batch, rows, d), of filled or of all rows, flat."""
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
    raise EmbeddingError(
        f"the score of {len(x)} programs is not made by a linear layer: the last one read {tuple(h.shape)}",
        remedy="choose a sampler that needs no embedding: random, stratified or rdu",
        shape=tuple(h.shape),
    )

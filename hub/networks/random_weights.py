"""Networks with random weights whose activations stay near 1, so that their outputs can be checked."""

from __future__ import annotations

from typing import Any

import torch

_BATCH_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def settle_batch_norms(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Give the batch norms of an untrained network the statistics of what they see, by one forward pass.

    A fresh network has a mean of 0 and a variance of 1 there: dozens of layers deep, the activations of a MobileNet
    then vanish (1e-22), and an output of zeros would pass for right.

    Args:
        module: in inference mode; changed in place.
        args, kwargs: example inputs.

    Returns:
        `module`.
    """

    def settle(norm: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        (x,) = inputs
        axes = [axis for axis in range(x.dim()) if axis != 1]
        # One number a channel has no variance: all channels together have.
        variance, mean = torch.var_mean(x, axes if x.numel() > x.shape[1] else None, correction=0)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)

    norms = [m for m in module.modules() if isinstance(m, _BATCH_NORMS) and m.track_running_stats]
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    try:
        with torch.no_grad():
            if hooks:
                module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return module

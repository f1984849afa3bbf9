"""TCL's cost model: three linear layers, one Mamba block (Gu and Dao 2023), three linear layers.

Paper: TCL, section 5.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .base import CostModel, ModelConfig, drop_padding, hardware_first, row_mask
from .registry import register

# Programs worked on at a time, by measurement: one state a program forward, all states backward must stay
# near the core.
FORWARD_CHUNK = 128
BACKWARD_CHUNK = 64
# Step sizes at the start of training, as the Mamba authors draw them.
_DT_RANGE = (1e-3, 1e-1)


@dataclass(frozen=True)
class TCLConfig(ModelConfig):
    """Sizes of `TCL`; the defaults are the paper's (section 5.2 and the best row of table 2).

    Attributes:
        hidden: width of the first encoder layer and of the first decoder layer.
        d_model: width of the encoder's output and of the Mamba block.
        head: width of the second decoder layer.
        d_state, expand, d_conv, dt_rank: of the Mamba block; dt_rank = d_model / 16, Mamba's own choice.
        residual: adds the block's input to its output. The paper's figure shows no such path.
    """

    hidden: int = 64
    d_model: int = 128
    head: int = 32
    d_state: int = 8
    expand: int = 1
    d_conv: int = 4
    dt_rank: int = 8
    residual: bool = False


@register("tcl", TCLConfig, schemas=("tcl-cpu", "tcl-gpu"), paper="TCL, section 5")
class TCL(CostModel):
    """Mamba-based cost model of TCL, figure 5.

    Input (batch, 26, 22) on a CPU, (batch, 41, 20) on a GPU: the primitives in order, rows of zeros, and the
    device's row last. Mamba is causal, so that in this order the device could tell the primitives nothing,
    and the padding would stand between them. The model therefore reads the device's row first
    (`hardware_first`): its state then flows through every primitive, the padding comes last, and rows of
    padding are left out of the sum over rows that makes the score. A padded program thus scores exactly as
    the program alone.

    92,353 parameters for 22 columns: encoder 26,304, two normalisations 512, Mamba block 55,168, decoder
    10,369. In float32 that is 369,412 bytes = 0.352 MiB; the paper says 0.35 MB, so its MB is 2**20 bytes and
    nothing is left to explain. On a GPU's 20 columns it has 128 fewer.
    """

    config: TCLConfig

    def __init__(self, config: TCLConfig) -> None:
        super().__init__(config)
        c = config
        self.encoder = nn.Sequential(
            nn.Linear(c.width, c.hidden), nn.ReLU(),
            nn.Linear(c.hidden, c.d_model), nn.ReLU(),
            nn.Linear(c.d_model, c.d_model), nn.ReLU(),
        )  # fmt: skip
        self.norm_in = nn.LayerNorm(c.d_model)
        self.mamba = MambaBlock(c.d_model, c.d_state, c.expand, c.d_conv, c.dt_rank)
        self.norm_out = nn.LayerNorm(c.d_model)
        self.decoder = nn.Sequential(
            nn.Linear(c.d_model, c.hidden), nn.ReLU(),
            nn.Linear(c.hidden, c.head), nn.ReLU(),
            nn.Linear(c.head, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if self.config.hardware:
            x = hardware_first(x)
        x = drop_padding(x)
        mask = row_mask(x)
        h = self.norm_in(self.encoder(x.to(self.norm_in.weight.dtype)))
        mixed = self.mamba(h)
        h = self.norm_out(h + mixed if self.config.residual else mixed)
        rows = self.decoder(h).squeeze(-1)
        return rows.masked_fill(~mask, 0).sum(dim=-1)


class MambaBlock(nn.Module):
    """A gated block with a short causal convolution and a selective state space.

    It maps (batch, length, d_model) to the same shape; row t sees rows 0..t only. `d_state`: states a channel; inner
    channels are expand * d_model; `d_conv`: width of the depthwise convolution; `dt_rank`: of the map to step sizes.
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
        """Draw a bias such that softplus(bias) is spread evenly in the logarithm over `_DT_RANGE`."""
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
        """Return bias + sum_k weight[k] x[t - (d_conv - 1) + k] for each row t.

        Shifted sums with the gradient take half the time of the library's depthwise kernel on a CPU (23 against 45 us
        a program of 26 rows and 128 channels).
        """
        weight, bias, length = self.conv1d.weight[:, 0], self.conv1d.bias, x.shape[1]
        taps = weight.shape[1]
        padded = functional.pad(x, (0, 0, taps - 1, 0))
        assert bias is not None  # Conv1d has one by default
        y = torch.addcmul(bias, padded[:, :length], weight[:, 0])
        for k in range(1, taps):
            y = torch.addcmul(y, padded[:, k : k + length], weight[:, k])
        return y


def selective_scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return y (batch, length, channels), exact and in plain PyTorch (Gu and Dao 2023, algorithm 2).

        h_t = exp(dt_t A) * h_{t-1} + dt_t x_t B_t        y_t = C_t . h_t        h_0 = 0

    It steps through time on the whole batch with sums and products only, so that it neither overflows nor loses digits;
    the states of the gradient are recomputed, not stored. On one core of an EPYC Genoa (float32, 26 rows, 128 channels,
    8 states) 1,024 programs take 35 us each, with the gradient 226. A log-depth scan took 1,119 and 5,410, and would
    give a program alone another score than in a batch.

    Half-precision and mixed inputs are computed in float32, since a product of many decays has no room in 8 bits.

    Args:
        x: inputs, (batch, length, channels); dt: positive step sizes, of the same shape.
        a: state matrix, negative for a stable system, (channels, states).
        b, c: input and output weights, (batch, length, states).
    """
    if all(t.dtype == x.dtype for t in (dt, a, b, c)) and x.dtype in (torch.float32, torch.float64):
        return _Scan.apply(x, dt, a, b, c)  # pyright: ignore[reportReturnType]
    with torch.autocast(x.device.type, enabled=False):
        y = _Scan.apply(x.float(), dt.float(), a.float(), b.float(), c.float())
        return y.to(x.dtype)  # pyright: ignore[reportAttributeAccessIssue]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(x, dt, a, b, c)
        y = torch.empty_like(x)
        a_t = a.t().contiguous()
        for part in _chunks(x.shape[0], FORWARD_CHUNK):
            y[part] = _forward_chunk((x[part], dt[part], b[part], c[part]), a_t)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, dt, a, b, c = ctx.saved_tensors
        grads = tuple(torch.empty_like(t) for t in (x, dt, b, c))
        a_t = a.t().contiguous()
        grad_a = torch.zeros_like(a_t)
        for part in _chunks(x.shape[0], BACKWARD_CHUNK):
            chunk = tuple(t[part] for t in (x, dt, b, c))
            _backward_chunk(chunk, a_t, grad_y[part], tuple(g[part] for g in grads), grad_a)
        grad_x, grad_dt, grad_b, grad_c = grads
        return grad_x, grad_dt, grad_a.t(), grad_b, grad_c


def _chunks(total: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, total)) for i in range(0, total, size)]


def _forward_chunk(chunk: tuple[Tensor, ...], a_t: Tensor) -> Tensor:
    x, dt, b, c = chunk
    batch, length, channels = x.shape
    u = dt * x
    h = x.new_zeros(batch, a_t.shape[0], channels)
    decay, y = torch.empty_like(h), torch.empty_like(x)
    for t in range(length):
        torch.mul(dt[:, t, None, :], a_t, out=decay)
        h.mul_(decay.exp_()).addcmul_(b[:, t, :, None], u[:, t, None, :])
        y[:, t] = torch.bmm(c[:, t, None, :], h)[:, 0]
    return y


def _backward_chunk(
    chunk: tuple[Tensor, ...], a_t: Tensor, grad_y: Tensor, grads: tuple[Tensor, ...], grad_a: Tensor
) -> None:
    """Recompute the states of one chunk, then walk back through time; adds to `grad_a` (states, channels).

    With g_t the gradient of h_t: g_t = C_t gy_t + decay_{t+1} g_{t+1}, and the rest is the chain rule.
    """
    x, dt, b, c = chunk
    grad_x, grad_dt, grad_b, grad_c = grads
    length = x.shape[1]
    u = dt * x
    decay = torch.exp(dt.transpose(0, 1)[:, :, None, :] * a_t)
    # states[t + 1] is h_t; states[0] is the zero state before the first row.
    states = x.new_zeros(length + 1, x.shape[0], a_t.shape[0], x.shape[2])
    for t in range(length):
        torch.mul(states[t], decay[t], out=states[t + 1])
        states[t + 1].addcmul_(b[:, t, :, None], u[:, t, None, :])
    g = torch.zeros_like(states[0])
    for t in reversed(range(length)):
        g.addcmul_(c[:, t, :, None], grad_y[:, t, None, :])
        grad_c[:, t] = torch.bmm(states[t + 1], grad_y[:, t, :, None])[..., 0]
        grad_b[:, t] = torch.bmm(g, u[:, t, :, None])[..., 0]
        grad_u = torch.bmm(b[:, t, None, :], g)[:, 0]
        g.mul_(decay[t])
        through_decay = g * states[t]
        grad_a += (through_decay * dt[:, t, None, :]).sum(0)
        grad_x[:, t] = grad_u * dt[:, t]
        grad_dt[:, t] = grad_u * x[:, t] + (through_decay.mul_(a_t)).sum(1)

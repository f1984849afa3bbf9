"""Networks of the coverage benchmark that are plain PyTorch: each a factory of a module and its example inputs."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Brought = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
Factory = Callable[[], Brought]


class Function(nn.Module):
    """A module made of a function and the modules that it uses: `function(self, *inputs)`."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(self, *inputs, **named)


def families(groups: dict[str, dict[str, Callable[[], Any]]]) -> dict[str, tuple[str, Factory]]:
    """Family and factory of each network, from makers of (module, inputs) or (module, inputs, keyword inputs)."""
    return {name: (family, partial(_seeded, make)) for family, group in groups.items() for name, make in group.items()}


def _seeded(make: Callable[[], Any]) -> Brought:
    torch.manual_seed(0)
    module, inputs, *named = make()
    return module.eval(), inputs, named[0] if named else {}


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


# Recurrent


def _lstm_state() -> Any:
    """An LSTM that takes its state and returns the new one."""

    def forward(self: Any, x: Tensor, h: Tensor, c: Tensor) -> Any:
        y, state = self.lstm(x, (h, c))
        return {"logits": self.head(y), "h": state[0], "c": state[1]}

    modules = {"lstm": nn.LSTM(48, 64, proj_size=32, batch_first=True), "head": nn.Linear(32, 10)}
    return Function(forward, **modules), (torch.randn(1, 8, 48), torch.randn(1, 1, 32), torch.randn(1, 1, 64))


def _lstm_cell() -> Any:
    """A loop over a cell, as written before there was `nn.LSTM`."""

    def forward(self: Any, x: Tensor) -> Tensor:
        state = (x.new_zeros(x.shape[0], 64), x.new_zeros(x.shape[0], 64))
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0]).log_softmax(-1)

    return Function(forward, cell=nn.LSTMCell(32, 64), head=nn.Linear(64, 10)), (torch.randn(2, 6, 32),)


# Attention


def _encoder_with_padding() -> Any:
    """Padded batch: a bool mask of the tokens that do not count."""

    def forward(self: Any, tokens: Tensor, padding: Tensor) -> Tensor:
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(hidden.dtype)
        return (hidden * kept).sum(1) / kept.sum(1)

    layer = nn.TransformerEncoderLayer(128, 2, 256, batch_first=True, norm_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    padding = torch.arange(24)[None] >= torch.tensor([[24], [15]])
    return Function(forward, embed=nn.Embedding(500, 128), encoder=encoder), (torch.randint(0, 500, (2, 24)), padding)


def _transformer() -> Any:
    def forward(self: Any, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.transformer(source, target, tgt_mask=mask, tgt_is_causal=True)

    transformer = nn.Transformer(128, 2, 1, 1, 256, batch_first=True)
    return Function(forward, transformer=transformer), (torch.randn(1, 24, 128), torch.randn(1, 16, 128))


def _multihead_attention() -> Any:
    def forward(self: Any, query: Tensor, memory: Tensor) -> Any:
        return self.attention(query, memory, memory, average_attn_weights=False)

    attention = nn.MultiheadAttention(128, 2, batch_first=True)
    return Function(forward, attention=attention), (torch.randn(1, 16, 128), torch.randn(1, 24, 128))


def _causal_attention() -> Any:
    """`scaled_dot_product_attention` as a user writes it, with a causal mask and grouped queries."""

    def forward(self: Any, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q = self.q(x).view(batch, tokens, 4, 32).transpose(1, 2)
        k, v = (m(x).view(batch, tokens, 2, 32).transpose(1, 2) for m in (self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, tokens, 128))

    modules = {"q": nn.Linear(128, 128), "k": nn.Linear(128, 64), "v": nn.Linear(128, 64), "out": nn.Linear(128, 128)}
    return Function(forward, **modules), (torch.randn(1, 24, 128),)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class DecodeStep(nn.Module):
    """One token of a Llama-like model: keys and values of earlier tokens come in and go out, longer by one place."""

    def __init__(self, layers: int = 2, width: int = 128, heads: int = 4, groups: int = 2, size: int = 32) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.embed = nn.Embedding(500, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, width + 2 * groups * self.head, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.gate = nn.ModuleList(nn.Linear(width, 2 * 344, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(344, width, bias=False) for _ in range(layers))
        angles = torch.outer(torch.arange(size), 1e4 ** -(torch.arange(0, self.head, 2) / self.head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.embed(token)
        cos, sin = self.cos[position], self.sin[position]
        places = torch.arange(keys.shape[-2], device=token.device)
        mask = torch.where(places <= position, 0.0, -math.inf)
        new_keys, new_values = [], []
        for i, (qkv, out, gate, down) in enumerate(zip(self.qkv, self.out, self.gate, self.down, strict=True)):
            parts = qkv(self.norms[2 * i](x)).view(1, -1, self.head)
            q, k, v = parts.split([self.heads, self.groups, self.groups], dim=1)
            here = (places == position)[None, None, :, None]
            k = torch.where(here, _rotate(k, cos, sin)[:, :, None], keys[i])
            v = torch.where(here, v[:, :, None], values[i])
            new_keys.append(k)
            new_values.append(v)
            wide = self.heads // self.groups
            scores = _rotate(q, cos, sin)[:, :, None] @ k.repeat_interleave(wide, 1).transpose(2, 3)
            weights = (scores / math.sqrt(self.head) + mask).softmax(-1)
            x = x + out((weights @ v.repeat_interleave(wide, 1)).reshape(1, -1))
            one, two = gate(self.norms[2 * i + 1](x)).chunk(2, -1)
            x = x + down(F.silu(one) * two)
        logits = self.norms[-1](x) @ self.embed.weight.T  # the embedding is the head too
        return logits, torch.stack(new_keys), torch.stack(new_values)


# Images, volumes and signals


class UNet(nn.Module):
    """Two levels down and up again by transposed convolutions, with skips."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = _conv(3, width), _conv(width, 2 * width)
        self.bottom = _conv(2 * width, 4 * width)
        self.up2, self.up1 = (nn.ConvTranspose2d(2 * n * width, n * width, 2, 2) for n in (2, 1))
        self.back2, self.back1 = _conv(4 * width, 2 * width), _conv(2 * width, width)
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        x = self.back2(torch.cat([second, self.up2(bottom)], 1))
        return self.head(self.back1(torch.cat([first, self.up1(x)], 1))).sigmoid()


def _interpolation() -> Any:
    """A feature pyramid: bilinear up, nearest up, bicubic to a size, area down."""

    def forward(self: Any, x: Tensor) -> Any:
        small = self.down(x)
        up = F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False) + self.side(x)
        aligned = F.interpolate(small, size=(40, 40), mode="bilinear", align_corners=True)
        near = F.interpolate(self.narrow(up), scale_factor=2.0, mode="nearest")
        return up, aligned, near, F.adaptive_avg_pool2d(up, 4)

    modules = {"down": _conv(3, 16, stride=2), "side": nn.Conv2d(3, 16, 1), "narrow": nn.Conv2d(16, 4, 1)}
    return Function(forward, **modules), (torch.randn(1, 3, 48, 48),)


def _squeeze_excite() -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x * self.excite(x.mean((2, 3), keepdim=True))
        return self.head(F.avg_pool2d(x, 3, 2, 1, count_include_pad=False).flatten(1))

    excite = nn.Sequential(nn.Conv2d(32, 8, 1), nn.ReLU6(), nn.Conv2d(8, 32, 1), nn.Sigmoid())
    modules = {"stem": _conv(3, 32, stride=2), "excite": excite, "head": nn.Linear(32 * 8 * 8, 10)}
    return Function(forward, **modules), (torch.randn(1, 3, 32, 32),)


def _mlp_mixer() -> Any:
    def forward(self: Any, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.second(x))
        return self.head(x.mean(1))

    def mlp(size: int, hidden: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))

    modules = {"patches": nn.Conv2d(3, 128, 16, 16), "first": nn.LayerNorm(128), "second": nn.LayerNorm(128)}
    modules |= {"tokens": mlp(16, 64), "channels": mlp(128, 512), "head": nn.Linear(128, 10)}
    return Function(forward, **modules), (torch.randn(1, 3, 64, 64),)


def _autoencoder() -> Any:
    """A variational autoencoder at inference: the mean is decoded, mean and log of the variance are given too."""

    def forward(self: Any, x: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        image = self.decoder(mean)
        return {"image": image, "mean": mean, "log_variance": log_variance, "error": ((x - image) ** 2).mean((1, 2, 3))}

    encoder = [nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()]
    decoder = [nn.Linear(16, 32 * 7 * 7), nn.ReLU(), nn.Unflatten(1, (32, 7, 7)), nn.ConvTranspose2d(32, 16, 4, 2, 1)]
    tail = [nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid()]
    encode = nn.Sequential(*encoder, nn.Linear(32 * 7 * 7, 32))
    return Function(forward, encoder=encode, decoder=nn.Sequential(*decoder, *tail)), (torch.randn(1, 1, 28, 28),)


def _unpooling() -> Any:
    """SegNet's decoder: maxima go back to where the encoder took them from."""

    def forward(self: Any, x: Tensor) -> Tensor:
        small, places = self.pool(self.encoder(x))
        return self.decoder(self.unpool(small, places))

    decoder = nn.Sequential(_conv(16, 16), nn.Conv2d(16, 4, 3, padding=1))
    parts = {"pool": nn.MaxPool2d(2, return_indices=True), "unpool": nn.MaxUnpool2d(2)}
    return Function(forward, encoder=_conv(3, 16), decoder=decoder, **parts), (torch.randn(1, 3, 32, 32),)


def _chain(shape: tuple[int, ...], *layers: nn.Module) -> Any:
    """Layers one after another, and an input of a shape."""
    return nn.Sequential(*layers), (torch.randn(shape),)


def _encoder_layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(128, 2, 512, batch_first=True)


def _up(inputs: int, outputs: int, stride: int, padding: int) -> nn.Sequential:
    convolution = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(True))


def _decode_step() -> Any:
    state = torch.randn(2, 1, 2, 32, 32)
    return DecodeStep(), (torch.tensor([7]), torch.tensor([9]), state, torch.randn_like(state))


MODULES: dict[str, tuple[str, Factory]] = families({
    "recurrent": {
        "lstm": lambda: (nn.LSTM(64, 128, batch_first=True), (torch.randn(2, 12, 64),)),
        "bilstm": lambda: (nn.LSTM(48, 64, num_layers=2, bidirectional=True), (torch.randn(12, 2, 48),)),
        "lstm-state": _lstm_state,
        "lstm-cell": _lstm_cell,
        "gru": lambda: (nn.GRU(64, 96, 2, batch_first=True, bidirectional=True), (torch.randn(1, 12, 64),)),
        "rnn": lambda: (nn.RNN(64, 96, nonlinearity="tanh"), (torch.randn(12, 1, 64),)),
    },
    "attention": {
        "transformer-encoder": lambda: (nn.TransformerEncoder(_encoder_layer(), 2), (torch.randn(1, 32, 128),)),
        "encoder-with-padding": _encoder_with_padding,
        "transformer": _transformer,
        "multihead-attention": _multihead_attention,
        "causal-attention": _causal_attention,
        "decode-step": _decode_step,
    },
    "images and signals": {
        "unet": lambda: (UNet(), (torch.randn(1, 3, 64, 64),)),
        "unpooling": _unpooling,
        "super-resolution": lambda: _chain(
            (1, 1, 48, 48), nn.Conv2d(1, 32, 5, padding=2), nn.PReLU(), nn.Conv2d(32, 16, 3, padding=1), nn.Tanh(),
            nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3),
        ),
        "interpolation": _interpolation,
        "group-norm": lambda: _chain(
            (1, 3, 48, 48), nn.Conv2d(3, 32, 3, 2, 1), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, 1, 1),
            nn.GroupNorm(1, 32), nn.Mish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        ),
        "style-transfer": lambda: _chain(
            (1, 3, 48, 48), nn.ReflectionPad2d(4), nn.Conv2d(3, 16, 9), nn.InstanceNorm2d(16, affine=True), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.InstanceNorm2d(32), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.ReflectionPad2d(1), nn.Conv2d(32, 3, 3), nn.Tanh(),
        ),
        "depthwise": lambda: _chain(
            (1, 3, 64, 64), _conv(3, 32, stride=2), _conv(32, 32, groups=32), _conv(32, 64, 1), _conv(64, 64, groups=4),
            nn.Hardswish(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(64, 10), nn.Hardsigmoid(),
        ),
        "squeeze-excite": _squeeze_excite,
        "temporal-convolutions": lambda: _chain(
            (1, 2, 256), nn.Conv1d(2, 32, 3, padding=2, dilation=2), nn.BatchNorm1d(32), nn.LeakyReLU(0.1),
            nn.MaxPool1d(2), nn.Conv1d(32, 64, 1), nn.GLU(1), nn.ConvTranspose1d(32, 2, 4, 2, 1),
        ),
        "volumes": lambda: _chain(
            (1, 1, 16, 24, 24), nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ELU(), nn.MaxPool3d(2),
            nn.Conv3d(8, 16, 3, 2, 1), nn.Softplus(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        ),
        "mlp-mixer": _mlp_mixer,
        "autoencoder": _autoencoder,
        "gan-generator": lambda: _chain(
            (1, 64, 1, 1), _up(64, 64, 1, 0), _up(64, 32, 2, 1), _up(32, 16, 2, 1),
            nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
        ),
    },
})  # fmt: skip

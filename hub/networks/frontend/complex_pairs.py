"""Complex numbers as pairs of real tensors, which is all that TVM has: rotary positions, Fourier transforms.

A program with complex numbers runs once more, on PyTorch's own tensor of two parts, and is exported as that runs. A
Fourier transform is a product with the matrix of its cosines and that of its sines.
"""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.complex_tensor import ComplexTensor
from torch.fx import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

from .shapes import example_leaves

aten = torch.ops.aten


def pair_complex(exported: Any) -> Any:
    """Export a decomposed program again with pairs of real tensors for the complex ones inside; others stay.

    The inputs and outputs of the program that is returned are flat.

    Raises:
        ValueError: an operator has no form for pairs, or an input or output is complex; the message is that of TVM's
            importer for operators that it lacks.
    """
    if not any(_is_complex(node.meta.get("val")) for node in exported.graph.nodes):
        return exported
    module, leaves = exported.module(check_guards=False), example_leaves(exported)
    if any(map(_is_complex, leaves)):
        raise ValueError("Unsupported function types ['a complex input']")
    with torch.no_grad():
        return torch.export.export(make_fx(_PairedNetwork(module))(*leaves), tuple(leaves))


class _PairedNetwork(torch.nn.Module):
    """A network whose complex weights lie as real ones with a last dimension of two parts."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        tensors = [node.target for node in network.graph.nodes if node.op == "get_attr"]
        self.pairs = {name for name in tensors if _is_complex(attrgetter(name)(network))}
        for name in self.pairs:
            folder, _, last = name.rpartition(".")
            owner = network.get_submodule(folder)
            real = torch.view_as_real(getattr(owner, last).detach().resolve_conj()).contiguous()
            delattr(owner, last)
            owner.register_buffer(last, real)
        self.network = network

    def forward(self, *leaves: Any) -> Any:
        return _Pairs(self.network, self.pairs).run(*leaves, enable_io_processing=False)


class _Pairs(Interpreter):
    """Runs a network; what makes a complex tensor of real ones makes a pair."""

    def __init__(self, network: Any, pairs: set[str]) -> None:
        super().__init__(network)
        self.pairs = pairs

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return ComplexTensor(*value.unbind(-1)) if target in self.pairs else value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _ENTRIES:
            return _ENTRIES[target](*args)
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype.is_complex and not any(isinstance(x, ComplexTensor) for x in args):
            # A real tensor, or a constant, as the real part.
            half = torch.float64 if dtype == torch.complex128 else torch.float32
            if target in (aten.full.default, aten.scalar_tensor.default):
                *size, value = args
                parts = complex(value).real, complex(value).imag
                options = {**kwargs, "dtype": half}
                return ComplexTensor(
                    *(super(_Pairs, self).call_function(target, (*size, one), options) for one in parts)
                )
            real = super().call_function(target, args, {**kwargs, "dtype": half})
            return ComplexTensor(real, torch.zeros_like(real))
        is_mixed = any(isinstance(x, ComplexTensor | complex) for x in args)
        if is_mixed and torch.Tag.pointwise in target.tags:  # else PyTorch makes the others complex first
            if target == aten.mul.Tensor:  # by a mask
                args = tuple(x.to(torch.float32) if getattr(x, "dtype", None) == torch.bool else x for x in args)
            args = tuple(map(_as_pair, args, target._schema.arguments))
        result = super().call_function(target, args, kwargs)
        if _is_complex(result) and not isinstance(result, ComplexTensor):
            raise ValueError(f"Unsupported function types ['{target.__name__}']")
        return result

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        if any(map(_is_complex, args[0])):
            raise ValueError("Unsupported function types ['a complex output']")
        return super().output(target, args, kwargs)


_ENTRIES = {
    # The parts of a complex tensor may lie in memory as it does not.
    aten.view.default: lambda x, size: x.reshape(size),
    aten._assert_tensor_metadata.default: lambda *_: None,
    aten.complex.default: ComplexTensor,
    aten.view_as_complex.default: lambda x: ComplexTensor(*x.unbind(-1)),
    aten.polar.default: lambda size, angle: ComplexTensor(size * angle.cos(), size * angle.sin()),
}


def _as_pair(value: Any, argument: Any) -> Any:
    """Return a complex number that stands for a tensor, or a real tensor, as a pair; anything else as it is."""
    if isinstance(value, complex) and str(argument.type) == "Tensor":
        return ComplexTensor(torch.tensor(value.real), torch.tensor(value.imag))
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool or isinstance(value, ComplexTensor):
        return value
    real = value if value.is_floating_point() else value.to(torch.float32)
    return ComplexTensor(real, torch.zeros_like(real))


def _is_complex(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


# Decompositions of Fourier transforms


def fourier(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """Transform a complex tensor."""
    real, imaginary = torch.view_as_real(x).unbind(-1)
    for d in dim:
        cos, sin = _waves(x.shape[d], x.shape[d])
        if not forward:
            sin = -sin
        mixed = _along(real, d, cos) + _along(imaginary, d, sin)
        imaginary = _along(imaginary, d, cos) - _along(real, d, sin)
        real = mixed
    scale = _scale(math.prod(x.shape[d] for d in dim), normalization)
    return torch.complex(real * scale, imaginary * scale)


def real_fourier(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """Transform a real tensor, up to half of the frequencies of the last dimension where `onesided`."""
    *others, last = dim
    size = x.shape[last]
    cos, sin = (wave.T for wave in _waves(size, size // 2 + 1 if onesided else size))
    x = x * _scale(size, normalization)
    spectrum = torch.complex(_along(x, last, cos), _along(-x, last, sin))
    return fourier(spectrum, others, normalization, True) if others else spectrum


def inverse_real_fourier(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """Transform half a spectrum: each frequency but the first, and the last of an even size, stands for two."""
    *others, last = dim
    if others:
        x = fourier(x, others, normalization, False)
    real, imaginary = torch.view_as_real(x).unbind(-1)
    rows = x.shape[last]
    edge = torch.arange(rows) * 2 % last_dim_size == 0
    weights = torch.where(edge, 1.0, 2.0)[:, None] * _scale(last_dim_size, normalization)
    cos, sin = (wave * weights for wave in _waves(last_dim_size, rows))
    return _along(real, last, cos) - _along(imaginary, last, sin)


def _waves(size: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of every frequency, rows times size; angles are exact, as multiples of a turn's part.

    Sines of half turns are zero, so that what has no imaginary part has a phase of PyTorch's sign.
    """
    turns = torch.arange(rows)[:, None] * torch.arange(size) % size
    angle = turns.to(torch.float32) * (2 * math.pi / size)
    return angle.cos(), torch.where(turns * 2 % size == 0, 0.0, angle.sin())


def _along(x: Tensor, dim: int, matrix: Tensor) -> Tensor:
    """Multiply a tensor by a matrix (old size times new size) along a dimension."""
    moved = x.movedim(dim, -1)
    return (moved.reshape(-1, moved.shape[-1]) @ matrix).view(*moved.shape[:-1], -1).movedim(-1, dim)


def _scale(size: int, normalization: int) -> float:
    """Not at all (0), by the root of the size (1), or by the size (2)."""
    return (1.0, 1 / math.sqrt(size), 1 / size)[normalization]

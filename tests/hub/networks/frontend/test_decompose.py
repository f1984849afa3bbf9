"""What PyTorch computes and TVM's importer lacks or computes otherwise: compiled networks beside PyTorch."""

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from tchub.hub.networks.frontend.decompose import decomposed
from torch import Tensor, nn
from torch.nn import functional as F

Equal = Callable[..., Any]
# Claim -> the networks that show it: a function, its inputs and its modules.
CLAIMS: dict[str, list[tuple[Any, tuple[Tensor, ...], tuple[nn.Module, ...]]]] = {}
RANDOM = torch.Generator().manual_seed(0)
randn = partial(torch.randn, generator=RANDOM)


def case(claim: str, *inputs: Tensor, parts: tuple[nn.Module, ...] = ()) -> Callable[[Any], Any]:
    """Compare a network with PyTorch, under a claim."""

    def add(network: Any) -> Any:
        CLAIMS.setdefault(claim, []).append((network, inputs, parts))
        return network

    return add


NUMBERS = "numbers and tensors of several types are computed in the type that PyTorch takes"
case(NUMBERS, randn(2, 6).double())(nn.Linear(6, 4).double())


@case(NUMBERS, torch.tensor([0, 4, 1, 3, 2, 4]), randn(6), randn(6) > 0)
def mixed(whole: Tensor, real: Tensor, flag: Tensor) -> Any:
    halves = whole / 2, whole * 0.5, whole**0.5, 1.5 - whole, torch.div(whole, 2, rounding_mode="floor")
    quotients = (torch.div(7, x, rounding_mode=mode) for x in (whole + 1, real) for mode in ("floor", "trunc", None))
    compared = whole > 0.5, real > whole, torch.where(flag, whole, real), torch.maximum(whole, real)
    counted = flag.cumsum(0), flag.sum(), whole.clamp(max=2), whole.log1p()
    powers = whole**3, 2**whole, whole**whole, torch.full_like(real, 3, dtype=torch.int32)
    return (
        *halves,
        *quotients,
        7 % (whole + 1),
        2.5 % real,
        *compared,
        *counted,
        *powers,
        whole[None] @ whole[:, None],
        real.double() * real,
    )


@case("elements and distances that TVM lacks", randn(4, 6), randn(4, 6), parts=(nn.Bilinear(6, 6, 3),))
def elements(bilinear: nn.Module, x: Tensor, y: Tensor) -> Any:
    distances = (torch.cdist(x, y, p) for p in (1.0, 2.0, math.inf))
    flags = (x > 0) * (y > 0) + (x > y)
    both = torch.hypot(x, y), torch.logaddexp(x, y), bilinear(x, y), flags
    return *distances, *both, x.erfc(), x.unfold(1, 3, 2), (x > 0).any(), x.any(1)


SOME_EQUAL = randn(3, 5)
SOME_EQUAL[1, 1:3] = 3.0


@case("running extremes, sums and places in an order", SOME_EQUAL, torch.cat([SOME_EQUAL[:, :2], randn(3, 2)], 1))
def running(x: Tensor, y: Tensor) -> Any:
    chosen = *x.kthvalue(2, 0), *x.kthvalue(3, -1, keepdim=True)
    sums = (x * 60).logcumsumexp(1), torch.where(x > 0, x, -math.inf).logcumsumexp(0)
    borders = x.sort(-1).values
    places = torch.searchsorted(borders, y), torch.searchsorted(borders[0], y, right=True, out_int32=True)
    bits = (x * 10).int() >> 2, (x * 10).long() << 3, (x * 10).int() >> 31, (x * 10).to(torch.uint8) >> 7
    by = torch.tensor([0, 31, 32, -1, 70], dtype=torch.int32)  # some shift all bits out
    each = bits[0] >> by, bits[0] << by, bits[3] >> by.to(torch.uint8), torch.bitwise_left_shift(bits[0], 2)
    return *x.cummax(1), *x.cummin(0), *chosen, *sums, *places, *bits, *each, F.rrelu(x)


@case("indices count from the end, broadcast, and may leave dimensions between them",
      randn(5, 6, 7), torch.tensor([1, 0, 4]), torch.tensor([2, 5, 0]))  # fmt: skip
def indexed(x: Tensor, i: Tensor, j: Tensor) -> Any:
    return x[-1], x[:, -1 - i], x[i, :, j], x[:, i[:, None], j[None]], x[i, j]


@case("rows are put and added where indices say", randn(6, 4), torch.tensor([1, 5, 1]), randn(3, 4))
def scattered(x: Tensor, i: Tensor, y: Tensor) -> Any:
    sums = x.index_add(0, i, y), x.scatter_add(0, i[:, None].expand(3, 4), y), x.index_put((i,), y, accumulate=True)
    return *sums, x.index_put((torch.tensor([2, -1]),), y[:2]), x.scatter_reduce(0, i[:, None], y[:, :1], "amax")


@case("rows are taken by numbers that tensors hold", randn(6, 4), torch.tensor(2), torch.tensor(-1))
def taken(x: Tensor, first: Tensor, last: Tensor) -> Any:
    return x[first], x[:, last] + x[x.sum(1).argmax(), 0], x.select(1, -2)


REDUCED = "rows are reduced with and without those that were there"


@case(REDUCED, randn(6, 4), torch.tensor([1, 5, 1]), randn(3, 4))
def reduced(x: Tensor, i: Tensor, y: Tensor) -> Any:
    index, empty = i[:, None].expand(y.shape), torch.tensor([])
    alone = (x.scatter_reduce(0, index, y, how, include_self=False) for how in ("amax", "amin", "sum", "mean"))
    joined = torch.cat([empty, x * 2, x[:0]]), torch.cat([empty, i]) / 2, torch.cat([i, x[0]])
    joined = *joined, x.scatter(0, index, y, reduce="multiply"), x.scatter(0, index, 2.0, reduce="add")
    return *alone, x.scatter_reduce(0, index, y, "mean"), *joined


@case(REDUCED, randn(2, 6, 4), torch.tensor([1, 5, 1]), randn(2, 3, 4))
def reduced_by_one_index_each(x: Tensor, i: Tensor, y: Tensor) -> Any:
    alone = (x.index_reduce(1, i, y, how, include_self=False) for how in ("amax", "mean"))
    return *alone, *(x.index_reduce(1, i, y, how) for how in ("amax", "amin", "mean", "prod"))


PARTLY = randn(5, 8)
PARTLY[0], PARTLY[1, :3], PARTLY[4, 2] = math.nan, math.nan, math.nan
MISSING = PARTLY[1:].clone()
MISSING[0, 3], MISSING[1, 2], MISSING[2] = math.inf, -math.inf, math.nan


@case("medians of what is a number", PARTLY)
def medians(x: Tensor) -> Any:
    return x.nanmedian(), x.nanmedian(1).values, x.nanmedian(0, keepdim=True).values, *x.nan_to_num().median(1)


@case("statistics and orders of values", randn(4, 8))
@case("statistics and orders of values some of which are missing", MISSING)
def statistics(x: Tensor) -> Any:
    ranks = x.nanquantile(torch.tensor([0.1, 0.5]), 1), x.nanquantile(0.3), x.quantile(0.3, 0)
    order = x.sort(1, descending=True).values, x.sort(0).values
    return x.nanmean(1), x.nanmean(), x.nansum(0), x.nan_to_num(0.5, 2.0, -3.0), *ranks, *order


@case("values are compared some of which are missing", MISSING, MISSING.roll(1, 1))
def compared(x: Tensor, y: Tensor) -> Any:
    return x == x, x != x, x != y, ~(x == y), x.isfinite(), torch.fmax(x, y), torch.fmin(x, y)  # noqa: PLR0124


@case("slots of a cache are written in any dimension and by masks",
      randn(4, 6, 4), torch.tensor([3, 0, 2]), randn(4, 3, 4).repeat(1, 2, 1)[:, :3])  # fmt: skip
def written(x: Tensor, i: Tensor, y: Tensor) -> Any:
    caches = [x.clone() for _ in range(5)]
    caches[0][:, i] = y
    caches[1][:, :, i[:2]] = y[:, :1, :2]
    caches[2][i, :, i] = 1.5 * y[0, :, :1]
    caches[3][:, x[0, :, 0] > 0] = y[0, 0]
    return *caches[:4], caches[4].masked_scatter(x > 1, y), x.as_strided((3, 4, 2), (5, 2, 1), 1)


@case("numbers are rounded as if they were quantised",
      randn(3, 8), randn(3).abs() + 0.1, torch.tensor([0, 2, -3], dtype=torch.int32))  # fmt: skip
def quantised(x: Tensor, scale: Tensor, zero: Tensor) -> Any:
    one = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7)
    other = torch.fake_quantize_per_tensor_affine(x, scale[0], zero[0], -128, 127)
    return one, other, torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -8, 7), x.exp2(), x.copysign(-x)


@case("a tensor changed in place by slices and by a mask", randn(4, 5))
def changed(x: Tensor) -> Tensor:
    x = x.clone()
    x[0], x[:, ::2] = 1, 5
    x[x > 2] = 0
    x[1:3, 1:].add_(1)
    return x


FIRST_AND_LAST = torch.tensor([[True, False, True]] * 3 + [[False] * 3])


@case("attention with each kind of mask and rows that see nothing",
      randn(1, 4, 4, 8), randn(1, 4, 3, 8), randn(1, 4, 3, 8), FIRST_AND_LAST)  # fmt: skip
def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
    attend, added = F.scaled_dot_product_attention, torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    few = attend(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)
    return attend(q, k, v, scale=0.3), few, attend(q, k, v, attn_mask=mask), attend(q, k, v, attn_mask=added)


@case("functions over rows", randn(4, 2, 3), parts=(nn.Linear(3, 3),))
def over_rows(linear: nn.Module, x: Tensor) -> Tensor:
    return torch.vmap(lambda row: linear(row).relu())(x)


BAGS = tuple(nn.EmbeddingBag(10, 6, mode=mode) for mode in ("sum", "mean", "max"))
BAGS[0].requires_grad_(False)  # PyTorch then has another operator


@case("bags of embeddings, some of them empty", torch.arange(12) % 10, torch.tensor([0, 5, 5, 9]), parts=BAGS)
def bags(one: nn.Module, other: nn.Module, third: nn.Module, i: Tensor, o: Tensor) -> Any:
    return one(i, o), other(i, o), third(i, o)


@case("reductions and their places", randn(3, 5, 4))
def reductions(x: Tensor) -> Any:
    norms = x.norm(), x.norm(dim=-1), x.norm(1, 0), torch.linalg.vector_norm(x, dim=(0, 2), dtype=torch.float64)
    sums = *norms, x.prod(1), torch.var_mean(x, -1)
    return x.max(1), x.min(0, keepdim=True), x.amax((0, 2)), x.any(1), *sums


@case("sorts, scans and masks", torch.arange(18).reshape(2, 9) % 5)
def masks(x: Tensor) -> Any:
    return (x != 1).cumsum(1), x.cumsum(1), (x > 2) == (x < 4), (x > 2) != (x < 4)


@case("sorts, scans and masks", randn(2, 9))
def sorts(x: Tensor) -> Any:
    order, best = x.argsort(1), x.topk(3, sorted=False)[0].sum(1)
    return *x.sort(1), *x.topk(3), best, order, torch.zeros(2, 9).scatter(1, order, x), x.gather(1, order)


COMPLEX = "complex numbers inside a network are pairs of real ones"


@case(COMPLEX, randn(1, 3, 8, 8), parts=(nn.ParameterList([randn(3, 2, 4, 4, dtype=torch.cfloat)]),))
def spectral(weights: Any, x: Tensor) -> Tensor:
    """A layer of a Fourier neural operator: few frequencies, mixed by complex weights, back to an image."""
    mixed = torch.zeros(x.shape[0], 2, 8, 5, dtype=torch.cfloat)
    mixed[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x)[:, :, :4, :4], weights[0])
    return torch.fft.irfft2(mixed, s=(8, 8))


@case(COMPLEX, randn(2, 6, 8), parts=(nn.ParameterList([torch.polar(torch.ones(6, 4), randn(6, 4))]),))
def rotary(turns: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Positions by a turn in the complex plane, with a complex table."""
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns[0]
    # Of magnitudes and phases.
    waves = x[..., :4] * (x[..., 4:].cos() + 1j * x[..., 4:].sin()) * (1j * torch.arange(4))
    masked = (x[..., :4] > 0) * turned ** (1 + 1j) + torch.where(turned == 1j, 1j, x[..., 4:].abs() ** 1j)
    outputs = torch.view_as_real(turned).flatten(-2), (turned.conj() / 2 + 1j * x[..., :4]).abs(), masked.abs()
    return *outputs, waves.real - waves.imag


@case("transforms of Fourier in each direction and norm", randn(2, 6, 8), randn(4, 8, 2))
def transforms(x: Tensor, mix: Tensor) -> Any:
    fft = torch.fft
    mixed = fft.irfft(fft.rfft(x, dim=1) * torch.view_as_complex(mix), n=6, dim=1)
    there_and_back = fft.irfft(fft.rfft(x, norm="ortho"), n=7, norm="forward")
    return fft.fftn(x, dim=(1, 2)).real, fft.ifft(fft.rfft(x)).imag, there_and_back, mixed, fft.rfft(x).angle()


MATRICES = randn(2, 3, 3)
MATRICES[0, 0, 0] = 0  # as a pivot it would divide by zero


@case("small matrices are solved with pivots", MATRICES, randn(2, 3, 2))
def solved(a: Tensor, b: Tensor) -> Any:
    solve, algebra = torch.linalg.solve, torch.linalg
    systems = algebra.inv(a), solve(a, b), solve(a[0], b[0, :, 0]), solve(a, b.mT, left=False)
    return *systems, algebra.det(a), *algebra.slogdet(a), algebra.det(a * torch.tensor([0.0, 1, 1]))


@case("small matrices are factored", MATRICES, randn(2, 3, 2))
def factored(a: Tensor, b: Tensor) -> Any:
    a = a @ a.mT + torch.eye(3)
    lower, upper = torch.linalg.cholesky(a), torch.linalg.cholesky(a, upper=True)
    inverses = torch.cholesky_inverse(lower), torch.cholesky_solve(b, upper, upper=True)
    sides = torch.linalg.solve_triangular(upper, b.mT, upper=True, left=False), lower, upper
    return *sides, torch.linalg.solve_triangular(lower, b, upper=False, unitriangular=True), *inverses


@case("the largest of a row that is masked throughout is the first",
      torch.tensor([[-math.inf] * 3, [1, 3, 2], [torch.finfo(torch.float32).min] * 3]), randn(3, 3))  # fmt: skip
def largest(x: Tensor, y: Tensor) -> Any:
    return x.argmax(1), x.max(1).indices, (-x).argmin(1), y.gather(1, x.argmax(1, True))


@case("gamma functions on both sides of zero", torch.linspace(-3.3, 40, 50))
def gammas(x: Tensor) -> Any:
    return x.lgamma(), x.digamma()


@case("the inverse of the error function up to its ends",
      torch.cat([torch.linspace(-0.9999, 0.9999, 60), torch.tensor([-1.0, 1, 0, 2])]))  # fmt: skip
def inverse(x: Tensor) -> Tensor:
    return x.erfinv()


@case("axes that count from the end pass the change of layout", randn(2, 3, 1, 4), parts=(nn.LayerNorm(4),))
def squeezed(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x.squeeze(-2)).unsqueeze(-2)


@case("axes that count from the end pass the change of layout", randn(1, 3, 5, 4), parts=(nn.Conv2d(3, 4, 3),))
def permuted(conv: nn.Module, x: Tensor) -> Tensor:
    return conv(x).permute(0, -2, -1, 1)


@case("axes that are squeezed may be longer than one, or all that there are", randn(4, 1))
def squeezed_further(x: Tensor) -> Any:
    return x.squeeze(), x[:1].squeeze(), x.squeeze(0)


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_compiled_network_computes_what_pytorch_does(equal: Equal, claim: str) -> None:
    for network, inputs, parts in CLAIMS[claim]:
        before = [x.dtype for part in parts for x in part.parameters()]
        equal(network, *inputs, parts=parts)
        assert [x.dtype for part in parts for x in part.parameters()] == before, "the user's modules stay as they are"


def test_rolled_images_are_one_kernel_with_the_windows_cut_from_them(equal: Equal) -> None:
    """As Swin Transformers shift their windows."""

    def windows(x: Tensor) -> Any:
        rolled = x.roll((-3, 1), (1, -2)).reshape(1, 2, 4, 2, 4, 3).transpose(2, 3)
        return rolled, x.long().roll(5), x[:, :0].roll(1, 1), x.roll((8, 2, -1), (1, 2, 2)), torch.fft.fftshift(x)

    mod = equal(windows, torch.randn(1, 8, 8, 3))
    assert "fused_strided_slice_strided_slice1_concatenate_strided_slice2_strided_slice3_concatenate1" in mod.script()
    assert "take" not in mod.script()


@pytest.mark.parametrize("rows", [3, 9])
def test_rows_go_to_the_experts_that_are_theirs(equal: Equal, rows: int) -> None:
    """As mixtures of experts do; few rows take copies of their experts' weights."""

    def experts(x: Tensor, chosen: Tensor, weights: Tensor) -> Any:
        counts = torch.histc(chosen.float(), bins=4, min=0, max=3)
        ends = counts.cumsum(0, dtype=torch.int32)
        order = chosen.argsort()
        multiplied = torch.ops.transformers.grouped_mm_fallback(x[order], weights, ends)
        return multiplied, counts, torch.histc(x, bins=7, min=-1, max=1.5)

    import_module("transformers.integrations.moe")  # registers the operator
    equal(experts, torch.randn(rows, 8), torch.randint(1, 4, (rows,)), torch.randn(4, 8, 16))


def test_branches_are_taken_by_a_condition_and_what_is_around_them_is_fused(equal: Equal) -> None:
    def branching(conv: nn.Module, head: Any, x: Tensor) -> Tensor:
        branches = lambda y: head(y).softmax(1), lambda y: y.tanh() @ head.weight
        return torch.cond(x.sum() > 0, *branches, (conv(x).relu().mean((2, 3)),)) + 1

    parts, x = (nn.Conv2d(3, 4, 3), nn.Linear(4, 4)), torch.randn(1, 3, 6, 6)
    for each in (x, -x):
        mod = equal(branching, each, parts=parts, layout="as-imported")
    assert "fused_conv2d_add" in mod.script()


def test_attention_of_a_program_whose_views_hold_for_the_strides_of_pytorchs_own(equal: Equal) -> None:
    def attention(x: Tensor) -> Tensor:
        q, k, v = (part.view(1, 10, 4, 8).transpose(1, 2) for part in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 10, -1)

    equal(attention, torch.randn(1, 10, 96), again=True)


def test_what_tvm_translates_rightly_is_left_as_it_is() -> None:
    """Tasks keep their identity, which recorded programs and checkpoints' splits go by."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)).eval()
    exported = torch.export.export(network, (torch.randn(1, 3, 4, 4),))
    ours, theirs = decomposed(exported).graph.nodes, exported.run_decompositions().graph.nodes
    assert [node.target for node in ours] == [node.target for node in theirs]


@pytest.mark.parametrize("again", [False, True])
def test_checks_of_values_are_dropped(equal: Equal, again: bool) -> None:
    """As transformers checks shapes that tensors hold; a compiled network raises no error."""

    def checked(x: Tensor) -> Any:
        torch._check_tensor_all(x > -100)
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count != 1000)
        return x.relu()

    equal(checked, torch.randn(3, 4), again=again)


def test_overlapping_windows_of_several_channels_are_added_at_once(equal: Equal, network_of: Any) -> None:
    """A spectrogram turned back into sound; the program is as long for wide windows as for narrow ones."""

    def restored(x: Tensor, size: int = 8) -> Tensor:
        window = torch.hann_window(size)
        spectrum = torch.stft(x, size, size // 4, window=window, return_complex=True)
        return torch.istft(spectrum * 2, size, size // 4, window=window)

    x = torch.randn(2, 32)
    equal(restored, x)
    networks = (network_of(partial(restored, size=size)) for size in (8, 16))
    lengths = [len(decomposed(torch.export.export(network, (x,))).graph.nodes) for network in networks]
    assert lengths[0] == lengths[1]

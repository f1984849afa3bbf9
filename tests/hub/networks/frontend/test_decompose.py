"""What PyTorch computes and TVM's importer lacks or computes otherwise: compiled networks beside PyTorch."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from tchub.hub.networks.frontend.decompose import decomposed
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.transform.prepare import prepare
from torch import Tensor, nn
from torch.nn import functional as F

Equal = Callable[..., None]


def test_numbers_and_tensors_of_several_types_are_computed_in_the_type_that_pytorch_takes(equal: Equal) -> None:
    def mixed(whole: Tensor, real: Tensor, flag: Tensor) -> Any:
        halves = whole / 2, whole * 0.5, whole**0.5, 1.5 - whole, torch.div(whole, 2, rounding_mode="floor")
        compared = whole > 0.5, real > whole, torch.where(flag, whole, real), torch.maximum(whole, real)
        counted = (
            flag.cumsum(0),
            flag.sum(),
            whole.clamp(max=2),
            whole.log1p(),
            *(whole**3, 2**whole, whole**whole),
            torch.full_like(real, 3, dtype=torch.int32),
        )
        return *halves, *compared, *counted, whole[None] @ whole[:, None], real.double() * real

    equal(mixed, torch.randint(0, 5, (6,)), torch.randn(6), torch.randn(6) > 0)
    equal(nn.Linear(6, 4).double(), torch.randn(2, 6).double())


def test_elements_and_distances_that_tvm_lacks(equal: Equal) -> None:
    def computed(bilinear: nn.Module, x: Tensor, y: Tensor) -> Any:
        distances = (torch.cdist(x, y, p) for p in (1.0, 2.0, math.inf))
        flags = (x > 0) * (y > 0) + (x > y)
        both = torch.hypot(x, y), torch.logaddexp(x, y), bilinear(x, y), flags
        return *distances, *both, x.erfc(), x.unfold(1, 3, 2), (x > 0).any(), x.any(1)

    equal(computed, torch.randn(4, 6), torch.randn(4, 6), parts=(nn.Bilinear(6, 6, 3),))


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


def test_running_extremes_sums_and_places_in_an_order(equal: Equal) -> None:
    def computed(x: Tensor, y: Tensor) -> Any:
        chosen = *x.kthvalue(2, 0), *x.kthvalue(3, -1, keepdim=True)
        sums = (x * 60).logcumsumexp(1), torch.where(x > 0, x, -math.inf).logcumsumexp(0)
        borders = x.sort(-1).values
        found = torch.searchsorted(borders, y), torch.searchsorted(borders[0], y, right=True, out_int32=True)
        bits = (x * 10).int() >> 2, (x * 10).long() << 3, (x * 10).int() >> 31, (x * 10).to(torch.uint8) >> 7
        by = torch.tensor([0, 31, 32, -1, 70], dtype=torch.int32)  # some shift all bits out
        each = bits[0] >> by, bits[0] << by, bits[3] >> by.to(torch.uint8), torch.bitwise_left_shift(bits[0], 2)
        return *x.cummax(1), *x.cummin(0), *chosen, *sums, *found, *bits, *each, F.rrelu(x)

    x = torch.randn(3, 5)
    x[1, 2] = x[1, 1]
    equal(computed, x, torch.cat([x[:, :2], torch.randn(3, 2)], 1))


def test_indices_count_from_the_end_broadcast_and_may_leave_dimensions_between_them(equal: Equal) -> None:
    def indexed(x: Tensor, i: Tensor, j: Tensor) -> Any:
        return x[-1], x[:, -1 - i], x[i, :, j], x[:, i[:, None], j[None]], x[i, j]

    equal(indexed, torch.randn(5, 6, 7), torch.tensor([1, 0, 4]), torch.tensor([2, 5, 0]))


def test_rows_are_put_and_added_where_indices_say(equal: Equal) -> None:
    def scattered(x: Tensor, i: Tensor, y: Tensor) -> Any:
        sums = x.index_add(0, i, y), x.scatter_add(0, i[:, None].expand(3, 4), y), x.index_put((i,), y, accumulate=True)
        return *sums, x.index_put((torch.tensor([2, -1]),), y[:2]), x.scatter_reduce(0, i[:, None], y[:, :1], "amax")

    equal(scattered, torch.randn(6, 4), torch.tensor([1, 5, 1]), torch.randn(3, 4))


def test_rows_are_taken_by_numbers_that_tensors_hold(equal: Equal) -> None:
    def taken(x: Tensor, first: Tensor, last: Tensor) -> Any:
        return x[first], x[:, last] + x[x.sum(1).argmax(), 0], x.select(1, -2)

    equal(taken, torch.randn(6, 4), torch.tensor(2), torch.tensor(-1))


def test_rows_are_reduced_with_and_without_those_that_were_there(equal: Equal) -> None:
    def reduced(x: Tensor, i: Tensor, y: Tensor) -> Any:
        index, empty = i[:, None].expand(y.shape), torch.tensor([])
        alone = (x.scatter_reduce(0, index, y, how, include_self=False) for how in ("amax", "amin", "sum", "mean"))
        joined = torch.cat([empty, x * 2, x[:0]]), torch.cat([empty, i]) / 2, torch.cat([i, x[0]])
        joined = *joined, x.scatter(0, index, y, reduce="multiply"), x.scatter(0, index, 2.0, reduce="add")
        return *alone, x.scatter_reduce(0, index, y, "mean"), *joined

    equal(reduced, torch.randn(6, 4), torch.tensor([1, 5, 1]), torch.randn(3, 4))


def test_rows_are_reduced_by_one_index_each(equal: Equal) -> None:
    def reduced(x: Tensor, i: Tensor, y: Tensor) -> Any:
        alone = (x.index_reduce(1, i, y, how, include_self=False) for how in ("amax", "mean"))
        return *alone, *(x.index_reduce(1, i, y, how) for how in ("amax", "amin", "mean", "prod"))

    equal(reduced, torch.randn(2, 6, 4), torch.tensor([1, 5, 1]), torch.randn(2, 3, 4))


def test_medians_of_what_is_a_number(equal: Equal) -> None:
    def medians(x: Tensor) -> Any:
        return x.nanmedian(), x.nanmedian(1).values, x.nanmedian(0, keepdim=True).values, *x.nan_to_num().median(1)

    x = torch.randn(5, 8)
    x[0], x[1, :3], x[4, 2] = math.nan, math.nan, math.nan
    equal(medians, x)


@pytest.mark.parametrize("missing", [False, True])
def test_statistics_and_orders_of_values_some_of_which_may_be_missing(equal: Equal, missing: bool) -> None:
    def statistics(x: Tensor) -> Any:
        ranks = x.nanquantile(torch.tensor([0.1, 0.5]), 1), x.nanquantile(0.3), x.quantile(0.3, 0)
        order = x.sort(1, descending=True).values, x.sort(0).values
        return x.nanmean(1), x.nanmean(), x.nansum(0), x.nan_to_num(0.5, 2.0, -3.0), *ranks, *order

    def compared(x: Tensor, y: Tensor) -> Any:
        return x == x, x != x, x != y, ~(x == y), x.isfinite(), torch.fmax(x, y), torch.fmin(x, y)  # noqa: PLR0124

    x = torch.randn(4, 8)
    if missing:
        x[0, 0], x[1, 2], x[1, 3], x[2] = math.nan, math.inf, -math.inf, math.nan
    equal(statistics, x)
    equal(compared, x, x.roll(1, 1))


def test_branches_are_taken_by_a_condition_and_what_is_around_them_is_fused(equal: Equal) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            pooled = self.conv(x).relu().mean((2, 3))
            return (
                torch.cond(
                    x.sum() > 0, lambda y: self.head(y).softmax(1), lambda y: y.tanh() @ self.head.weight, (pooled,)
                )
                + 1
            )

    network, x = Branching().eval(), torch.randn(1, 3, 6, 6)
    for each in (x, -x):
        equal(network, each, layout="as-imported")
    with torch.no_grad():
        exported = torch.export.export(network, (x,))
    assert "fused_conv2d_add" in prepare(import_exported(exported, "network"), "as-imported").script()


def test_slots_of_a_cache_are_written_in_any_dimension_and_by_masks(equal: Equal) -> None:
    def written(x: Tensor, i: Tensor, y: Tensor) -> Any:
        caches = [x.clone() for _ in range(5)]
        caches[0][:, i] = y
        caches[1][:, :, i[:2]] = y[:, :1, :2]
        caches[2][i, :, i] = 1.5 * y[0, :, :1]
        caches[3][:, x[0, :, 0] > 0] = y[0, 0]
        return *caches[:4], caches[4].masked_scatter(x > 1, y), x.as_strided((3, 4, 2), (5, 2, 1), 1)

    equal(written, torch.randn(4, 6, 4), torch.tensor([3, 0, 2]), torch.randn(4, 3, 4).repeat(1, 2, 1)[:, :3])


def test_numbers_are_rounded_as_if_they_were_quantised(equal: Equal) -> None:
    def quantised(x: Tensor, scale: Tensor, zero: Tensor) -> Any:
        one = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7)
        other = torch.fake_quantize_per_tensor_affine(x, scale[0], zero[0], -128, 127)
        return one, other, torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -8, 7), x.exp2(), x.copysign(-x)

    equal(quantised, torch.randn(3, 8), torch.rand(3) + 0.1, torch.tensor([0, 2, -3], dtype=torch.int32))


def test_a_tensor_changed_in_place_by_slices_and_by_a_mask(equal: Equal) -> None:
    def changed(x: Tensor) -> Tensor:
        x = x.clone()
        x[0], x[:, ::2] = 1, 5
        x[x > 2] = 0
        x[1:3, 1:].add_(1)
        return x

    equal(changed, torch.randn(4, 5))


def test_attention_with_each_kind_of_mask_and_rows_that_see_nothing(equal: Equal) -> None:
    attend = F.scaled_dot_product_attention

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        added = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
        few = attend(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)
        return attend(q, k, v, scale=0.3), few, attend(q, k, v, attn_mask=mask), attend(q, k, v, attn_mask=added)

    mask = torch.tensor([[1, 0, 1]] * 3 + [[0, 0, 0]], dtype=torch.bool)
    equal(attention, torch.randn(1, 4, 4, 8), torch.randn(1, 4, 3, 8), torch.randn(1, 4, 3, 8), mask)


def test_attention_of_a_program_whose_views_hold_for_the_strides_of_pytorchs_own(equal: Equal) -> None:
    def attention(x: Tensor) -> Tensor:
        q, k, v = (part.view(1, 10, 4, 8).transpose(1, 2) for part in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 10, -1)

    equal(attention, torch.randn(1, 10, 96), again=True)


def test_functions_over_rows(equal: Equal) -> None:
    equal(
        lambda linear, x: torch.vmap(lambda row: linear(row).relu())(x), torch.randn(4, 2, 3), parts=(nn.Linear(3, 3),)
    )


def test_recurrent_layers_of_two_directions_and_with_projections(equal: Equal) -> None:
    lstm, gru = nn.LSTM(6, 4, 2, proj_size=3), nn.GRU(6, 4, bidirectional=True, batch_first=True)
    equal(lambda a, b, c, x: (a(x), b(x), c(x)), torch.randn(2, 2, 6), parts=(lstm, gru, nn.RNN(6, 4)))


def test_bags_of_embeddings_some_of_them_empty(equal: Equal) -> None:
    bags = [nn.EmbeddingBag(10, 6, mode=mode) for mode in ("sum", "mean", "max")]
    bags[0].requires_grad_(False)  # PyTorch then has another operator
    tokens, offsets = torch.randint(0, 10, (12,)), torch.tensor([0, 5, 5, 9])
    equal(lambda a, b, c, i, o: (a(i, o), b(i, o), c(i, o)), tokens, offsets, parts=tuple(bags))


def test_reductions_and_their_places(equal: Equal) -> None:
    def reduced(x: Tensor) -> Any:
        return (
            x.max(1),
            x.min(0, keepdim=True),
            x.amax((0, 2)),
            x.any(1),
            x.norm(dim=-1),
            x.prod(1),
            torch.var_mean(x, -1),
        )

    equal(reduced, torch.randn(3, 5, 4))


def test_sorts_scans_and_masks(equal: Equal) -> None:
    def masks(x: Tensor) -> Any:
        return (x != 1).cumsum(1), x.cumsum(1), (x > 2) == (x < 4), (x > 2) != (x < 4)

    def sorts(x: Tensor) -> Any:
        order, best = x.argsort(1), x.topk(3, sorted=False)[0].sum(1)
        return *x.sort(1), *x.topk(3), best, order, torch.zeros(2, 9).scatter(1, order, x), x.gather(1, order)

    equal(masks, torch.randint(0, 5, (2, 9)))
    equal(sorts, torch.randn(2, 9))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: few frequencies, mixed by complex weights, back to an image."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 4, 4, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.zeros(x.shape[0], 2, 8, 5, dtype=torch.cfloat)
        mixed[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(x)[:, :, :4, :4], self.weight)
        return torch.fft.irfft2(mixed, s=(8, 8))


class Rotary(nn.Module):
    """Positions by a turn in the complex plane, with a complex table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(6, 4), torch.rand(6, 4)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * self.turns
        return torch.view_as_real(turned).flatten(-2), (turned.conj() / 2 + 1j * x[..., :4]).abs()


def test_complex_numbers_inside_a_network_are_pairs_of_real_ones(equal: Equal) -> None:
    equal(Spectral(), torch.randn(1, 3, 8, 8))
    module = Rotary()
    equal(module, torch.randn(2, 6, 8))
    assert module.turns.is_complex()


def test_transforms_of_fourier_in_each_direction_and_norm(equal: Equal) -> None:
    def transforms(x: Tensor, mix: Tensor) -> Any:
        fft = torch.fft
        mixed = fft.irfft(fft.rfft(x, dim=1) * torch.view_as_complex(mix), n=6, dim=1)
        there_and_back = fft.irfft(fft.rfft(x, norm="ortho"), n=7, norm="forward")
        return fft.fftn(x, dim=(1, 2)).real, fft.ifft(fft.rfft(x)).imag, there_and_back, mixed, fft.rfft(x).angle()

    equal(transforms, torch.randn(2, 6, 8), torch.randn(4, 8, 2))


def test_small_matrices_are_solved_and_factored_with_pivots(equal: Equal) -> None:
    def solved(a: Tensor, b: Tensor) -> Any:
        algebra = torch.linalg
        systems = (
            algebra.inv(a),
            algebra.solve(a, b),
            algebra.solve(a[0], b[0, :, 0]),
            algebra.solve(a, b.mT, left=False),
        )
        return *systems, algebra.det(a), *algebra.slogdet(a), algebra.det(a * torch.tensor([0.0, 1, 1]))

    def factored(a: Tensor, b: Tensor) -> Any:
        a = a @ a.mT + torch.eye(3)
        lower, upper = torch.linalg.cholesky(a), torch.linalg.cholesky(a, upper=True)
        inverses = torch.cholesky_inverse(lower), torch.cholesky_solve(b, upper, upper=True)
        sides = torch.linalg.solve_triangular(upper, b.mT, upper=True, left=False), lower, upper
        return *sides, torch.linalg.solve_triangular(lower, b, upper=False, unitriangular=True), *inverses

    a = torch.randn(2, 3, 3)
    a[0, 0, 0] = 0  # as a pivot it would divide by zero
    equal(solved, a, torch.randn(2, 3, 2))
    equal(factored, a, torch.randn(2, 3, 2))


def test_the_largest_of_a_row_that_is_masked_throughout_is_the_first(equal: Equal) -> None:
    x = torch.tensor([[-math.inf] * 3, [1, 3, 2], [torch.finfo(torch.float32).min] * 3])
    equal(
        lambda x, y: (x.argmax(1), x.max(1).indices, (-x).argmin(1), y.gather(1, x.argmax(1, True))),
        x,
        torch.rand(3, 3),
    )


def test_gamma_functions_on_both_sides_of_zero(equal: Equal) -> None:
    equal(lambda x: (x.lgamma(), x.digamma()), torch.linspace(-3.3, 40, 50))


def test_the_inverse_of_the_error_function_up_to_its_ends(equal: Equal) -> None:
    equal(lambda x: x.erfinv(), torch.cat([torch.linspace(-0.9999, 0.9999, 60), torch.tensor([-1.0, 1, 0, 2])]))


def test_axes_that_count_from_the_end_pass_the_change_of_layout(equal: Equal) -> None:
    equal(lambda norm, x: norm(x.squeeze(-2)).unsqueeze(-2), torch.randn(2, 3, 1, 4), parts=(nn.LayerNorm(4),))
    equal(lambda conv, x: conv(x).permute(0, -2, -1, 1), torch.randn(1, 3, 5, 4), parts=(nn.Conv2d(3, 4, 3),))


def test_axes_that_are_squeezed_may_be_longer_than_one_or_all_that_there_are(equal: Equal) -> None:
    equal(lambda x: (x.squeeze(), x[:1].squeeze(), x.squeeze(0)), torch.randn(4, 1))


def test_what_tvm_translates_rightly_is_left_as_it_is() -> None:
    """Tasks keep their identity, which recorded programs and checkpoints' splits go by."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)).eval()
    exported = torch.export.export(network, (torch.randn(1, 3, 4, 4),))
    ours, theirs = decomposed(exported).graph.nodes, exported.run_decompositions().graph.nodes
    assert [node.target for node in ours] == [node.target for node in theirs]


def test_checks_of_values_are_dropped(equal: Equal) -> None:
    """As transformers checks shapes that tensors hold; a compiled network raises no error."""

    def checked(x: Tensor) -> Any:
        torch._check_tensor_all(x > -100)
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count != 1000)
        return x.relu()

    equal(checked, torch.randn(3, 4))
    equal(checked, torch.randn(3, 4), again=True)

"""Attention, in parts over padded tokens and as one function, gives what PyTorch gives; so does softmax."""

from collections.abc import Callable
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import Computed, build, calls, compute, relax_of
from tchub.hub.device.candidate import trace_json
from tchub.hub.networks.alternatives import find_alternatives, find_shapes
from tchub.hub.networks.tasks import TuningTask, network_tasks
from tchub.hub.networks.transform.attention import padded_columns, padded_rows
from tchub.hub.networks.transform.fused_attention import attentions
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.networks.transform.softmax import lanes_of
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.design_space import DesignSpace
from tchub.zoo.features.schema import get_schema
from tchub.zoo.features.skeleton import Skeleton
from tchub.zoo.primitives.metaschedule import from_trace_json, read_trace
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

# LLVM compiles in half the time so: it is not what is tested.
TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 1, "opt-level": 0})
Mix = Callable[[torch.Tensor], torch.Tensor]


class Attention(torch.nn.Module):
    """Scores of `rows` queries and `columns` keys in two heads of 8; `mix` makes of them what the softmax takes."""

    def __init__(self, mix: Mix, *, keep_scores: bool = False) -> None:
        super().__init__()
        self.mix, self.keep_scores = mix, keep_scores
        self.query, self.key, self.value = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        batch, rows, _ = x.shape
        y = x if y is None else y
        heads = [layer(z).view(batch, -1, 2, 8).transpose(1, 2) for layer, z in
                 ((self.query, x), (self.key, y), (self.value, y))]  # fmt: skip
        scores = self.mix(heads[0] @ heads[1].transpose(-1, -2))
        out = (torch.softmax(scores, -1) @ heads[2]).transpose(1, 2).reshape(batch, rows, 16)
        return (out, scores) if self.keep_scores else out


def imported(module: torch.nn.Module, *inputs: torch.Tensor) -> Any:
    return for_inference(relax_of(module, *inputs))


def extents_of_products(graph: Any) -> set[tuple[int, ...]]:
    """Return the shapes of products with more than two axes."""
    return {tuple(map(int, one.ty.shape))[-2:] for one in calls(graph, "matmul") if one.ty.ndim > 2}


SCALED: Mix = lambda scores: scores * 0.125  # noqa: E731
LEAST = float(torch.finfo(torch.float32).min)


# A causal mask; the first row and another one are masked throughout, as those of padding tokens are.
MASK = torch.full((61, 61), LEAST).triu(1)
MASK[[0, 5]] = LEAST


def network(mix: Mix, rows: int, columns: int, batch: int = 1, **options: Any) -> tuple[Any, list[torch.Tensor], Any]:
    """Return an attention, its inputs, and its graph."""
    torch.manual_seed(0)
    module, inputs = Attention(mix, **options), [3 * torch.randn(batch, n, 16) for n in (rows, columns)]
    return module, inputs, imported(module, *inputs)


def tasks_of(mod: Any) -> list[TuningTask]:
    return network_tasks(mod, TARGET, "net")


def causal(scores: torch.Tensor) -> torch.Tensor:
    return scores + torch.full(scores.shape[-2:], LEAST).triu(1)


@pytest.mark.parametrize(
    ("mix", "rows", "columns", "batch", "expected"),
    [
        (SCALED, 61, 61, 2, (63, 64, 61, 0.125, ())),
        (lambda scores: scores / 8, 61, 80, 1, (63, 80, 80, 0.125, ())),
        (lambda scores: 0.125 * scores, 48, 61, 1, (48, 64, 61, 0.125, ())),
        (lambda scores: scores / 8**0.5 + MASK, 61, 61, 2, (63, 64, 61, 8**-0.5, (63,))),
        (causal, 32, 32, 1, (32, 32, 32, 1.0, (32,))),
        (lambda scores: scores + torch.linspace(-2, 2, 40), 24, 40, 2, (24, 48, 40, 1.0, (1,))),
    ],
    ids=["scaled", "rows", "columns", "masked", "causal", "one row of a mask"],
)
def test_it_computes_what_pytorch_does_in_parts_and_as_one_function(
    mix: Mix, rows: int, columns: int, batch: int, expected: tuple[Any, ...]
) -> None:
    module, inputs, graph = network(mix, rows, columns, batch)
    (shape,) = attentions(graph)
    assert (shape.rows, shape.columns, shape.keys, shape.masks) == (*expected[:3], expected[4])
    assert (prod(shape.heads), shape.width, shape.values) == (2 * batch, 8, 8)
    assert shape.scale == pytest.approx(expected[3])
    assert extents_of_products(graph) == {(padded_rows(rows), padded_columns(columns)), (padded_rows(rows), 8)}
    theirs = module(*inputs).detach().numpy()
    assert theirs.std() > 0.1
    for shapes in (set(), {shape}):
        mod = lower(graph, shapes)
        names = [var.name_hint for var in mod.functions]
        assert any("softmax" in name for name in names) == (not shapes)
        assert sum("attention" in name for name in names) == len(shapes)
        np.testing.assert_allclose(compute(mod, *inputs)[0], theirs, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("mix", "keep", "tokens"),
    [
        (SCALED, True, 61),  # scores are an output
        (SCALED, False, 17),  # too much to add, and no vector register divides the keys
        (torch.tanh, False, 61),
        (lambda scores: scores - 2.0 * torch.linspace(0, 1, 64), False, 64),
        (lambda scores: (scores + torch.linspace(0, 1, 64)) * 0.5, False, 64),
        (lambda scores: scores + torch.arange(2.0)[:, None, None], False, 64),
    ],
    ids=["kept", "small", "another operator", "subtracted", "scaled behind a mask", "a mask a head"],
)
def test_other_attention_is_left_as_it_is(mix: Mix, keep: bool, tokens: int) -> None:
    _, _, graph = network(mix, tokens, tokens, keep_scores=keep)
    assert extents_of_products(graph) == {(tokens, tokens), (tokens, 8)}
    assert attentions(graph) == set()
    mod = lower(graph, find_shapes(graph))
    assert not any("attention" in var.name_hint for var in mod.functions)


def widths_of_projections(graph: Any) -> list[int]:
    """Return the columns of products with weights, as they are computed."""
    return [int(one.ty.shape[-1]) for one in calls(graph, "matmul") if one.ty.ndim == 2]


@pytest.mark.parametrize("own", [True, False], ids=["self", "cross"])
def test_projections_of_the_same_tokens_are_one_product(own: bool) -> None:
    torch.manual_seed(0)
    module, inputs = Attention(lambda scores: scores * 0.125), [torch.randn(1, 64, 16) for _ in range(1 if own else 2)]
    graph = imported(module, *inputs)
    assert sorted(widths_of_projections(graph)) == ([48] if own else [16, 32]), "key and value are of the same tokens"
    np.testing.assert_allclose(compute(lower(graph), *inputs)[0], module(*inputs).detach().numpy(), atol=2e-6)


def test_a_product_with_an_activation_keeps_its_kernel(equal: Any) -> None:
    """A gate and what it gates are not copied: apart, the activation is computed where the product is."""
    parts = torch.nn.Linear(16, 32), torch.nn.Linear(16, 32)
    mod = equal(lambda gate, up, x: torch.nn.functional.silu(gate(x)) * up(x), torch.randn(4, 16), parts=parts)
    assert sum("matmul" in task.name for task in tasks_of(mod)) == 2


def numbered(x: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(x, -1) * 255 - 3).clamp(min=0)


def with_a_row(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) + x[:1]


@pytest.mark.parametrize(
    ("shape", "module"),
    [
        *((shape, torch.nn.Softmax(-1)) for shape in ((3, 48), (5, 61))),
        ((2, 3, 40), Computed(numbered)),
        ((5, 64), Computed(with_a_row)),
    ],
)
def test_softmax_by_lanes_is_right_before_and_after_it_is_scheduled(shape: tuple[int, ...], module: Any) -> None:
    """Also for scores that are large, and masked ones, and with what follows element by element."""
    x = 30 * torch.randn(*shape, generator=torch.manual_seed(0))
    x[..., 1::7] = -torch.inf
    expected = module(x.double()).numpy()
    mod = lower(imported(module, x))
    (ours,) = compute(mod, x)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    (task,) = network_tasks(mod, TARGET, "net")
    assert task.op.startswith("softmax")
    (schedule,) = tune_context(task, TARGET, ms.search_strategy.ReplayTrace(), 0).generate_design_space()
    script = schedule.mod.script()
    assert f"T.vectorized(T.int64({lanes_of(shape[-1]) or 16}))" in script
    assert script.count("T.reinterpret") == 1, "each power is computed once"
    out = tvm.runtime.tensor(np.zeros(shape, np.float32))
    build(schedule.mod)["main"](tvm.runtime.tensor(x.numpy()), out)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("shape", "axis"), [((4, 21), -1), ((16, 16), 0), ((16,), 0)])
def test_another_softmax_is_tvms_own(shape: tuple[int, ...], axis: int, equal: Any) -> None:
    assert "largest" not in equal(torch.nn.Softmax(axis), torch.randn(*shape), atol=1e-6).script()


def test_a_convolution_of_a_sequence_is_one_of_an_image_of_a_row_with_what_follows_it(equal: Any) -> None:
    convolutions = torch.nn.Conv1d(6, 16, 3, stride=2, padding=1), torch.nn.Conv1d(16, 8, 5, dilation=2, groups=2)
    module = torch.nn.Sequential(convolutions[0], torch.nn.GELU(), convolutions[1])
    names = {var.name_hint for var in equal(module, torch.randn(1, 6, 48), atol=1e-6).functions}
    assert any("conv2d" in name and "erf" in name for name in names)
    assert not any("conv1d" in name for name in names)


def check_programs(task: TuningTask, result_of: Any) -> DesignSpace:
    """Check that programs of a task's only space are read, scored, replayed and right; return the space."""
    context = tune_context(task, TARGET, ms.search_strategy.ReplayTrace(), 0)
    (schedule,) = context.generate_design_space()
    space = DesignSpace(task.mod, context.space_generator.postprocs, schedule)
    expected, programs = result_of(task.mod), space.random(Random(0), 2)
    assert np.ptp(expected) > 0.1
    for decisions in programs:
        candidate = space.replay(decisions)
        assert space.decisions_of(candidate) == decisions
        trace = candidate.sch.trace
        template, answers = read_trace(trace)
        assert template.fill(answers) == from_trace_json(trace_json(trace)) == space.template.fill(decisions)
        text = candidate.sch.mod.script()
        assert all(word in text for word in ("T.parallel", "T.vectorized", "T.unroll", 'scope="local"'))
        again = Schedule(task.mod)
        trace.apply_to_schedule(again, remove_postproc=True)  # a mask, as a weight, is permuted by what is left out
        np.testing.assert_allclose(result_of(again.mod), expected, rtol=1e-4, atol=1e-5)
    for name in ("nest-cpu", "tcl-cpu"):
        schema = get_schema(name)
        rows_of = Skeleton(space.template, schema, None).features(programs)
        assert rows_of.tobytes() == schema.extract([space.template.fill(one) for one in programs], None).tobytes()
    return space


@pytest.mark.parametrize(("mix", "rows"), [(SCALED, 61), (causal, 48)], ids=["padded", "masked"])
def test_every_program_of_its_space_reads_scores_and_is_right(mix: Mix, rows: int, result_of: Any) -> None:
    _, _, graph = network(mix, rows, rows)
    (task,) = (task for task in tasks_of(lower(graph, attentions(graph))) if "attention" in task.name)
    space = check_programs(task, result_of)
    assert len(space.slots) == 3
    assert space.size > 20


def test_a_mask_that_is_an_input_is_padded_where_every_task_has_a_schedule(network_of: Any) -> None:
    inputs = torch.randn(1, 99, 24), torch.zeros(99, 99).masked_fill(torch.ones(99, 99).triu(1) > 0, -1e9)
    module = network_of(lambda x, mask: (x @ x.transpose(-1, -2) * 0.25 + mask).softmax(-1) @ x)
    graph, theirs = imported(module, *inputs), module(*inputs).numpy()
    (shape,) = attentions(graph)
    assert (shape.rows, shape.columns, shape.masks) == (100, 112, (100,))
    for shapes in (set(), {shape}):
        mod = lower(graph, shapes)
        np.testing.assert_allclose(compute(mod, *inputs)[0], theirs, atol=1e-5)
        for task in tasks_of(mod):
            assert tune_context(task, TARGET, ms.search_strategy.ReplayTrace(), 0).generate_design_space()


def test_it_competes_with_the_three_functions_that_it_replaces() -> None:
    _, _, graph = network(SCALED, 61, 61)
    direct = tasks_of(lower(graph))
    added, (ways,) = find_alternatives(graph, direct, TARGET, "net")
    names = {task.task_id: task.name for task in (*direct, *added)}
    assert sorted(names[one].split("_")[0].rstrip("0123456789") for one in ways.direct) == ["fused", "fused", "softmax"]
    assert [names[one].split("_")[:2] for one in ways.other] == [["fused", "attention"]]
    assert [task.weight for task in added] == [0]


@pytest.mark.parametrize(
    ("options", "masks"),
    [
        ({"is_causal": True}, (48,)),
        ({"attn_mask": torch.ones(48, 48, dtype=torch.bool)}, ()),
        ({"attn_mask": torch.ones(48, 48, dtype=torch.bool).tril(3)}, (48,)),
        ({"attn_mask": torch.zeros(1, 1, 1, 48).masked_fill(torch.arange(48) > 40, -torch.inf)}, ()),
        ({"attn_mask": torch.arange(48)[:, None] % 5 > torch.arange(48) % 4}, (48,)),
    ],
    ids=["causal", "of all keys", "of some keys", "of padding", "of rows that see nothing"],
)
def test_pytorchs_own_attention_can_be_one_function(options: dict[str, Any], masks: tuple[int, ...]) -> None:
    module = Computed(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, **options))
    x = torch.randn(1, 2, 48, 8)
    graph = imported(module, x)
    (shape,) = attentions(graph)
    assert shape.masks == masks
    mod = lower(graph, {shape})
    expected = module(x).numpy()
    np.testing.assert_allclose(compute(mod, x)[0], expected, atol=1e-5 * np.abs(expected).max())

"""Attention as one function computes what PyTorch does, with every program of its space, and competes with three."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tchub.hub.device.candidate import trace_json
from tchub.hub.networks.alternatives import find_alternatives, find_shapes, lower_known
from tchub.hub.networks.fused_attention import attentions
from tchub.hub.networks.prepare import lower
from tchub.hub.networks.tasks import TuningTask, network_tasks
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.design_space import DesignSpace
from tchub.zoo.features.schema import get_schema
from tchub.zoo.features.skeleton import Skeleton
from tchub.zoo.primitives.metaschedule import from_trace_json, read_trace
from test_attention import TARGET, Attention, Mix, imported, masked, outputs
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

SCALED: Mix = lambda scores: scores * 0.125  # noqa: E731
LEAST = float(torch.finfo(torch.float32).min)


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
        (SCALED, 61, 61, 1, (63, 64, 61, 0.125, ())),
        (lambda scores: scores / 8, 48, 80, 2, (48, 80, 80, 0.125, ())),
        (lambda scores: scores, 61, 64, 1, (63, 64, 64, 1.0, ())),
        (masked(LEAST), 61, 61, 2, (63, 64, 61, 8**-0.5, (63,))),
        (masked(float("-inf")), 61, 61, 1, (63, 64, 61, 8**-0.5, (63,))),
        (causal, 32, 32, 1, (32, 32, 32, 1.0, (32,))),
        (lambda scores: scores + torch.linspace(-2, 2, 40), 24, 40, 2, (24, 48, 40, 1.0, (1,))),
    ],
    ids=["padded", "two batches", "plain", "masked", "infinitely masked", "causal", "one row of a mask"],
)
def test_a_network_with_it_computes_what_pytorch_does(
    mix: Mix, rows: int, columns: int, batch: int, expected: tuple[Any, ...]
) -> None:
    module, inputs, graph = network(mix, rows, columns, batch)
    (shape,) = attentions(graph)
    assert (shape.rows, shape.columns, shape.keys, shape.masks) == (*expected[:3], expected[4])
    assert (prod(shape.heads), shape.width, shape.values) == (2 * batch, 8, 8)
    assert shape.scale == pytest.approx(expected[3])
    mod = lower(graph, {shape})
    names = [var.name_hint for var in mod.functions]
    assert not any("softmax" in name for name in names)
    assert sum("attention" in name for name in names) == 1
    (ours,), theirs = outputs(mod, *inputs), module(*inputs).detach().numpy()
    np.testing.assert_allclose(ours, theirs, atol=2e-6 * np.abs(theirs).max() * 10)


@pytest.mark.parametrize(
    ("mix", "keep", "tokens"),
    [
        (SCALED, True, 64),  # scores are an output
        (SCALED, False, 17),  # no vector register divides the keys
        (torch.tanh, False, 64),
        (lambda scores: scores - 2.0 * torch.linspace(0, 1, 64), False, 64),
        (lambda scores: (scores + torch.linspace(0, 1, 64)) * 0.5, False, 64),
        (lambda scores: scores + torch.arange(2.0)[:, None, None], False, 64),
    ],
    ids=["kept", "odd", "another operator", "subtracted", "scaled behind a mask", "a mask a head"],
)
def test_other_attention_stays_three_functions(mix: Mix, keep: bool, tokens: int) -> None:
    _, _, graph = network(mix, tokens, tokens, keep_scores=keep)
    assert attentions(graph) == set()
    assert not any("attention" in var.name_hint for var in lower(graph, find_shapes(graph)).functions)


@pytest.mark.parametrize(("mix", "rows"), [(SCALED, 61), (causal, 48)], ids=["padded", "masked"])
def test_every_program_of_its_space_reads_scores_and_is_right(mix: Mix, rows: int) -> None:
    _, _, graph = network(mix, rows, rows)
    (task,) = (task for task in tasks_of(lower(graph, attentions(graph))) if "attention" in task.name)
    context = tune_context(task, TARGET, ms.search_strategy.ReplayTrace(), 0)
    (schedule,) = context.generate_design_space()
    space = DesignSpace(task.mod, context.space_generator.postprocs, schedule)
    assert len(space.slots) == 3
    assert space.size > 20
    shapes = [[int(x) for x in info.shape] for info in ms.arg_info.ArgInfo.from_entry_func(task.mod)]
    arrays = [np.random.default_rng(i).standard_normal(one).astype(np.float32) for i, one in enumerate(shapes)]

    def run(mod: Any) -> np.ndarray:
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        tvm.tirx.build(mod, target=TARGET)["main"](*tensors)
        return tensors[-1].numpy()

    expected, programs = run(task.mod), space.random(Random(0), 6)
    for decisions in programs:
        candidate = space.replay(decisions)
        assert candidate is not None
        assert space.decisions_of(candidate) == decisions
        trace = candidate.sch.trace
        template, answers = read_trace(trace)
        assert template.fill(answers) == from_trace_json(trace_json(trace)) == space.template.fill(decisions)
        text = candidate.sch.mod.script()
        assert all(word in text for word in ("T.parallel", "T.vectorized", "T.unroll", 'scope="local"'))
        again = Schedule(task.mod)
        trace.apply_to_schedule(again, remove_postproc=True)  # a mask, as a weight, is permuted by what is left out
        np.testing.assert_allclose(run(again.mod), expected, rtol=1e-4, atol=1e-5)
    for name in ("nest-cpu", "tcl-cpu"):
        schema = get_schema(name)
        rows_of = Skeleton(space.template, schema, None).features(programs)
        assert rows_of.tobytes() == schema.extract([space.template.fill(one) for one in programs], None).tobytes()


class MaskedByAnInput(torch.nn.Module):
    """Attention whose mask is brought by the caller."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(-1, -2) * 0.25 + mask).softmax(-1) @ x


def test_a_mask_that_is_an_input_is_padded_where_every_task_has_a_schedule() -> None:
    inputs = torch.randn(1, 99, 24), torch.zeros(99, 99).masked_fill(torch.ones(99, 99).triu(1) > 0, -1e9)
    graph, theirs = imported(MaskedByAnInput(), *inputs), MaskedByAnInput()(*inputs).numpy()
    (shape,) = attentions(graph)
    assert (shape.rows, shape.columns, shape.masks) == (100, 112, (100,))
    for shapes in (set(), {shape}):
        mod = lower(graph, shapes)
        np.testing.assert_allclose(outputs(mod, *inputs)[0], theirs, atol=1e-5)
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
    known = {task.task_id for task in direct}
    without = lower_known(graph, {ways.shape}, known, TARGET)
    assert {task.task_id for task in tasks_of(without)} == known, "nobody tuned it"
    assert {task.task_id for task in tasks_of(lower_known(graph, {ways.shape}, {*names}, TARGET))} > {*ways.other}

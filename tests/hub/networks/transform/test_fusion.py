"""Operator fusion by dynamic programming: it computes the same, and no choice of kernels is predicted to be faster."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import compute, relax_of
from tchub.hub.networks.tasks import extracted_tasks
from tchub.hub.networks.transform import fusion, prepare
from tchub.hub.networks.transform.fusion import fuse_by_time, graphs, partition, predicted_seconds
from tchub.hub.networks.transform.operator_graph import MachineRates, OperatorGraph, positions_of
from torch import nn
from torch.nn import functional
from tvm import relax
from tvm.relax import transform

CPU = tvm.target.Target({"kind": "llvm", "num-cores": 1})
RATES = MachineRates()


def annotated(module: nn.Module, *inputs: torch.Tensor) -> Any:
    """A network as it is before operators are fused."""
    with torch.no_grad():
        graph = prepare.for_inference(relax_of(module, *inputs))
    steps = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant()]
    return prepare._run(steps, graph)


def kernels(mod: Any) -> Counter[str]:
    """The kernels of a fused module: how often it calls each task."""
    with CPU:
        mod = transform.FuseTIR()(mod)
    return Counter({identity: int(task.weight) for identity, task in extracted_tasks(mod, CPU)})


def check(mod: Any, module: nn.Module, *inputs: torch.Tensor) -> None:
    """Assert that a fused module computes what the original does."""
    with CPU, torch.no_grad():
        for ours, theirs in zip(compute(transform.FuseTIR()(mod), *inputs), module(*inputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(theirs.abs().max())))


def transformer_layers(network_of: Any) -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 2, 64, activation="gelu", batch_first=True, norm_first=True)
    return network_of(lambda one, x: one(one(x)), layer), torch.randn(1, 17, 32)


def residual_block(network_of: Any) -> tuple[nn.Module, torch.Tensor]:
    def forward(stem: Any, first: Any, second: Any, side: Any, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(stem(x))
        return torch.relu(second(torch.relu(first(x))) + side(x)).mean((2, 3))

    second = nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16))
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), second, nn.Conv2d(8, 16, 1)
    return network_of(forward, *layers), torch.randn(1, 3, 9, 7)


@pytest.mark.parametrize("make", [transformer_layers, residual_block])
def test_where_nothing_is_gained_the_kernels_are_those_of_tvm(make: Any, network_of: Any) -> None:
    """Equal to the letter, so that schedules and records of one serve the other."""
    module, x = make(network_of)
    mod = annotated(module, x)
    fused, greedy = fuse_by_time(RATES)(mod), transform.FuseOps()(mod)
    assert kernels(fused) == kernels(greedy)
    assert sum(kernels(fused).values()) > 4
    total = sum(partition(graph, RATES).seconds for graph in graphs(mod))
    assert predicted_seconds(fused, RATES) == pytest.approx(total, rel=1e-6)
    assert predicted_seconds(greedy, RATES) == pytest.approx(total, rel=1e-6)


def test_a_cheap_operator_is_computed_in_both_kernels_that_read_it(network_of: Any) -> None:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x + y
        return z.sum(1), functional.softmax(y, 1) * z

    module, x, y = network_of(forward), torch.randn(64, 512), torch.randn(64, 512)
    mod = annotated(module, x, y)
    fused, greedy = fuse_by_time(RATES)(mod), transform.FuseOps()(mod)
    assert sum(kernels(fused).values()) == sum(kernels(greedy).values()) - 1
    assert predicted_seconds(fused, RATES) < predicted_seconds(greedy, RATES)
    check(fused, module, x, y)


@pytest.mark.parametrize("padding", [0, 1])
def test_an_activation_is_computed_as_a_convolution_pads_its_image(padding: int, network_of: Any) -> None:
    """Without a padding each tile would compute it again. TVM stores it in either case."""
    layers = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=padding)
    module = network_of(lambda stem, one, x: (y := stem(x), one(torch.relu(y))), *layers)
    x = torch.randn(1, 3, 18, 18)
    mod = annotated(module, x)
    fused, greedy = fuse_by_time(RATES)(mod), transform.FuseOps()(mod)
    names = [var.name_hint for var, _ in fused.functions_items()]
    assert sum("relu_conv2d" in name for name in names) == padding
    assert sum(kernels(greedy).values()) - sum(kernels(fused).values()) == padding
    check(fused, module, x)


@pytest.fixture
def random_network(network_of: Any) -> Callable[[int, int], tuple[nn.Module, torch.Tensor]]:
    """Makes a network of operators of random earlier results, all of 8 x 8, and its input."""

    def make(seed: int, length: int) -> tuple[nn.Module, torch.Tensor]:
        random = np.random.default_rng(seed)
        operators: list[Callable[..., torch.Tensor]] = [
            *(lambda x, _: torch.relu(x), lambda x, y: x + y, lambda x, y: x * y, lambda x, _: x.t() + 1),
            *(lambda x, _: torch.tanh(x), lambda x, y: 0.1 * (x @ y), lambda x, _: torch.softmax(x, -1)),
            *(lambda x, _: x - x.mean(-1, keepdim=True), lambda x, y: torch.cat([x[:4], y[4:]])),
            lambda x, _: functional.pad(x[:, :6], (1, 1)),
        ]
        steps = [(int(random.integers(len(operators))), *random.integers(0, at + 1, 2)) for at in range(length)]

        def forward(x: torch.Tensor) -> Any:
            known = [x]
            for which, one, other in steps:
                known.append(operators[which](known[int(one)], known[int(other)]))
            return known[-1], known[len(known) // 2]

        return network_of(forward), torch.from_numpy(random.standard_normal((8, 8)).astype(np.float32))

    return make


@pytest.mark.parametrize("seed", range(3))
def test_random_networks_compute_the_same(seed: int, random_network: Any) -> None:
    module, x = random_network(seed, 14)
    mod = annotated(module, x)
    for call in (1e-6, 1e-8):  # few kernels, and many
        check(fuse_by_time(MachineRates(call=call))(mod), module, x)


def least_seconds(graph: OperatorGraph) -> float:
    """The least time of all kernels, by trying every kernel of every result that is to be computed."""

    def rest(state: int) -> float:
        if not state:
            return 0.0
        last = state.bit_length() - 1
        stages, complete = graph.stages(last)
        assert complete
        return min(graph.seconds(one, RATES) + rest(state & ~(1 << last) | graph.inputs(one)) for one in stages)

    return rest(graph.needed)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_kernels_take_less_time(seed: int, random_network: Any, monkeypatch: Any) -> None:
    (graph,) = graphs(annotated(*random_network(100 + seed, 8)))
    best = partition(graph, RATES)
    assert best.is_exact
    assert best.seconds == pytest.approx(least_seconds(graph), rel=1e-6)
    monkeypatch.setattr(fusion, "BEAM", 1)
    assert partition(graph, RATES).seconds >= best.seconds - 1e-12
    stored = [stage[-1] for stage in best.stages]
    read = {at for stage in best.stages for at in positions_of(graph.inputs(sum(1 << at for at in stage)))}
    assert len(set(stored)) == len(stored)
    assert read <= set(stored)


def test_a_beam_computes_the_same_and_is_no_worse_than_tvm(random_network: Any, monkeypatch: Any) -> None:
    module, x = random_network(7, 24)
    mod = annotated(module, x)
    monkeypatch.setattr(fusion, "BEAM", 1)
    (graph,) = graphs(mod)
    assert not partition(graph, RATES).is_exact
    fused = fuse_by_time(RATES)(mod)
    assert predicted_seconds(fused, RATES) <= predicted_seconds(transform.FuseOps()(mod), RATES) * (1 + 1e-6)
    check(fused, module, x)


def test_shapes_that_are_not_known_are_left_to_tvm() -> None:
    n: Any = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType(relax.ShapeExpr([n, 4]), "float32"))
    builder: Any = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.tanh(builder.emit(relax.op.add(x, x))))
        builder.emit_func_output(y)
    mod = transform.AnnotateTIROpPattern()(transform.LegalizeOps()(builder.get()))
    tvm.ir.assert_structural_equal(fuse_by_time()(mod), transform.FuseOps()(mod))

"""Operator fusion by dynamic programming: it computes the same, and no choice of kernels is predicted to be faster."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import compute
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.tasks import extracted_tasks
from tchub.hub.networks.transform import fusion, prepare
from tchub.hub.networks.transform.fusion import Partition, fuse_by_time, graphs, partition, predicted_seconds
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
        graph = prepare.for_inference(import_exported(torch.export.export(module.eval(), inputs), "network"))
    steps = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FoldConstant()]
    return prepare._run(steps, graph)


def kernels(mod: Any) -> Counter[str]:
    """The kernels of a fused module: how often it calls each task."""
    with CPU:
        mod = transform.FuseTIR()(mod)
    return Counter({identity: int(task.weight) for identity, task in extracted_tasks(mod, CPU)})


def computed(mod: Any, *inputs: torch.Tensor) -> list[np.ndarray]:
    with CPU:
        return compute(transform.FuseTIR()(mod), *inputs)


class Function(nn.Module):
    """A network of one function and some layers."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleDict(layers)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self.layers, *inputs)


def transformer_layer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 2, 64, activation="gelu", batch_first=True, norm_first=True)
    return Function(lambda layers, x: layers["one"](layers["one"](x)), one=layer), torch.randn(1, 17, 32)


def residual_block() -> tuple[nn.Module, torch.Tensor]:
    def forward(layers: Any, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(layers["stem"](x))
        y = layers["norm"](layers["second"](torch.relu(layers["first"](x))))
        return torch.relu(y + layers["side"](x)).mean((2, 3))

    layers = {"stem": nn.Conv2d(3, 8, 3, padding=1), "first": nn.Conv2d(8, 8, 3, padding=1), "norm": nn.BatchNorm2d(16)}
    more = {"second": nn.Conv2d(8, 16, 1), "side": nn.Conv2d(8, 16, 1)}
    return Function(forward, **layers, **more), torch.randn(1, 3, 9, 7)


@pytest.mark.parametrize("make", [transformer_layer, residual_block])
def test_where_nothing_is_gained_the_kernels_are_those_of_tvm(make: Any) -> None:
    """Equal to the letter, so that schedules and records of one serve the other."""
    module, x = make()
    mod = annotated(module, x)
    fused, greedy = fuse_by_time(RATES)(mod), transform.FuseOps()(mod)
    assert kernels(fused) == kernels(greedy)
    assert sum(kernels(fused).values()) > 4
    total = sum(partition(graph, RATES).seconds for graph in graphs(mod))
    assert predicted_seconds(fused, RATES) == pytest.approx(total, rel=1e-6)
    assert predicted_seconds(greedy, RATES) == pytest.approx(total, rel=1e-6)


def test_a_cheap_operator_is_computed_in_both_kernels_that_read_it() -> None:
    def forward(_: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x + y
        return z.sum(1), functional.softmax(y, 1) * z

    module, inputs = Function(forward), (torch.randn(64, 512), torch.randn(512))
    x, y = inputs[0], inputs[0].flip(0).contiguous()
    mod = annotated(module, x, y)
    fused, greedy = fuse_by_time(RATES)(mod), transform.FuseOps()(mod)
    assert sum(kernels(fused).values()) == sum(kernels(greedy).values()) - 1
    assert predicted_seconds(fused, RATES) < predicted_seconds(greedy, RATES)
    for ours, theirs in zip(computed(fused, x, y), computed(greedy, x, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 1])
def test_an_activation_is_computed_as_a_convolution_pads_its_image(padding: int) -> None:
    """Without a padding each tile would compute it again. TVM stores it in either case."""
    layers = {"stem": nn.Conv2d(3, 16, 3), "one": nn.Conv2d(16, 16, 3, padding=padding)}
    module = Function(lambda each, x: (y := each["stem"](x), each["one"](torch.relu(y))), **layers)
    x = torch.randn(1, 3, 18, 18)
    mod = annotated(module, x)
    fused, greedy = fuse_by_time(RATES)(mod), transform.FuseOps()(mod)
    names = [var.name_hint for var, _ in fused.functions_items()]
    assert sum("relu_conv2d" in name for name in names) == padding
    assert sum(kernels(greedy).values()) - sum(kernels(fused).values()) == padding
    for ours, theirs in zip(computed(fused, x), computed(greedy, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_where_calls_cost_much_a_product_computes_what_it_reads() -> None:
    module, x = Function(lambda each, x: each["one"](torch.tanh(x)), one=nn.Linear(256, 256)), torch.randn(128, 256)
    mod = annotated(module, x)
    counts = [sum(kernels(fuse_by_time(MachineRates(call=call))(mod)).values()) for call in (1e-6, 1.0)]
    assert counts == [2, 1]


# Random graphs ------------------------------------------------------------------------------------------------------


def random_network(seed: int, length: int) -> tuple[nn.Module, torch.Tensor]:
    """Operators of random earlier results, all of 8 x 8."""
    random = np.random.default_rng(seed)
    operators: list[Callable[..., torch.Tensor]] = [
        *(lambda x, _: torch.relu(x), lambda x, y: x + y, lambda x, y: x * y, lambda x, _: x.t() + 1),
        *(lambda x, _: torch.tanh(x), lambda x, y: 0.1 * (x @ y), lambda x, _: torch.softmax(x, -1)),
        *(lambda x, _: x - x.mean(-1, keepdim=True), lambda x, y: torch.cat([x[:4], y[4:]])),
        lambda x, _: functional.pad(x[:, :6], (1, 1)),
    ]
    steps = [(int(random.integers(len(operators))), *random.integers(0, at + 1, 2)) for at in range(length)]

    def forward(_: Any, x: torch.Tensor) -> Any:
        known = [x]
        for which, one, other in steps:
            known.append(operators[which](known[int(one)], known[int(other)]))
        return known[-1], known[len(known) // 2]

    return Function(forward), torch.from_numpy(random.standard_normal((8, 8)).astype(np.float32))


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_compute_the_same(seed: int) -> None:
    module, x = random_network(seed, 14)
    mod = annotated(module, x)
    reference = [one.detach().numpy() for one in module(x)]
    for call in (1e-6, 1e-8):  # few kernels, and many
        for ours, theirs in zip(computed(fuse_by_time(MachineRates(call=call))(mod), x), reference, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(theirs).max())))


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


@pytest.mark.parametrize("seed", range(8))
def test_no_other_kernels_take_less_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (graph,) = graphs(annotated(*random_network(100 + seed, 8)))
    found = partition(graph, RATES)
    assert found.is_exact
    assert found.seconds == pytest.approx(least_seconds(graph), rel=1e-6)
    monkeypatch.setattr(fusion, "BEAM", 1)
    assert partition(graph, RATES).seconds >= found.seconds - 1e-12
    assert computed_once(graph, found)


def computed_once(graph: OperatorGraph, kernels: Partition) -> bool:
    """Whether each result that a kernel reads is stored by one."""
    stored = [stage[-1] for stage in kernels.stages]
    read = {at for stage in kernels.stages for at in positions_of(graph.inputs(sum(1 << at for at in stage)))}
    return len(set(stored)) == len(stored) and read <= set(stored)


def test_a_beam_computes_the_same_and_is_no_worse_than_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = random_network(7, 24)
    mod = annotated(module, x)
    monkeypatch.setattr(fusion, "BEAM", 1)
    (graph,) = graphs(mod)
    assert not partition(graph, RATES).is_exact
    fused = fuse_by_time(RATES)(mod)
    assert predicted_seconds(fused, RATES) <= predicted_seconds(transform.FuseOps()(mod), RATES) * (1 + 1e-6)
    for ours, theirs in zip(computed(fused, x), module(x), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


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

"""Relax graphs: constants are computed once, and any index that an input holds stays within its tensor."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from relax_kit import Computed, calls, compute, name_of, prepare, relax_of
from tchub.hub.networks.alternatives import find_shapes
from tchub.hub.networks.tasks import network_tasks, weight_bytes
from tchub.hub.networks.transform.bounds import bounded_indices
from tchub.hub.networks.transform.fold import fold_arrays, fold_functions
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.networks.transform.relax_graph import bound_values, constant_address, constant_values
from tchub.hub.networks.transform.simplify import simplify
from torch import Tensor, nn
from tvm import relax, topi


def test_what_follows_from_constants_alone_is_computed_by_numpy() -> None:
    """A batch norm's factors, its epsilon included, which TVM would compile one by one."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).eval()
    network[1].load_state_dict({name: torch.rand_like(x.float()) + 0.5 for name, x in network[1].state_dict().items()})
    x = torch.randn(1, 3, 8, 8)
    mod = relax_of(network, x)
    merged = relax.transform.FoldBatchnormToConv2D()(mod)
    assert {"sqrt", "divide"} <= {name_of(one) for one in calls(merged)}
    left = relax.transform.DeadCodeElimination()(fold_arrays()(relax.transform.CanonicalizeBindings()(merged)))
    assert {name_of(one) for one in calls(left)} == {"nn.conv2d", "add", "nn.relu"}
    np.testing.assert_allclose(compute(prepare(mod), x)[0], network(x).detach().numpy(), atol=1e-5)


def test_what_a_detector_does_with_its_queries_alone_is_computed_by_numpy(network_of: Any) -> None:
    """Attention between learned queries, and where in an image they look, which TVM would compile one by one."""
    torch.manual_seed(0)
    queries, norm = nn.Parameter(torch.randn(4, 8)), nn.LayerNorm(8)

    def detector(parameters: nn.ParameterList, norm: nn.Module, x: Tensor) -> Tensor:
        (queries,) = parameters
        hidden = norm((queries @ queries.T).softmax(-1) @ queries).relu().tile(1, 2)
        places = (4 * hidden.sigmoid().log()).floor().clamp(-3, 3)
        inside = torch.logical_and(places >= -2, places < 1) & (places < hidden)
        return x + torch.where(inside, places.cos(), places.sin())

    network, x = network_of(detector, nn.ParameterList([queries]), norm), torch.randn(4, 16)
    canonical = relax.transform.CanonicalizeBindings()
    left = relax.transform.DeadCodeElimination()(fold_arrays()(canonical(simplify()(relax_of(network, x)))))
    assert [name_of(one) for one in calls(left)] == ["add"]
    np.testing.assert_allclose(compute(prepare(left), x)[0], network(x).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(("shape", "axes", "dtype"), [((2, 4, 4), [1], "float32"), ((3, 4), [-1], "float16")])
def test_norms_that_numpy_would_compute_otherwise_stay(shape: tuple[int, ...], axes: list[int], dtype: str) -> None:
    """Those of axes that are not the last, and those in half precision, whose squares it would not hold."""
    builder, op = relax.BlockBuilder(), relax.op
    numbers, weight = (relax.const(np.full(extents, 300, dtype)) for extents in (shape, (4,)))
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(op.nn.layer_norm(numbers, weight, weight, axes)))
        builder.emit_func_output(result)
    assert [name_of(one) for one in calls(fold_arrays()(builder.get()))] == ["nn.layer_norm"]


def test_layers_that_differ_in_their_scale_alone_are_one_task(equal: Any) -> None:
    """Whose results are rounded to multiples of a scale, which is another one for each."""

    def rounded(*layers_and_x: Any) -> torch.Tensor:
        *layers, x = layers_and_x
        for number, layer in enumerate(layers):
            scale = 0.05 + 0.01 * number
            x = ((layer(x) / scale).round().clamp(-128, 127).to(torch.int8).float() - (number + 1)) * scale
        return x

    lowered = equal(rounded, torch.randn(8, 16), parts=tuple(nn.Linear(16, 16) for _ in range(4)))
    tasks = network_tasks(lowered, tvm.target.Target({"kind": "llvm", "num-cores": 1}), "network")
    assert [task.weight for task in tasks if task.op == "matmul"] == [4]


def test_only_what_is_rounded_has_its_numbers_as_parameters(network_of: Any) -> None:
    """Attention written by hand, of what was rounded before."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        x = ((x / 0.05).round() - 3) * 0.05
        return torch.softmax(x @ x.transpose(-1, -2) / 4.0, -1) @ x

    x = torch.randn(1, 2, 8, 16)
    graph = for_inference(relax_of(network_of(attention), x))
    numbers = [constant_values(arg) for call in calls(graph) for arg in call.args]
    assert sorted(float(one) for one in numbers if one is not None and one.ndim == 0) == [4.0]
    (shape,) = find_shapes(graph)
    for otherwise in ((), (shape,)):
        np.testing.assert_allclose(compute(lower(graph, otherwise), x)[0], attention(x), atol=1e-5)


def test_the_row_that_a_step_of_a_loop_takes_is_computed_by_numpy() -> None:
    """As TVM imports ONNX's `Gather`, whose number may count from the end, and parts of weights for each direction."""
    builder: Any = relax.BlockBuilder()
    x, index = relax.Var("x", relax.TensorType((4, 6), "float32")), relax.const(-1, "int64")
    weights = np.arange(24, dtype="float32").reshape(4, 6)
    with builder.function("main", [x]):
        with builder.dataflow():
            shape = builder.emit(relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(x))))
            extent = builder.emit(relax.op.take(shape, relax.const(0, "int64"), 0))
            turned = builder.emit(relax.op.add(index, extent))
            chosen = builder.emit(
                relax.op.where(builder.emit(relax.op.less(index, relax.const(0, "int64"))), turned, index)
            )
            row = builder.emit(relax.op.take(x, builder.emit(relax.op.astype(chosen, "int32")), 0))
            halves = [relax.op.strided_slice(relax.const(weights), [1], [at], [at + 3]) for at in (3, 0)]
            joined = builder.emit(relax.op.concat([*map(builder.emit, halves)], 1))
            result = builder.emit_output(relax.op.add(row, joined))
        builder.emit_func_output(result)
    mod: Any = relax.transform.DeadCodeElimination()(fold_arrays()(builder.get()))
    assert [name_of(one) for one in calls(mod)] == ["take", "add"]
    x = torch.randn(4, 6)
    expected = x[-1].numpy() + np.concatenate([weights[:, 3:], weights[:, :3]], 1)
    np.testing.assert_allclose(compute(prepare(mod), x)[0], expected, rtol=1e-6)


def test_weights_that_are_too_small_become_zeros_and_stay_shared() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear, self.turned = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.ConvTranspose2d(4, 4, 2)
            with torch.no_grad():
                for own in (self.conv.weight, self.linear.weight, self.turned.weight):
                    own.view(-1)[::2] = 1e-41

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.linear(self.turned(self.conv(x)).mean((2, 3))))

    module, x = Shared().eval(), torch.randn(1, 3, 5, 5)
    graph = for_inference(relax_of(module, x))
    weights = [one for call in calls(graph, "matmul", "nn.conv2d") for one in [constant_values(call.args[1])]]
    assert [np.count_nonzero(one) for one in weights] == [54, 8, 8]
    (turned,) = [call.args[1][1] for call in calls(graph, "call_tir")]
    assert np.count_nonzero(constant_values(turned)) == 32
    assert len({constant_address(call.args[1]) for call in calls(graph, "matmul")}) == 1
    np.testing.assert_allclose(compute(lower(graph), x)[0], module(x).detach(), rtol=1e-5, atol=1e-6)


def test_small_numbers_that_are_no_weights_stay() -> None:
    """As a mask's, whose logarithm is finite by them."""
    module, x = Computed(lambda x: torch.log(x + torch.full((2, 4), 1e-41))), torch.zeros(2, 4)
    graph = for_inference(relax_of(module, x))
    np.testing.assert_allclose(compute(lower(graph), x)[0], module(x), rtol=1e-4)


def test_whole_numbers_are_folded_as_tvm_computes_them() -> None:
    """Without fractions, in the result's type; and what is out of range by `nan` is left to TVM."""
    builder: Any = relax.BlockBuilder()
    wide, small = relax.const(np.array([-7, 2**62 + 1]), "int64"), relax.const(np.full((1, 300), 127), "int8")
    with builder.function("main", []):
        with builder.dataflow():
            halves = builder.emit(relax.op.divide(wide, relax.const(np.array([2, 1]), "int64")))
            square = relax.op.matmul(small, builder.emit(relax.op.permute_dims(small)), out_dtype="int32")
            index = relax.const(np.array([1, 9]), "int64")
            rows = relax.op.take(relax.const(np.arange(2, dtype="float32")), index, 0, mode="nan")
            result = builder.emit_output(relax.Tuple([halves, builder.emit(square), builder.emit(rows)]))
        builder.emit_func_output(result)
    mod: Any = relax.transform.CanonicalizeBindings()(fold_arrays()(builder.get()))
    values = [constant_values(one) for one in bound_values(mod["main"]).get(mod["main"].body.body).fields[:2]]
    np.testing.assert_array_equal(values[0], [-3, 2**62 + 1])  # as C has it
    np.testing.assert_array_equal(values[1], [[300 * 127 * 127]])
    assert [name_of(one) for one in calls(mod)] == ["take"]


def test_tensor_functions_of_constants_are_computed_with_one_result_or_several() -> None:
    weights = np.arange(4, dtype="float32").reshape(2, 2)
    builder: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 2), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit_te(topi.transpose, relax.const(weights))
            rows = builder.emit_te(lambda w: topi.split(w, 2, axis=0), relax.const(weights))
            scaled = builder.emit_te(topi.multiply, turned, x)
            result = builder.emit_output(builder.emit_te(topi.add, scaled, relax.TupleGetItem(rows, 1)))
        builder.emit_func_output(result)
    mod: Any = relax.transform.DeadCodeElimination()(fold_functions()(builder.get()))
    assert {str(var.name_hint) for var in mod.get_global_vars()} == {"main", "multiply", "add"}
    expected = 2 * weights.T + weights[1:]
    np.testing.assert_array_equal(compute(mod, torch.full((2, 2), 2.0))[0], expected)


def test_constants_stay_where_their_functions_do_not_build_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise tvm.error.InternalError("LLVM has no such intrinsic")

    builder: Any = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(topi.transpose, relax.const(np.eye(2, dtype="float32"))))
        builder.emit_func_output(result)
    mod: Any = builder.get()
    monkeypatch.setattr(tvm.tirx, "build", refuse)
    assert fold_functions()(mod).script() == mod.script()


def test_constants_that_begin_at_one_address_are_not_taken_for_each_other() -> None:
    whole = tvm.runtime.tensor(np.array([1.0, 2.0, 3.0, 4.0], np.float32))
    part = whole._create_view((1,))
    builder: Any = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))  # pyright: ignore[reportCallIssue]
    with builder.function("main", [x]):
        with builder.dataflow():
            sums = [relax.op.add(relax.const(whole), relax.const(one)) for one in (whole, part)]
            result = builder.emit_output(
                builder.emit(relax.op.multiply(x, relax.op.subtract(*map(builder.emit, sums))))
            )
        builder.emit_func_output(result)
    result = compute(prepare(fold_arrays()(builder.get())), torch.ones(4))[0]
    np.testing.assert_array_equal(result, [0.0, 1.0, 2.0, 3.0])


def test_the_steps_of_a_recurrent_cell_share_its_weights(prepared: Any) -> None:
    """As a user writes them, step by step."""

    def steps(cell: nn.Module, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(1, 16)
        for step in range(6):
            h = cell(x[:, step], h)
        return h

    cell = nn.GRUCell(8, 16)
    mod = prepared(steps, torch.randn(1, 6, 8), parts=(cell,))
    assert sum("matmul" in str(getattr(call, "args", "")) for call in bound_values(mod["main"]).values()) >= 6
    weights = sum(x.nbytes for x in cell.parameters())
    assert weights - 1024 < weight_bytes(mod) <= weights + 1024, "biases may be added up, and the first step's left out"


# Linear layers of sequences and images whose axes were exchanged, which PyTorch multiplies matrix by matrix.
TRANSPOSED = {
    "a sequence of a batch": (torch.randn(4, 9, 8), lambda layer, x: layer(x.transpose(0, 1))),
    "an image": (torch.randn(2, 8, 3, 5), lambda layer, x: layer(x.permute(0, 2, 3, 1))),
    "one sequence": (torch.randn(1, 8, 9), lambda layer, x: layer(x.transpose(1, 2))),
    "on the left": (torch.randn(3, 8, 9), lambda layer, x: layer.weight @ x),
}


@pytest.mark.parametrize(("x", "network"), TRANSPOSED.values(), ids=TRANSPOSED)
def test_a_weight_is_not_repeated_for_each_matrix_of_a_batch(equal: Any, x: torch.Tensor, network: Any) -> None:
    layer = nn.Linear(8, 16, bias=network is not TRANSPOSED["on the left"][1])
    assert weight_bytes(equal(network, x, parts=(layer,))) == sum(one.nbytes for one in layer.parameters())


op: Any = relax.op
LAST = 2**31 - 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: nn.functional.embedding(i, x),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.gather(0, i[:, None].expand(4, 3)),
        lambda x, i: x.scatter(0, i[:, None].expand(4, 3), 7.0),
        lambda x, i: x.scatter_add(0, i[:, None].expand(4, 3), x[:4] * 2),
        lambda x, i: x.index_put((i,), torch.full((4, 3), 7.0)),
    ],
    ids=["embedding", "rows", "gather", "scatter", "add", "put"],
)
def test_an_index_beyond_a_tensor_is_its_last_one(function: Callable[..., Tensor], prepared: Any) -> None:
    x = torch.randn(6, 3)
    mod = prepared(function, x, torch.tensor([0, 3, 2, 1]))
    for indices, meant in (([3, 1, 6, 2], [3, 1, 5, 2]), ([LAST, 1, 2, 3], [5, 1, 2, 3]), ([3, 0, 1, 2], [3, 0, 1, 2])):
        result = torch.from_numpy(compute(mod, x, torch.tensor(indices))[0])
        torch.testing.assert_close(result, function(x, torch.tensor(meant)))


def test_places_of_several_dimensions_are_bounded_each_by_its_own() -> None:
    builder: Any = relax.BlockBuilder()
    x, i = relax.Var("x", relax.TensorType((4, 3), "float32")), relax.Var("i", relax.TensorType((3, 2), "int64"))
    with builder.function("main", [x, i]):
        with builder.dataflow():
            updates = relax.const(np.full(3, 7, "float32"))
            parts = [builder.emit(op.gather_nd(x, i)), builder.emit(op.scatter_nd(x, i, updates))]
            result = builder.emit_output(relax.Tuple(parts))
        builder.emit_func_output(result)
    values, indices = torch.randn(4, 3), torch.tensor([[1, 2], [9, 9], [-1, -2]])
    taken, put = map(torch.from_numpy, compute(prepare(builder.get()), values, indices))
    rows, columns = torch.tensor([1, 3, 3]), torch.tensor([2, 2, 1])  # negative ones count from the end
    assert torch.equal(taken, values[rows, columns])
    assert torch.equal(put, values.index_put((rows, columns), torch.tensor(7.0)))


@pytest.mark.parametrize(
    ("places", "bounded"),
    [
        (lambda x: x.argsort(0).flip(0), False),
        (lambda x: x.topk(2, 0).indices.T.reshape(-1, 3), False),
        (lambda x: x.argmax(0, keepdim=True), False),
        (lambda x: x.reshape(-1).argsort().reshape(x.shape), True),  # there are more of them than rows
        (lambda x: x.topk(2, 0).values.long(), True),
    ],
    ids=["sort", "largest", "largest of all", "another axis", "values"],
)
def test_places_that_a_sort_finds_need_no_bounds(places: Any, bounded: bool, network_of: Any) -> None:
    network, inputs = network_of(lambda x, y: x.gather(0, places(y))), (torch.randn(6, 3), torch.randn(6, 3))
    mod = relax_of(network, *inputs)
    assert tvm_ffi.structural_equal(mod, bounded_indices()(mod)) is not bounded

"""Whatever number an input holds, a compiled network reads and writes in its own tensors alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
from relax_kit import compute
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.transform.bounds import bounded_indices
from tchub.hub.networks.transform.prepare import prepare
from torch import Tensor, nn
from tvm import relax

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
    mod = import_exported(torch.export.export(network, inputs), "network")
    assert tvm_ffi.structural_equal(mod, bounded_indices()(mod)) is not bounded

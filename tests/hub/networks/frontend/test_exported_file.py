"""Exported programs as users write them: nested inputs, half precision, dynamic shapes, folded constants."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from relax_kit import calls, compute, name_of, prepare, relax_of
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend import exported_file
from tchub.hub.networks.frontend.constants import MOST_BYTES, fold_constants
from tchub.hub.networks.frontend.exported_file import from_exported, half_types
from tchub.hub.networks.frontend.shapes import FreeSize, choices
from tchub.hub.networks.sources import open_network
from torch import nn
from torch.nn.utils.parametrizations import orthogonal


def test_inputs_by_name_nested_inputs_and_constants_are_taken(tmp_path: Path) -> None:
    """A tensor by position, a list, a number, and a dictionary by name; a dictionary and None are returned."""

    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor, more: list[torch.Tensor], scale: int, *, options: Any = None) -> Any:
            return {"sum": x * scale + more[0] + more[1], "kept": (options["mask"], None)}

    x, first, second, mask = (torch.full((2, 3), float(i)) for i in range(1, 5))
    args, kwargs = (x, [first, second], 3), {"options": {"mask": mask}}
    torch.export.save(torch.export.export(Mixed(), args, kwargs), tmp_path / "net.pt2")
    network = open_network(tmp_path / "net.pt2")
    assert [float(tensor[0, 0]) for tensor in network.inputs()] == [1, 2, 3, 4]
    total, kept = map(torch.from_numpy, compute(prepare(network.imported()), *network.inputs()))
    assert torch.equal(total, x * 3 + first + second)
    assert torch.equal(kept, mask)


@dataclass
class Scores:
    best: torch.Tensor


def test_a_class_that_pytorch_does_not_know_is_refused_with_how_to_make_it_known(network_of: Any) -> None:
    scored = network_of(lambda x: Scores(x.amax(1)))
    with pytest.raises(NetworkImportError, match=r"Scores'> in output, which is not a known type") as caught:
        open_network(scored, (torch.randn(2, 3),))
    assert "register_dataclass" in caught.value.remedy
    torch.export.register_dataclass(Scores)
    assert open_network(scored, (torch.randn(2, 3),)).signature().outputs[0].shape == (2,)


class Half(torch.nn.Module):
    """Tells its operators their type in several ways, and has integers, which stay."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, tokens: torch.Tensor, x: torch.Tensor) -> Any:
        dtype = self.layer.weight.dtype
        low = torch.full((8,), torch.finfo(dtype).min, dtype=dtype)
        y = self.layer(self.table(tokens) + x).float().softmax(-1).to(dtype)
        y = torch.maximum(y * torch.arange(8, dtype=dtype) + self.shift + torch.tensor(2.0, dtype=dtype), low)
        return y, y.argmax(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_and_the_caller_keeps_its_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = Half().eval().to(dtype)
    tokens, x = torch.randint(0, 10, (2, 4)), torch.randn(2, 4, 8).to(dtype)
    exported = torch.export.export(module, (tokens, x))
    network = from_exported(exported, "half")
    name = str(dtype).removeprefix("torch.")
    assert network.notes == (f"imported in float32: TVM has no native {name} arithmetic on CPUs",)
    assert half_types(network.export()) == []
    assert half_types(exported) == [name], "the user's program stays as it is"
    results, expected = network.export().module()(*network.inputs()), module.float()(tokens, x.float())
    torch.testing.assert_close(results, expected, rtol=0, atol=1e-6)
    taken = [(spec.dtype, spec.computed) for spec in network.signature().inputs]
    assert taken == [("int64", "int64"), (name, "float32")]
    returned = [(spec.dtype, spec.computed) for spec in network.signature().outputs]
    assert returned == [(name, "float32"), ("int64", "int64")]


class Padded(torch.nn.Module):
    """Pads by numbers that buffers hold, and looks at a mask of its own; the mask may be changed by the input."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change
        self.register_buffer("size", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(x.shape[1], dtype=torch.bool)
        mask[x.shape[1] // 2 :] = True
        part = mask[1:]
        self.change(mask, x)
        return torch.nn.functional.pad(x, (self.size // 2, int(self.size))) if part.any() else x


def test_a_branch_that_no_input_decides_is_taken_and_others_are_refused() -> None:
    x = torch.ones(2, 4)
    network = open_network(Padded(lambda mask, x: None), (x,))
    assert network.export().module()(x).shape == (2, 8)
    network.imported()
    for change in (
        lambda mask, x: mask.logical_and_(x[0] > 0),
        lambda mask, x: mask[2:].copy_(x[0, 2:] > 0),
        lambda mask, x: mask.bernoulli_(0.5),
    ):
        with pytest.raises(NetworkImportError, match=r"data-dependent .*if part\.any"):
            open_network(Padded(change), (x,))


class Chosen(torch.nn.Module):
    """Takes one of two branches by a tensor of its own, which may have the shape of the input or its values."""

    def __init__(self, condition: Any) -> None:
        super().__init__()
        self.condition, self.flags = condition, torch.tensor([False, True])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1 if self.condition(x, self.flags).any() else x).long()


@pytest.mark.parametrize(
    "condition",
    [
        lambda x, flags: flags[1],
        lambda x, flags: torch.ones_like(x, dtype=torch.bool).triu(),
        lambda x, flags: x.new_full((2,), 3.0),
    ],
)
def test_a_branch_by_a_constant_or_by_a_shape_is_taken(condition: Any) -> None:
    x = torch.zeros(3, 2)
    table = torch.nn.Embedding(2, 4)  # of indices that PyTorch does not know in an export
    network = open_network(torch.nn.Sequential(Chosen(condition), table), (x,))
    network.imported()
    assert torch.equal(network.export().module()(x), table.weight[1].expand(3, 2, 4))


@pytest.mark.parametrize(
    "condition",
    [
        lambda x, flags: x.long(),
        lambda x, flags: x.new_zeros(3, 2).copy_(x),
        lambda x, flags: torch.zeros(4).fill_(x.sum().item()),
        lambda x, flags: torch.zeros(4).index_fill_(0, flags.long(), x.sum().item()),
    ],
)
def test_a_branch_by_a_copy_of_the_input_is_refused(condition: Any) -> None:
    with pytest.raises(NetworkImportError, match=r"data-dependent .*if self\.condition"):
        open_network(Chosen(condition), (torch.ones(3, 2),))


class Looping(torch.nn.Module):
    """Three kinds of loops; `more` says when the first of them ends, by a counter or by the tensor."""

    def __init__(self, more: Any) -> None:
        super().__init__()
        self.more, self.layer = more, torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        operators = torch._higher_order_ops
        step = lambda i, x: (i + 1, self.layer(x).tanh())  # noqa: E731
        _, turned = operators.while_loop(self.more, step, (torch.tensor(0), x))
        last, sums = operators.scan(lambda total, row: (total + row, total * row), torch.ones(4), x)
        return turned, last, sums, operators.map(lambda row: self.layer(row).relu(), x)


def test_loops_are_written_out_where_no_input_decides_how_often_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_file, "MOST_STEPS", 4)
    module, x = Looping(lambda i, x: i < 3).eval(), torch.randn(3, 4)
    network = open_network(module, (x,), name="looping")
    assert str(network.signature()).startswith("(x: float32[3, 4])")
    results = compute(prepare(network.imported()), *network.inputs())
    with torch.no_grad():
        for ours, theirs in zip(results, module(x), strict=True):
            assert torch.allclose(torch.from_numpy(ours), theirs, atol=1e-5)
    for more in (lambda i, x: x.abs().max() > 0.5, lambda i, x: i < 10**6):
        with pytest.raises(NetworkImportError, match=r"while_loop is data-dependent|while_loop of more than 4"):
            open_network(Looping(more).eval(), (x,), name="looping")


def test_a_distribution_that_would_check_its_parameters_is_exported(network_of: Any) -> None:
    torch.distributions.Distribution.set_default_validate_args(True)  # PyTorch's compiler leaves it off, for `cond` too
    density, x = network_of(lambda x: torch.distributions.Normal(x, x.exp()).log_prob(2 * x)), torch.randn(2, 4)
    assert torch.equal(open_network(density, (x,)).export().module()(x), density(x))
    assert torch.distributions.Distribution._validate_args


class Trying(torch.nn.Module):
    """Gives a layer an argument that not all layers take, as the x-vectors of SpeechBrain do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            try:
                x = layer(x, lengths=None)
            except TypeError:
                x = layer(x)
        return x


def test_a_module_that_calls_a_layer_again_after_an_error_is_exported() -> None:
    module, x = Trying().eval(), torch.randn(2, 4)
    assert torch.equal(open_network(module, (x,)).export().module()(x), module(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float64_and_float32_stay_as_they_are(dtype: torch.dtype) -> None:
    inputs = torch.ones(1, 2).long(), torch.ones(1, 2, 8).to(dtype)
    exported = torch.export.export(Half().eval().to(dtype), inputs)
    network = from_exported(exported, "net")
    assert network.export() is exported
    assert not network.notes


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.table(tokens) * mask[..., None]


@pytest.fixture(scope="module")
def dynamic() -> Any:
    batch, length = torch.export.Dim("batch", min=1, max=16), torch.export.Dim("length", max=64)
    axes = {0: batch, 1: length}
    inputs = (torch.randint(5, 10, (2, 6)), torch.ones(2, 6))
    return torch.export.export(Tokens().eval(), inputs, dynamic_shapes=(axes, axes))


def test_dynamic_shapes_are_refused_with_the_option_that_fixes_them(dynamic: Any) -> None:
    message = r"net has dynamic shapes: s\d+ \(axis 0 of tokens, mask; 1 to 16\)"
    with pytest.raises(NetworkImportError, match=message) as caught:
        from_exported(dynamic, "net")
    assert "--shape batch=1,8 --shape s" in str(caught.value.remedy)


def test_each_choice_of_sizes_is_a_variant(dynamic: Any) -> None:
    network = from_exported(dynamic, "net", shapes={"batch": [1, 8], "length": [16]})
    assert network.name == "net"
    assert [variant.name for variant in network.variants] == ["net-batch1-length16", "net-batch8-length16"]
    assert [tuple(variant.inputs()[0].shape) for variant in network.variants] == [(1, 16), (8, 16)]
    for variant in network.variants:
        tokens, mask = variant.inputs()
        assert tokens.min() >= 5, "indices come from the example inputs, so that they stay within their tables"
        assert variant.export().module()(tokens, mask).shape == (*tokens.shape, 4)
        assert variant.signature().inputs[0].shape == tuple(tokens.shape)


def test_one_choice_of_sizes_is_the_network_itself(dynamic: Any) -> None:
    network = from_exported(dynamic, "net", shapes={"tokens.0": [2], "mask.1": [5]})
    assert network.variants == (network,)
    assert tuple(network.inputs()[0].shape) == (2, 5)


def test_a_program_without_example_inputs_is_refused() -> None:
    exported = torch.export.export(Tokens().eval(), (torch.ones(3, 4).long(), torch.ones(3, 4)))
    exported.example_inputs = None
    with pytest.raises(NetworkImportError, match="holds no example inputs"):
        from_exported(exported, "net")


BATCH = FreeSize("s7", (("x", 0), ("y", 0)), 1, 16)
LENGTH = FreeSize("s9", (("x", 1),))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"batch": [1]}, "net has dynamic shapes"),
        ({"batch": [1], "length": [2], "width": [3]}, "there is no length, width"),
        ({"batch": [17], "s9": [1]}, "batch=17 is outside of what it takes"),
        ({"batch": [0], "s9": [1]}, "batch=0 is outside"),
        ({"batch": [1, 2, 3, 4, 5], "s9": [1, 2, 3, 4]}, "the sizes make 20 networks"),
        ({"batch": [], "s9": [1]}, "the sizes make 0 networks"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shapes: dict[str, list[int]], message: str) -> None:
    with pytest.raises(NetworkImportError, match=message) as caught:
        choices("net", [BATCH, LENGTH], shapes)
    assert caught.value.remedy


def test_sizes_are_given_by_symbol_by_place_as_batch_or_by_the_only_name_left() -> None:
    expected = [{"s7": 2, "s9": 3}]
    for shapes in ({"s7": [2], "s9": [3]}, {"y.0": [2], "x.1": [3]}, {"batch": [2], "seq": [3]}, {"n": [2], "s9": [3]}):
        assert [sizes for _, sizes in choices("net", [BATCH, LENGTH], shapes)] == expected
    with pytest.raises(NetworkImportError, match="fixed shapes"):
        choices("net", [], {"batch": [1]})


def folded(module: nn.Module, *x: torch.Tensor) -> tuple[Any, list[str]]:
    """The folded program, and the operators that are left in it."""
    program = torch.export.export(module.eval(), x).run_decompositions()
    before = set(program.constants)
    result = fold_constants(program)
    assert before <= set(result.constants)
    left = [str(node.target).split(".")[1] for node in result.graph.nodes if node.op == "call_function"]
    return result, left


class Rotary(nn.Module):
    """Tables of positions, a causal mask, and a parameter that looks positions up."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.0 / torch.arange(1.0, 5.0))
        self.table = nn.Embedding(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1])
        angles = positions[:, None] * self.frequencies
        mask = torch.full((8, 8), float("-inf")).triu(1)
        scores = x @ x.transpose(1, 2) + mask
        return scores.softmax(-1) @ (x * angles.cos() + self.table(positions))


def test_positions_masks_and_tables_are_folded_and_the_output_is_equal() -> None:
    torch.manual_seed(0)
    module, x = Rotary(), torch.randn(1, 8, 4)
    program, left = folded(module, x)
    assert not {"arange", "full", "cos", "ge", "where", "scalar_tensor"} & set(left)
    assert "embedding" in left, "parameters are left to TVM"
    program.graph_module.graph.lint()
    assert torch.equal(program.module()(x), module(x))


def test_a_program_that_it_was_decomposed_from_is_as_it_was() -> None:
    original = torch.export.export(Rotary().eval(), (torch.randn(1, 8, 4),))
    names = set(original.constants)
    fold_constants(original.run_decompositions())
    assert set(original.constants) == names


def test_random_operators_large_values_and_what_grows_beyond_the_bound_stay(network_of: Any) -> None:
    def noise(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(MOST_BYTES // 8)
        for _ in range(3):
            y = torch.cat([y, -y])
        return x + torch.rand(4) + torch.ones(MOST_BYTES // 4 + 1, 1).sum() + y.sum()

    _, left = folded(network_of(noise), torch.randn(4))
    assert {"rand", "full"} <= set(left)
    assert left.count("cat") == 2, "the first one has no more than the bound"


@pytest.mark.parametrize("way", ["matrix_exp", "cayley", "householder"])
def test_weights_that_pytorch_alone_can_compute_are_constants(way: str, equal: Any) -> None:
    network, x = nn.Sequential(orthogonal(nn.Linear(6, 6), orthogonal_map=way), nn.Linear(6, 3)), torch.randn(2, 6)
    equal(network, x)
    mod = relax_of(network, x)
    assert {name_of(one) for one in calls(mod)} <= {"permute_dims", "matmul", "einsum", "add"}

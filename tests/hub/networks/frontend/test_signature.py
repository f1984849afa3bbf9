"""How a network is called: what `Signature` reads from an exported program, and what it refuses of a call."""

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tchub.hub.networks.errors import NetworkInputError
from tchub.hub.networks.frontend.signature import Signature, TensorSpec
from tchub.hub.networks.frontend.trees import Outputs, Tree
from torch.utils._pytree import tree_leaves

Pair = namedtuple("Pair", "first second")


@dataclass
class Result:
    """What a network of a user may return."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


torch.export.register_dataclass(Result)


class Everything(torch.nn.Module):
    """Nested arguments, a keyword of each kind, and results of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, x: Any, pair: Any, *, mask: Any, flag: bool, options: Any) -> dict[str, Any]:
        y = (x + pair[0] * pair[1][0]) if flag else x
        z = torch.where(mask, y, 0.0) + options["ids"]
        return {
            "y": y, "again": y, "x": x, "scale": self.scale, "none": None, "number": 5,
            "nested": (z, Pair(z + 1, [y * 2])), "text": "a",
        }  # fmt: skip


X = torch.arange(4.0).reshape(2, 2)
ARGS = (X, (X + 1, [X + 2]))
KWARGS = {"mask": X > 1, "flag": True, "options": {"ids": torch.tensor([[1, 2]]), "unused": None}}


@pytest.fixture(scope="module")
def exported() -> Any:
    return torch.export.export(Everything(), ARGS, KWARGS)


@pytest.fixture(scope="module")
def signature(exported: Any) -> Signature:
    return Signature.of_exported(exported)


def _signature_of(forward: Any, *args: Any, **kwargs: Any) -> Signature:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return forward(x)

    return Signature.of_exported(torch.export.export(Module(), args or (X,), kwargs))


def test_tensors_are_numbered_in_the_order_of_the_exported_program(signature: Signature) -> None:
    assert signature.inputs == (
        TensorSpec("x", (2, 2), "float32"),
        TensorSpec("pair_0", (2, 2), "float32"),
        TensorSpec("pair_1_0", (2, 2), "float32"),
        TensorSpec("mask", (2, 2), "bool"),
        TensorSpec("options_ids", (1, 2), "int64"),
    )
    names = [spec.name for spec in signature.outputs]
    assert names == ["y", "again", "x", "scale", "nested_0", "nested_1_first", "nested_1_second_0"]
    assert str(signature).startswith("(x: float32[2, 2], pair: (float32[2, 2], [float32[2, 2]]), mask=bool[2, 2], flag")


def test_a_call_is_taken_apart_and_its_result_put_together_as_the_module_has_it(signature: Signature) -> None:
    flat = signature.flatten(ARGS, KWARGS)
    for tensor, expected in zip(flat, [*ARGS[:1], X + 1, X + 2, X > 1, KWARGS["options"]["ids"]], strict=True):
        assert torch.equal(tensor, expected)
    result = Everything()(*ARGS, **KWARGS)
    made = signature.unflatten(_tensors(result))
    assert list(made) == list(result)
    assert made["none"] is None
    assert (made["number"], made["text"]) == (5, "a")
    assert torch.equal(made["nested"][1].first, result["nested"][1].first)
    assert isinstance(made["nested"][1].second, list)


def test_what_pytorch_returns_with_names_keeps_them() -> None:
    made = _signature_of(lambda x: {"best": x.topk(1), "most": x.max(1)}).unflatten([X, X + 1, X + 2, X + 3])
    assert torch.equal(made["best"].values, X)
    assert torch.equal(made["most"].indices, X + 3)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def test_positional_arguments_may_be_given_by_name_and_none_be_left_out(signature: Signature) -> None:
    first, pair = ARGS
    flat = signature.flatten([first], {"pair": pair, **KWARGS})
    assert len(flat) == 5
    arrays = signature.flatten([x.numpy() for x in (first,)], {"pair": pair, **KWARGS})
    assert isinstance(arrays[0], np.ndarray)
    optional = Signature.of_exported(torch.export.export(_Optional(), (X,), {"mask": None}))
    assert optional.flatten([X], {}) == [X]


class _Optional(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2 if mask is None else x * mask


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X,), KWARGS, "the argument pair is missing"),
        (ARGS, {**KWARGS, "extra": X}, "unexpected argument extra"),
        ((*ARGS, X), KWARGS, "takes 2 arguments by position, got 3"),
        ((X.T[:1], ARGS[1]), KWARGS, r"x is float32\[1, 2\], expected a tensor float32\[2, 2\]"),
        ((X.double(), ARGS[1]), KWARGS, r"x is float64\[2, 2\], expected a tensor float32\[2, 2\]"),
        ((X, (X, [X.int()])), KWARGS, r"pair\[1\]\[0\] is int32\[2, 2\], expected a tensor float32"),
        ((X, (X, [])), KWARGS, r"pair\[1\] is list of 0, expected list of 1"),
        ((2.0, ARGS[1]), KWARGS, "x is float, expected a tensor float32"),
        (ARGS, {**KWARGS, "flag": False}, "flag is False, expected True"),
        (ARGS, {**KWARGS, "options": {"ids": X}}, r"options is {'ids'}, expected {'ids', 'unused'}"),
    ],
)
def test_wrong_arguments_are_named_with_a_remedy(signature: Signature, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(NetworkInputError, match=message) as refused:
        signature.flatten(args, kwargs)
    assert refused.value.remedy


X_SPEC = TensorSpec("x", (2,), "float32")
TENSOR, NONE = Tree("tensor", 0), Tree("constant")


def _damaged(**change: Any) -> Any:
    return msgspec.to_builtins(Signature((X_SPEC,), (), (TENSOR,), ("x",), {}, NONE)) | change


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"inputs": []},
        _damaged(returns={"kind": "tensor", "value": 7}),
        _damaged(returns={"kind": "what"}),
        _damaged(returns={"kind": "namedtuple", "value": "a b"}),
        _damaged(returns={"kind": "namedtuple", "value": "a", "keys": ["def"], "children": [{"kind": "constant"}]}),
        _damaged(returns={"kind": "dict", "keys": ["a"]}),
        _damaged(args=[]),
        _damaged(names=["x", "y"]),
        _damaged(args=[{"kind": "list", "keys": [0, 1], "children": [{"kind": "tensor", "value": 0}] * 2}]),
        _damaged(inputs=[{"name": "x", "shape": [-1], "dtype": "float32"}]),
    ],
)
def test_a_foreign_file_is_refused(value: Any) -> None:
    msgspec.convert(_damaged(), Signature)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, Signature)


@pytest.mark.parametrize(
    ("forward", "kind", "keys"),
    [
        (lambda x: [x + 1], "list", (0,)),
        (lambda x: OrderedDict(b=x + 1, a=x), "dict", ("b", "a")),
        (lambda x: defaultdict(list, {1: x + 1}), "dict", (1,)),
        (lambda x: Result(x, x + 1), "results", ("logits", "hidden")),
    ],
)
def test_results_of_every_kind(forward: Any, kind: Any, keys: tuple[Any, ...]) -> None:
    signature = _signature_of(forward)
    assert signature.returns == Tree(kind, None, keys, tuple(Tree("tensor", i) for i in range(len(keys))))
    assert msgspec.json.decode(msgspec.json.encode(signature), type=Signature) == signature


def test_the_result_of_a_transformers_model_is_read_by_name_attribute_and_position() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    signature = _signature_of(lambda x: BaseModelOutput(last_hidden_state=x + 1))
    out = signature.unflatten([X])
    assert isinstance(out, Outputs)
    assert out["last_hidden_state"] is out.last_hidden_state is out[0] is X
    with pytest.raises(AttributeError, match="returned last_hidden_state, and no logits"):
        _ = out.logits


def test_outputs_have_unique_names() -> None:
    assert [spec.name for spec in _signature_of(lambda x: x + 1).outputs] == ["output"]
    assert [spec.name for spec in _signature_of(lambda x: (x + 1, x)).outputs] == ["output_0", "output_1"]
    twice = _signature_of(lambda x: {"a_b": x + 1, "a": {"b": x}})
    assert [spec.name for spec in twice.outputs] == ["a_b_0", "a_b_1"]


def test_the_function_of_an_onnx_file_takes_and_returns_tensors_by_name() -> None:
    inputs = TensorSpec("a", (2, 2), "float32"), TensorSpec("b.1", (2, 2), "float32")
    one = Signature.of_tensors(inputs, [TensorSpec("out.1", (2, 2), "float32")])
    assert one.flatten([X], {"b.1": X + 1})[1].equal(X + 1)
    assert one.unflatten([X]) is X
    assert Signature.of_tensors((), inputs).unflatten([X, X + 1])["b.1"].equal(X + 1)

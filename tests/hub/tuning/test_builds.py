"""The first build: what TVM cannot compile, or compiles wrongly, is refused before anything is measured."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tchub.hub.networks import weights
from tchub.hub.networks.errors import LatencyError, NetworkImportError, OutputMismatchError
from tchub.hub.networks.frontend.network import Network
from tchub.hub.networks.latency import Comparison, Libraries, compare
from tchub.hub.networks.output_check import check_output
from tchub.hub.networks.transform.fused_attention import AttentionShape
from tchub.hub.networks.transform.winograd import ConvShape
from tchub.hub.search.errors import TuningError
from tchub.hub.tuning import builds as module
from tchub.hub.tuning.builds import first_build
from torch import nn
from tvm.target import Target


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    x = torch.randn(1, 3, 8, 8)
    return Network("net", lambda: torch.export.export(layers, (x,)), lambda: (x,))


def compared(
    wrong: Callable[[str], Any] = lambda _: False, calls: list[list[str]] | None = None, output: Any = None
) -> Any:
    """A comparison of which some systems are wrong, by their names; `calls` takes the names of all."""
    output = np.arange(6.0) if output is None else output

    def compare(_network: Any, libraries: Libraries) -> Comparison:
        built = libraries()
        assert all(path.is_file() for path in built.values())
        if calls is not None:
            calls.append([*built])
        return Comparison({name: check_output([output * (1 + wrong(name))], [output]) for name in built}, {})

    return compare


def test_where_channels_last_does_not_compile_the_original_layout_is_taken_with_a_word(
    network: Network, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = module.for_inference

    def no_channels_last(mod: Any, layout: str, **options: Any) -> Any:
        if layout == "channels-last":
            raise RuntimeError("CodeGenVM cannot emit this operator\nR.nn.conv2d_odd(lv, lv1)")
        return plain(mod, layout, **options)

    monkeypatch.setattr(module, "for_inference", no_channels_last)
    first = first_build(network, target, "channels-last", compared(), None)
    assert first.layout == "as-imported"
    assert first.notes == ("convolutions keep the layout of the original: TVM cannot compile net: R.nn.conv2d_odd",)


def test_the_branches_of_a_network_are_compiled_as_they_are_imported(target: Any) -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x.tanh(), (x,))

    x = torch.randn(2, 4)
    branching = Network("net", lambda: torch.export.export(Branching(), (x,)), lambda: (x,))
    first = first_build(branching, target, "channels-last", compared(), None)
    assert first.notes == ("convolutions keep the layout of the original: the network branches by torch.cond",)


def test_what_compiles_in_no_layout_names_the_operator(
    network: Network, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("cannot emit\nR.odd(alloc, axis=1)")

    monkeypatch.setattr(module, "build_library", refuse)
    with pytest.raises(NetworkImportError, match=r"TVM cannot compile net: R\.odd$") as caught:
        first_build(network, target, "channels-last", compared(), None)
    assert caught.value.fields["operator"] == "R.odd"
    assert caught.value.remedy


def test_a_library_that_is_wrong_before_it_is_tuned_is_refused(network: Network, target: Any) -> None:
    with pytest.raises(OutputMismatchError, match=r"net, as TVM imports it, differs from the original"):
        first_build(network, target, "channels-last", compared(lambda _: True), None)


def test_a_network_whose_output_bfloat16_loses_is_not_tuned_in_float32_instead() -> None:
    asked: list[str] = []
    layer, x = nn.Conv2d(3, 32, 3).eval(), torch.randn(1, 3, 8, 8)
    network = Network("net", lambda: torch.export.export(layer, (x,)), lambda: (x,))

    def wrong(name: str) -> bool:
        asked.append(name)
        return True

    target = Target({"kind": "llvm", "mcpu": "sapphirerapids", "mtriple": "x86_64-linux-gnu"})
    with pytest.raises(OutputMismatchError, match="differs from the original") as caught:
        first_build(network, target, "channels-last", compared(wrong), None, precision="bfloat16")
    assert asked == ["untuned"]
    assert "leave out --precision" in (caught.value.remedy or "")


def test_a_network_without_a_product_that_bfloat16_is_for_is_refused(network: Network, target: Any) -> None:
    with pytest.raises(TuningError, match=r"no product of net is computed in bfloat16") as caught:
        first_build(network, target, "as-imported", compared(), None, precision="bfloat16")
    assert "leave out --precision" in (caught.value.remedy or "")


def test_an_output_that_says_nothing_is_named(network: Network, target: Any) -> None:
    (note,) = first_build(network, target, "as-imported", compared(output=np.zeros(4)), None).notes
    assert "output 0 is zero everywhere" in note
    assert "not checked" in note


class Both(nn.Module):
    """A convolution that Winograd's algorithm can compute, and attention over its pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x).flatten(2)
        return (y.transpose(1, 2) @ y * 0.25).softmax(-1) @ y.transpose(1, 2)


@pytest.fixture
def both() -> Network:
    torch.manual_seed(0)
    module, x = Both().eval(), torch.randn(1, 4, 8, 8)
    return Network("both", lambda: torch.export.export(module, (x,)), lambda: (x,))


KINDS = [ConvShape, AttentionShape]


@pytest.mark.parametrize(
    ("wrong", "ways", "notes"),
    [
        ("", [2, 4, AttentionShape], []),
        ("untuned/main_1", [4, AttentionShape], ["convolutions are computed directly"]),
        ("untuned/main_3", [2, 4], ["attention is computed by three functions"]),
    ],
)
def test_a_way_that_is_wrong_is_left_out_with_a_word_and_the_others_stay(
    both: Network, target: Any, wrong: str, ways: list[Any], notes: list[str]
) -> None:
    calls: list[list[str]] = []
    first = first_build(both, target, "channels-last", compared(wrong.__eq__, calls), None, kinds=KINDS)
    assert calls == [["untuned", "untuned/main_1", "untuned/main_2", "untuned/main_3"]]
    assert [one.tile if isinstance(one, ConvShape) else type(one) for one in first.shapes] == ways
    assert [note.partition(",")[0] for note in first.notes] == notes
    assert list(first.comparison.checks) == ["untuned"]


@pytest.mark.parametrize("large", [1, 1 << 20])
def test_all_ways_are_right_in_one_library(
    both: Network, target: Any, compared_here: None, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are in it or beside it; some of them one way lacks, as Winograd's algorithm has its own."""
    monkeypatch.setattr(module, "_BESIDE", large)
    monkeypatch.setattr(weights, "_WORTH_AN_ARGUMENT", large)
    calls: list[tuple[int, bool]] = []

    def once(network: Network, libraries: Libraries) -> Comparison:
        built = libraries()
        calls.append((len(built), weights.weights_file(built["untuned"]).is_file()))
        return compare(network, lambda: built, max_seconds=0.1)

    with torch.inference_mode():
        first = first_build(both, target, "channels-last", once, None, kinds=KINDS)
    assert (calls, first.notes, len(first.shapes)) == ([(4, large == 1)], (), 3)


def test_ways_whose_weights_fill_the_memory_together_are_compared_one_by_one(
    both: Network, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE", 1000)
    calls: list[list[str]] = []
    first = first_build(both, target, "channels-last", compared(calls=calls), None, kinds=KINDS)
    assert (calls, len(first.shapes)) == ([["untuned"]] * 4, 3)


def test_where_one_library_of_all_fails_each_is_tried_alone(both: Network, target: Any) -> None:
    """All together do not compile, and the last way is the one that crashes here."""
    calls: list[list[str]] = []
    right = compared(calls=calls)

    def crashing(network: Any, libraries: Libraries) -> Comparison:
        result = right(network, libraries)
        if len(calls[-1]) > 1:
            raise NetworkImportError("it does not compile")
        if len(calls) == 5:
            raise LatencyError("it crashed")
        return result

    first = first_build(both, target, "channels-last", crashing, None, kinds=KINDS)
    assert [len(names) for names in calls] == [4, 1, 1, 1, 1]
    assert [one.tile for one in first.shapes if isinstance(one, ConvShape)] == [2, 4]
    assert len(first.shapes) == 2
    assert first.notes == ("attention is computed by three functions, not by one: it crashed",)


def test_without_a_comparison_all_ways_may_be_taken(both: Network, target: Any) -> None:
    assert len(first_build(both, target, "channels-last", None, None, kinds=KINDS).shapes) == 3

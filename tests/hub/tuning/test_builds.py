"""The first build: what TVM cannot compile, or compiles wrongly, is refused before anything is measured."""

from typing import Any

import numpy as np
import pytest
import torch
from tchub.hub.networks.errors import NetworkImportError, OutputMismatchError
from tchub.hub.networks.fused_attention import AttentionShape
from tchub.hub.networks.latency import Comparison, Libraries
from tchub.hub.networks.network import Network
from tchub.hub.networks.output_check import check_output
from tchub.hub.networks.tasks import network_tasks
from tchub.hub.networks.winograd import ConvShape
from tchub.hub.tuning import builds as module
from tchub.hub.tuning.builds import first_build, try_alternatives
from torch import nn


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    x = torch.randn(1, 3, 8, 8)
    return Network("net", lambda: torch.export.export(layers, (x,)), lambda: (x,))


def compared(ours: Any = 1.0) -> Any:
    """A comparison whose library gives `ours` times the original's output."""
    output = np.arange(6.0)

    def compare(_network: Any, libraries: Libraries) -> Comparison:
        built = libraries()
        assert all(path.is_file() for path in built.values())
        return Comparison({name: check_output([output * ours], [output]) for name in built}, {})

    return compare


def test_a_network_that_compiles_and_is_right_keeps_the_layout_asked_for(network: Network, target: Any) -> None:
    first = first_build(network, target, "channels-last", compared(), None)
    assert (first.layout, first.notes) == ("channels-last", ())
    assert first.comparison.checks["untuned"].verdict == "equal"


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
        first_build(network, target, "channels-last", compared(ours=1.5), None)


def test_an_output_that_says_nothing_is_told(network: Network, target: Any) -> None:
    def compare(_network: Any, libraries: Libraries) -> Comparison:
        zeros = np.zeros(4)
        return Comparison({name: check_output([zeros], [zeros]) for name in libraries()}, {})

    (note,) = first_build(network, target, "as-imported", compare, None).notes
    assert "output 0 is zero everywhere" in note
    assert "not checked" in note


def test_a_way_that_is_wrong_is_left_out_with_a_word_and_the_other_kind_stays(target: Any) -> None:
    torch.manual_seed(0)

    class Both(nn.Module):
        """A convolution that Winograd's algorithm can compute, and attention over its pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(4, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.convolution(x).flatten(2)
            return (y.transpose(1, 2) @ y * 0.25).softmax(-1) @ y.transpose(1, 2)

    both, x = Both().eval(), torch.randn(1, 4, 8, 8)
    network = Network("both", lambda: torch.export.export(both, (x,)), lambda: (x,))
    first = first_build(network, target, "channels-last", compared(), None)
    tasks = network_tasks(first.mod, target, "both")
    kinds = [ConvShape, AttentionShape]

    def only_attention(_network: Any, libraries: Libraries) -> Comparison:
        built = libraries()
        wrong = b"winograd" in built["untuned"].read_bytes()
        return compared(1.5 if wrong else 1.0)(_network, lambda: built)

    for compare, ways, words in ((compared(), kinds, []), (only_attention, kinds[1:], ["convolutions are computed"])):
        added, alternatives, notes = try_alternatives(first, tasks, target, compare, None, kinds)
        assert list(dict.fromkeys(type(one.shape) for one in alternatives)) == ways
        assert any("winograd" in task.name for task in added) == (ConvShape in ways)
        assert {note.partition(" directly")[0] for note in notes} == {*words}

    networks: list[bool] = []

    def only_large_tiles(_network: Any, libraries: Libraries) -> Comparison:
        """The first network with convolutions by Winograd's algorithm, which has the small tiles, is wrong."""
        built = libraries()
        networks.append(b"winograd" in built["untuned"].read_bytes())
        return compared(1.5 if networks == [True] else 1.0)(_network, lambda: built)

    _, alternatives, notes = try_alternatives(first, tasks, target, only_large_tiles, None, kinds[:1])
    assert networks == [True, True]
    assert [one.shape.tile for one in alternatives if isinstance(one.shape, ConvShape)] == [4]
    assert len(notes) == 1

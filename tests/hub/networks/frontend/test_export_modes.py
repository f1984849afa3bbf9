"""Packed sequences, whose lengths an export has to know, and what a module catches."""

from typing import Any

import pytest
import torch
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.sources import open_network
from torch.nn.utils import rnn


class Packed(torch.nn.Module):
    """Computes sequences of several lengths, which are given, or held where they are always the same."""

    def __init__(self, layer: torch.nn.Module, lengths: Any) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("lengths", lengths)

    def forward(self, x: torch.Tensor, lengths: Any = None) -> Any:
        lengths = self.lengths if lengths is None else lengths
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        rows, last = self.layer(packed)
        return rnn.pad_packed_sequence(rows, batch_first=True, padding_value=3.0, total_length=6), last


@pytest.mark.parametrize(
    ("layer", "lengths"),
    [(torch.nn.LSTM, [5, 5]), (torch.nn.LSTM, [4, 2, 4]), (torch.nn.GRU, [2, 4]), (torch.nn.RNN, [4, 2, 4])],
)
def test_packed_sequences_of_known_lengths_are_computed(layer: Any, lengths: list[int]) -> None:
    module = Packed(layer(3, 4, 2, batch_first=True, bidirectional=True), torch.tensor(lengths)).eval()
    x = torch.randn(len(lengths), 5, 3)
    with torch.no_grad():
        torch.testing.assert_close(open_network(module, (x,)).export().module()(x), module(x))


def test_packed_sequences_of_lengths_that_are_an_input_are_refused_with_how_to_hold_them() -> None:
    inputs = torch.randn(2, 5, 3), torch.tensor([2, 4])
    with pytest.raises(NetworkImportError, match=r"data-dependent .*pack_padded_sequence") as refusal:
        open_network(Packed(torch.nn.GRU(3, 4, batch_first=True), None), inputs)
    assert "hold an input that is always the same, as lengths are" in refusal.value.remedy


def test_a_module_that_catches_what_the_export_alone_raises_is_refused() -> None:
    """It would be exported in a way that it does not take."""

    class Cautious(Packed):
        def forward(self, x: torch.Tensor, *given: torch.Tensor) -> Any:
            try:
                return super().forward(x, *given)
            except RuntimeError:
                return x * 2

    inputs = torch.randn(2, 5, 3), torch.tensor([2, 4])
    with pytest.raises(NetworkImportError, match="data-dependent"):
        open_network(Cautious(torch.nn.GRU(3, 4, batch_first=True), None), inputs)

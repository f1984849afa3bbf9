"""Packed sequences, whose lengths an export has to know, what a module catches or moves, and transformers' own ways."""

from typing import Any

import pytest
import torch
from relax_kit import compute, prepare
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


def test_a_part_that_forward_moves_to_where_it_is_stays() -> None:
    class Moved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.norm = self.norm.to(x.dtype)
            return self.norm(self.layer.to(x.device)(x))

    module = Moved().eval()
    x = torch.randn(2, 4)
    results = compute(prepare(open_network(module, (x,)).imported()), x)
    torch.testing.assert_close(torch.from_numpy(results[0]), module(x))


def test_tensors_in_a_list_become_one_tensor(network_of: Any) -> None:
    def scaled(x: torch.Tensor) -> Any:
        numbers = torch.tensor([x.max() + 1, 2.0]), torch.tensor([1.0, 3.0], pin_memory=False)
        return x * sum(numbers).unsqueeze(1), torch.tensor([[x.min(), 1], [0, x[0, 0]]])

    module, x = network_of(scaled), torch.randn(2, 4)
    results = compute(prepare(open_network(module, (x,)).imported()), x)
    torch.testing.assert_close([torch.from_numpy(one) for one in results], [*module(x)])


def test_networks_of_transformers_have_no_masks_where_nothing_is_masked() -> None:
    from transformers import BertConfig, BertModel, masking_utils
    from transformers.utils import import_utils

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=20, **sizes)).eval()
    graph = open_network(bert, (torch.tensor([[1, 2, 3]]),)).export().graph
    (attention,) = (node for node in graph.nodes if "dot_product_attention" in str(node.target))
    assert len(attention.all_input_nodes) == 3  # queries, keys and values
    assert masking_utils.is_torchdynamo_exporting is import_utils.is_torchdynamo_exporting


def test_gated_delta_rules_are_solved_by_blocks_rather_than_by_rows() -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    class Rule(torch.nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beta: torch.Tensor) -> Any:
            return torch_chunk_gated_delta_rule(query, key, value, beta.log(), beta, use_qk_l2norm_in_kernel=True)[0]

    inputs = (*torch.randn(3, 1, 70, 2, 4), torch.rand(1, 70, 2))
    mod = open_network(Rule(), inputs).imported()
    assert len(mod["main"].body.blocks[0].bindings) < 350
    torch.testing.assert_close(torch.from_numpy(compute(prepare(mod), *inputs)[0]), Rule()(*inputs))

"""Sizes that constants decide are fixed before a program is imported, whatever a file asks for."""

from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import compute, prepare
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend.exported_file import from_exported
from tchub.hub.networks.sources import open_network
from torch.nn import functional
from torch.nn.utils import rnn


class Neighbours(torch.nn.Module):
    """Adds up neighbours in a graph that it holds, without the edges from a node to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 2], [1, 1, 0, 1]]))

    def forward(self, x: torch.Tensor, edges: torch.Tensor | None = None) -> Any:
        edges = self.edges if edges is None else edges
        edges = edges[:, edges[0] != edges[1]]
        degrees = x.new_zeros(len(x)).index_add_(0, edges[1], torch.ones(edges.shape[1]))
        rows = x[edges[0]] * 2
        return torch.zeros_like(x).index_add_(0, edges[1], rows) / (degrees + 1)[:, None], rows, x[edges[0].unique()]


def test_sizes_that_constants_decide_are_fixed() -> None:
    network, x = Neighbours(), torch.randn(3, 4)
    imported = open_network(network, (x,))
    assert [one.shape for one in imported.signature().outputs] == [(3, 4), (3, 4), (2, 4)]
    results = compute(prepare(imported.imported()), x)
    torch.testing.assert_close([torch.from_numpy(one) for one in results], list(network(x)))


class Grids(torch.nn.Module):
    """Splits the patches of images and frames by the running sums of their sizes, which count in 32 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grids", torch.tensor([[1, 2, 2], [2, 1, 3]]))

    def forward(self, x: torch.Tensor) -> Any:
        frames = torch.repeat_interleave(self.grids[:, 1] * self.grids[:, 2], self.grids[:, 0])
        ends = functional.pad(frames.cumsum(0, dtype=torch.int32), (1, 0))
        lengths = ends[1:] - ends[:-1]
        numbers = (torch.arange(len(x)) >= lengths.cumsum(0).unsqueeze(1)).sum(0)
        return x * numbers.unsqueeze(1), *(part * 2 for part in torch.split(x, lengths.tolist()))


def test_running_sums_of_constants_in_32_bits_keep_their_size() -> None:
    network, x = Grids(), torch.randn(10, 3)
    imported = open_network(network, (x,))
    assert [one.shape for one in imported.signature().outputs] == [(10, 3), (4, 3), (3, 3), (3, 3)]
    results = compute(prepare(imported.imported()), x)
    torch.testing.assert_close([torch.from_numpy(one) for one in results], list(network(x)))


class Sequences(torch.nn.Module):
    """Gives sequences of lengths that it holds one by one, and elements that a mask chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lengths", torch.tensor([2, 5, 3]))
        self.register_buffer("mask", torch.tensor([[True, False, True], [False, True, False], [False] * 3]))

    def forward(self, x: torch.Tensor) -> Any:
        sequences = rnn.unpad_sequence(x + 1, self.lengths, batch_first=True)
        return *sequences, x[:, :3][:, self.mask], x[self.mask[0]]


def test_elements_of_an_input_that_constant_masks_choose_are_as_many_each_time() -> None:
    network, x = Sequences(), torch.randn(3, 5, 3)
    imported = open_network(network, (x,))
    assert [one.shape for one in imported.signature().outputs] == [(2, 3), (5, 3), (3, 3), (3, 3), (2, 5, 3)]
    with torch.no_grad():
        results = [torch.from_numpy(one) for one in compute(prepare(imported.imported()), x)]
        torch.testing.assert_close(results, list(network(x)))


class Patches(torch.nn.Module):
    """Splits the patches of images whose extents it holds, as vision transformers of packed images do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.tensor([[1, 2, 3], [2, 2, 1]]))

    def forward(self, x: torch.Tensor) -> Any:
        ends = torch.repeat_interleave(self.grid[:, 1] * self.grid[:, 2], self.grid[:, 0]).cumsum(0, dtype=torch.int32)
        starts = functional.pad(ends, (1, 0))
        lengths = (starts[1:] - starts[:-1]).tolist()
        windows = torch.arange(12).reshape(3, 4)
        order = windows[windows < sum(lengths)]
        rows = x[order // 2]
        return [part.softmax(0) for part in x.split(lengths)], rows.sum(0) if len(rows) > 1 else rows


def test_numbers_are_read_of_tensors_whose_size_constants_decide() -> None:
    network, x = Patches(), torch.randn(10, 4)
    imported = open_network(network, (x,))
    assert [one.shape for one in imported.signature().outputs] == [(6, 4), (2, 4), (2, 4), (4,)]
    parts, total = network(x)
    results = [torch.from_numpy(one) for one in compute(prepare(imported.imported()), x)]
    torch.testing.assert_close(results, [*parts, total])


class Held(torch.nn.Module):
    """Adds a number that follows from constants of a size that they decide."""

    def __init__(self, function: Any, **constants: torch.Tensor) -> None:
        super().__init__()
        self.function, self.names = function, list(constants)
        for name, value in constants.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.function(*(getattr(self, name) for name in self.names)).sum()


COUNTS, COLUMN = torch.tensor([2, 3]), torch.ones(20_000, 1)
DECIDED = {
    "repeat_interleave": (torch.repeat_interleave, {"a": COUNTS}, torch.tensor([1 << 62, 3])),
    "bincount": (torch.bincount, {"a": COUNTS}, torch.tensor([10**10, 3])),
    "masked_select": (torch.masked_select, {"a": COLUMN[:9], "b": torch.ones(9, 1).bool()}, None),
    "index": (
        lambda a, b, c: a[b, c],
        {"a": COLUMN, "b": torch.arange(20_000) < 9, "c": torch.zeros(9, 1).long()},
        None,
    ),
    "nonzero": (torch.nonzero, {"a": torch.eye(2000)}, None),
}


@pytest.mark.parametrize(("function", "constants", "many"), DECIDED.values(), ids=DECIDED)
def test_what_constants_decide_on_takes_bounded_memory(
    function: Any, constants: dict[str, torch.Tensor], many: torch.Tensor | None
) -> None:
    """A file may ask for any number."""
    network, x = Held(function, **constants), torch.randn(3)
    exported: Any = torch.export.export(network, (x,), strict=False)
    (result,) = compute(prepare(from_exported(exported, "net").imported()), x)
    np.testing.assert_allclose(result, network(x).numpy(), rtol=1e-6)
    if many is not None:
        with torch.no_grad():
            exported.state_dict["a"].copy_(many)
        with pytest.raises(NetworkImportError, match="makes a tensor whose size depends on the values"):
            from_exported(exported, "net").imported()


def test_a_graph_as_an_input_is_refused_with_the_advice_to_hold_it() -> None:
    network = Neighbours()
    with pytest.raises(NetworkImportError, match="size depends on the values") as caught:
        open_network(network, (torch.randn(3, 4), network.edges)).imported()
    assert "in the module: register_buffer" in str(caught.value.remedy)

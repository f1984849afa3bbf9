"""What `open_network` takes: names, files and configs; what it refuses, and which line of the user's code is named."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tchub.hub.networks.errors import NetworkImportError, NetworkLoadError
from tchub.hub.networks.frontend.exported_file import export_module
from tchub.hub.networks.frontend.network import where_in_network
from tchub.hub.networks.sources import open_network
from tiny_network import Tiny


def test_names_files_and_configs_are_networks(pt2: Path) -> None:
    assert open_network("bert-tiny").name == "bert-tiny"
    network = open_network(pt2)
    assert network.name == "tiny"
    assert open_network(network) is network
    (x,) = network.inputs()
    expected = Tiny().eval()(x)
    assert all(torch.allclose(a, b) for a, b in zip(network.export().module()(x), expected, strict=True))


class Counting(torch.nn.Module):
    """Writes to a buffer, by itself and in batch norm's training mode, and to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(24)
        self.register_buffer("calls", torch.zeros(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.relu_()) + self.calls.add_(1.0)


def test_a_network_that_changes_its_state_or_its_input_is_refused_before_it_is_tuned(tmp_path: Path) -> None:
    x = torch.randn(2, 24)
    torch.export.save(torch.export.export(Counting(), (x,)), tmp_path / "net.pt2")
    with pytest.raises(NetworkImportError, match=r"net writes to .* a compiled network keeps no state") as caught:
        open_network(tmp_path / "net.pt2").imported()
    assert {"norm.running_mean", "calls", "x"} <= set(caught.value.fields["written"])
    assert "export it after .eval()" in str(caught.value.remedy)


class Dropping(torch.nn.Module):
    """Another network in training than in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return self.drop(x) if scale is None else self.drop(x) * scale


X = torch.ones(4, 4)


def test_a_module_is_exported_as_it_computes_in_inference_and_stays_as_it_was() -> None:
    module = Dropping().train()
    network = open_network(module, (X,))
    assert network.name == "Dropping"
    assert torch.equal(network.export().module()(*network.inputs()), X)
    assert module.training
    assert module.drop.training
    module.drop.eval()
    open_network(module, (X,))
    assert module.training
    assert not module.drop.training


def test_a_tensor_that_no_memory_holds_is_refused_before_anything_is_tuned(network_of: Any) -> None:
    """Few numbers in and out, and between them more than a machine holds; a view of one number is none of them."""
    message = r"wide makes a tensor of 4.4e\+03 GB \(mul, \[1048576, 1048576\]\)"
    wide = network_of(lambda x: (x[:1].expand(1 << 20, 1 << 20) * 2.0).sum())
    with pytest.raises(NetworkImportError, match=message) as caught:
        open_network(wide, torch.ones(4), name="wide").imported()
    assert "more memory" in str(caught.value.remedy)
    view = network_of(lambda x: x + x[:1].expand(1 << 20, 1 << 20)[0, :4])
    assert open_network(view, torch.ones(4)).imported() is not None


def test_a_tensor_whose_size_depends_on_values_is_named(network_of: Any) -> None:
    with pytest.raises(NetworkImportError, match=r"size depends on the values of its inputs \(index, \[u0\]\)"):
        open_network(network_of(lambda x: x[x > 0]), (torch.randn(4),)).imported()


@pytest.mark.parametrize("in_branch", [False, True])
def test_a_network_that_draws_random_numbers_is_refused(in_branch: bool) -> None:
    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if in_branch:
                return torch.cond(x.sum() > 0, lambda x: x + torch.randn_like(x), lambda x: x - 1, (x,))
            return x + torch.randn_like(x)

    with pytest.raises(NetworkImportError, match=r"net draws random numbers \(.*randn_like") as caught:
        open_network(Noisy(), (torch.randn(4),), name="net").imported()
    assert "take the random numbers as an input" in str(caught.value.remedy)


@pytest.mark.parametrize("inputs", [(X, {"scale": X}), (None, {"x": X, "scale": X})], ids=["by position", "by name"])
def test_example_inputs_by_position_alone_or_by_name(inputs: Any) -> None:
    network = open_network(Dropping(), *inputs, name="mine")
    assert network.name == "mine"
    assert [spec.name for spec in network.signature().inputs] == ["x", "scale"]
    assert "scale=float32[4, 4]" in str(open_network(Dropping(), [X], {"scale": X}).signature())


def test_a_tensor_given_twice_is_two_inputs() -> None:
    """PyTorch itself would read one of them for both."""
    exported = open_network(Dropping(), (X, X)).export()
    assert torch.equal(exported.module()(X, X * 3), X * 3)


def test_an_exported_program_is_taken_as_it_is() -> None:
    program = torch.export.export(Dropping().eval(), (X,))
    network = open_network(program)
    assert network.export() is program
    assert network.name == "network"


@pytest.mark.parametrize(
    ("source", "inputs", "error", "message"),
    [
        ("missing.pt2", None, NetworkLoadError, "missing.pt2"),
        ("no-such-network", None, NetworkLoadError, "no-such-network"),
        (Path(__file__), None, NetworkImportError, "test_network_sources.py"),
        (Dropping(), None, NetworkImportError, "needs example inputs"),
        (Dropping().to_empty(device="meta"), (X.to("meta"),), NetworkImportError, "on meta"),
        (Dropping(), (X.to_sparse(),), NetworkImportError, "takes a tensor of layout torch.sparse_coo"),
        (42, None, NetworkImportError, "int is nothing that can be tuned"),
    ],
)
def test_what_is_no_network_or_cannot_be_exported_is_refused_with_a_remedy(
    source: Any, inputs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        open_network(source, inputs)
    assert refused.value.remedy
    assert "\n" not in refused.value.message


class Sums(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 1)  # the line


@pytest.fixture
def stack_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an export note the line of each operator, which the other tests spare themselves."""
    monkeypatch.setattr("torch.fx.config.do_not_emit_stack_traces", False)


@pytest.mark.usefixtures("stack_traces")
@pytest.mark.parametrize(
    "operator", ["aten.cumsum.default", "cumsum.default", "cumsum", "['cumsum.default']", "R.cumsum"]
)
def test_an_operator_is_found_by_module_and_line(operator: str) -> None:
    exported = torch.export.export(torch.nn.Sequential(torch.nn.Sequential(Sums()), Sums()), (torch.ones(2, 3),))
    where = where_in_network(exported, operator)
    assert where.startswith("0.0, test_network_sources.py:")
    assert where.endswith("return torch.cumsum(x, 1)  # the line and 1 more")
    assert where_in_network(exported.run_decompositions(), operator) == where


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # decides by a value
            return x
        return -x


class Cutting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : int(x.argmax(1).numpy().max())]


class Padded(torch.nn.Module):
    """A mask as wide as the longest sequence, by the lengths that are given, or by its own."""

    def __init__(self, lengths: list[int] | None = None) -> None:
        super().__init__()
        self.register_buffer("lengths", None if lengths is None else torch.tensor(lengths))

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        lengths = self.lengths if lengths is None else lengths
        return x * (torch.arange(int(lengths.max())) < lengths[:, None])


def test_a_mask_by_lengths_is_exported_where_the_module_holds_them() -> None:
    x, lengths = torch.ones(2, 3), [3, 2]
    with pytest.raises(NetworkImportError, match="cannot export mine") as caught:
        export_module(Padded(), (x, torch.tensor(lengths)), {}, "mine")
    assert "register_buffer" in str(caught.value.remedy)
    exported = export_module(Padded(lengths), (x,), {}, "mine")
    assert torch.equal(exported.module()(x), torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]))


class Broken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 7)


@pytest.mark.parametrize(
    ("module", "line", "remedy"),
    [
        (Branching(), "if x.sum() > 0", "torch.where or torch.cond"),
        (Cutting(), ".numpy().max()", "torch.where or torch.cond"),
        (Broken(), "return x @", "torch.export.export"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line_with_the_users_code(
    module: Any, line: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NetworkImportError, match="PyTorch cannot export mine") as caught:
        export_module(module, (torch.ones(2, 3),), {}, "mine")
    assert "\n" not in str(caught.value)
    assert "test_network_sources.py:" in str(caught.value)
    assert line in str(caught.value)
    assert remedy in str(caught.value.remedy)
    assert logging.root.manager.disable == logging.NOTSET
    assert capsys.readouterr() == ("", "")


class Trigamma(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.polygamma(1, x)


@pytest.mark.usefixtures("stack_traces")
def test_an_operator_that_tvm_lacks_is_named_with_its_place() -> None:
    network = open_network(torch.nn.Sequential(torch.nn.ReLU(), Trigamma()), (torch.ones(2, 8),), name="mine")
    with pytest.raises(
        NetworkImportError, match=r"TVM cannot import mine: \S+ \(1, test_network_sources.py:\d+: return"
    ) as caught:
        network.imported()
    assert "torch.polygamma(1, x)" in str(caught.value)
    assert "\n" not in str(caught.value)

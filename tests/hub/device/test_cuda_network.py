"""Whole networks on a card of paper: what the archive holds computes what PyTorch does, call after call."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from paper_card import PaperCard
from tchub.hub.device.cuda_network import PLAN, CudaNetwork, build_network
from tchub.hub.device.onsite.cuda import CudaDriver
from tchub.hub.device.onsite.files import ProgramError
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.zoo.devices import get_device
from tvm import relax

pytestmark = pytest.mark.usefixtures("card")
TARGET = tvm.target.Target(get_device("t4").target)


class Branches(torch.nn.Module):
    """Layers of one width, whose buffers can be shared; a kernel with two results, views, an input and a constant."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(5))
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        h = x
        for layer in self.layers:
            h = torch.relu(layer(h))
        first, second = torch.split(self.norm(h).reshape(2, 4, 16), 2, 1)
        return {"views": first.reshape(-1), "pair": (second, x), "masked": torch.where(mask, h, h * 2.0)}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[torch.Tensor, ...]]:
    """A network that was built for a card, and its inputs."""
    inputs, folder = (torch.randn(8, 16), torch.randn(8, 16) > 0), tmp_path_factory.mktemp("built")
    mod = lower(for_inference(open_network(Branches().eval(), inputs).imported()))
    with pytest.MonkeyPatch.context() as patch:
        card = PaperCard.install(folder / "card", patch)
        assert build_network(mod, TARGET, None, folder / "first.cuda")[1] == 0
        compiled = card.compiled
        assert build_network(mod, TARGET, None, folder / "net.cuda")[1] == 0
    assert card.compiled == compiled > 0, "the second one's kernels are those of the first"
    return folder / "net.cuda", inputs


def expected_of(x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """What PyTorch computes."""
    with torch.no_grad():
        return torch.utils._pytree.tree_leaves(Branches().eval()(x, mask))


def assert_close(outputs: Sequence[Any], expected: list[torch.Tensor]) -> None:
    for output, right in zip(outputs, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(output), right, rtol=1e-4, atol=1e-5)


def test_a_network_computes_what_pytorch_does_as_often_as_it_is_called(archive: Any) -> None:
    path, (x, mask) = archive
    network = CudaNetwork(CudaDriver(), path)
    for shift in (0.0, 1.0):
        assert_close(network([(x + shift).numpy(), mask.numpy()]), expected_of(x + shift, mask))
    seconds = network.run(3)
    assert seconds == pytest.approx(network.run(1)), "one graph a run, in which all kernels are"
    network.close()


def test_tensors_on_the_card_are_read_and_written_where_they_are(
    archive: Any, card: PaperCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, (x, mask) = archive
    network = CudaNetwork(CudaDriver(), path)
    monkeypatch.setenv("FAKE_CUDA_LOG", str(log := card.folder / "launches"))
    given = [x.clone(), mask]
    results = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in network.outputs]

    def run_on(outputs: list[torch.Tensor]) -> None:
        network.run_on([one.data_ptr() for one in given], [one.data_ptr() for one in outputs], 0)

    right: list[torch.Tensor] = []
    for shift in (0.0, 1.0, 2.0):  # launched, captured, and the graph again; the stand-in's memory is the CPU's
        given[0].copy_(x + shift)
        run_on(results)
        assert_close(results, right := expected_of(x + shift, mask))
    assert len(log.read_text().splitlines()) % 3 == 0, "each run launches the same kernels"
    other = [torch.full_like(one, torch.nan) for one in results]
    run_on(other)
    assert_close(other, right)
    arrays = network([x.numpy(), mask.numpy()])
    assert not np.allclose(arrays[0], right[0].numpy()), "its own buffers serve again"
    assert_close(results, right)


def test_tensors_that_are_not_needed_at_once_share_memory(archive: Any) -> None:
    plan = json.loads(zipfile.ZipFile(archive[0]).read(PLAN))
    written = [buffers[-1] for _, buffers in plan["steps"]]
    assert len(set(written)) < len(written)
    assert not {*plan["inputs"], *plan["constants"]} & set(written)
    for number, (_, buffers) in enumerate(plan["steps"]):
        assert buffers[-1] not in buffers[:-1], f"step {number} would write what it reads"


def test_inputs_of_another_size_are_refused(archive: Any) -> None:
    path, (x, mask) = archive
    network = CudaNetwork(CudaDriver(), path)
    with pytest.raises(ProgramError, match="512 bytes, and 256 were given"):
        network([x.numpy()[:4], mask.numpy()])


def test_a_network_that_calls_what_is_no_kernel_is_refused(tmp_path: Path) -> None:
    x = relax.Var("x", relax.TensorType([4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        call = relax.call_dps_packed("my.function", [x], relax.TensorType([4], "float32"))
        builder.emit_func_output(builder.emit(call))
    with pytest.raises(ValueError, match="call_dps_packed is no kernel"):
        build_network(builder.get(), TARGET, None, tmp_path / "net.cuda")

"""`tune` for a card of paper: from extraction to a network that runs there, with faults on the way."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_tuning import SMALL_SEARCH
from paper_card import PaperCard
from tchub import hub
from tchub.hub.device.errors import DeviceError
from tchub.hub.networks import tuned
from tchub.hub.search.errors import TuningError
from tchub.hub.tuning import remote_latency
from tchub.zoo.features import DeviceKindError
from tiny_network import Tiny

pytestmark = pytest.mark.usefixtures("compared_here")


def test_a_network_is_tuned_for_a_card_and_runs_there(
    card: PaperCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, out = torch.randn(16, 24), tmp_path / "out"
    for number, fault in ((9, "illegal access"), (11, "too much memory")):  # after the untuned tasks
        card.break_program(number, fault)
    options: dict[str, Any] = {"device": "cuda", "checkpoint": "tilenet-t4", "out": out}
    result = hub.tune(Tiny().eval(), (x,), trials=9, **options)
    report = json.loads((out / "report.json").read_text())
    assert (report["device"], report["machine"]["device"]) == ("cuda:0", "t4")
    assert set(report["latency"]) == {"untuned", "tuned"}
    assert all(check["ok"] and check["checked"] for check in report["output_check"].values())
    run = report["runs"]["tuned"]
    assert (run["trials"], run["failed"], run["model"]) == (9, 2, "tilenet-t4@1.1.0")
    assert all(task["untuned"] > 0 for task in run["tasks"]), "by dlight's schedules"
    assert 0 < report["libraries"]["tuned"]["tuned"] <= report["libraries"]["tuned"]["functions"] == 3
    # The stand-in's clock counts blocks and warps: nine trials may find nothing faster, and never use what is slower.
    assert 0 < result.latency["tuned"] <= 1.001 * result.latency["untuned"]
    assert (result.library.name, (out / "database" / "database_tuning_record.json").is_file()) == ("Tiny.cuda", True)

    # The same command with more trials goes on; another process calls the network, as its CPU's.
    result = hub.tune(Tiny().eval(), (x,), trials=12, **options)
    assert result.report["runs"]["tuned"]["trials"] == 12
    with torch.no_grad():
        right = Tiny().eval()(x)
    ours = result.load()(x)
    for output, expected in zip(ours, right, strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)
    arrays = hub.load_tuned(out)(x.numpy())
    np.testing.assert_allclose(arrays[1], right[1].numpy(), rtol=1e-4, atol=1e-4)

    # Tensors on the card stay there; the stand-in's are the CPU's.
    with monkeypatch.context() as patch:
        patch.setattr(tuned, "_is_card_tensor", lambda _: True)
        patch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
        for output, expected in zip(hub.load_tuned(out)(x), right, strict=True):
            torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)

    PaperCard.install(tmp_path / "other", monkeypatch, "NVIDIA L4", 89)
    with pytest.raises(DeviceError, match=r"is for sm_75, and this card is sm_89"):
        hub.load_tuned(out)
    card.becomes("lost")
    monkeypatch.setenv("TCHUB_LIBCUDA", str(card.folder / "libcuda.so"))
    with pytest.raises(DeviceError, match="cannot be run on a card"):
        hub.load_tuned(out)


@pytest.mark.parametrize(("checkpoint", "device", "kind"), [("tcl-epyc", "cuda", "gpu"), ("tcl-t4", "cpu", "cpu")])
def test_a_checkpoint_of_the_other_kind_is_refused_before_anything_is_compiled(
    card: PaperCard, tmp_path: Path, checkpoint: str, device: str, kind: str
) -> None:
    with pytest.raises(DeviceKindError, match=f"the programs are for .*, a {kind}") as caught:
        hub.tune(Tiny(), (torch.randn(16, 24),), device=device, checkpoint=checkpoint, out=tmp_path / "out")
    assert f"choose a checkpoint of a {kind} family" in (caught.value.remedy or "")
    assert card.compiled == 0


def test_runtimes_of_the_cpu_are_no_rivals_of_a_card(card: PaperCard, tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="openvino would run on the CPU"):
        hub.tune(Tiny(), (torch.randn(16, 24),), device="cuda", compare=["torch.compile", "openvino"], out=tmp_path)


def test_pytorch_runs_beside_a_tuned_network_on_the_same_card(
    card: PaperCard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"device": "cuda", "checkpoint": "none", "trials": 3, "search": SMALL_SEARCH}
    options |= {"compare": ["torch.compile"], "out": tmp_path / "out"}
    network, x = torch.nn.Linear(24, 8).eval(), torch.randn(16, 24)
    result = hub.tune(network, (x,), **options)
    assert set(result.report["not_compared"]) == {"pytorch", "torch.compile"}
    assert "this PyTorch cannot use the card" in result.report["not_compared"]["pytorch"]
    # This machine's PyTorch in the card's stead, by the same calls; its compiler takes seconds.
    monkeypatch.setattr(torch, "compile", lambda module, mode: module)
    monkeypatch.setattr(remote_latency, "_torch_device", lambda _: torch.device("cpu"))
    result = hub.tune(network, (x,), **options)
    assert result.report["not_compared"] == {}
    assert set(result.latency) == {"untuned", "tuned", "pytorch", "torch.compile"}
    assert min(result.latency.values()) > 0


def test_a_network_is_tuned_in_float16_on_tensor_cores(card: PaperCard, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 64)).eval()
    x = torch.randn(32, 64)
    options: dict[str, Any] = {"device": "cuda", "checkpoint": "tilenet-t4", "precision": "float16"}
    result = hub.tune(network, (x,), trials=6, search=SMALL_SEARCH, out=tmp_path / "out", **options)
    run = result.report["runs"]["tuned"]
    assert (run["trials"], run["failed"], result.report["settings"]["precision"]) == (6, 0, "float16")
    check = result.report["output_check"]["tuned"]
    assert check["ok"]
    assert check["max_abs_diff"] > 1e-5, "float32 would be nearer"
    assert "wmma_sync_16x16x16_f16f16f32" in (tmp_path / "out/database/database_tuning_record.json").read_text()
    assert result.load()(x).dtype == torch.float32


def test_float16_is_refused_on_a_card_without_tensor_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PaperCard.install(tmp_path, monkeypatch, "GeForce GTX 1080", 61)
    monkeypatch.setattr("tchub.hub.device.cuda_card.check_compiler", lambda *_: None)  # no nvcc of today has it
    with pytest.raises(TuningError, match=r"GeForce GTX 1080 \(sm_61\) has no tensor cores") as caught:
        hub.tune(Tiny(), (torch.randn(16, 24),), device="cuda", precision="float16", out=tmp_path / "out")
    assert "float32" in (caught.value.remedy or "")

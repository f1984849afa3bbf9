"""`tchub run` with arrays of files, and `tchub quickstart` from pull to tune."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import prepare
from tchub.hub import api
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.cli import main
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.frontend.signature import Signature
from tchub.hub.networks.library import build_library
from tchub.hub.networks.manifest import write_manifest
from tchub.hub.registry.errors import UnknownCheckpointError
from tchub.hub.search.errors import InterruptedRunError
from tchub.hub.tuning import tune as tune_module


class Scaled(torch.nn.Module):
    """Two inputs by name; two outputs by name, one of them of integers."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"double": x * 2, "next": ids + 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    exported = torch.export.export(Scaled(), (torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)))
    mod = prepare(import_exported(exported, "scaled"))
    build_library(mod, tvm.target.Target("llvm"), None, folder / "scaled.so")
    write_manifest(
        folder, "scaled", [(folder / "scaled.so", Signature.of_exported(exported), mod)], {"kind": "llvm"}, 1
    )
    latency = {"tuned": {"median": 1e-3}, "pytorch": {"median": 2e-3}}
    (folder / "report.json").write_text(json.dumps({"latency": latency}))
    return folder


X, IDS = np.arange(6, dtype="float32").reshape(2, 3), np.arange(4)


@pytest.mark.parametrize("arrays", [((), {"x": X, "ids": IDS}), ((X, IDS), {})])
def test_run_takes_arrays_by_name_or_in_order_and_writes_them_by_name(tmp_path, folder, arrays, capsys):
    np.savez(tmp_path / "x.npz", *arrays[0], **arrays[1])
    assert main(["run", str(folder), "--input", str(tmp_path / "x.npz"), "--out", str(tmp_path / "y.npz")]) == 0
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_array_equal(outputs["double"], 2 * X)
        np.testing.assert_array_equal(outputs["next"], IDS + 1)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["output", "shape", "type", "min", "mean", "max"],
        ["double", "2x3", "float32", "0", "5", "10"],
        ["next", "4", "int64", "1", "2.5", "4"],
    ]


def test_run_without_a_file_makes_inputs_up_and_says_so(folder, capsys):
    assert main(["run", str(folder), "--json"]) == 0
    printed = capsys.readouterr()
    double, following = json.loads(printed.out)["outputs"]
    assert (double["shape"], double["dtype"], double["not_finite"]) == ([2, 3], "float32", 0)
    assert double["min"] < double["mean"] < double["max"]
    assert (following["min"], following["max"]) == (1.0, 1.0), "integers may be indices: they are 0"
    assert "made up" in printed.err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "the input ids is missing"),
        ({"x": X, "ids": IDS, "mask": X}, "the input mask is unexpected"),
        ({"x": X.astype("float64"), "ids": IDS}, "x is float64[2, 3], expected a tensor float32[2, 3]"),
        ({"x": np.array([None]), "ids": IDS}, "cannot be read: Object arrays cannot be loaded"),
    ],
)
def test_wrong_arrays_are_refused_with_a_remedy(tmp_path, folder, arrays, message, capsys):
    np.savez(tmp_path / "x.npz", **arrays)
    for options in ([], ["--bench"]):
        assert main(["run", str(folder), "--input", str(tmp_path / "x.npz"), *options]) == 1
        error = " ".join(capsys.readouterr().err.split())
        assert message in error
        assert "remedy: " in error


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 broken", b"\x93NUMPY broken", b"no array"])
def test_a_damaged_file_is_refused(tmp_path, folder, data, capsys):
    (tmp_path / "x.npz").write_bytes(data)
    assert main(["run", str(folder), "--input", str(tmp_path / "x.npz")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_bench_stands_beside_the_report(folder, capsys):
    assert main(["run", "--bench", str(folder), "--seconds", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "scaled, 1 thread"
    assert [line.split("  ")[0].strip() for line in lines[2:]] == ["now", "report: tuned", "report: PyTorch, eager"]
    assert [line.split()[-1] for line in lines[3:]] == ["1.000", "2.000"]
    assert main(["run", "--bench", str(folder), "--seconds", "0.01", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (now,) = result["now"]
    assert len(now["repeats"]) >= 5
    assert 0 < now["first_quartile"] <= now["median"] <= now["third_quartile"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces pull, adapt and tune; returns what was called, in order."""
    calls: list[str] = []

    def pull() -> Any:
        calls.append("pull")
        return SimpleNamespace(entry=SimpleNamespace(id="tcl-epyc@1.0.0"), source="bundled")

    def adapt(name: str, workload: str, **options: Any) -> Any:
        calls.append(f"adapt {name} on {workload}")
        guard = SimpleNamespace(base=0.7, adapted=0.8, reason="the held-out pairwise accuracy rose")
        judgement = SimpleNamespace(guard=guard)
        return SimpleNamespace(adapted=True, name="tcl-epyc+local", version="1.0.0", judgement=judgement)

    def tune(network: str, checkpoint: str, **options: Any) -> Any:
        calls.append(f"tune {network} with {checkpoint}, {options['trials']} trials")
        check = {"ok": True, "max_abs_diff": 1e-6}
        latency = {"untuned": 70e-3, "tuned": 2e-3, "pytorch": 3e-3}
        return SimpleNamespace(report={"output_check": {"tuned": check}}, latency=latency, folder=options["out"])

    monkeypatch.setattr(api, "pull", pull)
    monkeypatch.setattr(api, "locate", lambda name: calls.append(f"locate {name}"))
    monkeypatch.setattr(adapt_module, "adapt", adapt)
    monkeypatch.setattr(tune_module, "tune", tune)
    return calls


def test_the_steps_are_pull_adapt_and_tune_and_a_second_call_does_not_adapt_again(steps, tmp_path, run):
    _, result = run.json("quickstart", "--out", tmp_path / "qs", "--trials", 9)
    tuning = "tune bert-tiny with tcl-epyc+local@1.0.0, 9 trials"
    assert steps == ["pull", "adapt tcl-epyc@1.0.0 on bert-tiny", tuning]
    assert (result["untuned"], result["tuned"], result["output_equal"]) == (70e-3, 2e-3, True)
    assert (result["pairwise_before"], result["pairwise_after"]) == (0.7, 0.8)
    steps.clear()
    assert run.json("quickstart", "--out", tmp_path / "qs")[1]["adapted"]
    assert [call.split()[0] for call in steps] == ["locate", "tune"]


def test_what_another_home_adapted_is_adapted_again(steps, tmp_path, run, monkeypatch):
    def missing(name: str) -> Any:
        raise UnknownCheckpointError("nobody adapted it", remedy="adapt it", name=name, nearest=[])

    run("quickstart", "--out", tmp_path / "qs")
    steps.clear()
    monkeypatch.setattr(api, "locate", missing)
    assert run("quickstart", "--out", tmp_path / "qs")[0] == 0
    assert [call.split()[0] for call in steps] == ["pull", "adapt", "tune"]


def test_an_interrupted_adaptation_leaves_nothing_to_take_up(steps, tmp_path, run, monkeypatch):
    def stop(*args: Any, **options: Any) -> Any:
        raise InterruptedRunError("interrupted", remedy="run the same command again")

    monkeypatch.setattr(adapt_module, "adapt", stop)
    assert run("quickstart", "--out", tmp_path / "qs")[0] == 130
    assert not (tmp_path / "qs" / "quickstart.json").exists()

"""`tchub run` and `tchub bench`: a tuned network from the shell."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tchub.hub.cli import main
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.frontend.signature import Signature
from tchub.hub.networks.library import build_library
from tchub.hub.networks.manifest import write_manifest
from tchub.hub.networks.transform.prepare import prepare


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

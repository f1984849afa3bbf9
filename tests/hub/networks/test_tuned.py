"""A tuned network is called as the original is: by threads, with PyTorch or without, and with nothing else."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import prepare
from tchub import hub
from tchub.hub.device.errors import DeviceError
from tchub.hub.networks.errors import NetworkInputError, NetworkLoadError
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.frontend.signature import Signature
from tchub.hub.networks.library import build_library
from tchub.hub.networks.manifest import write_manifest
from tchub.hub.networks.tuned import TunedNetwork, load_tuned

TARGET = {"kind": "llvm"}


class Small(torch.nn.Module):
    """Keywords, several inputs of several types, and a nested result with a constant and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor([2.0, 3.0, 4.0, 5.0]))

    def forward(self, x: torch.Tensor, pair: Any, *, mask: torch.Tensor, flag: bool) -> dict[str, Any]:
        y = torch.where(mask, self.layer(x) * self.scale, 0.0)
        return {"y": y, "ids": (pair[0] + 1, pair[1]), "any": mask.logical_not(), "scale": self.scale, "flag": flag}


class Sum(torch.nn.Module):
    """For several sets of shapes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def _arguments(seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, generator=generator)
    return (x, (torch.arange(3), x + 1)), {"mask": x > 0, "flag": True}


def _compile(folder: Path, module: torch.nn.Module, *calls: tuple[tuple[Any, ...], dict[str, Any]]) -> Path:
    """An output folder with an untuned library for each call."""
    libraries = []
    for i, (args, kwargs) in enumerate(calls):
        exported = torch.export.export(module.eval(), args, kwargs)
        mod = prepare(import_exported(exported, "small"))
        build_library(mod, tvm.target.Target("llvm"), None, folder / f"small-{i}.so")
        libraries.append((folder / f"small-{i}.so", Signature.of_exported(exported), mod))
    write_manifest(folder, "small", libraries, TARGET, threads=1)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return _compile(tmp_path_factory.mktemp("small"), Small(), _arguments())


@pytest.fixture
def tuned(folder: Path) -> TunedNetwork:
    return load_tuned(folder)


@torch.no_grad()
def test_it_takes_and_returns_what_the_module_does(tuned: TunedNetwork) -> None:
    (x, pair), kwargs = _arguments(1)
    expected = Small()(x, pair, **kwargs)
    for result in (tuned(x, pair, **kwargs), tuned(pair=pair, x=x, **kwargs)):
        assert list(result) == list(expected)
        torch.testing.assert_close(result, expected)
    assert repr(tuned).startswith("TunedNetwork(small: (x: float32[3, 4], pair: (int64[3], float32[3, 4]), mask=bool[3")


def test_tensors_are_not_copied(tuned: TunedNetwork) -> None:
    args, kwargs = _arguments()
    same = tuned(*args, **kwargs)["ids"][1]  # the network returns this input as it is
    assert same.data_ptr() == args[1][1].data_ptr()


def test_numpy_in_gives_numpy_out(tuned: TunedNetwork) -> None:
    (x, (ids, z)), kwargs = _arguments()
    arrays = tuned(np.asfortranarray(x.numpy()), (ids.numpy(), z.numpy()), mask=kwargs["mask"].numpy(), flag=True)
    for name, value in tuned(x, (ids, z), **kwargs).items():
        if isinstance(value, torch.Tensor):
            assert isinstance(arrays[name], np.ndarray)
            np.testing.assert_allclose(arrays[name], value.numpy(), rtol=1e-6)


def test_strided_misaligned_and_differentiable_tensors_are_taken(tuned: TunedNetwork) -> None:
    (x, pair), kwargs = _arguments()
    expected = tuned(x, pair, **kwargs)["y"]
    strided, misaligned = x.T.contiguous().T, torch.empty(13)[1:].reshape(3, 4).copy_(x)
    for form in (strided, misaligned, x.clone().requires_grad_()):
        result = tuned(form, pair, **kwargs)["y"]
        torch.testing.assert_close(result, expected)
        assert not result.requires_grad


def test_a_result_stays_as_it_is_when_the_network_is_called_again(tuned: TunedNetwork) -> None:
    first, second = _arguments(1), _arguments(2)
    kept = tuned(*first[0], **first[1])
    before = kept["y"].clone()
    other = tuned(*second[0], **second[1])
    assert torch.equal(kept["y"], before)
    assert not torch.equal(other["y"], before)
    kept["scale"].zero_()  # a buffer of the library: nobody else may see the change
    assert torch.equal(tuned(*first[0], **first[1])["scale"], Small().scale)


def test_eight_threads_may_call_it_at_once(tuned: TunedNetwork) -> None:
    module = Small()

    @torch.no_grad()
    def call(seed: int) -> bool:
        args, kwargs = _arguments(seed)
        expected = module(*args, **kwargs)["y"]
        return all(torch.allclose(tuned(*args, **kwargs)["y"], expected, atol=1e-6) for _ in range(50))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(call, range(16)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 4)}, r"x is float32\[2, 4\], expected a tensor float32\[3, 4\]"),
        ({"x": torch.zeros(3, 4, device="meta")}, "x is on meta.*expected a dense tensor on the CPU"),
        ({"x": torch.zeros(3, 4).to_sparse()}, "x is on cpu, in the layout torch.sparse_coo"),
        ({"flag": False}, "flag is False, expected True"),
    ],
)
def test_wrong_arguments_are_refused(tuned: TunedNetwork, change: dict[str, Any], message: str) -> None:
    (x, pair), kwargs = _arguments()
    with pytest.raises(NetworkInputError, match=message) as refused:
        tuned(**({"x": x, "pair": pair} | kwargs | change))
    assert refused.value.remedy


def test_the_shape_of_the_arguments_chooses_the_library(tmp_path: Path) -> None:
    sizes = [((torch.zeros(size, 2),), {}) for size in (1, 8)]
    tuned = load_tuned(_compile(tmp_path, Sum(), *sizes))
    for size in (8, 1):
        assert torch.equal(tuned(torch.ones(size, 2)), torch.full((size, 2), 2.0))
    message = r"2 sets of shapes.*is float32\[3, 2\], expected a tensor float32\[1, 2\]; .*\[8, 2"
    with pytest.raises(NetworkInputError, match=message):
        tuned(torch.ones(3, 2))


def test_a_network_that_was_tuned_again_is_loaded_anew(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    networks = [torch.nn.Linear(4, 3).eval() for _ in range(2)]
    loaded = [load_tuned(_compile(tmp_path, network, ((x,), {}))) for network in networks]
    for network, tuned in zip(networks, loaded, strict=True):
        torch.testing.assert_close(tuned(x), network(x))


def test_half_precision_is_cast_at_the_border(tmp_path: Path) -> None:
    """The library computes in float32; the caller sees bfloat16."""
    half, single = (torch.export.export(Sum(), (torch.zeros(2, dtype=t),)) for t in (torch.bfloat16, torch.float32))
    mod = prepare(import_exported(single, "sum"))
    build_library(mod, tvm.target.Target("llvm"), None, tmp_path / "sum.so")
    write_manifest(tmp_path, "sum", [(tmp_path / "sum.so", Signature.of_exported(half), mod)], TARGET, threads=1)
    tuned, x = load_tuned(tmp_path), torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    torch.testing.assert_close(tuned(x), x + 1)
    assert str(tuned(tvm.runtime.from_dlpack(x).numpy()).dtype) == "bfloat16"


def test_it_runs_where_there_is_no_pytorch_on_its_threads(tmp_path: Path, folder: Path) -> None:
    copy = copytree(folder, tmp_path / "copy")
    _changed(copy, threads=2)
    code = f"""
import os, sys
sys.modules["torch"] = None  # importing it fails
import numpy as np
from tchub import hub
tuned = hub.load_tuned({str(copy)!r})
x = np.ones((3, 4), "float32")
out = tuned(x, (np.arange(3), x), mask=x > 0, flag=True)
import tvm
threads = tvm.get_global_func("runtime.NumThreads")()
print(sorted(out), out["ids"][0].tolist(), threads, len(os.sched_getaffinity(0)))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    cores = len(os.sched_getaffinity(0))  # TVM would bind the caller to one
    assert done.stdout.strip() == f"['any', 'flag', 'ids', 'scale', 'y'] [1, 2, 3] 2 {cores}"


def _changed(folder: Path, library: dict[str, Any] | None = None, **facts: Any) -> None:
    path = folder / "network.json"
    manifest = json.loads(path.read_text())
    manifest["libraries"][0] |= library or {}
    path.write_text(json.dumps(manifest | facts))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "network.json").unlink(), "holds no tuned network"),
        (lambda f: (f / "network.json").write_text("{"), "cannot be read"),
        (lambda f: _changed(f, format=9), "it has the format 9"),
        (lambda f: _changed(f, threads="2"), r"Expected `int`, got `str` - at `\$\.threads`"),
        (lambda f: _changed(f, tvm="0.1"), r"compiled with TVM 0\.1"),
        (lambda f: _changed(f, {"signature": {}}), r"`inputs` - at `\$\.libraries\[0\]\.signature`"),
        (lambda f: _changed(f, {"constants": [99]}), "not as many outputs"),
        (lambda f: _changed(f, {"file": "../small.so"}), "outside its folder"),
        (lambda f: (f / "small-0.so").unlink(), r"small-0\.so is missing"),
        (lambda f: (f / "small-0.so").write_bytes(b"x"), "checksum differs"),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused_before_its_code_runs(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, message: str
) -> None:
    copy = copytree(folder, tmp_path / "copy")
    damage(copy)
    monkeypatch.setattr(tvm.runtime, "load_module", None)  # to call it would be a TypeError
    with pytest.raises(NetworkLoadError, match=message) as refused:
        load_tuned(copy)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("target", "lacking", "message"),
    [
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, [], "the target is for riscv64"),
        ({"kind": "rocm"}, [], "no kind of program that this CPU runs"),
        (TARGET, ["avx512f"], "for a CPU with avx512f, which this CPU lacks"),
    ],
)
def test_a_library_for_another_cpu_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: Any, target: dict[str, Any], lacking: list[str], message: str
) -> None:
    copy = copytree(folder, tmp_path / "copy")
    _changed(copy, target=target)
    if lacking:
        monkeypatch.setattr("tchub.hub.networks.tuned.missing_extensions", lambda *_: lacking)
    with pytest.raises(DeviceError, match=message):
        load_tuned(copy)


def test_latency_is_what_the_report_says(tmp_path: Path, folder: Path) -> None:
    copy = copytree(folder, tmp_path / "copy")
    assert load_tuned(copy).latency == {}
    report = copy / "report.json"
    report.write_text(json.dumps({"latency": {"tuned": {"median": 1e-3}, "pytorch": {"median": 2e-3}}}))
    assert hub.load_tuned(copy).latency == {"tuned": 1e-3, "pytorch": 2e-3}
    report.write_text("[]")
    with pytest.raises(NetworkLoadError, match=r"report\.json cannot be read"):
        _ = load_tuned(copy).latency


class Sorted(torch.nn.Module):
    """Of the input that the page about other machines reads; TVM sorts in a library of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Conv2d(3, 4, 3, stride=8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).flatten(1).sort(dim=1).values


@pytest.mark.slow
def test_the_program_of_the_page_runs_it_without_python(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "remote.md").read_text()
    (program,), (commands,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("cpp", "sh"))
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    compiled = _compile(tmp_path, Sorted(), ((x,), {})) / "small-0.so"
    (tmp_path / "out").mkdir()
    compiled.rename(tmp_path / "out" / "Sequential.so")
    (tmp_path / "program.cc").write_text(program)
    (tmp_path / "x.bin").write_bytes(x.numpy().tobytes())
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, env=os.environ | {"PATH": path}, check=True)
    y = np.fromfile(tmp_path / "y.bin", np.float32)
    torch.testing.assert_close(torch.from_numpy(y)[None], Sorted()(x).detach())

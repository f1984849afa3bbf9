"""CUDA bundles without a GPU: what nvcc made is right for the GPU, and a driver of paper gets the right calls."""

import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_kit import CPU_FACTS, TASK_ID, Machine, bare_machine, lines_of, toy_task
from paper_card import PaperCard, driver_library
from tchub import hub
from tchub.hub.bundle.archive import Bundle, BundleError, BundleProgram, write_parts
from tchub.hub.bundle.build import BuildSettings, build_bundle, resolve_target
from tchub.hub.bundle.ingest import ingest
from tchub.hub.bundle.rounds import BundleDevice
from tchub.hub.device.onsite.cuda import CudaDriver, CudaProgram
from tchub.hub.device.onsite.files import ProgramError
from tchub.hub.device.onsite.runs import random_values
from tchub.hub.networks.tasks import make_task
from tchub.hub.networks.workloads import operator_module
from tchub.hub.search.errors import TuningError
from tchub.zoo.corpus import Corpus
from tchub.zoo.corpus.workloads import OperatorSpec
from tiny_network import Tiny

ARGS = [[[96], "float32"], [[96], "float32"]]
# out = 3 * in + in, through a buffer between two kernels.
PLAN: dict[str, Any] = {
    "workspaces": [96 * 4],
    "launches": [
        {"kernel": "scale", "grid": [1, 1, 1], "block": [1, 1, 1], "shared": 0,
         "params": [["workspace", 0], ["arg", 0], ["int32", 96], ["float32", 3.0]]},
        {"kernel": "add", "grid": [4, 3, 1], "block": [2, 2, 2], "shared": 65536,
         "params": [["arg", 1], ["workspace", 0], ["arg", 0]]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module", name="driver_library")
def paper_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(driver_library(tmp_path_factory.mktemp("cuda")))


def test_kernels_get_their_arguments_in_their_order(driver_library: str) -> None:
    arrays = random_values(ARGS)
    program = CudaProgram(CudaDriver(driver_library), b"image", PLAN, arrays)
    assert program.run(5) == pytest.approx(2 * 0.25e-3), "two launches a run, a quarter of a millisecond each"
    unchanged, out = program.outputs()
    np.testing.assert_array_equal(unchanged, arrays[0])
    np.testing.assert_allclose(out, 4 * arrays[0], rtol=1e-6)
    program.close()


def test_a_refused_program_leaves_the_context_whole_and_a_broken_context_is_said(driver_library: str) -> None:
    driver = CudaDriver(driver_library)
    absent = {"workspaces": [], "launches": [PLAN["launches"][0] | {"kernel": "missing"}]}
    with pytest.raises(ProgramError, match=r"cuModuleGetFunction: CUDA_ERROR_NOT_FOUND \(500\)") as caught:
        CudaProgram(driver, b"image", absent, random_values(ARGS))
    assert not caught.value.fatal
    program = CudaProgram(driver, b"illegal access", PLAN, random_values(ARGS))
    with pytest.raises(ProgramError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        program.run(1)
    assert caught.value.fatal


def _toy(folder: Path, images: list[bytes], arch: str = "sm_90") -> Path:
    programs = []
    for number, image in enumerate(images):
        (folder / f"{number}.bin").write_bytes(image)
        programs.append(BundleProgram(TASK_ID, f"{number:016x}", "random", "[[], []]", folder / f"{number}.bin", PLAN))
    facts = CPU_FACTS | {"device_kind": "cuda", "code": "cubin", "arch": arch, "target": {"kind": "cuda", "arch": arch}}
    (path,) = write_parts(folder / "bundle.zip", facts, {TASK_ID: toy_task(ARGS)}, programs)
    return path


def test_a_program_that_breaks_the_gpu_costs_only_itself(driver_library: str, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "site", "--driver", driver_library)
    lines = machine.measure(_toy(tmp_path, [b"a", b"illegal access", b"b"]), tmp_path / "results.jsonl")
    assert [line["error"] for line in lines] == [None, "run", None]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in lines[1]["message"]
    (before, _), (after, _) = lines[0]["fingerprint"]
    assert after == pytest.approx(4 * before, rel=1e-6)
    (machine_line,) = lines_of(tmp_path / "results.jsonl", "machine")
    assert {k: machine_line[k] for k in ("gpu", "arch", "cuda_driver", "multiprocessors")} == {
        "gpu": "NVIDIA Paper", "arch": "sm_90", "cuda_driver": "13.0", "multiprocessors": 132,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "driver", "message"),
    [
        ("sm_80", None, "the bundle is for sm_80, this GPU is sm_90"),
        ("sm_90", "/nowhere/libcuda.so.1", "the CUDA driver cannot be loaded"),
    ],
)
def test_a_machine_with_another_gpu_or_without_a_driver_says_so(
    driver_library: str, tmp_path: Path, arch: str, driver: str | None, message: str
) -> None:
    machine = bare_machine(tmp_path / "site", "--driver", driver or driver_library)
    done = machine.run(_toy(tmp_path, [b"a"], arch), tmp_path / "results.jsonl")
    assert done.returncode == 3
    assert message in done.stderr


@pytest.fixture(scope="module")
def real_bundle(tmp_path_factory: pytest.TempPathFactory, small_task: Any) -> Path:
    """Programs of a matrix product and of a softmax, which takes several kernels, compiled by nvcc for the H200."""
    softmax = make_task(operator_module(OperatorSpec("rows", "softmax", {"rows": 24, "columns": 48})), "rows")
    path = tmp_path_factory.mktemp("bundle") / "bundle.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tchub.hub.bundle.build.tasks_of", lambda *_, **__: [small_task, softmax])
        patch.setenv("TCHUB_HOME", str(path.parent / "home"))
        patch.setenv("TCHUB_NVCC", str(shutil.which("nvcc")))
        result = build_bundle("toy", resolve_target("h200", code="ptx"), path, BuildSettings(3, seed=1))
    assert (result.tasks, result.programs, result.failed) == (2, 3, 0)
    return path


@pytest.mark.nvcc
def test_the_ptx_is_right_for_the_gpu_and_for_the_manifest(real_bundle: Path, tmp_path: Path) -> None:
    bundle = Bundle(real_bundle)
    assert (bundle.manifest["code"], bundle.manifest["arch"]) == ("ptx", "sm_90")
    tasks = {task["task_id"]: task for task in bundle.manifest["tasks"]}
    for program in bundle.manifest["programs"]:
        text = zipfile.ZipFile(real_bundle).read(program["file"]).decode()
        (tmp_path / "kernel.ptx").write_text(text)
        command = ["ptxas", "-arch=sm_90", "-o", str(tmp_path / "kernel.cubin"), str(tmp_path / "kernel.ptx")]
        subprocess.run(command, check=True)
        entries = re.findall(r"\.visible \.entry (\w+)\(([^)]*)\)([^{]*){", text)
        launches = program["plan"]["launches"]
        assert {name for name, _, _ in entries} == {launch["kernel"] for launch in launches}
        by_name = {name: (re.findall(r"\.param \.(\w+)", params), rest) for name, params, rest in entries}
        written = {index for launch in launches for kind, index in launch["params"] if kind == "arg"}
        assert written == set(range(len(tasks[program["task_id"]]["args"]))), "every argument reaches a kernel"
        for launch in launches:
            types, directives = by_name[launch["kernel"]]
            assert types == ["u64"] * len(launch["params"])
            limit = re.search(r"\.maxntid (\d+)(?:, (\d+), (\d+))?", directives)
            assert limit is None or np.prod([int(n or 1) for n in limit.groups()]) == np.prod(launch["block"])


@pytest.mark.nvcc
def test_a_cuda_bundle_becomes_a_corpus(real_bundle: Path, driver_library: str, tmp_path: Path) -> None:
    machine = bare_machine(tmp_path / "site", "--driver", driver_library)
    machine.environment["FAKE_CUDA_LOG"] = str(tmp_path / "launches")
    machine.measure(real_bundle, tmp_path / "results.jsonl", "--repeats", "1")
    bundle = Bundle(real_bundle)
    launched = set((tmp_path / "launches").read_text().splitlines())
    planned = [launch for p in bundle.manifest["programs"] for launch in p["plan"]["launches"]]
    assert launched == {" ".join(map(str, [x["kernel"], *x["grid"], *x["block"], x["shared"]])) for x in planned}
    ingest(tmp_path / "results.jsonl", bundle, "h200", tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    assert (corpus.meta["device"], corpus.meta["cpu_model"], corpus.meta["programs"]) == ("h200", "NVIDIA Paper", 3)
    assert all(program.valid for program in corpus.iter_programs())


@pytest.fixture
def elsewhere(card: PaperCard, tmp_path: Path) -> Machine:
    """A machine with the card and without TVM; this one compiles for it."""
    return bare_machine(tmp_path / "site", "--driver", str(card.folder / "libcuda.so"))


def rounds_of(command: list[Any], run: Any, elsewhere: Machine, folder: Path) -> tuple[list[int], dict[str, Any]]:
    """Give a command and measure its bundles until it ends; return programs of each round, and what it printed."""
    counts = []
    while "bundle" in (printed := run.json(*command)[1]):
        path = folder / f"round-{len(counts) + 1}.zip"
        assert printed["bundle"] == str(path)
        counts.append(printed["programs"])
        # Given again before the results are there, it waits, and makes nothing anew.
        before = path.read_bytes()
        assert run.json(*command) == (0, {"bundle": str(path), "programs": None})
        assert path.read_bytes() == before
        elsewhere.measure(path, path.with_suffix(".jsonl"), "--repeats", "2")
    return counts, printed


def test_a_network_is_tuned_in_rounds(
    card: PaperCard, elsewhere: Machine, tmp_path: Path, pt2: Path, run: Any, without_charts: None
) -> None:
    card.break_program(2, "illegal access")
    card.break_program(3, '"; this is no program')
    folder, out = tmp_path / "rounds", tmp_path / "out"
    command = ["tune", pt2, "--device", "t4", "--checkpoint", "tilenet-t4", "--out", out]
    command += ["--bundle", folder, "--per-round", 6, "--trials", 12]
    counts, report = rounds_of(command, run, elsewhere, folder)
    assert counts == [6, 6]
    session = report["runs"]["tuned"]
    assert (report["device"], report["machine"]["device"]) == ("bundle:t4", "t4")
    assert (session["trials"], session["failed"], report["status"]) == (12, 2, "done")
    assert "was not run" in report["latency_note"]
    results = [line for number in (1, 2) for line in lines_of(folder / f"round-{number}.jsonl")]
    assert [line["error"] for line in results if line["error"]] == ["run"]
    programs = [one for path in sorted(folder.glob("*.zip")) for one in Bundle(path).manifest["programs"]]
    assert len({(one["task_id"], one["key"]) for one in programs}) == len(programs) == len(results) + 1 == 12
    fastest = min(latency for line in results for latency in line["latencies"])
    assert min(task["best"] for task in session["tasks"]) == pytest.approx(fastest, rel=0.5)
    x = torch.randn(16, 24)
    with torch.no_grad():
        right = Tiny().eval()(x)
    for output, expected in zip(hub.load_tuned(out)(x), right, strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


def test_a_bundle_takes_programs_that_were_compiled_before(
    card: PaperCard, tmp_path: Path, small_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tchub.hub.bundle.build.tasks_of", lambda *_, **__: [small_task])
    programs = []
    for path in (tmp_path / "one.zip", tmp_path / "two.zip"):
        build_bundle("toy", resolve_target("t4"), path, BuildSettings(1))
        programs.append(Bundle(path).manifest["programs"])
        assert card.compiled == 1
    assert programs[0] == programs[1], "images by their sha256, and launch plans"


def test_a_checkpoint_is_adapted_in_rounds(
    elsewhere: Machine, tmp_path: Path, pt2: Path, run: Any, learnt_briefly: None
) -> None:
    command = ["adapt", "tcl-t4", "--device", "t4", "--workload", pt2, "--out", tmp_path / "adapt", "--budget", "12"]
    command += ["--per-task", "9", "--rounds", "1", "--bundle", tmp_path / "rounds"]
    counts, result = rounds_of(command, run, elsewhere, tmp_path / "rounds")
    assert sum(counts) == 12
    assert (result["device"], result["measured"], result["reused"], result["failed"]) == ("t4", 12, 12, 0)


def test_rounds_are_for_gpus_by_name_and_compare_nothing(card: PaperCard, tmp_path: Path, run: Any, pt2: Path) -> None:
    for name in ("graviton2", "mi50"):
        with pytest.raises(BundleError, match=f"rounds of bundles are for NVIDIA GPUs, and {name} is none"):
            BundleDevice.of(name, tmp_path)
    code, _, err = run("tune", pt2, "--device", "t4", "--bundle", tmp_path, "--threads", "2")
    assert (code, "leave out --threads" in err) == (2, True)
    with pytest.raises(TuningError, match="nothing can be compared"):
        hub.tune(pt2, device=BundleDevice.of("t4", tmp_path / "rounds"), compare=["stock"], out=tmp_path / "out")

"""`tune` from a network to a checked, timed library; what it takes; its command. The network is tiny."""

import errno
import json
import os
import signal
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_tuning import SMALL_SEARCH, FakeBuilder, FakeRunner, programs_in
from real_checkpoint import NAME, VERSION, use_real
from tchub import hub
from tchub.hub.cli import main
from tchub.hub.networks.errors import LatencyError, NetworkImportError, OutputMismatchError
from tchub.hub.networks.latency import Comparison, Latency
from tchub.hub.networks.output_check import OutputCheck
from tchub.hub.records.store import RunStateError
from tchub.hub.search.errors import InterruptedRunError, TuningError
from tchub.hub.search.measuring import WorkerMeasure
from tchub.hub.search.settings import SearchSettings
from tchub.hub.tuning import tune as tune_module
from tchub.hub.tuning.config import TuneConfig
from tchub.zoo import files
from tchub.zoo.files import StorageError
from tiny_network import Tiny


@pytest.fixture
def fake_pair(compared_here: None) -> dict[str, Any]:
    """A builder and a runner that compile nothing, for the search; the library is compiled for real."""
    target = {"kind": "llvm", "opt-level": 0}
    return {"builder": FakeBuilder(), "runner": FakeRunner(), "search": SMALL_SEARCH, "target": target}


@pytest.fixture
def tune(tmp_path: Path, pt2: Path, fake_pair: dict[str, Any]) -> Any:
    """Tunes the tiny network in a folder by four trials."""
    return partial(hub.tune, pt2, **({"checkpoint": "none", "trials": 4, "out": tmp_path} | fake_pair))


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Comparison:
    """What is compared in the end, in place of a comparison."""
    latencies = {name: Latency((1e-3, 2e-3)) for name in ("tuned", "pytorch")}
    result = Comparison({"tuned": OutputCheck(True, True, 0.0, 1.0, 0.0)}, latencies)
    monkeypatch.setattr(tune_module, "compare", lambda *_, **__: result)
    return result


def test_tune_gives_a_checked_library_and_a_report_with_both_curves(
    tmp_path: Path, pt2: Path, fake_pair: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_real(monkeypatch, tmp_path)
    monkeypatch.setattr(torch, "compile", lambda module, mode: module)  # the rival that needs no other library
    out = tmp_path / "out"
    result = hub.tune(pt2, checkpoint="tcl-epyc", trials=10, out=out, compare=["stock", "torch.compile"], **fake_pair)
    report = json.loads((out / "report.json").read_text())
    assert set(result.latency) == {"untuned", "tuned", "stock", "pytorch", "torch.compile"}
    assert all(seconds > 0 for seconds in result.latency.values())
    assert all(check["verdict"] == "equal" for check in report["output_check"].values())
    assert report["runs"]["tuned"]["model"] == f"{NAME}@{VERSION}"
    assert report["runs"]["stock"]["model"] == "stock"
    assert report["runs"]["tuned"]["trials"] == report["runs"]["stock"]["trials"]
    assert all(run["curve"] for run in report["runs"].values())
    assert {"tiny.so", "report.html", "records.sqlite", "database", "stock"} <= {p.name for p in out.iterdir()}
    assert result.library == out / "tiny.so"
    x = torch.randn(16, 24)
    with torch.no_grad():
        torch.testing.assert_close(result.load()(x), Tiny().eval()(x), rtol=1e-4, atol=1e-4)


def test_a_module_is_tuned_as_it_stands_in_python(
    tmp_path: Path, fake_pair: dict[str, Any], comparison: Comparison
) -> None:
    module, x = Tiny().train(), torch.randn(2, 24)
    result = hub.tune(module, (x,), checkpoint="none", trials=4, out=tmp_path, **fake_pair)
    assert module.training
    assert result.library == tmp_path / "Tiny.so"
    tuned = hub.load_tuned(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), Tiny().eval()(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(NetworkImportError, match="example inputs go with") as refused:
        hub.tune("bert-tiny", "none", out=tmp_path)  # pyright: ignore[reportArgumentType]
    assert "checkpoint=" in str(refused.value.remedy)


@pytest.mark.parametrize("engine", ["decisions", "dqn"])
def test_a_fast_run_measures_no_program_and_checks_the_network_once(
    engine: str, tmp_path: Path, fake_pair: dict[str, Any], comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Any] = []

    def compare(network: Any, libraries: Any, **options: Any) -> Comparison:
        compared.append(list(libraries()))
        return comparison

    monkeypatch.setattr(tune_module, "compare", compare)
    use_real(monkeypatch, tmp_path)
    module, x = Tiny().eval(), torch.randn(2, 24)
    options = fake_pair | {"search": SearchSettings(engine=engine)}
    result = hub.tune(module, (x,), mode="fast", checkpoint="tcl-epyc", out=tmp_path / "out", **options)
    assert compared == [["tuned"]]
    assert result.report["runs"]["tuned"]["trials"] == 0
    assert result.report["libraries"]["tuned"]["tuned"] > 0
    with torch.no_grad():
        torch.testing.assert_close(result.load()(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("compared_here", "shared_zygote")
def test_programs_are_timed_beside_all_the_weights_of_their_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its latencies compare with those of networks alike in that alone. Workers compile its kernels, too."""
    import tvm

    settings: list[int] = []
    here, build = list[str](), tvm.tirx.build

    def compiled(mod: Any, **options: Any) -> Any:
        here.extend(var.name_hint for var in mod.functions)
        return build(mod, **options)

    monkeypatch.setattr(tvm.tirx, "build", compiled)
    monkeypatch.setattr(WorkerMeasure, "of_network", lambda _, weights: settings.append(weights))
    module = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(2))).eval()
    hub.tune(module, (torch.randn(4, 512),), checkpoint="none", trials=2, threads=1, out=tmp_path, search=SMALL_SEARCH)
    with sqlite3.connect(tmp_path / "records.sqlite") as store:
        ((facts,),) = store.execute("SELECT facts FROM scopes")
    assert settings == [json.loads(facts)["weights"]] == [2 << 20], "two times 1 MiB"
    # Of the untuned library and the tuned one; what permutes weights runs once, here.
    assert [name for name in here if not name.endswith("weight_prepack")] == ["tchub_nothing"] * 2


def test_a_dynamic_shape_is_tuned_at_each_of_the_sizes_given(
    tmp_path: Path, fake_pair: dict[str, Any], comparison: Comparison
) -> None:
    batch = torch.export.Dim("batch", min=1, max=16)
    exported = torch.export.export(Tiny().eval(), (torch.randn(2, 24),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, tmp_path / "net.pt2")
    out = tmp_path / "out"
    result = hub.tune(tmp_path / "net.pt2", shapes={"batch": [1, 3]}, checkpoint="none", trials=4, out=out, **fake_pair)
    assert [variant["network"] for variant in result.report["variants"]] == ["net-batch1", "net-batch3"]
    assert {"net-batch1.so", "net-batch3.so"} <= {path.name for path in out.iterdir()}
    tuned = result.load()
    for x in (torch.randn(1, 24), torch.randn(3, 24)):
        with torch.no_grad():
            torch.testing.assert_close(tuned(x), exported.module()(x), rtol=1e-4, atol=1e-4)


def test_ctrl_c_leaves_a_report_and_the_same_call_goes_on(tmp_path: Path, tune: Any, comparison: Comparison) -> None:
    kill = FakeRunner(after=lambda n: os.kill(os.getpid(), signal.SIGINT) if n == 6 else None)
    with pytest.raises(InterruptedRunError, match="are kept in") as stopped:
        tune(trials=8, runner=kill)
    assert stopped.value.exit_code == 130
    assert "same command" in str(stopped.value.remedy)
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "interrupted"
    done = stopped.value.fields["measured"]
    result = tune(trials=8)
    assert result.report["status"] == "done"
    assert result.report["runs"]["tuned"]["trials"] == 8
    assert len(programs_in(tmp_path, "tune")) == 8 > done
    records = (tmp_path / "database" / "database_tuning_record.json").read_text().splitlines()
    assert len(records) == 8, "TVM's own database opens the folder"
    with pytest.raises(RunStateError, match="another model"):
        tune(checkpoint="stock", trials=8)


def test_ctrl_c_during_the_first_build_is_an_interruption_and_no_failure(tune: Any, monkeypatch: Any) -> None:
    def interrupted(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        raise LatencyError("the process that compares was interrupted too")

    monkeypatch.setattr(tune_module, "first_compare", lambda *_: interrupted)
    with pytest.raises(InterruptedRunError, match="before anything was measured"):
        tune()


def test_a_wrong_output_is_an_error_and_the_report_is_there(tune: Any, tmp_path: Path, comparison: Comparison) -> None:
    comparison.checks["tuned"] = OutputCheck(False, True, 7.0, 1.0, 99.0)
    with pytest.raises(OutputMismatchError, match="differs from the original by 7"):
        tune()
    assert json.loads((tmp_path / "report.json").read_text())["output_check"]["tuned"]["ok"] is False
    assert not (tmp_path / "network.json").exists()  # nobody should load it


def test_a_network_that_does_not_run_is_an_error_and_the_report_is_there(
    tune: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise LatencyError("the reference took more than 600 s")

    monkeypatch.setattr(tune_module, "compare", crash)
    with pytest.raises(LatencyError, match="600 s"):
        tune()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["runs"]["tuned"]["trials"] == 4
    assert "600 s" in report["latency_note"]
    assert Path(report["libraries"]["tuned"]["path"]).is_file()


def test_a_network_that_does_not_compile_in_the_end_is_an_error_and_what_was_measured_is_kept(
    tune: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise RuntimeError("fused_matmul: the worker process died")

    monkeypatch.setattr(tune_module, "build_library", crash)
    with pytest.raises(TuningError, match="fused_matmul: the worker") as caught:
        tune()
    assert "what was measured is kept" in str(caught.value.remedy)
    assert len(programs_in(tmp_path, "tune")) == 4


def test_a_full_disk_is_an_error_that_names_the_file(tune: Any, monkeypatch: Any) -> None:
    write = files.write_atomically

    def full(path: Path, data: Any) -> None:
        if path.parent.name == "database":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(StorageError, match=r"database cannot be written: No space left") as caught:
        tune()
    assert "free some disk space" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trials": 0}, "trials"),
        ({"threads": 0}, "threads"),
        ({"builder": object()}, "builder"),
        ({"mode": "fastest"}, "mode"),
        ({"mode": "fast", "compare": ["stock"]}, "compare"),
        ({"layout": "nchw16c"}, "layout='nchw16c'"),
        ({"compare": ["tensorrt"]}, "unknown runtime 'tensorrt'"),
    ],
)
def test_arguments_without_a_meaning_are_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TuningError, match=message) as caught:
        hub.tune("bert-tiny", **({"checkpoint": "none", "out": tmp_path} | wrong))
    assert caught.value.remedy


def test_the_command_prints_json_on_stdout_alone_and_one_line_that_says_why_this_checkpoint(
    tmp_path: Path, pt2: Path, fake_pair: dict[str, Any], comparison: Comparison, monkeypatch: Any, capsys: Any
) -> None:
    use_real(monkeypatch, tmp_path)
    plain, pair = tune_module.tune, {name: fake_pair[name] for name in ("builder", "runner", "target")}
    monkeypatch.setattr(tune_module, "tune", lambda *args, **options: plain(*args, **(options | pair)))
    arguments = ["tune", str(pt2), "--trials", "4", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["network"] == "tiny"
    assert "report.html" in captured.err
    (line,) = (line for line in captured.err.splitlines() if line.startswith(f"{NAME}@{VERSION}"))
    assert line.endswith("(why no other: tchub pull --dry-run)")
    assert main(arguments) == 0
    assert "tuned" in capsys.readouterr().out


def test_a_runtime_that_is_not_installed_is_refused_before_anything_is_measured(monkeypatch: Any) -> None:
    monkeypatch.setattr("tchub.hub.tuning.config.find_spec", lambda name: None)
    with pytest.raises(TuningError, match="openvino is not installed") as caught:
        TuneConfig(compare=["openvino"])
    assert "pip install" in str(caught.value.remedy)

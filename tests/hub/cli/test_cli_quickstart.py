"""`tchub quickstart`: its steps in order, its memory between calls, its output. The steps themselves are stand-ins."""

from types import SimpleNamespace
from typing import Any

import pytest
from tchub.hub import api
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.registry.errors import UnknownCheckpointError
from tchub.hub.search.errors import InterruptedRunError
from tchub.hub.tuning import tune as tune_module


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

"""A contribution that was stopped anywhere goes on there, and what changed is done again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contribute_kit import FACTS, FakeMeasurer, fake_machine, outcomes, settings
from tchub.hub.contributing.errors import ContributionStateError
from tchub.hub.contributing.state import FORMAT, STATE_FILE, State, locked
from tchub.hub.contributing.step import Done, Walk
from tchub.hub.contributing.walk import NAMES, STEPS, contribute


class Stopped(Exception):
    """Stands for a kill."""


pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("name", NAMES)
def test_stopped_in_a_step_it_goes_on_with_that_step(mine: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = STEPS[NAMES.index(name)]
    before = (mine / "checkpoint" / "model.safetensors").read_bytes()

    def stop(walk: Walk) -> Done:
        run(walk)
        raise Stopped  # all is written but the record, as a kill at the worst moment leaves it

    run = step.run
    with monkeypatch.context() as patch:
        patch.setattr(step, "run", stop)
        with pytest.raises(Stopped):
            contribute(settings(mine), again_from=name)
    passed = outcomes(contribute(settings(mine)))
    place = NAMES.index(name)
    assert [passed[earlier] for earlier in NAMES[:place]] == ["kept"] * place
    assert passed[name] == "done"
    if place > NAMES.index("collect"):  # a collection that ran out of new programs looks for some again
        assert (mine / "checkpoint" / "model.safetensors").read_bytes() == before
    assert set(outcomes(contribute(settings(mine))).values()) == {"kept"}


def test_a_collection_that_is_stopped_pays_for_no_program_twice(tmp_path: Path, monkeypatch: Any) -> None:
    def stop_at_four(count: int) -> None:
        if count == 4:
            raise Stopped

    small = settings(tmp_path / "mine", networks=("dense-small", "dense-row"), programs=16)
    first, second = FakeMeasurer(stop_at_four), FakeMeasurer()
    fake_machine(monkeypatch, first)
    with pytest.raises(Stopped):
        contribute(small)
    fake_machine(monkeypatch, second)
    collected = [step for step in STEPS if step.name in ("preflight", "device", "facts", "collect")]
    passed = contribute(small, steps=collected)
    assert outcomes(passed)["facts"] == "kept"
    assert first.paid + second.paid == passed[-1].facts["programs"]


@pytest.mark.parametrize(
    ("change", "done"),
    [
        ({"facts": replace(FACTS, limits=("Another.",))}, "facts"),
        ({"seed": 1}, "collect"),
        ({"recipe": "other"}, "train"),
    ],
)
def test_what_depends_on_a_changed_input_is_done_again_and_said(mine: Path, change: dict[str, Any], done: str) -> None:
    if "recipe" in change:
        other = mine.parent / "other.toml"
        other.write_text(Path(str(settings(mine).recipe)).read_text().replace("epochs = 2", "epochs = 3"))
        change = {"recipe": str(other)}
    notes: list[str] = []
    passed = outcomes(contribute(settings(mine, **change), note=notes.append))
    assert next(name for name in NAMES if passed[name] == "done") == done
    assert passed["check"] == "done"
    assert any(f"{done}:" in note and "changed)" in note for note in notes), notes
    if done == "facts":
        assert passed["train"] == "kept", "a limit changes the card, not the weights"


def test_a_file_that_was_touched_is_made_again(mine: Path) -> None:
    card = mine / "checkpoint" / "README.md"
    before = card.read_text()
    card.write_text(before.replace("Ada", "Eve"))
    notes: list[str] = []
    passed = outcomes(contribute(settings(mine), note=notes.append))
    assert passed["evaluate"] == "kept"
    assert passed["card"] == "done"
    assert card.read_text() == before
    assert any("checkpoint/README.md changed" in note for note in notes)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99, "steps": {}}', '{"format": 1, "steps": {"train": 7}}'])
def test_a_damaged_or_newer_state_is_refused_and_nothing_is_touched(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with pytest.raises(ContributionStateError) as caught:
        contribute(settings(tmp_path))
    assert caught.value.remedy
    assert (tmp_path / STATE_FILE).read_text() == text


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ContributionStateError, match="another process"):
        contribute(settings(tmp_path))


HANGING = """
import sys, time
from pathlib import Path
from tchub.hub.contributing.settings import Settings
from tchub.hub.contributing.step import Done
from tchub.hub.contributing.walk import contribute

class Quick:
    name, title = "quick", "ends"
    def inputs(self, walk): return {"a": 1}
    def run(self, walk):
        (walk.folder / "quick.txt").write_text("made once")
        return Done({"b": 2}, [walk.folder / "quick.txt"])

class Hanging:
    name, title = "hanging", "hangs"
    def inputs(self, walk): return {"b": walk.found["quick"]["b"]}
    def run(self, walk):
        (walk.folder / "begun").write_text("")
        time.sleep(60)

contribute(Settings(Path(sys.argv[1])), steps=(Quick(), Hanging()))
"""


def test_a_killed_process_leaves_what_was_finished(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGING, str(tmp_path)]) as process:
        end = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    state = State.open(tmp_path)
    assert list(state.records) == ["quick"]
    assert state.changed("quick", {"a": 1}) == ()
    assert state.changed("hanging", {"b": 2}) is None
    with locked(tmp_path):
        assert json.loads((tmp_path / STATE_FILE).read_text())["format"] == FORMAT

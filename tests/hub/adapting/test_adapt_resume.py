"""A run that is killed, whenever that is, goes on: nothing is measured twice, and the result is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapt_kills import KillAt, KilledError
from adapt_kit import Lab, run, toolbox
from tchub.hub.adaptation.tools import Base
from tchub.hub.registry import Registry

SMALL = {"budget": 60, "programs_per_task": 24, "rounds": 2}
MEASURING = ("hold-out", "first batch", "round 1 of 2", "round 2 of 2")
LEARNING = ("fine-tuning", "few-shot: cross-validate", "few-shot: learn")


@pytest.fixture(scope="module")
def whole(base: Base, tmp_path_factory: pytest.TempPathFactory):
    """A run that nothing disturbs, and what it measured."""
    work, lab = tmp_path_factory.mktemp("whole"), Lab()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCHUB_HOME", str(work / "home"))
        return run(base, lab, work, **SMALL), lab.measured


def check_resumed(base: Base, work: Path, first: Lab, whole) -> None:
    result, measured = whole
    rest = Lab()
    resumed = run(base, rest, work, **SMALL)
    assert not set(first.measured) & set(rest.measured), "nothing is paid for twice"
    assert sorted(first.measured + rest.measured) == sorted(measured)
    assert resumed.guard == result.guard
    assert [(p.task_id, p.key) for p in resumed.picks] == [(p.task_id, p.key) for p in result.picks]
    assert (resumed.name, resumed.version) == (result.name, result.version)


@pytest.mark.parametrize(
    ("phase", "step"), [("tasks", 0), ("candidates", 2), *((m, 2) for m in MEASURING), *((one, 0) for one in LEARNING)]
)
def test_a_run_killed_in_any_phase_goes_on(base: Base, tmp_path: Path, whole, phase: str, step: int):
    lab = Lab()
    with pytest.raises(KilledError, match=phase):
        run(base, lab, tmp_path, progress=KillAt(phase, step), **SMALL)
    check_resumed(base, tmp_path, lab, whole)


def test_a_run_killed_before_it_looked_at_anything_goes_on(base: Base, tmp_path: Path, whole):
    def killed(name: str | None) -> Base:
        raise KilledError("prepare")

    lab = Lab()
    with pytest.raises(KilledError):
        run(base, lab, tmp_path, tools=toolbox(base, lab, find_base=killed), **SMALL)
    check_resumed(base, tmp_path, lab, whole)


def test_a_run_killed_while_it_stores_leaves_no_half_checkpoint(base: Base, tmp_path: Path, whole, home: Path):
    def killed(name, save, *_, **__):
        save(home / "checkpoints" / name / ".half", "1.0.0")
        raise KilledError("store")

    assert whole[0].adapted, "there is something to store"
    lab = Lab()
    with pytest.raises(KilledError):
        run(base, lab, tmp_path, tools=toolbox(base, lab, register=killed), **SMALL)
    check_resumed(base, tmp_path, lab, whole)
    assert Registry.default().resolve("tcl-epyc+local").entry.version == "1.0.0"

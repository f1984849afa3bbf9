"""A run that is killed while a method learns from corpora goes on, to the same weights, and trains no epoch twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from adapt_kills import Epochs, KillAt, KilledError
from adapt_kit import QUICK, Lab, corpus_at, run, toolbox
from tchub.hub.adaptation import learn as adapt_learn
from tchub.hub.adaptation.result import AdaptResult
from tchub.hub.adaptation.settings import AdaptProgress
from tchub.hub.adaptation.tools import Base
from tchub.zoo.adapt import continual_method, multi_task_method
from tchub.zoo.adapt.continual import ContinualConfig
from tchub.zoo.adapt.kept_models import model_mark
from tchub.zoo.adapt.knowledge_base import DistillSettings

# Two tasks of sixteen labels each: enough for three folds of cross-validation.
LITTLE = {"budget": 40, "programs_per_task": 30, "fine_tune": replace(QUICK, epochs=2, blind_epochs=2)}
DISTILLING = ContinualConfig(learn_epochs=2, distill_epochs=2, fisher_groups=2)
TOGETHER = {"epochs": 2, "learning_rate": 5e-3, "groups_per_batch": 4, "warmup_epochs": 0}


@dataclass(frozen=True)
class Ran:
    """What a run came to; `weights` is the mark of the learnt model, stored or not."""

    result: AdaptResult
    weights: str
    epochs: list[tuple[str, int]]


Adapts = Callable[..., Ran]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_at(tmp_path_factory.mktemp("corpora") / "xeon-corpus")


@pytest.fixture
def adapts(base: Base, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Adapts:
    """Adapts in a folder by a method, whose trainings are of few epochs and tell of each."""
    add_device, multi_task, adapt_model = (
        continual_method.add_device, multi_task_method.multi_task, adapt_learn.adapt_model
    )  # fmt: skip

    def adapt(method: str, work: Path, epochs: Epochs, progress: AdaptProgress | None = None) -> Ran:
        marks = []

        def together(start: Any, data: Any, sources: Any, config: Any, **options: Any) -> Any:
            told = partial(epochs, data.fingerprint())
            return multi_task(start, data, sources, replace(config, **TOGETHER), on_epoch=told, **options)

        def marked(*args: Any) -> Any:
            found = adapt_model(*args)
            marks.append(model_mark(found.model))
            return found

        monkeypatch.setattr(DistillSettings, "phases", lambda *args: DISTILLING)
        monkeypatch.setattr(continual_method, "add_device", partial(add_device, on_epoch=epochs))
        monkeypatch.setattr(multi_task_method, "multi_task", together)
        monkeypatch.setattr(adapt_learn, "adapt_model", marked)
        options = {"method": method, "sources": str(corpus), "progress": progress, **LITTLE}
        result = run(base, lab := Lab(), work, toolbox(base, lab, tasks=2), **options)
        return Ran(result, *marks, epochs.seen)

    return adapt


@pytest.fixture(scope="module")
def whole() -> dict[str, Ran]:
    """By method, a run that nothing disturbed."""
    return {}


def check_resumed(adapts: Adapts, whole: dict[str, Ran], method: str, work: Path, killed: Epochs) -> None:
    if method not in whole:
        whole[method] = adapts(method, work / "whole", Epochs())
    expected, resumed = whole[method], adapts(method, work / "killed", Epochs())
    assert resumed.result.guard == expected.result.guard
    assert resumed.result.learning == expected.result.learning
    assert resumed.weights == expected.weights
    assert sorted(killed.seen + resumed.epochs) == sorted(expected.epochs), "no epoch is trained twice"


@pytest.mark.parametrize(
    ("method", "step"),
    [
        ("continual", "start"),
        ("continual", "cross-validate"),
        ("continual", "learn"),
        ("multi-task", "cross-validate"),
        ("multi-task", "learn"),
    ],
)
def test_a_run_killed_when_a_step_of_a_method_begins_goes_on(
    adapts: Adapts, whole: dict[str, Ran], tmp_path: Path, method: str, step: str
):
    epochs = Epochs()
    with pytest.raises(KilledError, match=step):
        adapts(method, tmp_path / "killed", epochs, KillAt(f"{method}: {step}", 0))
    check_resumed(adapts, whole, method, tmp_path, epochs)


@pytest.mark.parametrize(("after", "phase"), [(1, "learn"), (2, "learn"), (3, "distill"), (4, "distill")])
def test_a_run_killed_while_a_corpus_is_learnt_or_distilled_goes_on(
    adapts: Adapts, whole: dict[str, Ran], tmp_path: Path, after: int, phase: str
):
    """After the first epoch of each phase, and between the last one and what comes next."""
    epochs = Epochs(after)
    with pytest.raises(KilledError, match=phase):
        adapts("continual", tmp_path / "killed", epochs)
    check_resumed(adapts, whole, "continual", tmp_path, epochs)


@pytest.mark.parametrize("after", [3, 7])
def test_a_run_killed_while_all_devices_are_learnt_together_goes_on(
    adapts: Adapts, whole: dict[str, Ran], tmp_path: Path, after: int
):
    """In the middle of the second fold of cross-validation, and of the last training."""
    epochs = Epochs(after)
    with pytest.raises(KilledError):
        adapts("multi-task", tmp_path / "killed", epochs)
    check_resumed(adapts, whole, "multi-task", tmp_path, epochs)
    assert len(whole["multi-task"].epochs) == 8, "three folds and the last training, two epochs each"

"""The methods by which an adaptation learns: what each stores, and that a killed run trains no epoch twice."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from adapt_kit import QUICK, Epochs, KillAt, KilledError, Lab, corpus_at, make_task, other_base, run
from tchub.hub.adaptation import learner as learner_module
from tchub.hub.adaptation.config import AdaptProgress
from tchub.hub.adaptation.result import AdaptResult
from tchub.hub.api import CheckpointChoice
from tchub.hub.registry import Registry
from tchub.zoo.adapt import method as ensemble
from tchub.zoo.adapt import multi_task
from tchub.zoo.adapt.continual import ContinualConfig, DistillConfig
from tchub.zoo.adapt.continual import device as continual_method
from tchub.zoo.adapt.method import model_digest
from tchub.zoo.models import Checkpoint, Ensemble
from tchub.zoo.trust import ClassTrust

# Two tasks of sixteen labels each: enough for three folds of cross-validation.
LITTLE = {"budget": 40, "per_task": 30, "fine_tune": replace(QUICK, epochs=2, blind_epochs=2)}
DISTILLING = ContinualConfig(learn_epochs=2, distill_epochs=2, fisher_groups=2)
TOGETHER = {"epochs": 3, "learning_rate": 5e-3, "groups_per_batch": 4, "warmup_epochs": 0}


def test_own_labels_of_a_class_restore_the_trust_in_it(tmp_path: Path, base: CheckpointChoice):
    unknown, known = ClassTrust.of([0.2] * 4), ClassTrust.of([0.9] * 4)
    trust = {"metaschedule/conv2d": unknown, "metaschedule/pool": unknown, "ansor/conv2d": known}
    checkpoint = replace(base.checkpoint, config=replace(base.checkpoint.config, trust=trust))
    result = run(replace(base, checkpoint=checkpoint), Lab(), tmp_path, rounds=3, budget=60)
    stored = Checkpoint.load(result.path).config
    assert stored.trusts("metaschedule", "conv2d")
    assert stored.trust["metaschedule/conv2d"].programs > 0
    assert not stored.trusts("metaschedule", "pool"), "nothing of it was measured"
    assert stored.trust["ansor/conv2d"] == known


def test_a_class_that_stays_untrusted_counts_for_neither_model(tmp_path: Path, base: CheckpointChoice):
    """Latencies without rhyme or reason: learnt or not, tuning gives all programs of the class one score."""
    checkpoint = replace(base.checkpoint, config=replace(base.checkpoint.config, trust={"ansor/pool": ClassTrust()}))
    lab = Lab(latency=lambda candidate: 1e-3 * (1 + zlib.crc32(candidate.key.encode()) % 97))
    result = run(replace(base, checkpoint=checkpoint), lab, tmp_path, budget=40)
    guard = result.judgement.guard
    assert (guard.base, guard.adapted, guard.gain, guard.decision) == (0.5, 0.5, 0.0, "kept")
    assert result.judgement.after == result.judgement.before


def test_a_model_of_context_is_judged_with_the_programs_learnt_from_and_both_figures_are_told(tmp_path: Path):
    result = run(other_base("tilenet", "nest-cpu", hidden=32, embedding=8), Lab(), tmp_path, budget=60, per_task=40)
    judgement, guard = result.judgement, result.judgement.guard
    assert judgement.zero_shot is not None
    before, after = (judgement.zero_shot[when]["pairwise"] for when in ("before", "after"))
    assert after > before, "the weights have learnt"
    assert guard.base == pytest.approx(judgement.before["pairwise"])
    assert guard.base > before, "context alone tells an untrained model much, and is not the weights' gain"
    assert judgement.context is not None
    assert judgement.context.after == pytest.approx(guard.adapted if result.adapted else guard.base)
    assert (judgement.context.fell, result.update) == (False, "auto")


def test_an_ensemble_is_stored_as_one_checkpoint_and_adapted_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ensemble, "LEAST_STEPS", 30)
    base = other_base("tlp", "tlp-cpu", hidden=32)
    result = run(base, Lab(), tmp_path / "one", method="ensemble", sampler="strata")
    assert (result.adapted, result.name, result.judgement.zero_shot) == (True, "tlp-epyc+local", None)
    stored = Checkpoint.load(result.path)
    assert (stored.config.arch, stored.config.lineage["method"]) == ("tlp-ensemble", "ensemble")
    assert isinstance(stored.model, Ensemble)
    assert stored.config.training["parameters"] == 2 * base.checkpoint.model.parameter_count()

    choice = CheckpointChoice(stored, Registry.default().resolve(result.name).entry)
    again = run(choice, Lab(), tmp_path / "two", budget=40, seed=3, method="auto", per_task=24)
    assert again.learning["method"] == "few-shot"
    assert "ensemble" in next(t["missing"] for t in again.learning["tried"] if t["method"] == "ensemble")


@dataclass(frozen=True)
class Ran:
    """The outcome of a run; `weights` is the digest of the learnt model, stored or not."""

    result: AdaptResult
    weights: str
    epochs: list[tuple[str, int]]


Adapts = Callable[..., Ran]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpora")
    return [str(corpus_at(folder / name, name, name)) for name in ("xeon", "graviton")]


@pytest.fixture
def adapts(base: CheckpointChoice, corpora: list[str], monkeypatch: pytest.MonkeyPatch) -> Adapts:
    """Adapts in a folder by a method, whose trainings are of few epochs and tell of each."""
    add_device, adapt_model = continual_method.add_device, learner_module.adapt_model
    train, loop = multi_task.multi_task, multi_task.train

    def adapt(method: str, work: Path, epochs: Epochs, progress: AdaptProgress | None = None, sources: int = 1) -> Ran:
        digests = []

        def together(start: Any, data: Any, others: Any, config: Any, **options: Any) -> Any:
            on_epoch = partial(epochs, data.fingerprint())
            monkeypatch.setattr(multi_task, "train", lambda *args: loop(*args, on_epoch))
            return train(start, data, others, replace(config, **TOGETHER), **options)

        def watched(*args: Any) -> Any:
            adapted = adapt_model(*args)
            digests.append(model_digest(adapted.model))
            return adapted

        monkeypatch.setattr(DistillConfig, "phases", lambda *args: DISTILLING)
        monkeypatch.setattr(continual_method, "add_device", partial(add_device, on_epoch=epochs))
        monkeypatch.setattr(multi_task, "multi_task", together)
        monkeypatch.setattr(learner_module, "adapt_model", watched)
        border = {"extract_tasks": lambda *_: [make_task(0), make_task(1)]}
        options = {"method": method, "sources": corpora[:sources], "progress": progress, **LITTLE}
        return Ran(run(base, Lab(), work, border, **options), *digests, epochs.seen)

    return adapt


def test_multi_task_learns_beside_corpora_and_stores_a_plain_checkpoint_that_names_them(
    adapts: Adapts, base: CheckpointChoice, tmp_path: Path
):
    result = adapts("multi-task", tmp_path, Epochs(), sources=2).result
    assert result.learning["method"] == "multi-task"
    learnt = sum(pick.part == "learn" and pick.error is None for pick in result.picks)
    assert result.learning["training"]["programs"] == [learnt, 30, 30], "the target's, then each corpus's"
    assert result.adapted, "the base is untrained"
    stored = Checkpoint.load(result.path)
    assert (stored.config.arch, stored.config.model) == ("tcl", base.checkpoint.config.model), "its own head alone"
    assert stored.config.lineage["method"] == "multi-task"
    assert stored.config.lineage["source_licences"] == {"xeon": "CC0-1.0", "graviton": "CC0-1.0"}
    assert Registry.default().resolve(result.name).entry.lineage["sources"] == ["xeon", "graviton"]


@pytest.fixture(scope="module")
def whole() -> dict[str, Ran]:
    """By method, a run that nothing disturbed."""
    return {}


# Method -> the steps at whose begin, and the epochs after which, a run is killed.
KILLS = {"continual": ("start", 3), "multi-task": (4, 10)}


@pytest.mark.parametrize(("method", "kill"), [(method, kill) for method, kills in KILLS.items() for kill in kills])
def test_a_run_killed_when_a_step_begins_or_after_an_epoch_goes_on(
    adapts: Adapts, whole: dict[str, Ran], tmp_path: Path, method: str, kill: str | int
):
    """While a corpus is distilled, in the second fold of cross-validation, and in the last training."""
    killed = Epochs(kill if isinstance(kill, int) else None)
    at = KillAt(f"{method}: {kill}", 0) if isinstance(kill, str) else None
    with pytest.raises(KilledError, match=kill if isinstance(kill, str) else None):
        adapts(method, tmp_path / "killed", killed, at)
    if method not in whole:
        whole[method] = adapts(method, tmp_path / "whole", Epochs())
    expected, resumed = whole[method], adapts(method, tmp_path / "killed", Epochs())
    assert resumed.result.judgement.guard == expected.result.judgement.guard
    assert resumed.result.learning == expected.result.learning
    assert resumed.weights == expected.weights
    assert sorted(killed.seen + resumed.epochs) == sorted(expected.epochs), "no epoch is trained twice"

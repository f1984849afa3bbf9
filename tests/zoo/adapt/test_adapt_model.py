"""Ways of adapting: cross-validation chooses among them, weights go part of the way, trained models are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.adapt import choose_method, fresh
from tchub.zoo.adapt.adapt_model import adapt_model, applying
from tchub.zoo.adapt.cross_validation import CrossValidated, cross_validate, make_folds, nested_gain
from tchub.zoo.adapt.errors import LabelError, AdaptError
from tchub.zoo.adapt.fine_tune import FineTuneConfig
from tchub.zoo.adapt.cross_validation import informed_scores
from tchub.zoo.adapt.kept_models import kept_model, model_digest
from tchub.zoo.adapt.method import FewShot, Learnt, Lesson, SourceData
from tchub.zoo.adapt.shrink import best_strength, blend
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, Progressive, create
from tchub.zoo.training import RankingDataset

QUICK = FineTuneConfig(epochs=6, patience=3, learning_rate=2e-3, head_learning_rate=4e-3, anchor=0.0, refit=False)
NET = {"hidden": 16, "embedding": 4, "layers": 2}
EPYC = get_device("epyc")


def make_data(tasks: int = 6, programs: int = 10, seed: int = 0, noise: float = 0.0) -> RankingDataset:
    """Programs whose log latency is a line in their features."""
    rng = np.random.default_rng(seed)
    n = tasks * programs
    features = rng.uniform(0.1, 1, (n, 1, 160)).astype(np.float32)
    cost = 3 * features[:, 0, 0] - 3 * features[:, 0, 3] + noise * rng.normal(size=n)
    group = np.repeat(np.arange(tasks), programs)
    names = tuple(f"task{i}" for i in range(tasks))
    return RankingDataset(features, np.exp(cost) * (1e-3 * (1 + group)), group, names, np.ones(tasks))


@pytest.fixture(scope="module")
def model() -> CostModel:
    torch.manual_seed(0)
    made = create("tilenet", **NET)
    made.prepare(torch.from_numpy(make_data().features))
    return made.eval()


def lesson_of(model: CostModel, data: RankingDataset, **more) -> Lesson:
    return Lesson(model, data, data.features, EPYC, config=QUICK, **more)


class Oracle:
    """A method for tests: it knows the answer, or the opposite of it."""

    near = False

    def __init__(self, name: str, sign: float) -> None:
        self.name, self.sign = name, sign

    def learn(self, start: CostModel, lesson: Lesson) -> Learnt:
        torch.manual_seed(1)
        made = create("tlp", width=160, hidden=8, hardware=False)
        sign = self.sign
        made.forward = lambda x: sign * (x[:, 0, 3] - x[:, 0, 0])  # pyright: ignore
        return Learnt(made, {})


def test_cross_validation_knows_a_good_way_of_learning_from_a_bad_one(model: CostModel):
    lesson = lesson_of(model, make_data())
    good, bad = (cross_validate(Oracle(n, s).learn, model, lesson, near=False) for n, s in (("good", 1), ("bad", -1)))
    assert good is not None
    assert bad is not None
    assert good.accuracy > 0.99
    assert bad.accuracy < 0.01
    assert good.base == bad.base
    assert nested_gain([good]) == pytest.approx(1 - good.base, abs=0.01)
    assert nested_gain([bad, good]) == nested_gain([good]), "the better one is chosen on every part of the labels"


def test_gains_are_over_the_model_to_beat_not_over_the_start(model: CostModel):
    """The start may be another source than the one that was named."""
    data = make_data()
    right = Oracle("right", 1).learn(model, lesson_of(model, data)).model
    judged = cross_validate(Oracle("good", 1).learn, model, lesson_of(model, data, to_beat=right), near=False)
    assert judged is not None
    assert judged.base > 0.99
    assert nested_gain([judged]) == pytest.approx(0, abs=0.01)


def test_the_choice_is_made_on_the_folds_that_do_not_count():
    """Each strength is right in one fold and wrong in the other: the luck of the better one is not a gain."""
    total = np.full((2, 3), 10.0)
    folds = np.array([[5.0, 5.0], [9.0, 2.0], [2.0, 8.0]])
    judged = CrossValidated((0.5, 1.0), np.repeat(folds[:, :, None], 3, axis=2), total)
    assert (judged.strength, judged.accuracy, judged.pairs) == (0.5, pytest.approx(0.55), 60)
    assert nested_gain([judged]) == pytest.approx(0.2 - 0.5)


def test_too_few_labels_tell_nothing(model: CostModel):
    assert cross_validate(FewShot().learn, model, lesson_of(model, make_data(tasks=2, programs=4)), near=True) is None


def test_folds_deal_each_task_out_evenly():
    data = make_data(tasks=3, programs=12)
    fold = make_folds(data, 0)
    for members in data.members:
        assert np.bincount(fold[members]).tolist() == [4, 4, 4]
    assert make_folds(make_data(programs=5), 0).max() == 1, "few labels make two folds"


def test_programs_of_the_held_fold_are_never_learnt_nor_context(model: CostModel):
    seen: list[set[float]] = []

    def watch(start: CostModel, lesson: Lesson) -> Learnt:
        seen.append(set(lesson.data.latency.tolist()))
        return Learnt(start, {})

    data = make_data()
    cross_validate(watch, model, lesson_of(model, data), near=False)
    assert len(seen) == 3
    counts = Counter(latency for part in seen for latency in part)
    assert set(counts.values()) == {2}, "every program is held once"
    assert len(counts) == len(data)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1))
def test_weights_lie_on_the_line_from_start_to_what_was_learnt(model: CostModel, strength: float):
    torch.manual_seed(5)
    other = create("tilenet", **NET)
    mixed = blend(model, other, strength)
    for name, weight in mixed.state_dict().items():
        a, b = model.state_dict()[name], other.state_dict()[name]
        torch.testing.assert_close(weight, a + strength * (b - a), atol=1e-6, rtol=1e-5)


def test_models_of_other_sizes_have_no_line_between_them(model: CostModel):
    with pytest.raises(ValueError, match="one architecture"):
        blend(model, create("tilenet", **NET | {"hidden": 8}), 0.5)


def test_of_equal_strengths_the_smallest_is_taken():
    assert best_strength([(0.25, 0.7), (0.5, 0.8), (0.75, 0.8), (1.0, 0.6)]) == 0.5


def test_auto_takes_what_ranks_best_and_says_what_it_tried(model: CostModel, monkeypatch):
    monkeypatch.setattr(fresh, "LEAST_STEPS", 20)
    found = adapt_model("auto", lesson_of(model, make_data(noise=0.3)))
    by_name = {tried.method: tried for tried in found.tried}
    assert set(by_name) == {"few-shot", "committee", "continual", "multi-task"}
    assert "--sources" in (by_name["multi-task"].missing or "")
    best = max((by_name[n].accuracy or 0.0, n) for n in ("few-shot", "committee", "continual"))
    assert by_name[found.method].accuracy == best[0]
    assert found.method in found.reason
    assert found.learnt_gain is not None
    assert found.learnt_gain < best[0] - (by_name["few-shot"].base or 0.0), "the luck of the best is not in it"


def test_a_best_method_that_is_no_better_than_the_base_is_said_to_be_none(model: CostModel, monkeypatch):
    alike = CrossValidated((1.0,), np.full((2, 2, 1), 3.0), np.full((2, 1), 4.0))
    monkeypatch.setattr(choose_method, "cross_validate", lambda *_, **__: alike)
    monkeypatch.setattr(choose_method, "METHODS", {"few-shot": choose_method.METHODS["few-shot"]})
    found = adapt_model("auto", lesson_of(model, make_data()))
    assert found.reason.endswith("base 0.750, few-shot 0.750; few-shot is best, but no better than the base")


def test_with_labels_too_few_to_compare_auto_assumes_least(model: CostModel):
    found = adapt_model("auto", lesson_of(model, make_data(tasks=2, programs=4)))
    assert (found.method, found.strength, found.learnt_gain) == ("few-shot", 1.0, None)


def test_continual_learns_a_column_and_leaves_the_base_alone(model: CostModel):
    found = adapt_model("continual", lesson_of(model, make_data()))
    assert isinstance(found.model, Progressive)
    assert found.model.config.as_dict()["column"]
    for name, weight in found.model.kb.state_dict().items():
        torch.testing.assert_close(weight, model.state_dict()[name], rtol=0, atol=0)
    before = informed_scores(model, make_data(seed=1).features, make_data(seed=1).group, make_data().take(np.arange(0)))
    assert np.isfinite(before).all()


def source(name: str, device: str, seed: int) -> SourceData:
    return SourceData(name, get_device(device), make_data(tasks=4, programs=8, seed=seed))


def test_continual_learns_the_sources_first_and_keeps_them_for_a_second_run(model: CostModel, tmp_path, monkeypatch):
    from tchub.zoo.adapt import continual_method
    from tchub.zoo.adapt.continual import ContinualConfig

    taught: list[str] = []
    real, short = continual_method.add_device, ContinualConfig(learn_epochs=1, distill_epochs=1, fisher_groups=4)

    def counted(*args, **options):
        taught.append(options["folder"].name)
        return real(*args, **options)

    monkeypatch.setattr(continual_method, "add_device", counted)
    monkeypatch.setattr(continual_method.DistillConfig, "phases", lambda *args: short)
    lesson = lesson_of(
        model, make_data(), sources=(source("a", "xeon", 1), source("b", "graviton", 2)), folder=tmp_path
    )
    first = adapt_model("continual", lesson)
    assert sorted(name.split("-")[1] for name in taught) == ["a", "b"]
    assert sorted(first.facts["sources"]) == ["a", "b"]
    again = adapt_model("continual", lesson)
    assert len(taught) == 2, "nothing is taught twice"
    assert model_digest(again.model) == model_digest(first.model)


def test_multi_task_without_corpora_says_what_it_lacks(model: CostModel):
    with pytest.raises(AdaptError, match="--sources") as caught:
        applying("multi-task", model, 0)
    assert caught.value.remedy
    assert applying("multi-task", model, 1)[0][0].name == "multi-task"
    with pytest.raises(AdaptError, match="one after another"):
        applying("multi-task", Progressive.around(model), 1)


def test_labels_without_an_order_are_refused(model: CostModel):
    data = replace(make_data(), latency=np.full(60, 1e-3))
    for method in ("few-shot", "continual"):
        with pytest.raises(LabelError):
            adapt_model(method, lesson_of(model, data))


def test_a_kept_model_is_trained_once_and_anew_when_its_file_is_torn(model: CostModel, tmp_path):
    trained: list[int] = []

    def train():
        trained.append(1)
        return model, {"epochs": 3}

    first = kept_model(tmp_path, ("a",), train)
    second = kept_model(tmp_path, ("a",), train)
    assert len(trained) == 1
    assert model_digest(first[0]) == model_digest(second[0])
    assert second[1] == {"epochs": 3}
    kept_model(tmp_path, ("b",), train)
    assert len(trained) == 2, "other inputs are another training"
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-9])
    kept_model(tmp_path, ("a",), train)
    assert len(trained) == 3
    kept_model(tmp_path, ("quick",), train, least_seconds=60)
    kept_model(tmp_path, ("quick",), train, least_seconds=60)
    assert len(trained) == 5, "what takes no time is not worth the room"
    assert kept_model(None, ("a",), train)[0] is model

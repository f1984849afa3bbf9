"""The methods, the choice among them, and that cross-validation judges by labels that it has not learnt."""

from collections import Counter

import numpy as np
import pytest
import torch
from method_kit import NET, line_data, make_data, small, tiny_tilenet, training_set
from tchub.zoo.adapt import adapt_model as adapt_model_module
from tchub.zoo.adapt import method as ensemble
from tchub.zoo.adapt.adapt_model import CrossValidation, adapt_model, applying, blend, cross_validate, nested_gain
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.adapt.method import TrainedModel, TrainingSet
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, ProgressiveNetwork, create


@pytest.fixture(scope="module")
def model() -> CostModel:
    return tiny_tilenet()


def test_auto_takes_what_ranks_best_and_lists_what_it_tried(model: CostModel, monkeypatch):
    monkeypatch.setattr(ensemble, "LEAST_STEPS", 20)
    result = adapt_model("auto", training_set(model, line_data(noise=0.3)))
    by_name = {tried.method: tried for tried in result.tried}
    assert set(by_name) == {"few-shot", "ensemble", "continual", "multi-task"}
    assert "--sources" in (by_name["multi-task"].missing or "")
    best = max((by_name[n].accuracy or 0.0, n) for n in ("few-shot", "ensemble", "continual"))
    assert by_name[result.method].accuracy == best[0]
    assert result.method in result.reason
    assert result.learnt_gain is not None
    assert result.learnt_gain < best[0] - (by_name["few-shot"].base or 0.0), "the luck of the best is not in it"


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_weights_lie_on_the_line_from_start_to_end(strength: float):
    start = tiny_tilenet()
    torch.manual_seed(5)
    end = create("tilenet", **NET)
    for name, weight in blend(start, end, strength).state_dict().items():
        a, b = start.state_dict()[name], end.state_dict()[name]
        torch.testing.assert_close(weight, a + strength * (b - a), atol=1e-6, rtol=1e-5)


def test_a_best_method_that_is_no_better_than_the_base_is_named_so(model: CostModel, monkeypatch):
    alike = CrossValidation((1.0,), np.full((2, 2, 1), 3.0), np.full((2, 1), 4.0))
    monkeypatch.setattr(adapt_model_module, "cross_validate", lambda *_, **__: alike)
    monkeypatch.setattr(adapt_model_module, "METHODS", {"few-shot": adapt_model_module.METHODS["few-shot"]})
    result = adapt_model("auto", training_set(model, line_data()))
    assert result.reason.endswith("base 0.750, few-shot 0.750; few-shot is best, but no better than the base")


def test_with_labels_too_few_to_compare_auto_assumes_least(model: CostModel):
    result = adapt_model("auto", training_set(model, line_data(tasks=2, programs=4)))
    assert (result.method, result.strength, result.learnt_gain) == ("few-shot", 1.0, None)


def test_what_a_method_lacks_is_named_with_a_remedy(model: CostModel):
    assert applying("multi-task", model, 1)[0][0].name == "multi-task"
    for name, base, sources, why in (
        ("telepathy", model, 0, "no method"),
        ("multi-task", model, 0, "--sources"),
        ("multi-task", ProgressiveNetwork.around(model), 1, "one after another"),
        ("few-shot", model, 2, "learns nothing from corpora"),
        ("ensemble", ProgressiveNetwork.around(model), 0, "knowledge base"),
    ):
        with pytest.raises(AdaptError, match=why) as caught:
            applying(name, base, sources)
        assert caught.value.remedy


DATA = make_data(tasks=6, programs=20)
# Half of each task.
UNSEEN = np.arange(len(DATA)) % 2 == 0


def oracle(sign: float) -> CostModel:
    """A model that knows the order of `line_data`, or its opposite."""
    model = create("tlp", width=160, hidden=8, hardware=False)
    model.forward = lambda x: sign * (x[:, 0, 3] - x[:, 0, 0])  # pyright: ignore
    return model


def validated(start: CostModel, result: CostModel, **more) -> CrossValidation:
    given = training_set(start, line_data(), **more)
    return cross_validate(lambda *_: TrainedModel(result, {}), start, given, near=False)


def test_a_good_method_is_told_from_a_bad_one(model: CostModel):
    good, bad = (validated(model, oracle(sign)) for sign in (1, -1))
    assert good.accuracy > 0.99
    assert bad.accuracy < 0.01
    assert good.base == bad.base
    assert nested_gain([good]) == pytest.approx(1 - good.base, abs=0.01)
    assert nested_gain([bad, good]) == nested_gain([good]), "the better one is chosen on every part of the labels"


def test_gains_are_over_the_incumbent_not_over_the_start(model: CostModel):
    """The start may be another source than the one that was named."""
    result = validated(model, oracle(1), incumbent=oracle(1))
    assert result.base > 0.99
    assert nested_gain([result]) == pytest.approx(0, abs=0.01)


def test_the_choice_is_made_on_the_folds_that_do_not_count():
    """Each strength is right in one fold and wrong in the other: the luck of the better one is not a gain."""
    folds = np.array([[5.0, 5.0], [9.0, 2.0], [2.0, 8.0]])
    result = CrossValidation((0.5, 1.0), np.repeat(folds[:, :, None], 3, axis=2), np.full((2, 3), 10.0))
    assert (result.strength, result.accuracy) == (0.5, pytest.approx(0.55))
    assert nested_gain([result]) == pytest.approx(0.2 - 0.5)
    tied = CrossValidation((0.25, 0.5), np.repeat(folds[[0, 1, 1], :, None], 3, axis=2), np.full((2, 3), 10.0))
    assert tied.strength == 0.25, "of equal strengths the smallest is taken"


def test_programs_of_the_held_fold_are_never_learnt(model: CostModel):
    seen: list[set[float]] = []

    def watch(start: CostModel, part: TrainingSet) -> TrainedModel:
        seen.append(set(part.data.latency.tolist()))
        return TrainedModel(start, {})

    data = line_data()
    cross_validate(watch, model, training_set(model, data), near=False)
    assert len(seen) == 3
    counts = Counter(latency for part in seen for latency in part)
    assert set(counts.values()) == {2}, "every program is held once"
    assert len(counts) == len(data)


def remembering(indices: np.ndarray) -> CostModel:
    """Knows the latency of some programs, and of any other nothing."""
    known = {float(DATA.features[i, 0, 0]): -float(np.log(DATA.latency[i])) for i in indices}
    model = small()
    model.forward = lambda x: torch.tensor([known.get(float(one[0, 0]), 0.0) for one in x])  # pyright: ignore
    return model


def learnt_before(unseen: np.ndarray | None) -> TrainingSet:
    """The base has learnt before what is not `UNSEEN`."""
    base = remembering(np.flatnonzero(~UNSEEN))
    return TrainingSet(base, DATA, DATA.features, get_device("epyc"), incumbent=base, unseen=unseen)


def test_programs_that_a_model_has_learnt_before_are_learnt_again_and_judge_nothing():
    """A method that learns the rest as well is far better than a base that knows none of it."""
    parts: list[int] = []

    def learn_all(start: CostModel, part: TrainingSet) -> TrainedModel:
        parts.append(len(part.data))
        return TrainedModel(remembering(np.arange(len(DATA))), {})

    given = (learnt_before(UNSEEN), learnt_before(None))
    judged, misled = (cross_validate(learn_all, one.base, one, near=False) for one in given)
    assert sum(parts[:3]) == sum(parts[3:]) == 2 * len(DATA), "all are learnt, whichever judge"
    assert judged.base == 0.5, "no better than a coin on what it has not learnt"
    assert nested_gain([judged]) == pytest.approx(0.5)
    assert misled.base > 0.5, "by memory"


@pytest.mark.parametrize("judges", [0, 6])
def test_too_few_judges_decide_nothing(judges: int):
    unjudged = learnt_before(np.arange(len(DATA)) < judges)
    assert cross_validate(lambda start, _: TrainedModel(start, {}), small(), unjudged, near=True) is None

"""The registry of methods and the choice among them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_kit import NET, line_data, tiny_tilenet, training_set
from tchub.zoo.adapt import adapt_model as adapt_model_module
from tchub.zoo.adapt import method as ensemble
from tchub.zoo.adapt.adapt_model import CrossValidation, adapt_model, applying, blend
from tchub.zoo.adapt.errors import AdaptError
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


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1))
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

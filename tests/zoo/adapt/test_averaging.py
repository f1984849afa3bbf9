"""Models between models: on the line from one to another, and Fisher-weighted means."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_kit import NET, tiny_tilenet
from tchub.zoo.adapt.adapt_model import blend
from tchub.zoo.adapt.continual import fisher_average
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.models import CostModel, ProgressiveNetwork, create


def mlp(seed: int) -> CostModel:
    torch.manual_seed(seed)
    return create("tenset-mlp", width=6, hidden=16)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1))
def test_weights_lie_on_the_line_from_start_to_end(strength: float):
    start = tiny_tilenet()
    torch.manual_seed(5)
    end = create("tilenet", **NET)
    for name, weight in blend(start, end, strength).state_dict().items():
        a, b = start.state_dict()[name], end.state_dict()[name]
        torch.testing.assert_close(weight, a + strength * (b - a), atol=1e-6, rtol=1e-5)


def test_what_a_model_depends_on_decides_an_average():
    a, b = mlp(0), mlp(1)
    ones = {n: torch.ones_like(p) for n, p in a.named_parameters()}
    for name, p in fisher_average([a, b], [ones, ones]).named_parameters():
        torch.testing.assert_close(p, (a.get_parameter(name) + b.get_parameter(name)) / 2)
    needed = ones | {"decoder.weight": torch.full_like(a.get_parameter("decoder.weight"), 1e9)}
    averaged = fisher_average([a, b], [needed, ones]).get_parameter("encoder.0.weight")
    torch.testing.assert_close(averaged, b.get_parameter("encoder.0.weight"), rtol=0.1, atol=0.1)
    with pytest.raises(AdaptError):
        fisher_average([a, create("tilenet", **NET)], [ones, ones])


@pytest.mark.parametrize(("answers", "frozen"), [("column", "kb"), ("kb", "column")])
def test_knowledge_bases_are_averaged_where_they_learn_and_refused_where_frozen_parts_differ(answers, frozen):
    one = ProgressiveNetwork.around(mlp(0), 4)
    one = one.learning() if answers == "column" else one.distilling()
    other = copy.deepcopy(one)
    weight = next(name for name, p in one.named_parameters() if name.startswith(answers) and p.requires_grad)
    with torch.no_grad():
        other.get_parameter(weight).add_(1.0)
    ones = [{n: torch.ones_like(p) for n, p in base.named_parameters() if p.requires_grad} for base in (one, other)]
    merged = fisher_average([one, other], ones)
    torch.testing.assert_close(merged.get_parameter(weight), one.get_parameter(weight) + 0.5)
    with torch.no_grad():
        next(getattr(other, frozen).parameters()).add_(1.0)
    with pytest.raises(AdaptError, match="frozen weights"):
        fisher_average([one, other], ones)

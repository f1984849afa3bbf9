"""Multi-task learning: one trunk for all devices, a head for each, and the target's kept as a plain model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from method_kit import NETWORKS, make_data, same_state, small, state_of
from tchub.zoo.adapt.errors import AdaptError, LabelError
from tchub.zoo.adapt.fine_tune import in_head
from tchub.zoo.adapt.multi_task import MultiHead, multi_task
from tchub.zoo.models import create
from tchub.zoo.training import RankingDataset, TrainConfig, evaluate_model

SHORT = TrainConfig(feature_schema="tlp", loss="log_ranknet", epochs=2, learning_rate=3e-3, groups_per_batch=4)
every_network = pytest.mark.parametrize("arch", NETWORKS)


def other_device(seed: int = 5) -> RankingDataset:
    """Programs of a device on which the other half of the rule is reversed."""
    data = make_data(tasks=8, programs=32, seed=seed)
    reversed_rule = data.features[:, :, 0].sum(1) + 2 * data.features[:, :, 3].sum(1)
    return replace(data, latency=np.exp(reversed_rule / 2))


def test_with_arch_tlp_it_is_mtl_tlp():
    """In float64: the two add up in another order, and weights are drawn anew in every run."""
    settings = {"width": 22, "hidden": 16, "attention_heads": 4}
    theirs = create("mtl-tlp", heads=3, **settings).double()
    ours = MultiHead(create("tlp", **settings), 3).double()
    for head in range(3):
        state = {n: t for n, t in theirs.state_dict().items() if not n.startswith("decoder.")}
        own = f"decoder.{head}."
        state |= {f"decoder.0.{n.removeprefix(own)}": t for n, t in theirs.state_dict().items() if n.startswith(own)}
        ours.network(head).load_state_dict(state)
    x, heads = torch.rand(9, 25, 22, dtype=torch.float64), torch.arange(9) % 3
    torch.testing.assert_close(ours.describe_heads(x, heads), theirs.describe_heads(x, heads))


@every_network
def test_heads_share_the_trunk_and_nothing_else(arch: str):
    shared = MultiHead(small(arch), 3)
    first, last = (dict(shared.network(head).named_parameters()) for head in (0, 2))
    assert {name for name in first if first[name] is not last[name]} == {name for name in first if in_head(name)}
    buffers = zip(shared.network(0).buffers(), shared.network(2).buffers(), strict=True)
    assert all(one is other for one, other in buffers), "scales are those of all devices' programs"


@every_network
def test_each_program_is_described_by_its_own_head(arch: str):
    shared = MultiHead(small(arch), 3).eval()
    with torch.no_grad():
        for name, weight in shared.named_parameters():
            weight.add_(torch.randn_like(weight) if in_head(name) else 0)
    x, heads = torch.rand(7, 5, 6), torch.tensor([2, 0, 1, 1, 2, 0, 2])
    expected = [shared.network(int(head)).describe(row[None])[0] for row, head in zip(x, heads, strict=True)]
    torch.testing.assert_close(shared.describe_heads(x, heads), torch.stack(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shared(x), shared.network(0)(x))


@every_network
def test_the_result_is_a_plain_model_of_the_architecture(arch: str):
    model = small(arch)
    before = state_of(model)
    sources = [make_data(tasks=3, programs=8, seed=1)] * 2
    result = multi_task(model, make_data(tasks=3, programs=8), sources, SHORT)
    assert same_state(model, before), "the given model is as it was"
    assert (type(result), result.config) == (type(model), model.config)
    assert result.state_dict().keys() == before.keys()
    assert not same_state(result, before)


def test_a_few_labels_of_the_target_and_many_of_another_device_rank_the_target():
    """Devices contradict each other: a single head could not serve both."""
    config = replace(SHORT, epochs=20, feature_schema="tcl")
    result = multi_task(small(), make_data(tasks=6, programs=8), [other_device()], config)
    assert evaluate_model(result, make_data(seed=9))["pairwise"] > 0.8


def test_what_cannot_share_a_trunk_is_refused():
    target = make_data(tasks=3, programs=8)
    for data, sources in ((target, [make_data(width=9)]), (make_data(width=9), [make_data(width=9)])):
        with pytest.raises(AdaptError, match="9 columns a row, this tcl reads 6"):
            multi_task(small(), data, sources, SHORT)
    with pytest.raises(LabelError):
        multi_task(small(), replace(target, latency=np.ones(len(target))), [other_device()], SHORT)

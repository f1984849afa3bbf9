"""Multi-task learning: one trunk for all devices, a head for each, and the target's kept as a plain model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fine_tune_kit import NETWORKS, make_data, same_state, small, state_of
from tchub.zoo.adapt.errors import LabelError, SourceMismatchError
from tchub.zoo.adapt.footprint import footprint
from tchub.zoo.adapt.multi_task import MultiHead, multi_task
from tchub.zoo.adapt.updates import in_head
from tchub.zoo.models import create
from tchub.zoo.training import RankingDataset, TrainConfig, evaluate_model

SHORT = TrainConfig(feature_schema="tlp", loss="log_ranknet", epochs=2, learning_rate=3e-3, groups_per_batch=4)
every_network = pytest.mark.parametrize("arch", NETWORKS)


def other_device(seed: int = 5) -> RankingDataset:
    """Programs of a device on which the other half of the rule is reversed."""
    data = make_data(tasks=8, programs=32, seed=seed)
    reversed_rule = data.features[:, :, 0].sum(1) + 2 * data.features[:, :, 3].sum(1)
    return replace(data, latency=np.exp(reversed_rule / 2))


# The network of several heads


def test_with_arch_tlp_it_is_mtl_tlp():
    """The same weights score the same by every head, and the loss of a batch moves them the same way.

    In float64: the two add up in another order, and weights are drawn anew in every run.
    """
    settings = {"width": 22, "hidden": 16, "attention_heads": 4}
    theirs = create("mtl-tlp", heads=3, **settings).double()
    ours = MultiHead(create("tlp", **settings), 3).double()
    assert ours.parameter_count() == theirs.parameter_count()
    for head in range(3):
        state = {n: t for n, t in theirs.state_dict().items() if not n.startswith("decoder.")}
        own = f"decoder.{head}."
        state |= {f"decoder.0.{n.removeprefix(own)}": t for n, t in theirs.state_dict().items() if n.startswith(own)}
        ours.network(head).load_state_dict(state)
    x, heads = torch.rand(9, 25, 22, dtype=torch.float64), torch.arange(9) % 3
    torch.testing.assert_close(ours.forward_heads(x), theirs.forward_heads(x))
    rows = [model.describe_heads(x, heads) for model in (ours, theirs)]
    torch.testing.assert_close(*rows)
    for row in rows:
        row.square().sum().backward()
    ours_moves, theirs_moves = (p.grad for p in (next(ours.parameters()), next(theirs.parameters())))
    torch.testing.assert_close(ours_moves, theirs_moves)


@every_network
def test_heads_share_the_trunk_and_nothing_else(arch: str):
    shared = MultiHead(small(arch), 3)
    first, last = (dict(shared.network(head).named_parameters()) for head in (0, 2))
    assert {name for name in first if first[name] is not last[name]} == {name for name in first if in_head(name)}
    buffers = zip(shared.network(0).buffers(), shared.network(2).buffers(), strict=True)
    assert all(one is other for one, other in buffers), "scales are those of all devices' programs"


@every_network
def test_each_program_is_described_by_its_own_head(arch: str):
    shared = MultiHead(small(arch), 3, fresh=True).eval()
    x, heads = torch.rand(7, 5, 6), torch.tensor([2, 0, 1, 1, 2, 0, 2])
    expected = [shared.network(int(head)).describe(row[None])[0] for row, head in zip(x, heads, strict=True)]
    torch.testing.assert_close(shared.describe_heads(x, heads), torch.stack(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shared(x), shared.network(0)(x))


# Learning


@every_network
def test_the_result_is_a_plain_model_of_the_architecture(arch: str):
    model = small(arch)
    before = state_of(model)
    result = multi_task(model, make_data(tasks=3, programs=8), [make_data(tasks=3, programs=8, seed=1)] * 2, SHORT)
    assert same_state(model, before), "the given model is as it was"
    assert (type(result.model), result.model.config) == (type(model), model.config)
    assert result.model.state_dict().keys() == before.keys()
    assert not same_state(result.model, before)
    assert result.programs == (24, 24, 24)
    assert len(result.training.history) == 2


def test_a_few_labels_of_the_target_and_many_of_another_device_rank_the_target():
    """Devices contradict each other: a single head could not serve both."""
    target, unseen = make_data(tasks=6, programs=8), make_data(seed=9)
    config = replace(SHORT, epochs=10)
    result = multi_task("tcl", target, [other_device()], replace(config, feature_schema="tcl"), val=target)
    assert evaluate_model(result.model, unseen)["pairwise"] > 0.8
    assert result.training.best["pairwise"] > 0.8


def test_a_run_repeats_under_its_seed():
    target, sources = make_data(tasks=3, programs=8), [other_device()]
    one, same, other = (multi_task("tlp", target, sources, replace(SHORT, epochs=1), seed) for seed in (1, 1, 2))
    assert same_state(same.model, state_of(one.model))
    assert not same_state(other.model, state_of(one.model))


def test_a_run_that_was_cut_goes_on(tmp_path):
    target, sources, model = make_data(tasks=3, programs=8), [other_device()], small("tilenet")
    config = replace(SHORT, epochs=3, save_every=1)

    def cut(entry: dict[str, float]) -> None:
        if entry["epoch"] == 1:
            raise KeyboardInterrupt

    whole = multi_task(model, target, sources, config)
    with pytest.raises(KeyboardInterrupt):
        multi_task(model, target, sources, config, resume_dir=tmp_path, on_epoch=cut)
    resumed = multi_task(model, target, sources, config, resume_dir=tmp_path)
    assert resumed.training.resumed_from == 2
    assert same_state(resumed.model, state_of(whole.model))


def test_what_cannot_share_a_trunk_is_refused():
    target = make_data(tasks=3, programs=8)
    with pytest.raises(SourceMismatchError, match="9 columns") as caught:
        multi_task(small(), target, [make_data(width=9)], SHORT)
    assert "sources" in str(caught.value.remedy)
    with pytest.raises(SourceMismatchError, match="reads 6"):
        multi_task(small(), make_data(width=9), [make_data(width=9)], SHORT)
    with pytest.raises(LabelError):
        multi_task(small(), replace(target, latency=np.ones(len(target))), [other_device()], SHORT)


# What it costs


@every_network
def test_parameters_and_work_grow_by_a_head_a_device(arch: str):
    model, x = small(arch), make_data(tasks=2, programs=4).features
    one, two, five = (footprint(model, x, devices) for devices in (1, 2, 5))
    assert one.parameters == model.parameter_count()
    assert five.parameters == MultiHead(model, 5).parameter_count()
    assert 0 < one.flops < two.flops
    assert five.flops - one.flops == pytest.approx(4 * (two.flops - one.flops))


def test_the_work_of_a_known_network_is_that_of_its_matrices():
    """TileNet at 160 columns: two operations a weight of body and head, and one row a program."""
    model = create("tilenet")
    weights = 160 * 256 + 256 * 256 + 256 * 256 + 256
    assert footprint(model, np.ones((3, 1, 160), np.float32)).flops == 2 * weights


def test_a_recurrence_and_attention_are_counted():
    x = np.ones((2, 10, 22), np.float32)
    recurrent, attending = create("lstm"), create("tlp")
    assert footprint(recurrent, x).flops > 2 * 10 * 2 * 4 * 256 * 256
    assert footprint(attending, x).flops > 2 * 10 * 4 * 256 * 256 + 2 * 2 * 10 * 10 * 256

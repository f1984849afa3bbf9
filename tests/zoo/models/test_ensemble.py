"""An ensemble of networks: what it says, what it makes of measured programs, what travels in a checkpoint."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from progressive_kit import programs, tiny
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.adapt.sampling.predictions import last_layer_inputs
from tchub.zoo.models import ContextModel, CostModel, Ensemble, ModelConfigError, ProgressiveNetwork, list_architectures
from tchub.zoo.training import RankingDataset

NETWORKS = [name.removesuffix("-ensemble") for name in list_architectures("ensemble")]
SHARES = (0.5, 0.125, 0.375)


def of_three(arch: str) -> tuple[Ensemble, list[CostModel]]:
    members = [tiny(arch, seed) for seed in range(3)]
    return Ensemble.around(members, SHARES), members


def measured(arch: str, n: int = 6, seed: int = 0) -> RankingDataset:
    x = programs(2 * n, rows=1 if arch == "tilenet" else 3, seed=seed).numpy()
    seconds = np.random.default_rng(seed).uniform(1e-3, 1e-2, 2 * n)
    return RankingDataset(x, seconds, np.repeat([0, 1], n), ("a", "b"), np.ones(2))


@pytest.mark.parametrize("arch", NETWORKS)
def test_it_says_the_weighted_sum_of_what_its_members_say(arch: str) -> None:
    ensemble, members = of_three(arch)
    x = programs(rows=1 if arch == "tilenet" else 3)
    said = sum(share * member(x) for share, member in zip(SHARES, members, strict=True))
    torch.testing.assert_close(ensemble(x), said)
    assert ensemble.parameter_count() == 3 * members[0].parameter_count()
    assert not ensemble.training


def test_every_network_has_an_ensemble_and_nothing_else_has() -> None:
    assert sorted(NETWORKS) == list_architectures()
    for model in (ProgressiveNetwork.around(tiny("tilenet")), of_three("tcl")[0]):
        with pytest.raises(ModelConfigError):
            Ensemble.around([model, model], (0.5, 0.5))


def test_each_member_corrects_its_own_scores_by_measured_programs() -> None:
    """Up to a constant of the task: fewer labels than trees need, so that the processes are all there is."""
    ensemble, members = of_three("tilenet")
    assert isinstance(ensemble, ContextModel)
    x = programs(20, rows=1).numpy()
    seconds = np.linspace(1e-3, 1e-2, 5)
    together = ensemble.score_given(x, x[:5], seconds)
    said = [m.score_given(x, x[:5], seconds) for m in members if isinstance(m, ContextModel)]
    np.testing.assert_allclose(together, np.array(SHARES) @ np.array(said), atol=1e-5)
    assert not np.allclose(together, ensemble.score(x))


@pytest.mark.parametrize("arch", ["tilenet", "tenset-mlp"])
def test_labels_move_every_member_and_no_share(arch: str) -> None:
    ensemble, _ = of_three(arch)
    config = FineTuneConfig(update="all", blind_epochs=2, min_val_pairs=10**6, anchor=0.0)
    tuned = fine_tune(ensemble, measured(arch), config).model
    assert isinstance(tuned, Ensemble)
    for before, after in zip(ensemble.each, tuned.each, strict=True):
        assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert tuned.shares.tolist() == list(SHARES)


def test_its_score_is_linear_in_the_last_layers_of_all_members() -> None:
    """What samplers need to tell how unsure it is."""
    ensemble, members = of_three("tilenet")
    x = programs(9, rows=1).numpy()
    inputs = last_layer_inputs(ensemble, x)
    assert last_layer_inputs(copy.deepcopy(ensemble).to(torch.bfloat16), x).dtype == inputs.dtype == np.float32
    heads = [member.get_submodule("head") for member in members]
    assert all(isinstance(head, torch.nn.Linear) for head in heads)
    weight = torch.cat([head.weight[0] for head in heads if isinstance(head, torch.nn.Linear)]).detach().numpy()
    apart = ensemble.score(x) - inputs @ weight
    np.testing.assert_allclose(apart, apart[0], atol=1e-5)

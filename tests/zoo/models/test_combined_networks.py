"""Networks of networks: a knowledge base and its column by equation 7, and an ensemble; what travels of them."""

import copy

import numpy as np
import pytest
import torch
from method_kit import small
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune
from tchub.zoo.adapt.sampling.predictions import last_layer_inputs
from tchub.zoo.models import CostModel, Ensemble, ModelConfigError, ProgressiveNetwork, list_architectures
from tchub.zoo.training import RankingDataset
from torch.nn import functional

WIDTH = 10
NETWORKS = [name.removesuffix("-kb") for name in list_architectures("knowledge base")]


def programs(n: int = 6, rows: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, rows, WIDTH, generator=torch.Generator().manual_seed(seed))


def apart(base: ProgressiveNetwork) -> ProgressiveNetwork:
    """A base whose parts and alphas are all different, as after some training."""
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in base.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g))
    return base


def test_a_column_computes_equation_7() -> None:
    """Of a TenSet-MLP, layer by layer, from the tensors of the state alone."""
    base = apart(ProgressiveNetwork.around(small("tenset-mlp", WIDTH), lateral=4)).double()
    w, x = base.state_dict(), programs(rows=1).double()

    def layer(h: torch.Tensor, old: torch.Tensor, name: str) -> torch.Tensor:
        """W h + alpha * U relu(V h_KB + c) + b, before the nonlinearity."""
        lateral = f"lateral.{name.replace('.', '-')}"
        heard = functional.relu(old @ w[f"{lateral}.v.weight"].T + w[f"{lateral}.v.bias"]) @ w[f"{lateral}.u.weight"].T
        return h @ w[f"column.{name}.weight"].T + w[f"{lateral}.alpha"] * heard + w[f"column.{name}.bias"]

    def old_layer(h: torch.Tensor, name: str) -> torch.Tensor:
        return h @ w[f"kb.{name}.weight"].T + w[f"kb.{name}.bias"]

    first = x[:, 0] @ w["column.encoder.0.weight"].T + w["column.encoder.0.bias"]  # raw features: no lateral
    old, h = functional.relu(old_layer(x[:, 0], "encoder.0")), functional.relu(first)
    h, old = functional.relu(layer(h, old, "encoder.2")), functional.relu(old_layer(old, "encoder.2"))
    for name in ("residuals.0.linear", "residuals.1.linear"):
        h, old = h + functional.relu(layer(h, old, name)), old + functional.relu(old_layer(old, name))
    torch.testing.assert_close(base(x), layer(h, old, "decoder").squeeze(-1))


@pytest.mark.parametrize("arch", NETWORKS)
def test_every_lateral_of_every_network_is_heard_and_learns(arch: str) -> None:
    base = apart(ProgressiveNetwork.around(small(arch, WIDTH), lateral=8)).train()
    x = programs(40)
    (base.describe(x).square().sum() + base.forward_heads(x).square().sum()).backward()
    silent = [n for n, p in base.lateral.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert silent == []
    assert all(p.grad is None for p in base.kb.parameters())


@pytest.mark.parametrize("arch", NETWORKS)
def test_around_a_model_base_and_column_are_that_model(arch: str) -> None:
    model = small(arch, WIDTH)
    base = ProgressiveNetwork.around(model, lateral=2)
    for part in (base.kb, base.column):
        for a, b in zip(part.state_dict().values(), model.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    assert torch.equal(base.distilling()(programs()), model(programs()))
    assert all(not worth.any() for worth in base.fisher_diagonal().values())


def test_either_the_base_is_frozen_or_the_column() -> None:
    base = ProgressiveNetwork.around(small("tilenet", WIDTH))

    def trained() -> set[str]:
        return {n.split(".")[0] for n, p in base.named_parameters() if p.requires_grad}

    base.train().learning()
    assert trained() == {"column", "lateral"}
    assert (base.kb.training, base.column.training) == (False, True)
    base.distilling()
    assert trained() == {"kb"}
    assert (base.kb.training, base.column.training) == (True, False)
    base.eval()
    assert not any(m.training for m in base.modules())


@pytest.mark.parametrize("start", ["base", "previous", "random"])
def test_a_new_column_starts_from(start: str) -> None:
    base = apart(ProgressiveNetwork.around(small("tilenet", WIDTH)))
    before = {n: p.clone() for n, p in base.named_parameters()}
    base.new_column(start, seed=1)  # pyright: ignore[reportArgumentType]

    def same(part: str, as_in: str) -> bool:
        now = {n: p for n, p in base.named_parameters() if n.startswith(part)}
        return all(torch.equal(p, before[n.replace(part, as_in, 1)]) for n, p in now.items())

    assert same("kb", "kb")
    assert same("column", {"base": "kb", "previous": "column", "random": "kb"}[start]) == (start != "random")
    assert same("lateral", "lateral") == (start == "previous")


def test_measured_programs_correct_the_scores_of_the_part_that_answers() -> None:
    base, x = apart(ProgressiveNetwork.around(small("tilenet", WIDTH))).eval(), programs(20, rows=1).numpy()
    seconds = np.linspace(1e-3, 1e-2, 6)
    informed = base.score_given(x, x[:6], seconds)
    assert not np.array_equal(informed, base.score(x))
    base.distilling()
    np.testing.assert_array_equal(base.score_given(x, x[:6], seconds), base.kb.score_given(x, x[:6], seconds))


def test_every_network_has_a_base_and_a_base_has_none() -> None:
    assert list_architectures() == sorted(NETWORKS)
    with pytest.raises(ModelConfigError):
        ProgressiveNetwork.around(ProgressiveNetwork.around(small("tilenet", WIDTH)))


ENSEMBLES = [name.removesuffix("-ensemble") for name in list_architectures("ensemble")]
SHARES = (0.5, 0.125, 0.375)


def of_three(arch: str) -> tuple[Ensemble, list[CostModel]]:
    members = [small(arch, WIDTH, seed) for seed in range(3)]
    return Ensemble.around(members, SHARES), members


def measured(arch: str, n: int = 6, seed: int = 0) -> RankingDataset:
    x = programs(2 * n, rows=1 if arch == "tilenet" else 3, seed=seed).numpy()
    seconds = np.random.default_rng(seed).uniform(1e-3, 1e-2, 2 * n)
    return RankingDataset(x, seconds, np.repeat([0, 1], n), ("a", "b"), np.ones(2))


@pytest.mark.parametrize("arch", ENSEMBLES)
def test_it_says_the_weighted_sum_of_what_its_members_say(arch: str) -> None:
    ensemble, members = of_three(arch)
    x = programs(rows=1 if arch == "tilenet" else 3)
    scores = sum(share * member(x) for share, member in zip(SHARES, members, strict=True))
    torch.testing.assert_close(ensemble(x), scores)
    assert ensemble.parameter_count() == 3 * members[0].parameter_count()
    assert not ensemble.training


def test_every_network_has_an_ensemble_and_nothing_else_has() -> None:
    assert sorted(ENSEMBLES) == list_architectures()
    for model in (ProgressiveNetwork.around(small("tilenet", WIDTH)), of_three("tcl")[0]):
        with pytest.raises(ModelConfigError):
            Ensemble.around([model, model], (0.5, 0.5))


def test_each_member_corrects_its_own_scores_by_measured_programs() -> None:
    """Up to a constant of the task: fewer labels than trees need, so that the processes are all there is."""
    ensemble, members = of_three("tilenet")
    x = programs(20, rows=1).numpy()
    seconds = np.linspace(1e-3, 1e-2, 5)
    together = ensemble.score_given(x, x[:5], seconds)
    scores = [m.score_given(x, x[:5], seconds) for m in members]
    np.testing.assert_allclose(together, np.array(SHARES) @ np.array(scores), atol=1e-5)
    assert not np.allclose(together, ensemble.score(x))


@pytest.mark.parametrize("arch", ["tilenet", "tenset-mlp"])
def test_labels_move_every_member_and_no_share(arch: str) -> None:
    ensemble, _ = of_three(arch)
    config = FineTuneConfig(update="all", blind_epochs=2, min_val_pairs=10**6, anchor=0.0)
    tuned = fine_tune(ensemble, measured(arch), config).model
    for before, after in zip(ensemble.each, tuned.each, strict=True):
        assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert tuned.shares.tolist() == list(SHARES)


def test_its_score_is_linear_in_the_last_layers_of_all_members() -> None:
    """What samplers need to tell how unsure it is."""
    ensemble, members = of_three("tilenet")
    x = programs(9, rows=1).numpy()
    inputs = last_layer_inputs(ensemble, x)
    assert last_layer_inputs(copy.deepcopy(ensemble).to(torch.bfloat16), x).dtype == inputs.dtype == np.float32
    weight = torch.cat([member.head.weight[0] for member in members]).detach().numpy()
    apart = ensemble.score(x) - inputs @ weight
    np.testing.assert_allclose(apart, apart[0], atol=1e-5)

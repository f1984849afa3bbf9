"""One sweep over the registry: what every architecture must do, on the features it was made for."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import (
    Checkpoint,
    CheckpointConfig,
    ModelConfigError,
    create,
    get_architecture,
    list_architectures,
)
from tchub.zoo.training.losses import get_loss

# Knowledge bases and ensembles are combinations of networks: those of a few networks stand for all.
COMBINED = [f"{arch}{end}" for arch in ("tcl", "mtl-tlp", "tenset-mlp", "tilenet") for end in ("-kb", "-ensemble")]
NETWORKS = [*list_architectures(), *COMBINED]
DEVICE = {"cpu": "epyc", "gpu": "t4"}
# Knowledge bases and ensembles are made of the networks that the sweep tries in their full size: theirs may be small.
SMALL = {"hidden": 64, "feedforward": 96, "lateral": 4, "members": 2}


@pytest.fixture(params=NETWORKS)
def arch(request):
    return request.param


@pytest.fixture
def model(arch):
    return new_model(arch)


@pytest.fixture
def x(arch):
    return programs(schema_of(arch))


def schema_of(arch):
    return get_schema(get_architecture(arch).schemas[0])


def new_model(arch, seed=0, spec=None):
    """With random weights."""
    spec = spec or schema_of(arch)
    torch.manual_seed(seed)
    known = get_architecture(arch)
    small = {f.name: SMALL[f.name] for f in fields(known.config) if known.base and f.name in SMALL}
    return create(arch, width=spec.width, hardware=spec.hardware, **small).eval()


def programs(spec, n=12, seed=0):
    """(n, rows, width): programs of one row to all rows, zeros, and the same hardware row in all."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, spec.rows, spec.width, generator=g)
    if spec.source == "nest":  # one row, whose end is the device
        return x
    room = spec.rows - spec.hardware
    for i, length in enumerate(torch.randint(1, room + 1, (n,), generator=g).tolist()):
        x[i, length:room] = 0
    if spec.hardware:
        x[:, -1] = torch.rand(spec.width, generator=g) + 0.1
    return x


def alone(x):
    """One program (rows, width) without its padding: (1, its rows, width)."""
    return x[(x != 0).any(-1)][None]


def test_one_score_a_program(arch):
    for name in get_architecture(arch).schemas:
        spec = get_schema(name)
        scores = new_model(arch, spec=spec)(programs(spec))
        assert scores.shape == (12,)
        assert torch.isfinite(scores).all()
        assert len(set(scores.tolist())) > 6


def test_a_padded_batch_scores_as_each_program_alone(model, x):
    model, x = model.double(), x.double()
    one_by_one = torch.cat([model(alone(row)) for row in x])
    torch.testing.assert_close(model(x), one_by_one, rtol=1e-9, atol=1e-9)


def test_an_empty_program_is_scored_and_disturbs_no_other(model, x):
    with_empty = x.clone()
    with_empty[3] = 0
    scores = model(with_empty)
    assert torch.isfinite(scores).all()
    others = torch.arange(len(x)) != 3
    torch.testing.assert_close(scores[others], model(x)[others], rtol=1e-5, atol=1e-5)


def test_deterministic_under_a_seed(arch, x):
    one, same, other = (new_model(arch, seed) for seed in (3, 3, 4))
    assert torch.equal(one(x), same(x))
    assert not torch.equal(one(x), other(x))


def test_score_is_forward_in_float64_and_leaves_the_mode_as_it_was(model, x):
    expected = model(x).detach().numpy()
    scores = model.train().score(x.numpy())
    assert model.training
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert model.score(x[:0].numpy()).shape == (0,)


def test_the_first_head_is_the_score(model, x):
    torch.testing.assert_close(model.forward_heads(x)[:, 0], model(x))


def test_save_load_same_scores(arch, model, x, tmp_path):
    spec = schema_of(arch)
    model.prepare(programs(spec, seed=1))
    names, family = (f"{arch}-test", "1.0.0", arch), DEVICE[spec.kind]
    config = CheckpointConfig(*names, model.config.as_dict(), spec.name, family, feature_version=spec.version)
    Checkpoint(config, model, get_device(family)).save(tmp_path)
    loaded = Checkpoint.load(tmp_path)
    assert loaded.config == config
    assert torch.equal(loaded.model(x), model(x))
    assert loaded.model.parameter_count() == model.parameter_count()


def test_impossible_settings_are_refused(arch):
    bad = {int: [0, -1, 10**9, 1.5, "8", True], float: [math.nan, -1.0, "1"], bool: [1, "yes"], str: [1, "no such"]}
    for field in fields(get_architecture(arch).config):
        for value in bad[type(field.default)]:
            with pytest.raises(ModelConfigError):
                create(arch, **{field.name: value})
    with pytest.raises(ModelConfigError, match="no_such_setting"):
        create(arch, no_such_setting=1)


def test_every_row_matters_and_padding_gets_no_gradient(model, x):
    filled = (x != 0).any(-1)
    x.requires_grad_()
    model(x).sum().backward()
    moved = x.grad.abs().sum(-1)
    assert (moved[filled] > 0).all()
    assert (moved[~filled] == 0).all()


def test_bfloat16_ranks_nearly_alike(arch):
    model, x = new_model(arch), programs(schema_of(arch), n=64)
    exact = model(x).detach()
    half = model.to(torch.bfloat16)(x.to(torch.bfloat16)).detach()
    assert half.dtype == torch.bfloat16
    assert np.corrcoef(exact.numpy(), half.float().numpy())[0, 1] > 0.98


def test_all_parameters_get_a_gradient(arch):
    model = new_model(arch).train()
    x, rng = programs(schema_of(arch), 80), np.random.default_rng(0)
    labels, mask = torch.rand(2, 40) + 0.1, torch.ones(2, 40, dtype=torch.bool)
    loss = model.training_loss(model.describe(x), labels, mask, get_loss("log_ranknet"), rng)
    (loss + model.forward_heads(x).square().sum()).backward()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}  # of a knowledge base the column alone
    assert [n for n, p in trained.items() if p.grad is None or not p.grad.abs().sum()] == []


@pytest.mark.parametrize("arch", [arch for arch in NETWORKS if schema_of(arch).hardware])
def test_the_device_changes_how_programs_are_scored(arch):
    """Not only by a constant a device: the difference of two programs depends on the device."""
    model, x = new_model(arch), programs(schema_of(arch))
    other = x.clone()
    other[:, -1] *= 2
    assert (model(other) - model(x)).std() > 1e-6

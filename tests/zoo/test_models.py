"""One sweep over the registry: what every architecture must do, on every feature schema it was made for."""

import numpy as np
import pytest
import torch
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import (
    Checkpoint,
    CheckpointConfig,
    ModelConfigError,
    UnknownArchitectureError,
    create,
    get_architecture,
    list_architectures,
)

SWEEP = [(arch, schema) for arch in list_architectures() for schema in get_architecture(arch).schemas]
sweep = pytest.mark.parametrize(("arch", "schema"), SWEEP)
DEVICE = {"cpu": "epyc", "gpu": "t4"}


def new_model(arch, schema, seed=0):
    torch.manual_seed(seed)
    spec = get_schema(schema)
    return create(arch, width=spec.width, hardware=spec.hardware).eval()


def programs(schema, n=12, seed=0):
    """(n, rows, width): programs of 1 to rows - 1 primitives, zeros, and the same hardware row in all."""
    spec = get_schema(schema)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, spec.rows, spec.width, generator=g)
    room = spec.rows - spec.hardware
    for i, length in enumerate(torch.randint(1, room + 1, (n,), generator=g).tolist()):
        x[i, length:room] = 0
    if spec.hardware:
        x[:, -1] = torch.rand(spec.width, generator=g) + 0.1
    return x


def alone(x, spec):
    """One program (rows, width) without its padding: (1, its rows, width)."""
    return x[(x != 0).any(-1)][None]


@sweep
def test_one_score_a_program(arch, schema):
    scores = new_model(arch, schema)(programs(schema))
    assert scores.shape == (12,)
    assert torch.isfinite(scores).all()
    assert len(set(scores.tolist())) == 12


@sweep
def test_a_padded_batch_scores_as_each_program_alone(arch, schema):
    model, x = new_model(arch, schema).double(), programs(schema).double()
    one_by_one = torch.cat([model(alone(row, get_schema(schema))) for row in x])
    torch.testing.assert_close(model(x), one_by_one, rtol=1e-9, atol=1e-9)


@sweep
def test_order_of_the_batch_changes_nothing(arch, schema):
    model, x = new_model(arch, schema), programs(schema)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x[order]), model(x)[order], rtol=1e-5, atol=1e-5)


@sweep
def test_every_row_matters_and_padding_gets_no_gradient(arch, schema):
    """The device's row too must reach the score."""
    model, x = new_model(arch, schema), programs(schema)
    filled = (x != 0).any(-1)
    x.requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None
    moved = x.grad.abs().sum(-1)
    assert (moved[filled] > 0).all()
    assert (moved[~filled] == 0).all()


@sweep
def test_the_device_changes_how_primitives_are_scored(arch, schema):
    """Not only a constant a device: the difference of two programs depends on the device."""
    if not get_schema(schema).hardware:
        return
    model, x = new_model(arch, schema), programs(schema)
    other = x.clone()
    other[:, -1] *= 2
    change = model(other) - model(x)
    assert change.std() > 1e-6


@sweep
def test_deterministic_under_a_seed(arch, schema):
    one, same, other = (new_model(arch, schema, seed) for seed in (3, 3, 4))
    x = programs(schema)
    assert torch.equal(one(x), same(x))
    assert not torch.equal(one(x), other(x))


@sweep
def test_bfloat16_ranks_nearly_alike(arch, schema):
    model, x = new_model(arch, schema), programs(schema, n=64)
    exact = model(x).detach()
    half = model.to(torch.bfloat16)(x.to(torch.bfloat16)).detach()
    assert half.dtype == torch.bfloat16
    assert np.corrcoef(exact.numpy(), half.float().numpy())[0, 1] > 0.98


@sweep
def test_all_parameters_get_a_gradient(arch, schema):
    model = new_model(arch, schema).train()
    model(programs(schema)).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


@sweep
def test_save_load_same_scores(arch, schema, tmp_path):
    model, x, spec = new_model(arch, schema), programs(schema), get_schema(schema)
    config = CheckpointConfig(
        name=f"{arch}-test",
        version="1.0.0",
        arch=arch,
        model=model.config.as_dict(),
        feature_schema=schema,
        feature_version=spec.version,
        family=DEVICE[spec.kind],
    )
    Checkpoint(config, model, get_device(DEVICE[spec.kind])).save(tmp_path)
    loaded = Checkpoint.load(tmp_path)
    assert loaded.config == config
    assert torch.equal(loaded.model(x), model(x))


def test_size_of_tcl():
    """The paper's table 3 says 0.35 MB."""
    model = create("tcl")
    assert model.parameter_count() == 92_353
    assert model.parameter_count() * 4 / 2**20 == pytest.approx(0.352, abs=5e-4)


def test_tcl_as_the_paper_has_it():
    """Section 5.2 and the best row of table 2."""
    model = create("tcl")
    widths = [m.out_features for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert widths[:3] == [64, 128, 128]
    assert widths[-3:] == [64, 32, 1]
    config = model.config
    assert (config.d_state, config.expand, config.d_conv, config.d_model) == (8, 1, 4, 128)


def test_unknown_architecture_names_the_nearest():
    with pytest.raises(UnknownArchitectureError) as caught:
        create("tlc")
    assert "tcl" in str(caught.value.remedy)


@pytest.mark.parametrize(
    "setting", [{"d_stat": 4}, {"d_state": 0}, {"d_state": 10**9}, {"d_state": "8"}, {"hardware": 1}, {"width": True}]
)
def test_impossible_settings_are_refused(setting):
    with pytest.raises(ModelConfigError):
        create("tcl", **setting)

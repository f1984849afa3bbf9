"""What single architectures promise beyond `test_registry_sweep`: the sizes of the papers, and their own mechanisms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.models import ModelConfigError, create
from tchub.zoo.models.tcl import selective_scan

# Parameters, and MiB in float32; TCL's table 3 gives TCL 0.35, TenSet-MLP 0.92 and TLP 1.32 MB (see its docstring).
SIZES = {
    "tcl": (92_353, 0.352),
    "tlp": (478_785, 1.826),
    "mtl-tlp": (520_002, 1.984),
    "lstm": (741_953, 2.830),
    "fasor": (796_420, 3.038),
    "tenset-mlp": (242_433, 0.925),
    "mha": (1_403_393, 5.354),
    "atformer-1l": (3_505_153, 13.371),
    "atformer": (6_657_537, 25.396),
    "atformer-m": (6_657_537, 25.396),
}


def statements(n=8, seed=0):
    """(n, 10, 174): programs of 2 to 9 statements of very different scales."""
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(n, 10, 174, generator=g) + 2) * torch.logspace(-3, 6, 174)
    for i in range(n):
        x[i, 2 + i % 8 :] = 0
    return x


@pytest.mark.parametrize("arch", SIZES)
def test_sizes(arch):
    parameters, mib = SIZES[arch]
    model = create(arch)
    assert model.parameter_count() == parameters
    assert parameters * 4 / 2**20 == pytest.approx(mib, abs=5e-4)


def test_without_the_mask_room_for_more_statements_changes_a_score():
    """Padding then counts as statements with nothing in them, as many as there are slots."""
    x = statements()
    for mask in (False, True):
        scores = []
        for rows in (10, 12):
            torch.manual_seed(0)
            scores.append(create("atformer", hidden=16, feedforward=16, rows=rows, mask=mask)(x))
        assert torch.allclose(*scores, atol=1e-5) == mask


def test_attention_heads_share_the_width_equally():
    for arch in ("tlp", "mtl-tlp", "mha", "atformer"):
        with pytest.raises(ModelConfigError, match="attention heads"):
            create(arch, hidden=16, attention_heads=3)


def test_a_device_without_labels_leaves_its_head_alone():
    """TLP section 5.2: the trunk learns from every device, a head from its own only."""
    model = create("mtl-tlp", heads=3, hidden=16)
    model.forward_heads(torch.randn(4, 25, 22))[:, 1].square().sum().backward()
    moved = [any(p.grad is not None and p.grad.any() for p in head.parameters()) for head in model.decoder]
    assert moved == [False, True, False]
    assert all(p.grad is not None for p in model.encoder.parameters())


def test_an_lstm_and_places_read_in_order_and_attention_alone_does_not():
    x = torch.randn(4, 25, 22)
    backwards = x.flip(1)
    for arch, ordered in (("lstm", True), ("fasor", True), ("tlp", False)):
        torch.manual_seed(0)
        model = create(arch).eval()
        assert torch.allclose(model(x), model(backwards), atol=1e-5) != ordered


def test_prepared_columns_have_mean_zero_and_deviation_one():
    x = statements()
    x[..., 7] = torch.where((x != 0).any(-1), 3.0, 0.0)
    model = create("tenset-mlp")
    model.prepare(x)
    columns, filled = model.pack(x)
    assert len(columns) == filled.sum() == (x != 0).any(-1).sum()
    torch.testing.assert_close(columns.mean(0), torch.zeros(174), atol=1e-4, rtol=0)
    wanted = torch.ones(174)
    wanted[7] = 0  # a column that never changes
    torch.testing.assert_close(columns.std(0, correction=0), wanted, atol=1e-4, rtol=0)


def test_unknown_architecture_names_the_nearest():
    with pytest.raises(ModelConfigError) as caught:
        create("tlc")
    assert "nearest: tlp, tcl" in caught.value.message
    assert "tcl, " in str(caught.value.remedy)
    assert "tilenet, " in str(caught.value.remedy), "what is near hides nothing"
    with pytest.raises(ModelConfigError) as caught:
        create("quux")
    assert "nearest" not in caught.value.message


def inputs(batch=3, length=7, channels=4, states=2, *, seed=0, dtype=torch.float64):
    """x, dt > 0, A < 0, B, C."""
    g = torch.Generator().manual_seed(seed)
    x, dt = (torch.randn(batch, length, channels, generator=g, dtype=dtype) for _ in range(2))
    a = -torch.rand(channels, states, generator=g, dtype=dtype) * 4
    b, c = (torch.randn(batch, length, states, generator=g, dtype=dtype) for _ in range(2))
    return x, torch.nn.functional.softplus(dt), a, b, c


def by_definition(x, dt, a, b, c):
    """h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t, y_t = C_t h_t, one number at a time."""
    y = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for d in range(x.shape[2]):
            h = torch.zeros(a.shape[1], dtype=x.dtype)
            for t in range(x.shape[1]):
                h = torch.exp(dt[i, t, d] * a[d]) * h + dt[i, t, d] * x[i, t, d] * b[i, t]
                y[i, t, d] = c[i, t] @ h
    return y


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 17), st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=15)
def test_equals_the_recurrence(shape, seed):
    args = inputs(*shape, seed=seed)
    torch.testing.assert_close(selective_scan(*args), by_definition(*args), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 1e3])
def test_stable_at_no_decay_and_at_complete_decay(decay):
    """Forms that divide by a cumulative product of decays fail here."""
    x, dt, a, b, c = inputs(dtype=torch.float32)
    args = (x, dt, torch.full_like(a, -decay), b, c)
    exact = by_definition(*(t.double() for t in args))
    torch.testing.assert_close(selective_scan(*args).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 26, 4, 8), (129, 3, 2, 2)], ids=["a real length", "more than a chunk"])
def test_gradients_equal_those_of_the_recurrence(shape):
    args = [t.requires_grad_() for t in inputs(*shape)]
    weight = torch.randn(shape[:3], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(selective_scan(*args), args, weight)
    exact = torch.autograd.grad(by_definition(*args), args, weight)
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)


def test_half_precision_is_computed_in_float32():
    args = [t.to(torch.bfloat16) for t in inputs()]
    out = selective_scan(*args)
    assert out.dtype == torch.bfloat16
    exact = by_definition(*(t.double() for t in args))
    torch.testing.assert_close(out.double(), exact, rtol=1e-2, atol=1e-2)

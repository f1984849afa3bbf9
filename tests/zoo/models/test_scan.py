"""The selective scan against its definition, a step-by-step recurrence in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.models.scan import selective_scan


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
@settings(max_examples=15, deadline=None)
def test_equals_the_recurrence(shape, seed):
    args = inputs(*shape, seed=seed)
    torch.testing.assert_close(selective_scan(*args), by_definition(*args), rtol=1e-12, atol=1e-12)


def test_gradients_equal_those_of_the_recurrence():
    """At the length of a real program, in float64."""
    args = [t.requires_grad_() for t in inputs(2, 26, 4, 8)]
    g = torch.randn(2, 26, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(selective_scan(*args), args, g)
    true = torch.autograd.grad(by_definition(*args), args, g)
    for got, wanted in zip(ours, true, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("decay", [0.0, 1e3])
def test_stable_at_no_decay_and_at_complete_decay(decay):
    """Forms that divide by a cumulative product of decays fail here."""
    x, dt, a, b, c = inputs(dtype=torch.float32)
    args = (x, dt, torch.full_like(a, -decay), b, c)
    exact = by_definition(*(t.double() for t in args))
    torch.testing.assert_close(selective_scan(*args).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [127, 129, 200])
def test_chunks_of_the_batch_do_not_show(batch):
    args = [t.requires_grad_() for t in inputs(batch, 3, 2, 2)]
    weight = torch.arange(batch * 6, dtype=torch.float64).reshape(batch, 3, 2).sin()
    mine = torch.autograd.grad(selective_scan(*args), args, weight)
    other = torch.autograd.grad(by_definition(*args), args, weight)
    torch.testing.assert_close(mine, other)


def test_half_precision_is_computed_in_float32():
    args = [t.to(torch.bfloat16) for t in inputs()]
    out = selective_scan(*args)
    assert out.dtype == torch.bfloat16
    exact = by_definition(*(t.double() for t in args))
    torch.testing.assert_close(out.double(), exact, rtol=1e-2, atol=1e-2)

"""Recurrent layers: one kernel each on CPUs and the operators of each step for cards, as PyTorch computes them."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import compute
from tchub.hub.device.host_facts import read_host_facts
from tchub.hub.networks.tasks import network_tasks, weight_bytes
from tchub.hub.networks.transform.elementwise import cheapest_first
from tchub.hub.networks.transform.recurrence import KINDS, marker, recurrence, recurrences
from tchub.hub.search.candidates import random_candidates, tune_context
from torch import nn
from tvm import relax
from tvm.s_tir import meta_schedule as ms

Equal = Callable[..., None]


def operands(kind: str, steps: int, batch: int, directions: int, hidden: int) -> list[torch.Tensor]:
    """Inputs' part, recurrent weights, bias and states of a layer."""
    torch.manual_seed(0)
    gates, state = KINDS[kind], (directions, batch, hidden)
    weights = torch.randn(directions, gates, hidden, hidden) / hidden**0.5
    states = [torch.randn(state) for _ in range(2 if gates == 4 else 1)]
    return [torch.randn(steps, batch, directions, gates, hidden), weights, torch.randn(directions, hidden), *states]


def network(
    kind: str, backwards: bool, values: list[torch.Tensor], cpu: bool, lanes: int = 16, weights: Any = None,
    pairs: bool = False,
) -> Any:  # fmt: skip
    """A network of one layer whose operands are its inputs; the recurrent weights may be constants instead."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(list(x.shape), str(x.numpy().dtype))) for i, x in enumerate(values)]
    with builder.function("main", inputs):
        with builder.dataflow():
            recurrent = inputs[1] if weights is None else relax.const(weights)
            call = builder.emit(marker(inputs[0], recurrent, inputs[2], inputs[3:], kind, backwards))
            result = builder.emit_output(call if len(values) > 4 else relax.Tuple([call]))
        builder.emit_func_output(result)
    return recurrences(cpu, lanes, pairs)(builder.get())


# Hidden units that fill vectors, and some that do not; rows that registers hold, and more; the polynomials of tanh and
# sigmoid hold between bounds: beyond them the gates are open, or shut.
@pytest.mark.parametrize(
    ("cpu", "batch", "directions", "hidden", "scale"),
    [
        *((True, 2, 2, 17, 1.0), (True, 9, 1, 48, 1.0), (True, 1, 1, 16, 1e4)),
        *((False, 2, 2, 17, 1.0), (False, 3, 1, 20, 1.0)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_layer(kind: str, cpu: bool, batch: int, directions: int, hidden: int, scale: float) -> None:
    """As one kernel, or as the operators of each step."""
    values, backwards = operands(kind, 3, batch, directions, hidden), directions == 1
    values[0] *= scale
    right = recurrence(*values[:3], values[3:], kind, backwards)
    computed = compute(network(kind, backwards, values, cpu), *values)
    for ours, theirs in zip(computed, right, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_layer_for_short_vectors(kind: str) -> None:
    """Of which fewer sums fit the registers."""
    values = operands(kind, 3, 9, 1, 48)
    right = recurrence(*values[:3], values[3:], kind, False)
    for ours, theirs in zip(compute(network(kind, False, values, True, lanes=4), *values), right, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=3e-6)


@pytest.mark.x86
@pytest.mark.parametrize(
    ("mcpu", "flag", "lanes", "axes", "most"),
    [("skylake-avx512", "avx512bw", 16, (1, 2, 3), 127), ("haswell", "avx2", 8, (3,), 64)],
    ids=["a direction", "7 bits of each unit"],
)
@pytest.mark.parametrize(("kind", "hidden"), [("ifgo", 17), ("rzn", 16), ("zrn_reset_before", 17), ("relu", 16)])
def test_large_quantised_weights_are_read_in_8_bits(
    kind: str, hidden: int, mcpu: str, flag: str, lanes: int, axes: tuple[int, ...], most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where each direction, or each unit, has a scale; and states in 16 bits, of which one is 0, and one no number."""
    values = operands(kind, 3, 4, 2, hidden)
    values[3][:, 1], values[3][:, 2, 3], values[3][:, 3, 0] = 0, 9, torch.nan
    scales = values[1].abs().amax(axes, keepdim=True) / most
    values[1] = (values[1] / scales).round() * scales

    def made(pairs: bool = True) -> Any:
        return network(kind, False, values, True, lanes, values[1].numpy(), pairs)

    assert "int8" not in made().script(), "they are small"
    monkeypatch.setattr("tchub.hub.networks.transform.recurrence._WORTH_BYTES", 0)
    assert "int8" not in made(pairs=False).script()
    mod = made()
    assert "int8" in mod.script()
    right = recurrence(*values[:3], values[3:], kind, False)
    if flag in read_host_facts().flags:
        target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "opt-level": 0})
        for ours, theirs in zip(compute(mod, *values, target=target), right, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-3)
    values[1][0, 0, 0, 0] += scales.min() / 3
    assert "int8" not in made().script()


@pytest.mark.parametrize("kind", ["ifgo", "rzn", "tanh"])
@pytest.mark.parametrize(
    ("target", "lanes", "product", "memory"),
    [
        ({"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}, 4, "fmla", r"q\d+.*\[sp"),
        ({"mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"}, 8, "vfmadd", r"vmov.*%ymm\d+, .*\(%r[sb]p"),
    ],
    ids=["Arm", "AVX2"],
)
def test_sums_stay_in_registers(kind: str, target: dict[str, str], lanes: int, product: str, memory: str) -> None:
    """In the loop that adds up the products of a state."""
    mod = network(kind, False, operands(kind, 3, 8, 1, 64), True, lanes)
    cpu: Any = tvm.target.Target({"kind": "llvm", "num-cores": 1, **target})
    (task,) = (one for one in network_tasks(mod, cpu, "recurrent") if "recurrence" in one.name)
    assembly = tvm.tirx.build(task.mod, target=cpu).inspect_source("s")
    block, branch = r"(?:(?!\.L).*\n)*?", r"\s(?:j\w+|b\.\w+|cbnz\s+\w+,)\s+"  # of one basic block, and back to it
    loops = re.findall(rf"^(\.L\w+):.*\n({block}){branch}\1$", assembly, re.MULTILINE)
    sums = [body for _, body in loops if product in body]
    assert sums
    assert not any(re.search(memory, body) for body in sums)


def test_layers_of_pytorch(equal: Equal) -> None:
    """Several directions and layers, without biases, with states or projections, in double precision, one step."""

    def layers(states: Any, gru: Any, rnn: Any, relu: Any, projected: Any, double: Any, *inputs: torch.Tensor) -> Any:
        x, h, c = inputs
        return states(x, (h[:2], c)), gru(x), rnn(x, h), relu(x[:1, 0]), projected(x), double(x.double())

    plain = nn.LSTM(6, 8, 2), nn.GRU(6, 8, bidirectional=True, batch_first=True)
    others = nn.RNN(6, 8, 2, bidirectional=True, bias=False), nn.RNN(6, 8, nonlinearity="relu")
    last = nn.LSTM(6, 4, 2, proj_size=3), nn.LSTM(6, 8, bidirectional=True).double()
    equal(layers, torch.randn(3, 2, 6), torch.randn(4, 2, 8), torch.randn(2, 2, 8), parts=(*plain, *others, *last))


def test_a_layer_of_two_directions_is_a_product_and_a_kernel_however_many_steps(prepared: Any) -> None:
    layer, counts = nn.LSTM(8, 16, bidirectional=True, batch_first=True), set()
    for steps in (2, 20):
        mod = prepared(layer, torch.randn(1, steps, 8))
        functions = [var.name_hint for var, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
        assert [sum(kind in name for name in functions) for kind in ("matmul", "recurrence")] == [1, 1]
        counts.add(len(functions))
    assert len(counts) == 1


def test_a_number_that_is_none_stays_so(equal: Equal) -> None:
    x = torch.randn(3, 1, 6)
    x[1, 0, 0] = torch.nan
    equal(lambda *layers_and_x: [layer(layers_and_x[-1])[0] for layer in layers_and_x[:-1]], x,
          parts=(nn.LSTM(6, 12), nn.GRU(6, 12), nn.RNN(6, 12)))  # fmt: skip


def test_a_layer_has_one_program_and_its_weights_count(prepared: Any) -> None:
    layer = nn.GRU(8, 32, bias=False)
    mod = prepared(layer, torch.randn(5, 2, 8))
    weights = sum(one.nbytes for one in layer.parameters())
    assert weights <= weight_bytes(mod) <= weights + 64, "and the number of the last step"
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    (task,) = (one for one in network_tasks(mod, target, "recurrent") if "recurrence" in one.name)
    assert len(random_candidates(task, target, 4)) == 1
    spaces = tune_context(task, target, ms.search_strategy.ReplayTrace(), 0).generate_design_space()
    assert len(cheapest_first(task.mod, spaces)) == 1

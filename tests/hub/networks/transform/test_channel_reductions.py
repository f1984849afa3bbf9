"""Poolings and means of pixels are one program, with channels in vector registers, which computes the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tchub.hub.networks.tasks import TuningTask, make_task, network_tasks
from tchub.hub.networks.transform.channel_reductions import RULE, WHOLE
from tchub.hub.networks.transform.prepare import own_spaces
from tchub.hub.search.candidates import tune_context
from torch import nn
from torch.nn import functional as F
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm_ffi import structural_equal

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


@pytest.fixture
def tasks_of(prepared: Any) -> Callable[..., list[TuningTask]]:
    """Tasks of a function of a convolution's image, which is channels-last in the compiled network."""

    def extracted(channels: int, size: int, function: Callable[..., Any]) -> list[TuningTask]:
        x, parts = torch.randn(1, 3, size + 2, size + 2), (nn.Conv2d(3, channels, 3),)
        return network_tasks(prepared(lambda conv, x: function(conv(x)), x, parts=parts), TARGET, "image")

    return extracted


def spaces(task: TuningTask) -> list[Any]:
    return list(tune_context(task, TARGET, ms.search_strategy.ReplayTrace(), 0).generate_design_space())


REDUCTIONS = {
    "a mean of all pixels": (24, 7, lambda x: x.mean((2, 3))),
    "a maximum, with an activation before it": (40, 9, lambda x: F.relu(x).amax((2, 3))),
    "a maximum of windows with a border": (64, 12, lambda x: F.max_pool2d(x, 3, 2, 1)),
    "a mean of windows that counts no border": (16, 12, lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    "a large image on several cores": (64, 40, lambda x: F.avg_pool2d(x, 2)),
    "a mean to a size": (8, 12, lambda x: F.adaptive_avg_pool2d(x, 4)),
    "a sum that something elementwise follows": (32, 6, lambda x: torch.tanh(x.sum((2, 3), keepdim=True) + 1)),
}


@pytest.mark.parametrize(("channels", "size", "function"), REDUCTIONS.values(), ids=REDUCTIONS)
def test_a_reduction_over_pixels_is_one_program_that_computes_the_same(
    channels: int, size: int, function: Callable[..., Any], tasks_of: Any, result_of: Any, capfd: Any
) -> None:
    (task,) = (one for one in tasks_of(channels, size, function) if RULE in one.mod.script())
    (space,) = spaces(task)
    expected = result_of(task.mod)
    assert expected.std() > 0
    np.testing.assert_allclose(result_of(space.mod), expected, rtol=1e-6, atol=1e-6)
    replayed = tvm.s_tir.Schedule(task.mod)
    space.trace.apply_to_schedule(replayed, remove_postproc=True)
    assert structural_equal(replayed.mod, space.mod)
    assert "T.vectorized" in space.mod.script()
    assert "Warning" not in capfd.readouterr().err, "TVM has rules of poolings for cards alone"


WHOLE_REDUCTIONS = {
    "a minimum, for several cores": lambda x: x.amin(),
    "a maximum that keeps its axes": lambda x: F.relu(x[:, :, :7]).amax((0, 1, 2, 3), keepdim=True),
    "a maximum of one axis, for several cores": lambda x: x.reshape(1, 1, -1).amax(-1, keepdim=True),
    "a sum of squares": lambda x: (x[:, :, :3] * x[:, :, :3]).sum(),
}


@pytest.mark.parametrize("function", WHOLE_REDUCTIONS.values(), ids=WHOLE_REDUCTIONS)
def test_a_reduction_to_one_number_is_one_program_that_computes_the_same(
    function: Callable[..., Any], tasks_of: Any, result_of: Any
) -> None:
    (task,) = (one for one in tasks_of(48, 48, lambda x: function(x + 1)) if WHOLE in one.mod.script())
    (space,) = spaces(task)
    expected = result_of(task.mod)
    assert expected.size == 1
    assert expected.item() != 0
    np.testing.assert_allclose(result_of(space.mod), expected, rtol=1e-4)
    replayed = tvm.s_tir.Schedule(task.mod)
    space.trace.apply_to_schedule(replayed, remove_postproc=True)
    assert structural_equal(replayed.mod, space.mod)
    assert space.mod.script().count("T.vectorized") >= 2


def test_other_reductions_keep_the_spaces_of_metaschedule() -> None:
    a, b, odd = (te.placeholder(shape, name="x") for shape in ((16, 32), (32, 16), (16, 31)))
    few, row, column = (te.placeholder(shape, name="x") for shape in ((8, 16), (1, 512), (512, 1)))
    for tensors in (
        [a, topi.sum(a, axis=1)], [a, b, topi.matmul(a, b)], [odd, topi.sum(odd, axis=0)], [few, topi.max(few)],
        [row, column, topi.matmul(row, column)],
    ):  # fmt: skip
        func = te.create_prim_func(tensors).with_attr("global_symbol", "main")
        script = make_task(own_spaces()(tvm.IRModule({"main": func})), "task").mod.script()
        assert not {RULE, WHOLE} & set(script.split('"'))


def test_a_pooling_of_few_channels_keeps_them_without_a_warning(tasks_of: Any, capfd: Any) -> None:
    tasks = tasks_of(3, 12, lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False))
    (task,) = (one for one in tasks if "pool" in one.name)
    assert RULE not in task.mod.script()
    assert len(spaces(task)) > 1
    assert "Warning" not in capfd.readouterr().err


BROADCAST = {
    "a mean that is subtracted from each pixel": lambda x: x - x.mean((2, 3), keepdim=True),
    "a gate of the mean": lambda x: F.relu(x) * F.relu6(x.mean((2, 3), keepdim=True) + 3),
    "some channels of a mean": lambda x: torch.relu(x.mean((2, 3))[:, :20]),
    "a mean with axes behind": lambda x: torch.relu(x.mean((2, 3))[:, :, None, None]),
}


@pytest.mark.parametrize("function", BROADCAST.values(), ids=BROADCAST)
def test_what_follows_a_reduction_with_other_extents_does_not_compute_it_again(
    function: Callable[..., Any], tasks_of: Any, result_of: Any
) -> None:
    for task in tasks_of(40, 12, function):
        for space in spaces(task):
            np.testing.assert_allclose(result_of(space.mod), result_of(task.mod), rtol=1e-4, atol=1e-4)
        script = task.mod.script()
        assert RULE not in script or len(ArgInfo.from_entry_func(task.mod)) == 2, "a reduction of one tensor alone"

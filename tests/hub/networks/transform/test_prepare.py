"""A network made ready for inference computes what PyTorch computes, in fewer tasks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import build
from scipy import special
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.tasks import TuningTask, network_tasks
from tchub.hub.networks.transform.exponentials import fast_sigmoid, tanh
from torch import nn
from torch.nn import functional as F
from tvm import te, topi
from tvm.s_tir.meta_schedule import relax_integration

CPU = tvm.target.Target({"kind": "llvm", "num-cores": 1})
Equal = Callable[..., Any]


class Blocks(nn.Module):
    """What ConvertLayout stumbles over: batch norms, ReLU6, padding by hand, a depthwise and a grouped convolution; and
    what TVM leaves to libm: GELU, softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.grouped = nn.Conv2d(8, 16, 1, groups=2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(c) for c in (8, 8, 16)])
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu6(self.norms[0](self.first(F.pad(x, (0, 1, 0, 1)))))
        x = F.pad(x, (0, 0, 0, 0))
        x = F.relu6(self.norms[1](self.depthwise(x)) + x)
        x = F.gelu(3 * self.norms[2](self.grouped(x)))
        return torch.softmax(torch.relu(x).mean((2, 3)), -1)


class Transformer(nn.Module):
    """Attention, a scaled branch and activations behind linear layers, over an image's patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 2, stride=2)
        self.project = nn.Linear(16, 48)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        heads = self.project(x).reshape(1, 25, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads)
        x = x + y.transpose(1, 2).reshape(1, 25, 16)
        y = self.first(x)
        y = self.second(0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * torch.pow(y, 3)))))
        return torch.sigmoid(self.scale * y + x)


X = torch.randn(1, 3, 10, 10, generator=torch.Generator().manual_seed(0))


def tasks_of(mod: Any) -> list[TuningTask]:
    return network_tasks(mod, CPU, "network")


def test_channels_last_leaves_three_convolutions_with_all_that_follows_them_fused_in(equal: Equal) -> None:
    before, after = (tasks_of(equal(Blocks(), X, layout=layout, rtol=2e-5)) for layout in ("as-imported", LAYOUTS[0]))
    assert sum(task.op in ("conv2d", "depthwise") for task in after) == 3
    assert sum(task.op == "depthwise" for task in after) == 1
    assert sum(task.weight for task in after) < sum(task.weight for task in before)
    assert sum(task.op == "elementwise" for task in after) <= 2  # the input's transposition, a reshape


def test_activations_scales_and_residuals_join_the_linear_layer_whose_reshaped_output_they_follow(equal: Equal) -> None:
    names = [task.task_name for task in relax_integration.extract_tasks(equal(Transformer(), X, rtol=2e-5), CPU)]
    for activation in ("tanh", "sigmoid"):
        assert any(name.startswith("fused_matmul") and activation in name for name in names)


def test_integers_are_made_of_floats_that_are_none(equal: Equal) -> None:
    """What is rounded needs no integers; a fraction that is added to it does, and so does a bound for each number."""
    bounds = torch.linspace(1, 127, 64)

    def whole(x: torch.Tensor) -> list[torch.Tensor]:
        shifted = (x.round(), x.round() + 3, x.round() + 0.5, x)
        clamped = [*(one.clamp(-128, 127) for one in shifted), x.round().maximum(-bounds).minimum(bounds)]
        return [one.to(torch.int8).float() for one in clamped]

    assert equal(whole, 9 * torch.randn(1, 64), atol=0).script().count('T.Cast("int8"') == 3


def test_one_number_times_an_image_joins_the_convolution_on_either_side(equal: Equal) -> None:
    """As in a block with a learnable affine: parameters of one number, and one without a batch axis."""
    channels = torch.linspace(0.5, 1.5, 8).reshape(8, 1, 1)
    numbers = nn.ParameterList([*(nn.Parameter(torch.tensor([value])) for value in (0.7, 0.2)), nn.Parameter(channels)])
    parts = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), numbers

    def affine(first: Any, second: Any, by: Any, x: torch.Tensor) -> torch.Tensor:
        return second(by[0] * (by[2] * F.hardswish(by[1] + first(x))) - by[1])

    tasks = tasks_of(equal(affine, X, parts=parts))
    assert [task.op for task in tasks if "multiply" in task.name] == ["conv2d"]
    assert sum(task.op == "elementwise" for task in tasks) == 2, "in, and out"


class Bottleneck(nn.Module):
    """1x1 convolutions of which each pixel is computed alone, with a residual addition; the last one has a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1, stride=2)
        self.first, self.second = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 8, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.stem(x))
        return self.last(y + self.norm(self.second(F.hardtanh(self.first(y), 0, 6))))


def test_a_convolution_of_single_pixels_is_a_product_with_all_that_follows_it(equal: Equal, prepared: Any) -> None:
    module, x = Bottleneck(), torch.randn(3, 3, 7, 5)
    tasks = tasks_of(equal(module, x, rtol=2e-5))
    assert sorted(task.op for task in tasks if task.op != "elementwise") == ["conv2d", "conv2d", "matmul", "matmul"]
    names = [task.name for task in tasks if task.op == "matmul"]
    assert any("maximum" in name for name in names)
    assert any(name.count("add") == 2 for name in names), "the norm's bias and the residual"
    on_card = tasks_of(prepared(module, x, cpu=False))
    assert not any(task.op == "matmul" for task in on_card), "left to the design spaces of convolutions there"


def test_what_a_convolution_adds_to_a_product_of_pixels_stays_in_its_kernel(equal: Equal) -> None:
    """YOLO's bottleneck: what a 3x3 convolution gives is added to a 1x1 convolution's result, which it reads."""

    def darknet(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(first(x))
        return torch.relu(x + F.silu(second(x)))

    parts = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1)
    mod = equal(darknet, torch.randn(1, 8, 9, 7), parts=parts, rtol=2e-5)
    tasks = {task.op: task.name for task in tasks_of(mod) if "transpose" not in task.name}
    assert tasks.keys() == {"conv2d", "matmul"}, "no addition has a kernel of its own"
    assert tasks["conv2d"].count("add") == 2, "the bias and what is added"


@pytest.mark.parametrize("options", [{"groups": 2}, {"padding": 1}, {"stride": 2}])
def test_other_convolutions_of_single_pixels_stay(prepared: Any, options: dict[str, int]) -> None:
    module = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1, **options))
    assert not any("matmul" in task.name for task in tasks_of(prepared(module, torch.randn(1, 8, 9, 9))))


def test_an_activation_joins_the_product_of_a_large_image(prepared: Any) -> None:
    module = nn.Sequential(nn.Conv2d(4, 24, 1), nn.LeakyReLU(0.1))
    names = [task.name for task in tasks_of(prepared(module, torch.randn(1, 4, 512, 512)))]
    assert any(name.startswith("fused_matmul") and "maximum" in name for name in names), names


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.5])
def test_a_leaky_relu_takes_infinities_too(equal: Equal, slope: float) -> None:
    x = torch.tensor([[-torch.inf, -2.0, 0.0, 3.0, torch.inf]])
    equal(nn.LeakyReLU(slope), x if slope else x[:, 1:], rtol=0, atol=0)  # PyTorch's is no number at minus infinity


def test_what_has_no_effect_is_no_kernel(prepared: Any) -> None:
    """A mask of zeros, and reshapes and permutations that leave each element where it is."""

    def nothing(x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x) + torch.zeros(4, 6)
        return torch.relu(x.reshape(2, 4, 2, 3).permute(0, 2, 3, 1).reshape(2, 6, 4).transpose(1, 2) - 1)

    extracted = relax_integration.extract_tasks(prepared(nothing, torch.randn(2, 4, 6)), CPU)
    (kernel,) = (task.task_name for task in extracted if not task.task_name.startswith("reshape"))
    assert kernel.startswith("fused_relu_subtract_relu")
    assert "transpose" not in kernel


LEFT_TO_LIBM = {
    "erf": (Blocks, "erf(", "T.erf("),
    "sigmoid": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.SiLU(), nn.Sigmoid()), "sigmoid(", "T.sigmoid("),
    "a small power": (Transformer, "power", "power"),
}


@pytest.mark.parametrize(("make", "before", "after"), LEFT_TO_LIBM.values(), ids=LEFT_TO_LIBM)
def test_no_function_of_libm_is_left(prepared: Any, make: Any, before: str, after: str) -> None:
    module = make()
    assert before in prepared(module, X, layout="as-imported").script()
    assert after not in prepared(module, X).script()


def recurrent_tanh(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: tanh(x(*i)), name="tanh")


NUMBERS = np.linspace(-8, 8, 4096, dtype=np.float32)
ENDS = np.array([-np.inf, -200, -89, -87, -60, 60, 89, 200, np.inf], np.float32)
POLYNOMIALS = {
    "erf": (topi.fast_erf, special.erf, NUMBERS, 4e-7),
    "exp": (topi.fast_exp, np.exp, NUMBERS, 4e-7),
    "tanh": (topi.fast_tanh, np.tanh, NUMBERS, 4e-7),
    "sigmoid": (fast_sigmoid, special.expit, NUMBERS, 4e-7),
    "both ends of sigmoid": (fast_sigmoid, special.expit, ENDS, 1e-37),
    "tanh of a recurrent layer": (recurrent_tanh, np.tanh, NUMBERS, 4e-7),
}


@pytest.mark.parametrize(("polynomial", "exact", "numbers", "atol"), POLYNOMIALS.values(), ids=POLYNOMIALS)
def test_the_polynomials_have_the_accuracy_of_float32(
    polynomial: Any, exact: Any, numbers: np.ndarray, atol: float
) -> None:
    x = te.placeholder(numbers.shape, "float32", name="x")
    func = te.create_prim_func([x, polynomial(x)]).with_attr("global_symbol", "main")
    out = tvm.runtime.tensor(np.full_like(numbers, -1))
    build(tvm.IRModule({"main": func}))["main"](tvm.runtime.tensor(numbers), out)
    np.testing.assert_allclose(out.numpy(), exact(numbers.astype(np.float64)), rtol=4e-7, atol=atol)

"""A network made ready for inference computes what PyTorch computes, in fewer tasks."""

import numpy as np
import pytest
import torch
import tvm
from relax_kit import compute
from scipy import special
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.tasks import network_tasks
from tchub.hub.networks.transform.exponentials import fast_sigmoid, tanh
from tchub.hub.networks.transform.prepare import prepare
from tvm import te, topi
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir.meta_schedule import relax_integration

TARGET = {"kind": "llvm", "num-cores": 1}
CPU = tvm.target.Target(TARGET)


class Blocks(torch.nn.Module):
    """What ConvertLayout stumbles over: batch norms, ReLU6, padding by hand, a depthwise and a grouped convolution; and
    what TVM leaves to libm: GELU, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.grouped = torch.nn.Conv2d(8, 16, 1, groups=2)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(c) for c in (8, 8, 16)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.relu6(self.norms[0](self.first(torch.nn.functional.pad(x, (0, 1, 0, 1)))))
        x = torch.nn.functional.pad(x, (0, 0, 0, 0))
        x = torch.nn.functional.relu6(self.norms[1](self.depthwise(x)) + x)
        x = torch.nn.functional.gelu(3 * self.norms[2](self.grouped(x)))
        return torch.softmax(torch.relu(x).mean((2, 3)), -1)


class Transformer(torch.nn.Module):
    """Attention, a scaled branch and activations behind linear layers, over an image's patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 16, 2, stride=2)
        self.project = torch.nn.Linear(16, 48)
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        heads = self.project(x).reshape(1, 25, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(*heads)
        x = x + y.transpose(1, 2).reshape(1, 25, 16)
        y = self.first(x)
        y = self.second(0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * torch.pow(y, 3)))))
        return torch.sigmoid(self.scale * y + x)


@pytest.fixture(scope="module")
def transformer() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Transformer().eval(), torch.randn(1, 3, 10, 10)


@pytest.fixture(scope="module")
def network() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = Blocks().eval()
    for norm in model.norms:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return model, torch.randn(1, 3, 15, 15)


def _import(network: tuple[torch.nn.Module, torch.Tensor]) -> tvm.IRModule:
    with torch.no_grad():
        return from_exported_program(torch.export.export(network[0], (network[1],)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["network", "transformer"])
def test_the_output_is_that_of_pytorch(request: pytest.FixtureRequest, name: str, layout: str) -> None:
    network = request.getfixturevalue(name)
    (output,) = compute(prepare(_import(network), layout), network[1])
    with torch.no_grad():
        expected = network[0](network[1]).numpy()
    np.testing.assert_allclose(output, expected, rtol=2e-5, atol=1e-6)


def test_channels_last_leaves_three_convolutions_with_all_that_follows_them_fused_in(network) -> None:
    def tasks(layout: str) -> list:
        return network_tasks(prepare(_import(network), layout), CPU, "blocks")

    before, after = tasks("as-imported"), tasks("channels-last")
    convolutions = [task for task in after if task.op in ("conv2d", "depthwise")]
    assert len(convolutions) == 3
    assert sum(task.op == "depthwise" for task in after) == 1
    assert sum(task.weight for task in after) < sum(task.weight for task in before)
    assert sum(task.op == "elementwise" for task in after) <= 2  # the input's transposition, a reshape


def test_integers_are_made_of_floats_that_are_none() -> None:
    """What is rounded needs no integers; a fraction that is added to it does, and so does a bound for each number."""
    x = 9 * torch.randn(1, 64)
    bounds = torch.linspace(1, 127, 64)

    class Whole(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            shifted = (x.round(), x.round() + 3, x.round() + 0.5, x)
            clamped = [*(one.clamp(-128, 127) for one in shifted), x.round().maximum(-bounds).minimum(bounds)]
            return [one.to(torch.int8).float() for one in clamped]

    lowered = prepare(_import((Whole(), x)))
    for ours, theirs in zip(compute(lowered, x), Whole()(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert lowered.script().count('T.Cast("int8"') == 3


class Scaled(torch.nn.Module):
    """A convolution whose channels are scaled by a parameter without a batch axis, once by one of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8).reshape(8, 1, 1))
        self.ones = torch.nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x) * self.scale)) * self.ones - self.scale


def test_a_scale_of_fewer_axes_than_the_image_joins_the_convolution() -> None:
    torch.manual_seed(0)
    scaled, x = Scaled().eval(), torch.randn(1, 3, 9, 9)
    lowered = prepare(_import((scaled, x)))
    np.testing.assert_allclose(*compute(lowered, x), scaled(x).detach(), atol=1e-5)
    assert [task.op for task in network_tasks(lowered, CPU, "scaled") if "multiply" in task.name] == ["conv2d"]
    assert sum(task.op == "elementwise" for task in network_tasks(lowered, CPU, "scaled")) == 2, "in, and out"


def test_activations_scales_and_residuals_join_the_linear_layer_whose_reshaped_output_they_follow(transformer) -> None:
    extracted = relax_integration.extract_tasks(prepare(_import(transformer)), tvm.target.Target(TARGET))
    names = [task.task_name for task in extracted]
    assert any(name.startswith("fused_matmul") and "tanh" in name for name in names)
    assert any(name.startswith("fused_matmul") and "sigmoid" in name for name in names)


class Bottleneck(torch.nn.Module):
    """1x1 convolutions of which each pixel is computed alone, with a residual addition; the last one has a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 4, 1, stride=2)
        self.first, self.second = torch.nn.Conv2d(8, 24, 1), torch.nn.Conv2d(24, 8, 1, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.stem(x))
        return self.last(y + self.norm(self.second(torch.nn.functional.hardtanh(self.first(y), 0, 6))))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_convolution_of_single_pixels_is_a_product_with_all_that_follows_it(batch: int) -> None:
    torch.manual_seed(0)
    module, x = Bottleneck().eval(), torch.randn(batch, 3, 7, 5)
    module.norm.running_var.uniform_(0.5, 2.0)
    mod = prepare(_import((module, x)))
    tasks = network_tasks(mod, tvm.target.Target(TARGET), "bottleneck")
    assert sorted(task.op for task in tasks if task.op != "elementwise") == ["conv2d", "conv2d", "matmul", "matmul"]
    names = [task.name for task in tasks if task.op == "matmul"]
    assert any("maximum" in name for name in names)
    assert any(name.count("add") == 2 for name in names), "the norm's bias and the residual"
    (output,) = compute(mod, x)
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=2e-5, atol=1e-6)
    on_card = network_tasks(prepare(_import((module, x)), cpu=False), tvm.target.Target(TARGET), "bottleneck")
    assert not any(task.op == "matmul" for task in on_card), "left to the design spaces of convolutions there"


class Darknet(torch.nn.Module):
    """YOLO's bottleneck: what a 3x3 convolution gives is added to a 1x1 convolution's result, which it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(8, 16, 1), torch.nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.silu(self.first(x))
        return torch.relu(x + torch.nn.functional.silu(self.second(x)))


def test_what_a_convolution_adds_to_a_product_of_pixels_stays_in_its_kernel() -> None:
    torch.manual_seed(0)
    module, x = Darknet().eval(), torch.randn(1, 8, 9, 7)
    mod = prepare(_import((module, x)))
    tasks = {task.op: task.name for task in network_tasks(mod, CPU, "darknet") if "transpose" not in task.name}
    assert tasks.keys() == {"conv2d", "matmul"}, "no addition has a kernel of its own"
    assert tasks["conv2d"].count("add") == 2, "the bias and what is added"
    (output,) = compute(mod, x)
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"groups": 2}, {"padding": 1}, {"stride": 2}])
def test_other_convolutions_of_single_pixels_stay(options: dict[str, int]) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.Conv2d(8, 8, 1, **options)).eval()
    names = [task.name for task in network_tasks(prepare(_import((module, torch.randn(1, 8, 9, 9)))), CPU, "blocks")]
    assert not any("matmul" in name for name in names)


def test_an_activation_joins_the_product_of_a_large_image() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(4, 24, 1), torch.nn.LeakyReLU(0.1)).eval()
    x = torch.randn(1, 4, 512, 512)
    names = [task.name for task in network_tasks(prepare(_import((module, x))), CPU, "pixels")]
    assert any(name.startswith("fused_matmul") and "maximum" in name for name in names), names


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.5])
def test_a_leaky_relu_takes_infinities_too(slope: float) -> None:
    module, x = torch.nn.LeakyReLU(slope).eval(), torch.tensor([[-torch.inf, -2.0, 0.0, 3.0, torch.inf]])
    (output,) = compute(prepare(_import((module, x))), x)
    if slope:
        np.testing.assert_array_equal(output, module(x).numpy())
    else:  # PyTorch's own is no number at minus infinity
        np.testing.assert_array_equal(output[:, 1:], module(x).numpy()[:, 1:])


class Nothing(torch.nn.Module):
    """A mask of zeros, and reshapes and permutations that leave each element where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.zeros(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x) + self.mask
        return torch.relu(x.reshape(2, 4, 2, 3).permute(0, 2, 3, 1).reshape(2, 6, 4).transpose(1, 2) - 1)


def test_what_has_no_effect_is_no_kernel() -> None:
    x = torch.randn(2, 4, 6)
    extracted = relax_integration.extract_tasks(prepare(_import((Nothing().eval(), x))), tvm.target.Target(TARGET))
    (kernel,) = (task.task_name for task in extracted if not task.task_name.startswith("reshape"))
    assert kernel.startswith("fused_relu_subtract_relu")
    assert "transpose" not in kernel


def test_no_function_of_libm_is_left(network) -> None:
    assert "erf(" in prepare(_import(network), "as-imported").script()
    assert "T.erf(" not in prepare(_import(network), "channels-last").script()


def test_sigmoids_are_polynomials_up_to_both_ends() -> None:
    module, x = (
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Sigmoid()).eval(),
        torch.randn(2, 4),
    )
    assert "sigmoid(" in prepare(_import((module, x)), "as-imported").script()
    assert "T.sigmoid(" not in prepare(_import((module, x)), "channels-last").script()
    ends = np.array([-np.inf, -200, -89, -87, -60, 60, 89, 200, np.inf], np.float32)
    x = te.placeholder(ends.shape, "float32", name="x")
    func = te.create_prim_func([x, fast_sigmoid(x)]).with_attr("global_symbol", "main")
    out = tvm.runtime.tensor(np.full_like(ends, -1))
    tvm.compile(tvm.IRModule({"main": func}), target=tvm.target.Target(TARGET))["main"](tvm.runtime.tensor(ends), out)
    np.testing.assert_allclose(out.numpy(), special.expit(ends.astype(np.float64)), rtol=4e-7, atol=1e-37)


def test_a_small_power_is_products(transformer) -> None:
    assert "power" in prepare(_import(transformer), "as-imported").script()
    assert "power" not in prepare(_import(transformer), "channels-last").script()


POLYNOMIALS = {
    "erf": (topi.fast_erf, special.erf), "exp": (topi.fast_exp, np.exp), "tanh": (topi.fast_tanh, np.tanh),
    "sigmoid": (fast_sigmoid, special.expit),
    "tanh of a recurrent layer": (lambda x: te.compute(x.shape, lambda *i: tanh(x(*i)), name="tanh"), np.tanh),
}  # fmt: skip


@pytest.mark.parametrize(("polynomial", "exact"), POLYNOMIALS.values(), ids=POLYNOMIALS)
def test_the_polynomials_have_the_accuracy_of_float32(polynomial, exact) -> None:
    x = te.placeholder((4096,), "float32", name="x")
    func = te.create_prim_func([x, polynomial(x)]).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": func}), target=tvm.target.Target(TARGET))
    numbers = np.linspace(-8, 8, 4096, dtype=np.float32)
    out = tvm.runtime.tensor(np.zeros(4096, np.float32))
    built["main"](tvm.runtime.tensor(numbers), out)
    np.testing.assert_allclose(out.numpy(), exact(numbers.astype(np.float64)), rtol=4e-7, atol=4e-7)

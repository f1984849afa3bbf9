"""A network compiled without tuning, beside PyTorch; a tensor function and a library, run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import Computed, build, compute, prepare, relax_of
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.frontend.network import import_exported
from torch import Tensor, nn
from tvm import relax
from tvm.s_tir.meta_schedule.arg_info import ArgInfo


@pytest.fixture
def network_of() -> type[Computed]:
    """A network of a function and the modules that it uses."""
    torch.manual_seed(0)
    return Computed


@pytest.fixture
def equal() -> Callable[..., Any]:
    """Compile a module for some inputs, and assert that every output has PyTorch's shape, type and numbers."""

    def check(
        module: nn.Module | Callable[..., Any],
        *inputs: Tensor,
        parts: tuple = (),
        layout: str = LAYOUTS[0],
        again: bool = False,
        rtol: float = 1e-3,
        atol: float = 1e-5,
    ) -> Any:
        """Return what is compiled. Again: of a program that PyTorch has decomposed before."""
        network = (module if isinstance(module, nn.Module) else Computed(module, *parts)).eval()
        with torch.no_grad():
            exported = torch.export.export(network, inputs)
            exported = exported.run_decompositions({}) if again else exported
            expected = [x.numpy() for x in torch.utils._pytree.tree_leaves(network(*inputs))]
        mod = prepare(import_exported(exported, "network"), layout)
        results = compute(mod, *inputs)
        assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in expected]
        for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
            np.testing.assert_allclose(
                ours.astype("float64"), theirs.astype("float64"), rtol, atol, err_msg=f"output {number}"
            )
        return mod

    torch.manual_seed(0)
    return check


@pytest.fixture
def prepared() -> Callable[..., Any]:
    """Return what is compiled of a module for an input."""
    torch.manual_seed(0)

    def compiled(module: Any, *inputs: Tensor, parts: tuple = (), **options: Any) -> Any:
        network = (module if isinstance(module, nn.Module) else Computed(module, *parts)).eval()
        return prepare(relax_of(network, *inputs), **options)

    return compiled


@pytest.fixture
def result_of() -> Callable[[Any], np.ndarray]:
    """The last tensor of a tensor function, scheduled or not, that is run on random numbers."""

    def run(mod: Any) -> np.ndarray:
        shapes = [[int(x) for x in info.shape] for info in ArgInfo.from_entry_func(mod, remove_preproc=False)]
        arrays = [np.random.default_rng(i).standard_normal(one).astype(np.float32) for i, one in enumerate(shapes)]
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        build(mod)["main"](*tensors)
        return tensors[-1].numpy()

    return run


@pytest.fixture
def run_library() -> Callable[..., list[np.ndarray]]:
    """The outputs of a compiled library."""

    def run(path: Path, *inputs: Tensor) -> list[np.ndarray]:
        device: Any = tvm.cpu()
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), device)
        result = machine["main"](*(tvm.runtime.tensor(x.numpy()) for x in inputs))
        return [x.numpy() for x in ([result] if hasattr(result, "numpy") else result)]

    return run

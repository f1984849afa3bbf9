"""Networks of a function, and Relax graphs: what operators they call, and what they compute when compiled."""

from collections.abc import Callable
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

import torch
import tvm
from tchub.hub.device.build_jobs import linked_by
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.transform.prepare import for_inference, lower
from torch import Tensor, nn
from tvm import relax
from tvm.support.cc import create_shared

# LLVM takes half the time for it, and how fast the code is does not matter.
PLAIN = tvm.target.Target({"kind": "llvm", "opt-level": 0})


class Computed(nn.Module):
    """A function and the modules that it uses, as a network."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.parts, *inputs)


def linked(code: Any) -> Any:
    """Return compiled code as a library. TVM itself compiles it again to run it, whatever the target, for long."""
    with TemporaryDirectory() as folder:
        library, compiled = f"{folder}/code.so", f"{folder}/code.o"
        code.write_to_file(compiled, "o")
        (linked_by("ld") if which("ld") else create_shared)(library, [compiled])
        return tvm.runtime.load_module(library)


def build(mod: Any, target: Any = PLAIN) -> Any:
    """Compile tensor functions."""
    return linked(tvm.tirx.build(mod, target=target))


def compute(mod: Any, *inputs: Any, target: Any = PLAIN) -> list[Any]:
    """Compile a fused Relax module, run it on tensors of PyTorch, and return its outputs as arrays."""
    with target:
        built = relax.build(mod, target, relax_pipeline=relax.get_pipeline("default_build"))
    libraries = [linked(code) for code in built.mod.imports]
    built.mod.clear_imports()
    for library in libraries:
        built.mod.import_module(library)
    device: Any = tvm.cpu()
    result = relax.VirtualMachine(built, device)["main"](*(tvm.runtime.tensor(x.numpy()) for x in inputs))
    return [x.numpy() for x in ([result] if hasattr(result, "numpy") else result)]


def relax_of(module: nn.Module, *inputs: Tensor) -> Any:
    """Return the Relax module of a network in inference mode, as it is imported."""
    return import_exported(torch.export.export(module.eval(), inputs), "network")


def prepare(mod: Any, layout: str = LAYOUTS[0], *, cpu: bool = True) -> Any:
    """Return the tensor functions of an imported Relax module, fused and not scheduled, as `compute` takes them."""
    return lower(for_inference(mod, layout, cpu=cpu), cpu=cpu)


def calls(graph: Any, *names: str) -> list[Any]:
    """Return the calls in a graph's `main`, of some operators or of all."""
    result: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and (not names or name_of(expr) in names):
            result.append(expr)

    relax.analysis.post_order_visit(graph["main"], visit)
    return result


def functions(mod: Any) -> set[str]:
    """Return the names of a module's functions without `main`."""
    return {var.name_hint for var in mod.get_global_vars()} - {"main"}


def name_of(call: Any) -> str:
    """Return the name of a call's operator without `relax.`; empty for that of a function."""
    return str(getattr(call.op, "name", "")).removeprefix("relax.")

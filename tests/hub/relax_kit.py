"""Relax graphs: what operators they call, and what they compute when they are compiled."""

from typing import Any

import tvm
from tvm import relax


def compute(mod: Any, *inputs: Any) -> list[Any]:
    """Compile a fused Relax module, run it on tensors of PyTorch, and return its outputs as arrays."""
    # LLVM takes half the time for it, and how fast the code is does not matter.
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    with target:
        built = relax.build(mod, target, relax_pipeline=relax.get_pipeline("default_build"))
    device: Any = tvm.cpu()
    result = relax.VirtualMachine(built, device)["main"](*(tvm.runtime.tensor(x.numpy()) for x in inputs))
    return [x.numpy() for x in ([result] if hasattr(result, "numpy") else result)]


def calls(graph: Any, *names: str) -> list[Any]:
    """Return the calls in a graph's `main`, of some operators or of all."""
    result: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and (not names or name_of(expr) in names):
            result.append(expr)

    relax.analysis.post_order_visit(graph["main"], visit)
    return result


def name_of(call: Any) -> str:
    """Return the name of a call's operator without `relax.`; empty for that of a function."""
    return str(getattr(call.op, "name", "")).removeprefix("relax.")

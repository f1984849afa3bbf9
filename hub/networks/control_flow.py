"""PyTorch's `while_loop`, `scan` and `map` step by step: TVM's importer has none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

MOST_STEPS = 256
"""Of a loop: each step is as many operators as its body, which are exported and compiled one by one."""

Body = Callable[..., Any]


def has_loops(program: Any) -> bool:
    """Return whether the graph of a program, or a branch in it, has a loop."""
    return any(node.target in _loops() for node in _nodes(program.graph_module))


def unroll_loops(module: torch.nn.Module) -> None:
    """Let the module of a program run its loops in Python, so that an export writes them out; change it in place."""
    for node in _nodes(module):
        if node.op == "call_function":
            node.target = _loops().get(node.target, node.target)
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            part.recompile()


def _nodes(module: torch.nn.Module) -> list[Any]:
    return [x for part in module.modules() if isinstance(part, torch.fx.GraphModule) for x in part.graph.nodes]


def _while(condition: Body, body: Body, carried: Sequence[Any], extra: Sequence[Any]) -> tuple[Any, ...]:
    state, steps = tuple(carried), 0
    while pytree.tree_leaves(condition(*state, *extra))[0]:
        steps += 1
        if steps > MOST_STEPS:
            raise ValueError(f"a while_loop of more than {MOST_STEPS} steps")
        state = tuple(pytree.tree_leaves(body(*state, *extra)))
    return state


def _scan(step: Body, carried: Sequence[Any], xs: Sequence[Any], extra: Sequence[Any] = ()) -> tuple[Any, ...]:
    length, state, rows = len(xs[0]), tuple(carried), []
    if length > MOST_STEPS:
        raise ValueError(f"a scan of more than {MOST_STEPS} steps")
    for i in range(length):
        results = pytree.tree_leaves(step(*state, *(x[i] for x in xs), *extra))
        state = tuple(results[: len(state)])
        rows.append(results[len(state) :])
    return *state, *(torch.stack(column) for column in zip(*rows, strict=True))


def _map(step: Body, xs: Sequence[Any], extra: Sequence[Any] = ()) -> tuple[Any, ...]:
    return _scan(step, (), xs, extra)


@cache
def _loops() -> dict[Any, Callable[..., Any]]:
    functions = {"while_loop": _while, "scan": _scan, "map_impl": _map}
    return {getattr(torch.ops.higher_order, name): function for name, function in functions.items()}

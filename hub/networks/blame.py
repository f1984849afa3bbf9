"""Name the place in a user's network that PyTorch cannot export or TVM cannot import."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.errors import last_line
from .errors import NetworkImportError

if TYPE_CHECKING:
    import torch

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_LIBRARIES = ("/torch/", "/tvm/", "/tchub/", "/importlib/", "<")


def export_module(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], network: str) -> Any:
    """Export a PyTorch module for inference.

    Raises:
        NetworkImportError: PyTorch cannot export it; the error names the line of the module's code.
    """
    import torch

    try:
        with torch.no_grad(), _silence():
            return torch.export.export(module, tuple(args), dict(kwargs))
    except Exception as error:
        location = _location_of(error)
        dynamic = "data-dependent" in str(error) or type(error).__name__ in ("GuardOnDataDependentSymNode", "UserError")
        raise NetworkImportError(
            f"PyTorch cannot export {network}: {_reason(error)}" + (f" ({location})" if location else ""),
            remedy="replace control flow that depends on values of tensors by torch.where or torch.cond"
            if dynamic
            else "run torch.export.export(module, inputs) yourself until it passes, or leave the part out",
            network=network,
            location=location,
        ) from error


@contextmanager
def _silence() -> Iterator[None]:
    """Keep back what PyTorch logs and prints beside the error that it raises: tracebacks, and the whole graph."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """First sentence of PyTorch's error, which goes on with hints and frames."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else last_line(error))[:300].rstrip(".")


def _location_of(error: BaseException) -> str:
    """Innermost line of the user's code in a traceback, as `FILE:LINE in FUNCTION: CODE`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    if not frames:
        return ""
    frame = frames[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}: {frame.line}"


def where_in_network(exported: Any, operator: str) -> str:
    """Say where an operator stands in a network.

    Args:
        exported: a `torch.export.ExportedProgram`, decomposed or not.
        operator: as TVM's error names it: `aten.foo.default`, `foo.default`, `foo`, or Relax's `R.foo`.

    Returns:
        e.g. `layers.3.attn, model.py:31: return torch.cumsum(x, 1)`, or an empty text where the program has no such
        operator, as a Relax operator has another name than PyTorch's now and then.
    """
    wanted = _short(operator)
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    matches = [n for n in nodes if str(n.target).endswith(operator)] or [n for n in nodes if _short(n.target) == wanted]
    if not matches:
        return ""
    node = matches[0]
    text = ", ".join(part for part in (_module_path(node), _source_line(node)) if part)
    return f"{text} and {len(matches) - 1} more" if len(matches) > 1 and text else text


def _short(operator: Any) -> str:
    """`cumsum` of `aten.cumsum.default`, `cumsum.default` and `R.nn.cumsum`."""
    parts = [part for part in str(operator).strip("'[]").split(".") if part]
    if parts[0] in ("R", "relax"):
        return parts[-1]
    return parts[1] if parts[0] in ("aten", "prims", "torch") and len(parts) > 1 else parts[0]


def _module_path(node: Any) -> str:
    """Path of the innermost module, e.g. `layers.3.attn`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return next((str(path).removeprefix("L['self'].") for path, _ in reversed(stack) if path), "")


def _source_line(node: Any) -> str:
    """The innermost line of the user's own code: `model.py:31: return torch.cumsum(x, 1)`."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    users = [frame for frame in frames if _is_users(frame[0])] or frames
    if not users:
        return ""
    path, line, _, code = users[-1]
    return f"{Path(path).name}:{line}: {code.strip()}"


def _is_users(path: str) -> bool:
    return not any(part in path for part in _LIBRARIES)

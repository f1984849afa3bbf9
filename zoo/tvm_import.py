"""Import the parts of TVM that MetaSchedule loads lazily, once and quickly."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


def _module_of(item: Any, _filename: str | None = None) -> ModuleType | None:
    if inspect.isframe(item):
        return sys.modules.get(item.f_globals.get("__name__", ""))
    return sys.modules.get(getattr(item, "__module__", None) or "")


def import_tensor_intrinsics() -> None:
    """Import `tvm.s_tir.tensor_intrin`, which every `TuneContext` needs.

    TVMScript walks the call stack for each of its 500 functions there, and `inspect.getmodule` then searches all of
    `sys.modules` for each frame: with torch loaded that takes 20 s, asking the frame 2 s.
    """
    original = inspect.getmodule
    inspect.getmodule = _module_of
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        inspect.getmodule = original

"""Import the parts of TVM that MetaSchedule loads lazily, once and quickly."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def _module_of(item: Any, _filename: str | None = None) -> ModuleType | None:
    if inspect.isframe(item):
        return sys.modules.get(item.f_globals.get("__name__", ""))
    return sys.modules.get(getattr(item, "__module__", None) or "")


@contextmanager
def _direct_module_lookup() -> Iterator[None]:
    """Lets `inspect.getmodule` ask a frame for its module instead of searching every loaded module."""
    original = inspect.getmodule
    inspect.getmodule = _module_of
    try:
        yield
    finally:
        inspect.getmodule = original


def import_tensor_intrinsics() -> None:
    """Import `tvm.s_tir.tensor_intrin`, which every `TuneContext` needs.

    TVMScript walks the call stack for each of its 500 functions there, and `inspect` then searches all of
    `sys.modules` for each frame: with torch loaded that takes 20 s, with a direct lookup 2 s.
    """
    if "tvm.s_tir.tensor_intrin" in sys.modules:
        return
    with _direct_module_lookup():
        import tvm.s_tir.tensor_intrin  # noqa: F401

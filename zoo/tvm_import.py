"""Import the parts of TVM that MetaSchedule loads lazily, once and quickly."""

from __future__ import annotations

import inspect


def import_tensor_intrinsics() -> None:
    """Import `tvm.s_tir.tensor_intrin`, which every `TuneContext` needs.

    TVMScript asks for the call stack before each of its 500 functions there, with the source line of each frame: with
    torch loaded that takes 20 s. It needs the stack for classes and for annotations that are texts; there are none.
    """
    original = inspect.stack
    inspect.stack = lambda context=1: []
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        inspect.stack = original

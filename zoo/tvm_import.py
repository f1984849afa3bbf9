"""Import PyTorch and TVM quickly, and once the parts of TVM that MetaSchedule loads lazily."""

from __future__ import annotations

import gc
import inspect
import sys


def import_quickly(torch: bool = True) -> None:
    """Let PyTorch and TVM be imported a second sooner; for processes that are tchub's own.

    To look for garbage among what they make takes a fifth of the time, and all of that stays. TVM tries `disco`, whose
    library it has not loaded by then, goes on without, and describes the error's stack for half a second.

    Args:
        torch: False where nothing needs PyTorch, which TVM imports where it can.
    """
    gc.set_threshold(50_000, 20, 20)
    for name in ("tvm.runtime.disco", *(() if torch else ("torch",))):
        sys.modules.setdefault(name, None)  # pyright: ignore[reportArgumentType]


def import_tensor_intrinsics() -> None:
    """Import `tvm.s_tir.tensor_intrin`, which every `TuneContext` needs.

    TVMScript asks for the call stack before each of its 500 functions there, with the source line of each frame: with
    torch loaded that takes 20 s. It needs the stack for classes and for annotations that are texts; there are none.
    """
    if "tvm.s_tir.tensor_intrin" in sys.modules:
        return
    original, collects = inspect.stack, gc.isenabled()
    inspect.stack = lambda context=1: []
    gc.disable()  # nothing of it becomes garbage
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        inspect.stack = original
        if collects:
            gc.enable()

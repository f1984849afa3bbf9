"""Import PyTorch and TVM quickly, and once the parts of TVM that MetaSchedule loads lazily."""

import gc
import inspect
import sys
from importlib import import_module
from threading import Lock
from types import ModuleType


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


_INTRINSICS, _importing = "tvm.s_tir.tensor_intrin", Lock()


def import_tensor_intrinsics(kind: str | None = None) -> None:
    """Import `tvm.s_tir.tensor_intrin`, which every `TuneContext` needs.

    TVMScript asks for the call stack before each of its 500 functions there, with the source line of each frame: with
    torch loaded that takes 20 s. It needs the stack for classes and for annotations that are texts; there are none.
    Those of CUDA, ROCm and Hexagon take five of the six seconds that are left.

    Args:
        kind: of the target, e.g. `llvm`: leave out the intrinsics of other processors; None for those of all targets.
    """
    others = [f"{_INTRINSICS}.{name}" for name in ("cuda", "rocm", "hexagon")]
    with _importing:
        left_out = [name for name in others if kind and not name.endswith(kind) and name not in sys.modules]
        wanted = [name for name in (_INTRINSICS, *others) if name not in left_out and name not in sys.modules]
        if not wanted:
            return
        original, collects = inspect.stack, gc.isenabled()
        inspect.stack = lambda context=1: []
        gc.disable()  # nothing of it becomes garbage
        sys.modules.update({name: ModuleType(name) for name in left_out})
        try:
            for name in wanted:
                import_module(name)
        finally:
            inspect.stack = original
            if collects:
                gc.enable()
            for name in left_out:
                del sys.modules[name]

"""A network and a tuning database to a shared library."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.files import storing

if TYPE_CHECKING:
    from tvm import IRModule


@dataclass(frozen=True)
class BuiltLibrary:
    """A compiled network.

    Attributes:
        path: the shared library.
        seconds: compile time.
        functions: kernels in it; tuned: those with a schedule of the database.
        size: bytes.
    """

    path: str
    seconds: float
    functions: int
    tuned: int
    size: int


def build_library(
    mod: IRModule, target: Any, database: Any | None, path: Path, linker: str | None = None
) -> BuiltLibrary:
    """Compile a fused Relax module, with the best schedules of a MetaSchedule database if there is one.

    The module is taken as it is: running the fusion passes again, as MetaSchedule's `compile_relax` does,
    could make functions that the database has never seen.

    Args:
        mod: as `Network.relax_module` gives it, whose functions are the tuned tasks.
        target: a `tvm.target.Target`.
        database: MetaSchedule's, or None for untuned code.
        path: of the shared library, or for a card of its archive (`device.cuda_network`); written atomically.
        linker: for another architecture, called as `LINKER -shared -o LIBRARY OBJECTS`; None for this machine's own.
    """
    from contextlib import nullcontext

    import tvm
    from tvm import relax

    from ..device.cuda_network import build_network
    from ..device.jobs import linked_by

    if target.kind.name == "cuda":
        start = time.monotonic()
        functions, tuned = build_network(mod, target, database, path)
        return BuiltLibrary(str(path), time.monotonic() - start, functions, tuned, path.stat().st_size)
    counts = {"functions": 0, "tuned": 0}

    def lower(mod: Any, _context: Any) -> Any:
        if database is not None:
            mod = tvm.transform.Sequential(_tuned())(mod)
        kernels = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        counts["functions"] = len(kernels)
        counts["tuned"] = sum(bool(f.attrs.get("tirx.is_scheduled", False)) for f in kernels)
        return tvm.transform.Sequential(_lowering())(mod)

    pipeline: Any = tvm.transform.module_pass(lower, opt_level=0)
    start = time.monotonic()
    # An empty database is false, and must be there all the same.
    with target, nullcontext() if database is None else database, tvm.transform.PassContext(opt_level=3):
        library = relax.build(mod, target=target, relax_pipeline=pipeline)
    temporary = path.with_name(f"{path.stem}.part.so")
    with storing(path):
        library.export_library(str(temporary), fcompile=linked_by(linker) if linker else None)
        temporary.replace(path)
    return BuiltLibrary(str(path), time.monotonic() - start, **counts, size=path.stat().st_size)


def _tuned() -> list[Any]:
    """The passes that put in the database's schedules, and permute the weights as these read them, here and now."""
    from tvm.relax import transform

    return [
        transform.MetaScheduleApplyDatabase(),
        transform.SplitLayoutRewritePreproc(),
        transform.FoldConstant(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
    ]


def _lowering() -> list[Any]:
    """Relax's own passes from tensor functions to the virtual machine, for a module that is fused already."""
    from tvm.relax import transform

    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]

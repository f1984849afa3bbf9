"""A network and a tuning database to a shared library."""

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.relax import transform
from tvm.relax.backend.cpu_generic import pipeline
from tvm.s_tir.stmt import SBlock
from tvm.support.cc import create_shared
from tvm_ffi import structural_walk

from ...zoo.files import storing
from ..device.candidate import WEIGHTS
from ..device.jobs import PREPACKED, compile_kernel, linked_by, with_aligned_stack
from ..device.pool import JobResult, WorkerPool
from ..device.weight_prefetch import prefetch_weights
from .transform.default_schedules import default_schedules
from .transform.fold import fold_functions
from .weights import lift_weights, weights_file, write_weights

# A kernel takes a second, seldom ten; an hour is for what never ends.
_KERNEL_SECONDS = 3600.0


@dataclass(frozen=True)
class BuiltLibrary:
    """A compiled network.

    Attributes:
        functions: kernels in it; tuned: those with a schedule of the database.
    """

    path: str
    functions: int
    tuned: int


def build_library(
    mod: IRModule,
    target: Any,
    database: Any | None,
    path: Path,
    linker: str | None = None,
    large: int | None = None,
    compilers: WorkerPool | None = None,
) -> BuiltLibrary:
    """Compile a fused Relax module, with the best schedules of a MetaSchedule database if there is one.

    The module is taken as it is: running the fusion passes again, as MetaSchedule's `compile_relax` does,
    could make functions that the database has never seen. Large weights are written beside the library, see `weights`.

    Args:
        mod: as `prepare.lower` gives it, whose functions are the tuned tasks.
        target: a `tvm.target.Target`.
        database: MetaSchedule's, or None for an untuned network; functions that are not in it have default schedules.
        path: of the shared library, or for a card of its archive (`device.cuda_network`); written atomically.
        linker: for another architecture, called as `LINKER -shared -o LIBRARY OBJECTS`; None for this machine's own.
        large: bytes of weights from which on they are beside the library; None for 128 MiB.
        compilers: that compile the kernels, each by itself; None to compile them here, one after the other.
    """
    from ..device.cuda_network import build_network

    if target.kind.name == "cuda":
        return BuiltLibrary(str(path), *build_network(mod, target, database, path))
    counts, weights = [], []

    def lower(mod: Any, _context: Any) -> Any:
        if database is not None:
            # The schedules, and the weights permuted as these read them, here and now.
            mod = _split_prepacking(transform.MetaScheduleApplyDatabase()(mod))
            fold = fold_functions(), transform.FoldConstant(), transform.CanonicalizeBindings()
            mod = prefetch_weights(tvm.transform.Sequential([*fold, transform.DeadCodeElimination()])(mod), target)
        mod, weights[:] = lift_weights(default_schedules(mod), large)
        functions = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        counts[:] = len(functions), sum(bool(f.attrs.get("tirx.is_scheduled", False)) for f in functions)
        passes = pipeline.dataflow_lower_passes(target) + pipeline.finalize_passes(target)
        mod = tvm.transform.Sequential(passes)(mod)
        kernels.update((v, f) for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
        for var in kernels:
            mod[var] = relax.ExternFunc(var.name_hint)
        return mod

    kernels: dict[Any, Any] = {}
    lowering: Any = tvm.transform.module_pass(lower, opt_level=0)
    # An empty database is false, and must be there all the same.
    with target, nullcontext() if database is None else database, tvm.transform.PassContext(opt_level=3):
        library = relax.build(mod, target=target, relax_pipeline=lowering)
    with storing(path):
        _export(library, kernels, weights, target, path, linker, compilers)
    return BuiltLibrary(str(path), *counts)


def _export(
    library: Any,
    kernels: Mapping[Any, Any],
    weights: Sequence[Any],
    target: Any,
    path: Path,
    linker: str | None,
    compilers: WorkerPool | None,
) -> None:
    """Write a network's executable with its kernels, and its weights."""
    link, own = linked_by(linker) if linker else create_shared, IRModule(dict(kernels))
    objects: dict[str, Future[JobResult]] = {}
    with tempfile.TemporaryDirectory(prefix="tchub-code-") as folder:
        if compilers is not None:
            for number, (var, function) in enumerate(kernels.items()):
                name, text = f"{folder}/kernel{number}.o", tvm.ir.save_json(IRModule({var: function}))
                objects[name] = compilers.submit(compile_kernel, (text, str(target), name), _KERNEL_SECONDS)
            own = _no_kernel()

        def link_all(output: str, rest: Sequence[str], **options: Any) -> None:
            for var, job in zip(kernels, objects.values(), strict=False):
                if (result := job.result()).error is not None:
                    raise RuntimeError(f"{var.name_hint}: {result.message}")
            link(output, [*rest, *objects], **options)

        temporary = path.with_name(f"{path.stem}.part.so")
        try:
            with target, tvm.transform.PassContext(opt_level=3):
                library.mod.import_module(with_aligned_stack(tvm.tirx.build(own, target=target)))
            library.export_library(str(temporary), fcompile=link_all)
            write_weights(weights_file(path), weights)
            temporary.replace(path)
        finally:
            for job in objects.values():
                job.cancel()
            temporary.unlink(missing_ok=True)


def _no_kernel() -> IRModule:
    """Return a function that does nothing: an executable without code of its own is not linked with that of others."""
    nothing = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "tchub_nothing")
    return IRModule({"tchub_nothing": nothing})


def _split_prepacking(mod: Any) -> Any:
    """Make the permutation of weights functions of their own.

    TVM's pass sees the functions that permute some alone: it refuses others without a loop, e.g. a call of a sort.
    """
    aside, rest = {}, {}
    for var, function in mod.functions_items():
        is_kernel, blocks = isinstance(function, tvm.tirx.PrimFunc), list[Any]()
        if is_kernel:
            structural_walk(function.body, (SBlock, blocks.append))
        alone = is_kernel and not any(PREPACKED in block.annotations for block in blocks)
        (aside if alone else rest)[var] = function
    split = transform.SplitLayoutRewritePreproc()(IRModule(rest, mod.attrs, mod.global_infos))
    for var, function in rest.items():
        prepacked = f"{var.name_hint}_prepacked"
        if prepacked in split:  # the pass gives it no attributes
            split[prepacked] = split[prepacked].with_attr(WEIGHTS, function.attrs.get(WEIGHTS, ()))
    split.update(IRModule(aside))
    return split

"""A network and a tuning database to a shared library."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from tvm import IRModule, relax
from tvm.relax import transform
from tvm.relax.backend.cpu_generic import pipeline
from tvm.support.cc import create_shared

from ...zoo.files import storing
from ..device.build_jobs import PREPACKED, compile_kernel, linked_by, with_aligned_stack
from ..device.candidate import WEIGHTS
from ..device.code_lookups import with_lookups
from ..device.errors import DeviceError
from ..device.measure import is_passing
from ..device.pool import JobResult, WorkerPool
from ..device.saturation import saturating
from ..device.tile_registers import with_tile_registers
from ..device.unrolling import bounded_unrolling, unrolled_sums
from ..device.weight_prefetch import prefetch_weights
from .in_place import results_in_place
from .transform.default_schedules import default_schedules
from .transform.elementwise import blocks_in
from .transform.fold import fold_functions
from .weights import lift_weights, weights_file, write_weights

# A kernel takes a second, seldom ten.
_KERNEL_SECONDS = 600.0


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
    builders: WorkerPool | None = None,
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
        builders: workers that compile the kernels as they do programs (`build_jobs.quickly_scheduled`); None to compile
            them in this process, one after the other.

    Raises:
        DeviceError: the memory or the disk of the machine is full.
        StorageError: the library cannot be written.
        RuntimeError: TVM cannot compile a kernel.
    """
    from ..device.cuda_network import build_network

    if target.kind.name == "cuda":
        return BuiltLibrary(str(path), *build_network(mod, target, database, path))
    counts, weights = [], []

    def lower(mod: Any, _context: Any) -> Any:
        views, *calls = pipeline.dataflow_lower_passes(target)
        passes = [*calls, results_in_place(), *pipeline.finalize_passes(target)]
        if database is not None:
            # The schedules, and the weights permuted as these read them, here and now.
            mod = _split_prepacking(transform.MetaScheduleApplyDatabase()(mod))
            fold = fold_functions(), transform.FoldConstant(), transform.CanonicalizeBindings()
            mod = tvm.transform.Sequential([*fold, transform.DeadCodeElimination()])(mod)
        mod = views(mod)  # TVM finds what only reshapes by its blocks, which are lowered from here on
        if database is not None:
            mod = prefetch_weights(bounded_unrolling(unrolled_sums(mod)), target)
        mod, weights[:] = lift_weights(default_schedules(mod), large)
        # Tiles come last: they may store results by two statements, and `results_in_place` needs a single one.
        threads = int(target.attrs.get("num-cores", 1))
        mod = with_tile_registers(saturating(tvm.transform.Sequential(passes)(mod), target), threads)
        mod = with_lookups(mod, target)
        kernels.update((v, f) for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
        counts[:] = len(kernels), sum(bool(f.attrs.get("tirx.is_scheduled", False)) for f in kernels.values())
        for var in kernels:
            mod[var] = relax.ExternFunc(var.name_hint)
        return mod

    kernels: dict[Any, Any] = {}
    lowering: Any = tvm.transform.module_pass(lower, opt_level=0)
    # An empty database is false, and must be there all the same.
    with target, nullcontext() if database is None else database, tvm.transform.PassContext(opt_level=3):
        library = relax.build(mod, target=target, relax_pipeline=lowering)
    with storing(path):
        _export(library, kernels, weights, target, path, linker, builders)
    return BuiltLibrary(str(path), *counts)


def _export(
    library: Any,
    kernels: Mapping[Any, Any],
    weights: Sequence[Any],
    target: Any,
    path: Path,
    linker: str | None,
    builders: WorkerPool | None,
) -> None:
    """Write a network's executable with its kernels, and its weights."""
    link = linked_by(linker) if linker else create_shared
    with tempfile.TemporaryDirectory(prefix="tchub-code-", ignore_cleanup_errors=True) as folder:
        jobs = {
            var.name_hint: (tvm.ir.save_json(IRModule({var: function})), str(target), f"{folder}/kernel{number}.o")
            for number, (var, function) in enumerate(kernels.items() if builders else ())
        }
        own = IRModule(dict(kernels)) if kernels and not jobs else _no_kernel()
        temporary = path.with_name(f"{path.stem}.part.so")
        try:
            with target, tvm.transform.PassContext(opt_level=3), _compiling(builders, jobs) as wait:

                def link_all(output: str, objects: Sequence[str], **options: Any) -> None:
                    wait()
                    link(output, [*objects, *(name for *_, name in jobs.values())], **options)

                library.mod.import_module(with_aligned_stack(tvm.tirx.build(own, target=target)))
                library.export_library(str(temporary), fcompile=link_all)
            write_weights(weights_file(path), weights)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _compiling(builders: WorkerPool | None, jobs: Mapping[str, tuple[str, str, str]]) -> Iterator[Callable[[], None]]:
    """Compile kernels in workers; yield a function that waits for all of them. A worker that dies costs a second try.

    Args:
        jobs: arguments of `compile_kernel`, by the kernel's name.

    Raises:
        DeviceError: the memory or the disk of the machine is full.
        RuntimeError: a kernel cannot be compiled.
    """

    def submit(name: str) -> Future[JobResult]:
        assert builders is not None
        return builders.submit(compile_kernel, jobs[name], _KERNEL_SECONDS)

    def wait() -> None:
        for name, first in compiling.items():
            result = first.result()
            if is_passing(f"{result.failure('build')}: {result.message}"):
                result = submit(name).result()
            if result.error == "exception" and is_passing(f"build: {result.message}"):
                raise DeviceError(
                    f"this machine could not compile {name}: {result.message}",
                    remedy="free memory and disk, and run the same command again: what was measured is kept",
                )
            if result.error is not None:
                raise RuntimeError(f"{name}: {result.message}")

    compiling: dict[str, Future[JobResult]] = {}
    try:
        for name in jobs:
            compiling[name] = submit(name)
        yield wait
    finally:
        for job in compiling.values():
            job.cancel()


def _no_kernel() -> IRModule:
    """Return a function that does nothing: TVM links only what has some code of its own."""
    nothing = tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(tvm.tirx.const(0))).with_attr("global_symbol", "tchub_nothing")
    return IRModule({"tchub_nothing": nothing})


def _split_prepacking(mod: Any) -> Any:
    """Make the permutation of weights functions of their own.

    TVM's pass sees the functions that permute some alone: it refuses others without a loop, e.g. a call of a sort.
    """
    aside, rest = {}, {}
    for var, function in mod.functions_items():
        is_kernel = isinstance(function, tvm.tirx.PrimFunc)
        alone = is_kernel and not any(PREPACKED in block.annotations for block in blocks_in(function))
        (aside if alone else rest)[var] = function
    split = transform.SplitLayoutRewritePreproc()(IRModule(rest, mod.attrs, mod.global_infos))
    for var, function in rest.items():
        prepacked = f"{var.name_hint}_prepacked"
        if prepacked in split:  # the pass gives it no attributes
            split[prepacked] = split[prepacked].with_attr(WEIGHTS, function.attrs.get(WEIGHTS, ()))
    split.update(IRModule(aside))
    return split

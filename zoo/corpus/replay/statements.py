"""TVM's statement features of measured programs of any framework: made once, kept in one file, by several processes.

The file is an SQLite database: every batch is one transaction, so a run that was killed goes on where it was, and
two runs may share the file. A program is known by what makes it, not by its corpus: corpora may share the file too.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import cache, lru_cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import last_line
from ...features.columns import PERSTORE_WIDTH
from ...features.statements import lowered_statements
from ...tile_instructions import register_named
from ...tvm_import import import_quickly, import_tensor_intrinsics
from .ansor import replay
from .autotvm import replay_knobs
from .operators import ReplayError, workload

if TYPE_CHECKING:
    from .. import Corpus, Program

STORE_FILE = "statements.sqlite"
REVISION = 1
"""Raise it when a replay or a feature changes its meaning: stored features are then made again."""
_BATCH = 32
_GPU_KINDS = ("cuda", "nvidia", "rocm", "opencl", "metal", "vulkan")
_NOTHING = np.zeros((0, PERSTORE_WIDTH), np.float32)
_FRESH: Any = (get_context("forkserver"), import_quickly, (False,))  # how processes start: without PyTorch


class LoweringJob(NamedTuple):
    """A program whose features are wanted.

    Workload and trace are as a corpus has them. `gpu`: whether it is for a GPU: all that features know of a target.
    """

    framework: str
    workload: str
    trace: str
    gpu: bool

    @property
    def key(self) -> str:
        """32 hex digits of everything that the features depend on."""
        parts = (REVISION, version("apache-tvm"), self.framework, self.gpu, self.workload, self.trace)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class NoFeatures(NamedTuple):
    """A program without features: its ReplayError's reason, `not-lowered` or `crash` of TVM; and one line."""

    reason: str
    message: str


_Features = np.ndarray | NoFeatures


def statement_features(
    corpus: Corpus,
    programs: Sequence[Program],
    cache_dir: Path | str,
    workers: int = 1,
    count: Callable[[str, int, int], None] | None = None,
) -> tuple[list[np.ndarray], dict[int, NoFeatures]]:
    """Return statement features of programs of a corpus.

    Args:
        programs: of any of its tasks.
        cache_dir: folder of the file that keeps the features; created when needed.
        workers: processes; with 1, this process does the work, and a program that TVM dies of ends it.
        count: called after each batch with what is done, how many programs are, and all that the file lacks.

    Returns:
        One float32 array (statements, 164) a program, without any row for a program that failed; and the failures,
        by the position of the program.
    """
    wanted = [
        LoweringJob(p.framework, corpus.tasks[p.task_id].workload, p.trace, any(gpu in p.target for gpu in _GPU_KINDS))
        for p in programs
    ]
    keys = [program.key for program in wanted]
    with closing(_open(Path(cache_dir))) as store:
        missing = {key: one for key, one in zip(keys, wanted, strict=True) if _load(store, key) is None}
        done = 0
        for batch, results in _make(list(missing.values()), workers):
            rows = [
                (program.key, None, result.reason, result.message)
                if isinstance(result, NoFeatures)
                else (program.key, zlib.compress(result.tobytes(), 1), None, None)
                for program, result in zip(batch, results, strict=True)
            ]
            with store:
                store.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", rows)
            done += len(batch)
            if count:
                count("lowering", done, len(missing))
        features = [_load(store, key) for key in keys]
    failures = {index: result for index, result in enumerate(features) if isinstance(result, NoFeatures)}
    return [result if isinstance(result, np.ndarray) else _NOTHING for result in features], failures


# One program ---------------------------------------------------------------------------------------------


def features_of(programs: Sequence[LoweringJob]) -> list[_Features]:
    """Return statement features, float32 of shape (statements, 164), or the reason why there are none."""
    from tvm.s_tir import meta_schedule as ms

    results: list[_Features] = [_NOTHING] * len(programs)
    schedules: dict[bool, dict[int, Any]] = {False: {}, True: {}}
    for index, program in enumerate(programs):
        try:
            schedules[program.gpu][index] = _schedule(program)
        except ReplayError as error:
            results[index] = NoFeatures(error.reason, error.message)
    for gpu, of_kind in schedules.items():
        # The extractor reads the schedules alone; a candidate wants argument infos only for running it.
        candidates = [ms.MeasureCandidate(schedule, []) for schedule in of_kind.values()]
        statements = lowered_statements(_context(gpu), candidates) if candidates else ()
        for index, features in zip(of_kind, statements, strict=True):
            results[index] = NoFeatures("not-lowered", features) if isinstance(features, str) else features
    return results


def _schedule(program: LoweringJob) -> Any:
    """Return the program as a `tvm.s_tir.Schedule`; raise ReplayError where it cannot be replayed."""
    try:
        trace = list(json.loads(program.trace))
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplayError("wrong-shape", f"the trace is no JSON list: {program.trace[:120]}") from error
    match program.framework:
        case "ansor":
            return replay(workload(program.workload), trace)
        case "autotvm":
            return replay_knobs(program.workload, trace)
        case "metaschedule":
            return _apply(program.workload, trace)
    raise ReplayError("unknown-framework", f"no replay of {program.framework} programs is known")


def _apply(workload: str, trace: list[Any]) -> Any:
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    register_named(trace)
    schedule = Schedule(_module(workload), error_render_level="fast")
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:  # a trace of another TVM fails in more ways than ScheduleError
        raise ReplayError("refused", f"TVM refuses the trace: {last_line(error)}") from error
    return schedule


@lru_cache(64)
def _module(workload: str) -> Any:
    import tvm

    try:
        return tvm.ir.load_json(workload)
    except Exception as error:
        raise ReplayError("unknown-workload", f"TVM cannot load the task: {last_line(error)}") from error


@cache
def _context(gpu: bool) -> Any:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    # Whatever GPU it is: the extractor asks no more than whether the target is CUDA's.
    target: Any = tvm.target.Target({"kind": "cuda", "arch": "sm_75"} if gpu else {"kind": "llvm", "num-cores": 1})
    import_tensor_intrinsics(target.kind.name)
    return ms.TuneContext(target=target, num_threads=1)


# Many programs -------------------------------------------------------------------------------------------


def _make(programs: list[LoweringJob], workers: int) -> Iterator[tuple[list[LoweringJob], list[_Features]]]:
    """Yield batches with their features, in any order.

    Where a worker dies, TVM may have died of any program in hand: each of these then has a process of its own.
    """
    batches = [programs[start : start + _BATCH] for start in range(0, len(programs), _BATCH)]
    if workers <= 1:
        yield from ((batch, features_of(batch)) for batch in batches)
        return
    left: list[LoweringJob] = []
    with ProcessPoolExecutor(workers, *_FRESH) as pool:
        futures = {pool.submit(features_of, batch): batch for batch in batches}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                left += futures[future]
    for program in left:
        with ProcessPoolExecutor(1, *_FRESH) as pool:
            try:
                yield [program], pool.submit(features_of, [program]).result()
            except BrokenProcessPool:
                yield [program], [NoFeatures("crash", "the process that replayed it died")]


# The file ------------------------------------------------------------------------------------------------


def _open(folder: Path) -> sqlite3.Connection:
    folder.mkdir(parents=True, exist_ok=True)
    store = sqlite3.connect(folder / STORE_FILE, timeout=60)
    store.execute("CREATE TABLE IF NOT EXISTS features (key TEXT PRIMARY KEY, rows BLOB, reason TEXT, message TEXT)")
    return store


def _load(store: sqlite3.Connection, key: str) -> _Features | None:
    row = store.execute("SELECT rows, reason, message FROM features WHERE key = ?", (key,)).fetchone()
    if row is None:
        return None
    if row[0] is None:
        return NoFeatures(*row[1:])
    return np.frombuffer(zlib.decompress(row[0]), np.float32).reshape(-1, PERSTORE_WIDTH).copy()

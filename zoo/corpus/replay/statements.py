"""From measured programs of any framework to TVM's statement features, a few programs at a time."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import last_line
from ...features.columns import PERSTORE_WIDTH
from ...tvm_import import import_tensor_intrinsics
from .ansor import replay_steps
from .autotvm import replay_knobs
from .operators import ReplayError

if TYPE_CHECKING:
    from .. import Corpus, Program


GPU_TARGETS = ("cuda", "nvidia", "rocm", "opencl", "metal", "vulkan")


@dataclass(frozen=True, slots=True)
class Request:
    """A program whose features are wanted.

    Attributes:
        framework: who wrote its trace.
        workload: as `Task.workload` holds it for that framework; trace: as `Program.trace` does.
        gpu: whether it is for a GPU: all that the features know of a target.
    """

    framework: str
    workload: str
    trace: str
    gpu: bool


@dataclass(frozen=True, slots=True)
class NoFeatures:
    """Why a program has none, and a message.

    The reason is a `ReplayError`'s, `not-lowered` where TVM cannot lower the replay, or `crash` where it died of it.
    """

    reason: str
    message: str


def schedule_of(request: Request) -> Any:
    """The program as a `tvm.s_tir.Schedule`.

    Raises:
        ReplayError: it cannot be replayed.
    """
    if request.framework not in _REPLAYS:
        raise ReplayError("unknown-framework", f"no replay of {request.framework} programs is known")
    return _REPLAYS[request.framework](request.workload, request.trace)


def features_of(requests: Sequence[Request]) -> list[np.ndarray | NoFeatures]:
    """Statement features, float32 of shape (statements, 164), or the reason why there are none."""
    found: list[np.ndarray | NoFeatures] = []
    schedules: list[tuple[int, Any, bool]] = []
    for index, request in enumerate(requests):
        try:
            schedules.append((index, schedule_of(request), request.gpu))
            found.append(np.zeros((0, PERSTORE_WIDTH), np.float32))
        except ReplayError as error:
            found.append(NoFeatures(error.reason, error.message))
    for gpu in (False, True):
        of_kind = [(index, schedule) for index, schedule, for_gpu in schedules if for_gpu == gpu]
        made = _extract([schedule for _, schedule in of_kind], gpu) if of_kind else iter(())
        for (index, _), features in zip(of_kind, made, strict=True):
            found[index] = features
    return found


def for_gpu(target: str) -> bool:
    """Whether a target (JSON, of a dict or of TVM's older texts) is a GPU."""
    return any(name in target for name in GPU_TARGETS)


def _extract(schedules: list[Any], gpu: bool) -> Iterator[np.ndarray | NoFeatures]:
    from tvm.s_tir import meta_schedule as ms

    # The extractor reads the schedules alone; a candidate wants argument infos only for running it.
    candidates = [ms.MeasureCandidate(schedule, []) for schedule in schedules]
    extractor, context = _extractor(gpu)
    try:
        made = list(extractor.extract_from(context, candidates))
    except Exception as error:  # TVM raises errors of every class from its passes
        if len(schedules) > 1:
            for schedule in schedules:
                yield from _extract([schedule], gpu)
        else:
            yield NoFeatures("not-lowered", last_line(error))
        return
    yield from (features.numpy().astype(np.float32) for features in made)


@lru_cache(2)
def _extractor(gpu: bool) -> tuple[Any, Any]:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    import_tensor_intrinsics()
    # Whatever GPU it is: the extractor asks no more than whether the target is CUDA's.
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_75"} if gpu else {"kind": "llvm", "num-cores": 1})
    context = ms.TuneContext(target=target, num_threads=1)
    return ms.feature_extractor.PerStoreFeature(extract_workload=False), context


def _ansor(workload: str, trace: str) -> Any:
    return replay_steps(workload, _list(trace))


def _autotvm(workload: str, trace: str) -> Any:
    return replay_knobs(workload, _list(trace)).schedule


def _list(trace: str) -> list[Any]:
    try:
        return list(json.loads(trace))
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplayError("wrong-shape", f"the trace is no JSON list: {trace[:120]}") from error


def _metaschedule(workload: str, trace: str) -> Any:
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(_module(workload), error_render_level="fast")
    try:
        Trace.apply_json_to_schedule(json.loads(trace), schedule)
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


_REPLAYS: dict[str, Callable[[str, str], Any]] = {
    "ansor": _ansor,
    "autotvm": _autotvm,
    "metaschedule": _metaschedule,
}


STORE_FILE = "statements.sqlite"
REVISION = 1
"""Raised when a replay or a feature changes its meaning: what is stored then is made again."""
_BATCH = 32
_Made = list[tuple[str, "np.ndarray | NoFeatures"]]


@dataclass(frozen=True, slots=True)
class Failure:
    """A program without statement features.

    Attributes:
        index: its place among the programs asked for; key, task_id: the program's own.
        reason: a word by which failures are counted (see `ReplayError`), or `crash`; message: in one line.
    """

    index: int
    task_id: str
    key: str
    reason: str
    message: str


def statement_features(
    corpus: Corpus,
    programs: Sequence[Program],
    cache_dir: Path | str,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[np.ndarray], list[Failure]]:
    """Statement features of programs of a corpus.

    Args:
        corpus: it knows the programs' tasks.
        programs: of any of its tasks.
        cache_dir: folder of the file that keeps the features; created when needed.
        workers: processes; with 1, this process does the work, and a program that TVM dies of ends it.
        progress: told how many more programs were made, after each batch; never of those found in the file.

    Returns:
        One float32 array (statements, 164) a program, without any row for a program that failed; and the failures,
        in the order of the programs.
    """
    requests = [_request(corpus, program) for program in programs]
    keys = [_key(request) for request in requests]
    with closing(_open(Path(cache_dir))) as store:
        missing = dict(zip(keys, requests, strict=True))
        for known in _known(store, list(missing)):
            del missing[known]
        for made in _make(list(missing.items()), workers):
            _write(store, made)
            if progress:
                progress(len(made))
        found = _read(store, keys)
    failures = [
        Failure(i, p.task_id, p.key, f.reason, f.message)
        for i, (p, f) in enumerate(zip(programs, found, strict=True))
        if isinstance(f, NoFeatures)
    ]
    nothing = np.zeros((0, PERSTORE_WIDTH), np.float32)
    return [nothing if isinstance(f, NoFeatures) else f for f in found], failures


def _request(corpus: Corpus, program: Program) -> Request:
    workload = corpus.tasks[program.task_id].workload
    return Request(program.framework, workload, program.trace, for_gpu(program.target))


def _key(request: Request) -> str:
    parts = (REVISION, _tvm_version(), request.framework, request.gpu, request.workload, request.trace)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _tvm_version() -> str:
    return version("apache-tvm")


# The work


def _make(wanted: list[tuple[str, Request]], workers: int) -> Iterator[_Made]:
    """Features of all, batch by batch, in any order."""
    batches = [wanted[start : start + _BATCH] for start in range(0, len(wanted), _BATCH)]
    if workers <= 1:
        yield from map(_make_batch, batches)
        return
    while batches:
        left: list[list[tuple[str, Request]]] = []
        with ProcessPoolExecutor(workers, get_context("forkserver")) as pool:
            futures = {pool.submit(_make_batch, batch): batch for batch in batches}
            for future in as_completed(futures):
                yield from _outcome(future, futures[future], left)
        batches = left


def _outcome(
    future: Future[_Made], batch: list[tuple[str, Request]], left: list[list[tuple[str, Request]]]
) -> Iterator[_Made]:
    """What a batch gave. One in whose time a worker died goes to `left` in halves, until the program is found."""
    try:
        yield future.result()
    except BrokenProcessPool:
        half = len(batch) // 2
        if half:
            left += [batch[:half], batch[half:]]
        else:
            yield from _alone(batch)


def _alone(batch: list[tuple[str, Request]]) -> Iterator[_Made]:
    """One program in a process of its own, so that it alone can be the one that TVM dies of."""
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        try:
            yield pool.submit(_make_batch, batch).result()
        except BrokenProcessPool:
            yield [(key, NoFeatures("crash", "the process that replayed it died")) for key, _ in batch]


def _make_batch(batch: list[tuple[str, Request]]) -> _Made:
    return list(zip([key for key, _ in batch], features_of([request for _, request in batch]), strict=True))


# The file


def _open(folder: Path) -> sqlite3.Connection:
    folder.mkdir(parents=True, exist_ok=True)
    store = sqlite3.connect(folder / STORE_FILE, timeout=60)
    store.execute("CREATE TABLE IF NOT EXISTS features (key TEXT PRIMARY KEY, rows BLOB, reason TEXT, message TEXT)")
    return store


def _known(store: sqlite3.Connection, keys: list[str]) -> Iterator[str]:
    for key in keys:
        if store.execute("SELECT 1 FROM features WHERE key = ?", (key,)).fetchone():
            yield key


def _write(store: sqlite3.Connection, made: _Made) -> None:
    rows = [
        (key, None, f.reason, f.message)
        if isinstance(f, NoFeatures)
        else (key, zlib.compress(f.tobytes(), 1), None, None)
        for key, f in made
    ]
    with store:
        store.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", rows)


def _read(store: sqlite3.Connection, keys: list[str]) -> list[np.ndarray | NoFeatures]:
    found: list[np.ndarray | NoFeatures] = []
    for key in keys:
        rows, reason, message = store.execute(
            "SELECT rows, reason, message FROM features WHERE key = ?", (key,)
        ).fetchone()
        if rows is None:
            found.append(NoFeatures(reason, message))
        else:
            found.append(np.frombuffer(zlib.decompress(rows), np.float32).reshape(-1, PERSTORE_WIDTH).copy())
    return found

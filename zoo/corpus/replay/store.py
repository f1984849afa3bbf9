"""Statement features of a corpus: made once, kept in one file, in as many processes as there are cores for it.

The file is an SQLite database: every batch is one transaction, so a run that was killed goes on where it was, and
two runs may share the file. A program is known by what makes it, not by its corpus: corpora may share the file too.
"""

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
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...features.columns import PERSTORE_WIDTH
from .extract import NoFeatures, Request, features_of, for_gpu

if TYPE_CHECKING:
    from .. import Corpus, Program

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

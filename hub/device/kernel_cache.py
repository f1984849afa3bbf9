"""Compiled libraries kept by content, so that a program compiled before is not compiled again.

Off unless asked for, by `MeasureConfig.kernel_cache` or by the environment variable `TCHUB_KERNEL_CACHE` (a folder, or
`on` for the user's cache folder): a benchmark of tuning must pay for its builds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from .pool import JobResult, WorkerPool

ENVIRONMENT = "TCHUB_KERNEL_CACHE"
_OFF = ("", "0", "off", "no", "false")
_ON = ("1", "on", "yes", "true")
_STORES_PER_SWEEP = 256


def default_folder() -> Path:
    """The user's cache folder for compiled libraries."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("tchub")) / "kernels"


def cache_folder(setting: Path | bool | None) -> Path | None:
    """Where libraries are kept, or None for nowhere.

    Args:
        setting: a folder, True for the user's cache folder, False for none, or None for what the environment says.
    """
    if setting is None:
        text = os.environ.get(ENVIRONMENT, "")
        if text.lower() in _OFF:
            return None
        return default_folder() if text.lower() in _ON else Path(text)
    if isinstance(setting, bool):
        return default_folder() if setting else None
    return setting


def kernel_key(module_json: str, target: Mapping[str, Any], tvm_version: str) -> str:
    """What a library follows from: the scheduled module, the target and TVM's version; 40 hex digits."""
    text = "\n".join((tvm_version, json.dumps(target, sort_keys=True), module_json))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


class KernelCache:
    """A folder of libraries, the least recently used removed beyond a size. Several processes may share it.

    A folder that cannot be written keeps nothing, and costs no measurement.

    Args:
        folder: created when missing.
        max_bytes: size at most, after each sweep.
    """

    def __init__(self, folder: Path, max_bytes: int = 1 << 30) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        self._stores = 0

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.so"

    def fetch(self, key: str, library: Path) -> bool:
        """Put a kept library at `library`; False when there is none."""
        kept = self._path(key)
        try:
            _link_or_copy(kept, library)
        except OSError:
            self.misses += 1
            return False
        with contextlib.suppress(OSError):  # removed by another process meanwhile: we hold ours
            os.utime(kept)
        self.hits += 1
        return True

    def store(self, key: str, library: Path) -> bool:
        """Keep a library; False when the folder did not take it."""
        kept = self._path(key)
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.folder) as partial:
                fresh = Path(partial) / kept.name
                _link_or_copy(library, fresh)
                os.replace(fresh, kept)
        except OSError:
            return False
        self._stores += 1
        if self._stores % _STORES_PER_SWEEP == 1:  # the first, too: most processes end before the next
            self.sweep()
        return True

    def sweep(self) -> int:
        """Remove the least recently used libraries beyond the size; returns how many."""
        entries = []
        for path in self.folder.glob("??/*.so"):
            with contextlib.suppress(OSError):  # another process sweeps too
                facts = path.stat()
                entries.append((facts.st_mtime, facts.st_size, path))
        size, removed = sum(entry[1] for entry in entries), 0
        for _, bytes_, path in sorted(entries):
            if size <= self.max_bytes:
                break
            with contextlib.suppress(OSError):  # the folder of another user: it stays as large as it is
                path.unlink(missing_ok=True)
            size, removed = size - bytes_, removed + 1
        return removed


def _link_or_copy(source: Path, destination: Path) -> None:
    """A hard link where both are on one file system: no library is ever written in place."""
    try:
        os.link(source, destination)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, destination)


def open_cache(setting: Path | bool | None) -> KernelCache | None:
    """The cache that a setting asks for, see `cache_folder`."""
    folder = cache_folder(setting)
    return None if folder is None else KernelCache(folder)


class Compiling:
    """Starts builds on a pool of workers.

    Args:
        pool: the builders.
        timeout: seconds of one build.
        kernel_cache: see `MeasureConfig.kernel_cache`.
    """

    def __init__(self, pool: WorkerPool, timeout: float, kernel_cache: Path | bool | None = None) -> None:
        self._pool = pool
        self._timeout = timeout
        self.cache = open_cache(kernel_cache)

    def start(self, module_json: str, target: Mapping[str, Any], library: Path) -> Future[JobResult]:
        """Start to compile a module to `library`; the result's value is the seconds of the build, 0 from the cache."""
        args = (module_json, target, str(library))
        if self.cache is None:
            return self._pool.submit("build", args, self._timeout)
        import tvm

        key = kernel_key(module_json, target, tvm.__version__)
        if self.cache.fetch(key, library):
            kept: Future[JobResult] = Future()
            kept.set_result(JobResult(value=0.0))
            return kept
        return _storing(self._pool.submit("build", args, self._timeout), self.cache, key, library)


def _storing(build: Future[JobResult], cache: KernelCache, key: str, library: Path) -> Future[JobResult]:
    """The build's future, done once its library is kept: whoever waits for it may remove the library."""
    stored: Future[JobResult] = Future()

    def store(done: Future[JobResult]) -> None:
        if done.cancelled():
            stored.cancel()
            return
        if (error := done.exception()) is not None:
            stored.set_exception(error)
            return
        if done.result().error is None:
            cache.store(key, library)
        stored.set_result(done.result())

    build.add_done_callback(store)
    return stored

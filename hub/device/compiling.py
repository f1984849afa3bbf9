"""Compiling scheduled modules in workers, or taking the library from the cache of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from .kernel_cache import KernelCache, kernel_key, open_cache
from .pool import JobResult, WorkerPool


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

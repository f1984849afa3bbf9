"""The process that runs programs: one JSON line in for each, one out. Its death costs one program."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TextIO

import numpy as np

from .files import OnsiteError, ProgramError
from .tvm_runtime import CpuProgram, TvmRuntime

_PR_SET_PDEATHSIG = 1
# An idle GPU runs at a fraction of its clock.
_SPIN_UP_SECONDS = 0.5


class CpuBench:
    """Runs programs on the CPU."""

    def __init__(self, setup: dict[str, Any]) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < setup["threads"]:
            needs = f"the bundle's programs use {setup['threads']} threads, and this machine has {len(cpus)} cores"
            raise OnsiteError(f"{needs}: build it with --threads {len(cpus)}", 3)
        os.environ["TVM_NUM_THREADS"] = str(setup["threads"])
        os.environ["TVM_BIND_THREADS"] = "0"  # TVM's pool would leave the cores of the next line
        os.sched_setaffinity(0, cpus[-setup["threads"] :])
        self._runtime = TvmRuntime(setup["libraries"])
        self.facts: dict[str, Any] = {}

    def load(self, job: dict[str, Any], arrays: list[Any]) -> CpuProgram:
        """A program, ready to run."""
        return CpuProgram(self._runtime, job["path"], copied(arrays))


class CudaBench:
    """Runs programs on the first GPU."""

    def __init__(self, setup: dict[str, Any]) -> None:
        from .cuda import CudaDriver

        self._driver = CudaDriver(setup["driver"])
        self.facts = self._driver.facts()
        if setup["code"] == "cubin" and self.facts["arch"] != setup["arch"]:
            raise OnsiteError(f"the bundle is for {setup['arch']}, this GPU is {self.facts['arch']}", 3)
        self._cold = True

    def load(self, job: dict[str, Any], arrays: list[Any]) -> Any:
        """A program, ready to run; the first one is run until the GPU's clock is up."""
        from .cuda import CudaProgram

        with open(job["path"], "rb") as file:
            program = CudaProgram(self._driver, file.read(), job["plan"], arrays)
        start = time.perf_counter()
        while self._cold and time.perf_counter() - start < _SPIN_UP_SECONDS:
            program.run(10)
        self._cold = False
        return program


def serve(stream: TextIO, setup: dict[str, Any]) -> None:
    """Say what this machine is, then measure what comes on standard input until it closes."""
    try:
        bench = (CudaBench if setup["device_kind"] == "cuda" else CpuBench)(setup)
    except OnsiteError as error:
        _say(stream, {"ready": False, "message": str(error), "code": error.code})
        return
    _say(stream, {"ready": True, "facts": bench.facts})
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = _measure(bench, job, setup["timing"])
        except ProgramError as error:
            _say(stream, {"error": "run", "message": str(error)[:500], "fatal": error.fatal})
            continue
        _say(stream, answer)


@lru_cache(maxsize=1)
def _arguments(args: str) -> list[Any]:
    """Return the arguments of a task; each program gets copies, so that none shows the output of another."""
    return random_arguments(json.loads(args))


def _measure(bench: Any, job: dict[str, Any], timing: dict[str, Any]) -> dict[str, Any]:
    program = bench.load(job, _arguments(json.dumps(job["args"])))
    try:
        latencies = time_program(program.run, timing, job["best"])
        answer = {"latencies": latencies, "fingerprint": fingerprint(program.outputs())}
    except ProgramError as error:
        if not error.fatal:
            program.close()
        raise
    program.close()
    return answer


def _say(stream: TextIO, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def main(text: str) -> int:
    """Run a worker; its answers have the standard output to themselves."""
    # A program that hangs must not outlive the run that is killed meanwhile.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    serve(stream, json.loads(text))
    return 0


def _spread(costs: list[float]) -> float:
    low, middle, high = statistics.quantiles(costs, n=4)
    return (high - low) / middle if middle > 0 else 0.0


def time_program(run: Callable[[int], float], timing: dict[str, Any], best: float | None) -> list[float]:
    """Time a program as `tchub collect` does, so that latencies of both mean the same.

    Args:
        run: runs the program so often and gives the mean seconds a run.
        timing: the fields of tchub's `TimingConfig`, from the manifest.
        best: latency in seconds of the task's fastest known program, or None.

    Returns:
        Seconds a run, one entry a repeat.
    """
    start = time.perf_counter()
    least = timing["min_repeat_seconds"]
    # The faster of two: the first run also pages in code and data.
    first = min(run(1) for _ in range(2))
    if best is not None and first > timing["slow_factor"] * best and first > least:
        return [first]
    number = max(1, int(least / max(first, 1e-9)))
    costs: list[float] = []
    while len(costs) < timing["max_repeats"]:
        costs.append(run(number))
        if len(costs) < timing["min_repeats"]:
            continue
        agreed = len(costs) > 1 and _spread(costs) < timing["spread"]
        if agreed or time.perf_counter() - start > timing["max_seconds"]:
            break
    return costs


_ALIGNMENT = 64  # what TVM's kernels expect of a buffer's first byte


def aligned(shape: list[int], dtype: str) -> Any:
    """An array of zeros that starts at a multiple of 64 bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def random_arguments(args: list[Any]) -> list[Any]:
    """One array an argument, `[[shape, dtype], ...]`, with the contents that `tchub collect` gives them.

    Random contents: zeros let a processor take short cuts. Integers are indices or divisors: 1 and 2, where a dimension
    has extent 2 only 1.
    """
    generator = np.random.default_rng(0)
    highest = 1 if any(2 in shape for shape, _ in args) else 2
    arrays = []
    for shape, dtype in args:
        array = aligned(shape, dtype)
        if dtype.startswith(("int", "uint", "bool")):
            drawn = generator.integers(0, 2, size=tuple(shape))
            array[...] = drawn if dtype.startswith("bool") else np.minimum(drawn + 1, highest)
        else:
            array[...] = generator.random(size=tuple(shape), dtype=np.float32) + np.float32(0.1)
        arrays.append(array)
    return arrays


def copied(arrays: list[Any]) -> list[Any]:
    """Copies for a program to write into."""
    copies = [aligned(list(array.shape), str(array.dtype)) for array in arrays]
    for copy, array in zip(copies, arrays, strict=True):
        copy[...] = array
    return copies


def fingerprint(arrays: list[Any]) -> list[list[float | None]]:
    """[sum, sum of absolute values] of each array: programs of one task on equal inputs must agree on them.

    None for one that is not finite: a task may overflow on its inputs, and JSON knows no infinity.
    """
    with np.errstate(all="ignore"):
        sums = [[float(x.sum(dtype=np.float64)), float(np.abs(x).sum(dtype=np.float64))] for x in arrays]
    return [[one if np.isfinite(one) else None for one in pair] for pair in sums]

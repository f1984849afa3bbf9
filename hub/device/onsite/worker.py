"""The process that runs programs: one JSON line in for each, one out. Its death costs one program."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from functools import lru_cache
from typing import Any

import numpy as np

from .files import OnsiteError, ProgramError
from .runs import TimingConfig, aligned_copies, random_values, take_repeats
from .tvm_runtime import CpuProgram, TvmRuntime

_PR_SET_PDEATHSIG = 1


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

    def load(self, job: dict[str, Any], arrays: list[Any]) -> Any:
        """A program, ready to run."""
        permuted = {index: np.empty(shape, dtype) for index, shape, dtype in (job["plan"] or {}).get("prepacked", [])}
        permuted = dict(zip(permuted, aligned_copies(list(permuted.values())), strict=True))
        return CpuProgram(self._runtime, job["path"], aligned_copies(arrays), permuted)


class CudaBench:
    """Runs programs on the first GPU."""

    def __init__(self, setup: dict[str, Any]) -> None:
        from .cuda import CudaDriver

        self._driver = CudaDriver(setup["driver"])
        self.facts = self._driver.facts()
        if setup["code"] == "cubin" and self.facts["arch"] != setup["arch"]:
            raise OnsiteError(f"the bundle is for {setup['arch']}, this GPU is {self.facts['arch']}", 3)
        self._driver.spin_up()

    def load(self, job: dict[str, Any], arrays: list[Any]) -> Any:
        """A program, ready to run."""
        from .cuda import CudaProgram

        with open(job["path"], "rb") as file:
            return CudaProgram(self._driver, file.read(), job["plan"], arrays)


@lru_cache(maxsize=1)
def _arguments(args: str) -> list[Any]:
    """Return the arguments of a task; each program gets copies, so that none shows the output of another."""
    return random_values(json.loads(args))


def _measure(bench: Any, job: dict[str, Any], config: TimingConfig) -> dict[str, Any]:
    """Time a program as `tchub collect` does, so that latencies of both mean the same."""
    program = bench.load(job, _arguments(json.dumps(job["args"])))
    try:
        latencies = take_repeats(program.repeats, config, job["best"])
        answer = {"latencies": latencies, "fingerprint": _fingerprint(program.outputs())}
    except ProgramError as error:
        if not error.fatal:
            program.close()
        raise
    program.close()
    return answer


def _fingerprint(arrays: list[Any]) -> list[list[float | None]]:
    """[sum, sum of absolute values] of each array: programs of one task on equal inputs must agree on them.

    None for one that is not finite: a task may overflow on its inputs, and JSON knows no infinity.
    """
    with np.errstate(all="ignore"):
        sums = [[float(x.sum(dtype=np.float64)), float(np.abs(x).sum(dtype=np.float64))] for x in arrays]
    return [[one if np.isfinite(one) else None for one in pair] for pair in sums]


def main(text: str) -> int:
    """Say what this machine is, then measure what comes on standard input until it closes."""
    # A program that hangs must not outlive the run that is killed meanwhile.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers

    def say(answer: dict[str, Any]) -> None:
        stream.write(json.dumps(answer) + "\n")
        stream.flush()

    setup = json.loads(text)
    config = TimingConfig(**setup["timing"])
    try:
        bench = (CudaBench if setup["device_kind"] == "cuda" else CpuBench)(setup)
    except (OnsiteError, ProgramError) as error:
        say({"ready": False, "message": str(error), "code": getattr(error, "code", 3)})
        return 0
    say({"ready": True, "facts": bench.facts})
    for line in sys.stdin:
        try:
            say(_measure(bench, json.loads(line), config))
        except ProgramError as error:
            say({"error": "run", "message": str(error)[:500], "fatal": error.fatal})
    return 0

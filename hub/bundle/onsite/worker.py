"""The process that runs programs: one JSON line in for each, one out. Its death costs one program."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from functools import lru_cache
from typing import Any, TextIO

from .facts import mapped_libraries
from .faults import OnsiteError, ProgramError
from .inputs import copied, fingerprint, random_arguments
from .timing import time_program
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
        self.facts: dict[str, Any] = {"libraries": mapped_libraries("libtvm")}

    def load(self, job: dict[str, Any], arrays: list[Any]) -> CpuProgram:
        """A program, ready to run."""
        return CpuProgram(self._runtime, job["path"], copied(arrays))


class CudaBench:
    """Runs programs on the first GPU."""

    def __init__(self, setup: dict[str, Any]) -> None:
        from .cuda_driver import CudaDriver

        self._driver = CudaDriver(setup["driver"])
        self.facts = self._driver.facts()
        if setup["code"] == "cubin" and self.facts["arch"] != setup["arch"]:
            raise OnsiteError(f"the bundle is for {setup['arch']}, this GPU is {self.facts['arch']}", 3)
        self._cold = True

    def load(self, job: dict[str, Any], arrays: list[Any]) -> Any:
        """A program, ready to run; the first one is run until the GPU's clock is up."""
        from .cuda_program import CudaProgram

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
    """Of a task, kept for its next program, which gets copies: none may show the output of another."""
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

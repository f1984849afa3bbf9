"""The program that a bundle is: `python3 bundle.zip --out results.jsonl`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .files import OnsiteError, Package, Results, machine_facts
from .tvm_runtime import find_libraries

# Nothing but failures from the start: the machine or the driver is at fault, not the programs.
_HOPELESS = 24
_HOPELESS_MESSAGE = """the first {} programs all failed, the last with: {}
None of them is kept as a result: mend the machine and run the same command again, or add --keep-failures where the \
programs are at fault"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure this bundle's programs on this machine. Run it again to go on after a stop."
    )
    parser.add_argument("--out", default="results.jsonl", help="results, one JSON line a program; added to")
    parser.add_argument("--runtime", help="folder with libtvm_ffi.so and libtvm_runtime.so (CPU bundles)")
    parser.add_argument("--driver", help="the CUDA driver's library, where it is not libcuda.so.1 (CUDA bundles)")
    parser.add_argument("--repeats", type=int, help="at most so many repeats a program")
    parser.add_argument("--limit", type=int, help="stop after so many programs")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds a program may take (20)")
    parser.add_argument("--keep-failures", action="store_true", help=f"go on where the first {_HOPELESS} all fail")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def main(bundle: str) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args()
    if options.worker:
        try:
            from . import worker
        except ImportError as error:
            print(json.dumps({"ready": False, "message": f"numpy is needed to measure: {error}", "code": 3}))
            return 3
        return worker.main(options.worker)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a cluster's way to press Ctrl-C
    try:
        return _run(Package(bundle), bundle, options)
    except OnsiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("interrupted: run the same command again to go on", file=sys.stderr)
        return 130


def _run(package: Package, bundle: str, options: argparse.Namespace) -> int:
    package.check()
    results = Results(options.out, package.identity)
    programs = [p for p in package.manifest["programs"] if p["file"]]
    waiting = [p for p in programs if p["id"] not in results.done][: options.limit]
    if not waiting:
        print(f"all {len(programs)} programs have results in {results.path}", file=sys.stderr)
        return 0
    supervisor = Supervisor(bundle, _setup(package.manifest, options), options.time_limit)
    try:
        supervisor.start()
        facts = {**machine_facts(), **supervisor.facts}
        results.add({"kind": "machine", "bundle": package.identity, "started": time.time(), **facts})
        done, failed = _measure_all(package, waiting, results, supervisor, options)
    finally:
        supervisor.stop()
    left = len(programs) - len(results.done)
    print(f"{done} programs measured, {failed} of them failed, {left} left: {results.path}", file=sys.stderr)
    return 0


def _setup(manifest: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    timing = dict(manifest["timing"])
    if options.repeats:
        timing["max_repeats"] = options.repeats
        timing["min_repeats"] = min(timing["min_repeats"], options.repeats)
    setup = {name: manifest[name] for name in ("device_kind", "code", "arch", "threads")}
    setup["driver"], setup["timing"] = options.driver, timing
    if manifest["device_kind"] == "cpu":
        setup["libraries"] = find_libraries(options.runtime)
    return setup


def _measure_all(
    package: Package, waiting: list[dict[str, Any]], results: Results, supervisor: Supervisor, options: Any
) -> tuple[int, int]:
    """Return how many programs were measured, and how many of them failed."""
    start, failed, count = time.monotonic(), 0, 0
    tasks = {task["task_id"]: task for task in package.manifest["tasks"]}
    with tempfile.TemporaryDirectory(prefix="tchub-bundle-") as scratch:
        for program in waiting:
            began = time.monotonic()
            if options.seconds is not None and began - start > options.seconds:
                break
            path, task_id = Path(scratch, Path(program["file"]).name), program["task_id"]
            path.write_bytes(package.read(program["file"]))
            job = {"path": str(path), "args": tasks[task_id]["args"], "plan": program.get("plan")}
            answer = supervisor.measure(job | {"best": results.best.get(task_id)})
            path.unlink()
            line = {"kind": "program", **{name: program[name] for name in ("id", "task_id", "sha256")}}
            line |= {"error": None, "message": None, "latencies": [], "fingerprint": [], **answer}
            line |= {"measured_at": time.time(), "seconds": time.monotonic() - began}
            count, failed = count + 1, failed + (line["error"] is not None)
            if count == failed == _HOPELESS and not options.keep_failures:
                # Before the last of them is written: a kill at no time leaves a file that counts them all as done.
                results.take_back()
                raise OnsiteError(_HOPELESS_MESSAGE.format(_HOPELESS, line["message"]), 4)
            results.add(line)
            if count % 20 == 0 or sys.stderr.isatty():
                print(f"\r{count}/{len(waiting)}, {failed} failed", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return count, failed


_START_SECONDS = 120.0


class Supervisor:
    """One worker at a time, killed where a program takes longer than `time_limit` seconds.

    `facts` are what the worker reports of its machine when it starts.
    """

    def __init__(self, bundle: str, setup: dict[str, Any], time_limit: float) -> None:
        self._command = [sys.executable, bundle, "--worker", json.dumps(setup)]
        self._time_limit = time_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Start a worker, unless one is there; raises an OnsiteError where it cannot work on this machine."""
        if self._process is not None:
            return
        self._buffer = b""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        answer, _ = self._answer(_START_SECONDS)
        if answer is None or not answer["ready"]:
            self.stop()
            message, code = (answer["message"], answer["code"]) if answer else ("the worker does not start", 3)
            raise OnsiteError(message, code)
        self.facts = answer["facts"]

    def measure(self, job: dict[str, Any]) -> dict[str, Any]:
        """Measure one program; whatever happens to the worker, an answer with `error` or `latencies` comes back."""
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            answer, hung = self._answer(self._time_limit)
        except BrokenPipeError:
            answer, hung = None, False
        if answer is not None:
            if answer.pop("fatal", False):  # a broken GPU context fails every later program of its process
                self.stop()
            return answer
        if hung:
            self.stop()
            return {"error": "run_timeout", "message": f"killed after {self._time_limit:g} s"}
        code = self._process.wait()
        self.stop()
        return {"error": "crash", "message": f"the worker died with the code {code}"}

    def _answer(self, seconds: float) -> tuple[dict[str, Any] | None, bool]:
        """The worker's next line, or None; and whether it took too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout
        while b"\n" not in self._buffer:
            if not select.select([pipe], [], [], seconds)[0]:
                return None, True
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                return None, False
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line), False

    def stop(self) -> None:
        """Kill the worker: it holds nothing to save."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a job that the dead worker did not read
                    pipe.close()

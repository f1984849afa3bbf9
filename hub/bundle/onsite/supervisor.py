"""Keeps a worker process going: starts it, gives it programs, replaces it when it dies or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Any

from .faults import OnsiteError

_START_SECONDS = 120.0


class Supervisor:
    """One worker at a time.

    Args:
        bundle: the zip file or folder whose code the worker runs.
        setup: what the worker needs to know, JSON-serialisable.
        time_limit: seconds a program may take, after which its worker is killed.

    Attributes:
        facts: what the worker said of itself when it started.
    """

    def __init__(self, bundle: str, setup: dict[str, Any], time_limit: float) -> None:
        self._command = [sys.executable, bundle, "--worker", json.dumps(setup)]
        self._time_limit = time_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Start a worker, unless one is there.

        Raises:
            OnsiteError: it cannot work on this machine.
        """
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
        code = None if hung else self._process.wait()
        self.stop()
        if hung:
            return {"error": "run_timeout", "message": f"killed after {self._time_limit:g} s"}
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

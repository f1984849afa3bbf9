"""A log file for what TVM, torch and other libraries write on stdout and stderr while tchub shows its progress."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from .output import Output

LOG_NAME = "tvm.log"
# An earlier log that has outgrown this is begun anew.
MOST_BYTES = 8 << 20
_WARNING = re.compile(rb"warning:", re.IGNORECASE)


class NativeLog:
    """A file that takes the output of native code, and how many warnings this process added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            path.unlink()
        self.file = path.open("a+b", buffering=0)
        self._read = os.fstat(self.file.fileno()).st_size
        self._warnings = 0

    def summary(self) -> str:
        """Return one line about the warnings so far; empty where there is none."""
        size = os.fstat(self.file.fileno()).st_size
        added = os.pread(self.file.fileno(), size - self._read, self._read)
        whole = added.rfind(b"\n") + 1  # the last line may be half written
        self._warnings += len(_WARNING.findall(added[:whole]))
        self._read += whole
        return f"{self._warnings:,} warning{'s' * (self._warnings != 1)} in {self.path}" if self._warnings else ""

    def close(self) -> None:
        """Close the file; an empty one is removed."""
        if not os.fstat(self.file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self.file.close()


@contextmanager
def native_output_logged(output: Output, folder: str | Path) -> Iterator[NativeLog | None]:
    """Send file descriptors 1 and 2 into `folder/tvm.log` while inside; `output` keeps the terminal.

    Child processes inherit the log. At the end one line counts the warnings. Where native code crashes inside, the
    terminal gets the stack. Yields None, and changes nothing, where the folder cannot be written: the command itself
    reports it.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        log = NativeLog(Path(folder) / LOG_NAME)
    except OSError:
        yield None
        return
    with closing(log), _real_stderr() as screen:
        try:
            with output.on(screen), _descriptors_into(log.file):
                yield log
        finally:
            if summary := log.summary():
                output.note(summary)


@contextmanager
def _real_stderr() -> Iterator[IO[str]]:
    """Yield a stream to the present stderr, which stays there when descriptor 2 goes elsewhere."""
    try:
        on_descriptor = sys.stderr.fileno() == 2
    except (OSError, ValueError, AttributeError):
        on_descriptor = False
    if not on_descriptor:  # somebody replaced it, e.g. a notebook
        yield sys.stderr
        return
    sys.stderr.flush()
    encoding = sys.stderr.encoding
    with os.fdopen(os.dup(2), "w", encoding=encoding, errors="backslashreplace", buffering=1) as stream:
        faulthandler.enable(stream)
        try:
            yield stream
        finally:
            faulthandler.disable()


@contextmanager
def _descriptors_into(file: IO[bytes]) -> Iterator[None]:
    saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    _flush()
    try:
        for descriptor in saved:
            os.dup2(file.fileno(), descriptor)
        yield
    finally:
        _flush()
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)


def _flush() -> None:
    """Empty the buffers of Python and of C, so that each text goes where it was meant to."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)

"""A log file for what TVM, torch and other libraries write on stdout and stderr while tchub shows its progress."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .output import Output

LOG_NAME = "tvm.log"
# An earlier log that has outgrown this is begun anew.
MOST_BYTES = 8 << 20
_WARNING = re.compile(rb"warning:", re.IGNORECASE)


@contextmanager
def native_output_logged(output: Output, folder: str | Path) -> Iterator[None]:
    """Send file descriptors 1 and 2 into `folder/tvm.log` while inside; `output` keeps the terminal.

    Child processes inherit the log. At the end one line counts the warnings. Where native code crashes inside, the
    terminal gets the stack. Nothing changes where the folder cannot be written: the command itself reports it.
    """
    path = Path(folder) / LOG_NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            path.unlink()
        log = path.open("a+b", buffering=0)
    except OSError:
        yield
        return
    with log, _real_stderr() as screen:
        start = os.fstat(log.fileno()).st_size
        saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        _flush()
        try:
            with output.on(screen):
                for descriptor in saved:
                    os.dup2(log.fileno(), descriptor)
                yield
        finally:
            _flush()
            for descriptor, copy in saved.items():
                os.dup2(copy, descriptor)
                os.close(copy)
            size = os.fstat(log.fileno()).st_size
            if not size:
                path.unlink(missing_ok=True)
            if warnings := len(_WARNING.findall(os.pread(log.fileno(), size - start, start))):
                output.note(f"{warnings:,} warning{'s' * (warnings > 1)} in {path}")


@contextmanager
def _real_stderr() -> Iterator[IO[str]]:
    """Yield a stream to the present stderr, which stays there when descriptor 2 goes elsewhere."""
    if sys.stderr is not sys.__stderr__:  # somebody replaced it, e.g. a notebook
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


def _flush() -> None:
    """Empty the buffers of Python and of C, so that each text goes where it was meant to."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)

"""A log file for what TVM, torch and other libraries write on stdout and stderr while tchub shows its progress."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from .output import Output

LOG_NAME = "tvm.log"
# A log that outgrows this loses its older half.
MOST_BYTES = 8 << 20
_WARNING = re.compile(rb"warning:", re.IGNORECASE)
# Waits for the end of a command. Without the line of an orderly end the process died: of a signal, or of C++.
_WATCH = (
    'read -r _ || { echo "error: tchub died; the last lines of $1:"; tail -n 4 -- "$1"; '
    'echo "remedy: run the same command again to go on"; }'
)


class NativeLog:
    """A file that takes the output of native code, and how many warnings this process added.

    Args:
        path: appended to.
        most_bytes: where the older half goes.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        # Appended by the system: whoever writes after the file was shortened writes at its new end.
        self.file = path.open("a+b", buffering=0)
        self._most_bytes = most_bytes
        self._read = os.fstat(self.file.fileno()).st_size
        self._warnings = 0

    def warnings(self) -> int:
        """Return the number of warnings so far."""
        size = os.fstat(self.file.fileno()).st_size
        if size > self._read:
            added = os.pread(self.file.fileno(), size - self._read, self._read)
            whole = added.rfind(b"\n") + 1  # the last line may be half written
            self._warnings += len(_WARNING.findall(added[:whole]))
            self._read += whole
        if size > self._most_bytes:
            kept = os.pread(self.file.fileno(), size, size - self._most_bytes // 2)
            os.ftruncate(self.file.fileno(), 0)
            self.file.write(kept[kept.find(b"\n") + 1 :])
            self._read = os.fstat(self.file.fileno()).st_size
        return self._warnings

    def summary(self) -> str:
        """Return one line about the warnings; empty where there is none."""
        count = self.warnings()
        return f"{count:,} warning{'s' * (count != 1)} in {self.path}" if count else ""

    def close(self) -> None:
        """Close the file; an empty one is removed."""
        if not os.fstat(self.file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self.file.close()


@contextmanager
def native_output_logged(output: Output, folder: str | Path) -> Iterator[NativeLog | None]:
    """Send file descriptors 1 and 2 into `folder/tvm.log` while inside; `output` keeps the terminal.

    Child processes inherit the log. At the end one line counts the warnings. Where the process dies inside, e.g. of a
    signal, the last lines of the log are printed in its place. Yields None, and changes nothing, where the folder
    cannot be written: the command itself reports it.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        log = NativeLog(Path(folder) / LOG_NAME)
    except OSError:
        yield None
        return
    with ExitStack() as stack:
        stack.callback(log.close)
        screen = stack.enter_context(_real_stderr())
        stack.enter_context(_watched(log.path, screen))
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
        yield stream


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


@contextmanager
def _watched(path: Path, screen: IO[str]) -> Iterator[None]:
    """Let a small process print the end of the log, should this one die."""
    try:
        target = screen.fileno()
    except (OSError, ValueError, AttributeError):
        yield
        return
    # A session of its own: Ctrl-C is for tchub, which ends in order.
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "sh", str(path)],
        stdin=subprocess.PIPE, stdout=target, stderr=target, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        watcher.communicate(b"done\n")

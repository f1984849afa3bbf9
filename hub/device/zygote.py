"""A process that imports TVM once and forks a worker for each request, so that a new worker costs milliseconds.

Run as `python -m tchub.hub.device.zygote FD`. It reads requests from the Unix socket FD: each carries the
worker's own socket as a file descriptor and is answered by the worker's process id. It ends when FD closes.
A plain fork of the tuner would copy its threads' locks (torch, OpenMP); this process never starts a thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1


def _serve(control: socket.socket) -> None:
    while True:
        request, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not request or not fds:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_worker(fds[0])
        os.close(fds[0])
        control.sendall(pid.to_bytes(8, "little"))


def _become_worker(fd: int) -> None:
    """Serve jobs from the socket `fd` until it closes; never returns."""
    from multiprocessing.connection import Connection

    from .worker import serve

    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # compilers and linkers are waited for here
    code = 1
    try:
        serve(Connection(fd))
        code = 0
    finally:
        os._exit(code)


def _end_with_parent() -> None:
    """A tuner that is killed closes the zygote's socket; its workers must not finish an endless job alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Import TVM, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the tuner, which ends its workers itself
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers leave no zombies
    control = socket.socket(fileno=int(sys.argv[1]))
    from . import worker

    worker.warm_up()
    control.sendall(b"ready\0\0\0")
    _serve(control)


if __name__ == "__main__":
    main()

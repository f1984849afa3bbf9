"""A tracker and servers on this machine, each a process: to try `--device rpc://` and to test what fails.

As a command: `python -m tchub.hub.device.rpc_farm --servers 2 --key here` prints the address and serves until it is
interrupted. These are TVM's own tracker and server, on the loopback interface only; one import of TVM serves all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from .rpc_address import RpcAddress

HOST = "127.0.0.1"


class Farm:
    """Owns a tracker and servers; a context manager.

    Args:
        servers: how many to start.
        key: under which they register.

    Attributes:
        address: of the tracker and the key.
        servers: process groups of the servers, in the order they were started; dead ones are kept.
    """

    def __init__(self, servers: int = 1, key: str = "loopback") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tchub.hub.device.rpc_farm", "--follow"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._lock = threading.Lock()
        self.servers: list[int] = []
        _, port = self._ask("tracker")
        self.address = RpcAddress(HOST, port, key)
        for _ in range(servers):
            self.start_server()

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: str) -> tuple[int, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            pid, port = self._process.stdout.readline().split()
        return int(pid), int(port)

    def start_server(self, key: str | None = None) -> int:
        """One more server, under the farm's key or another; returns its place in `servers`."""
        pid, _ = self._ask(f"server {self.address.port} {key or self.address.key}")
        self.servers.append(pid)
        return len(self.servers) - 1

    def signal(self, server: int, number: int) -> None:
        """Send a signal to all processes of a server, e.g. SIGKILL, SIGSTOP or SIGCONT."""
        os.killpg(self.servers[server], number)

    def close(self) -> None:
        """Kill the tracker and the servers."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def _start(what: str, args: Sequence[str]) -> tuple[int, int]:
    """Fork a tracker or a server into a process group of its own; returns its id and its port."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.write(writer, str(_serve(what, args).port).encode())
        os.close(writer)
        signal.pause()
    os.close(writer)
    with os.fdopen(reader) as answer:
        return pid, int(answer.read())


def _serve(what: str, args: Sequence[str]) -> Any:
    """TVM's own state object, which starts a thread that serves."""
    ports = (20000, 60000)
    if what == "tracker":
        from tvm.rpc.tracker import PopenTrackerServerState

        return PopenTrackerServerState(HOST, *ports, silent=True)
    from tvm.rpc.server import PopenRPCServerState

    port, key = args
    return PopenRPCServerState(HOST, *ports, tracker_addr=(HOST, int(port)), key=key, silent=True)


def _follow() -> None:
    """Start what the lines of stdin ask for; end it all when stdin closes."""
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType] (half the time of TVM's import, and not used)
    import tvm  # noqa: F401 (once for all that is forked)

    groups = []
    for line in sys.stdin:
        what, *args = line.split()
        pid, port = _start(what, args)
        groups.append(pid)
        print(pid, port, flush=True)
    for pid in groups:
        with contextlib.suppress(ProcessLookupError):  # it ended before
            os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """The command of this module's docstring."""
    import argparse

    parser = argparse.ArgumentParser(description="TVM's RPC tracker and servers on this machine.")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--key", default="loopback")
    parser.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        _follow()
        return
    with Farm(options.servers, options.key) as farm:
        print(farm.address, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()

"""TVM's tracker and servers on this machine's loopback interface, each a process that may be killed or stopped.

One import of TVM serves all.
"""

import contextlib
import os
import signal
from typing import Any, Self

from tchub.hub.device.errors import DeviceError
from tchub.hub.device.host_facts import usable_cpus
from tchub.hub.device.pool import Worker, Zygote
from tchub.hub.device.rpc_session import RpcAddress
from tchub.hub.device.worker import WorkerSetup

HOST = "127.0.0.1"
_serving: list[Any] = []


def serve(key: str | None = None, tracker: int = 0) -> tuple[int, int]:
    """Start a tracker, or a server for a key, in a worker that becomes a group; returns the group's id and the port."""
    os.setsid()
    ports: dict[str, Any] = {"host": HOST, "port": 20000, "port_end": 60000, "silent": True}
    if key is None:
        from tvm.rpc.tracker import PopenTrackerServerState

        _serving.append(PopenTrackerServerState(**ports))
    else:
        from tvm.rpc.server import PopenRPCServerState

        _serving.append(PopenRPCServerState(**ports, tracker_addr=(HOST, tracker), key=key))
    return os.getpid(), _serving[-1].port


class Farm:
    """Owns a tracker and servers, whose process groups are `servers`; a context manager."""

    def __init__(self, servers: int = 1, key: str = "loopback") -> None:
        self._zygote = Zygote()
        self._workers: list[Worker] = []  # which serve as long as they are there
        self.servers: list[int] = []
        self._tracker, port = self._serve()
        self.address = RpcAddress(HOST, port, key)
        for _ in range(servers):
            self.start_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, *args: Any) -> tuple[int, int]:
        self._zygote.wait()
        threads = int(os.environ.get("TVM_NUM_THREADS") or usable_cpus())
        self._workers.append(Worker(self._zygote, WorkerSetup(threads=threads)))
        result = self._workers[-1].call(serve, args, 60.0)
        if result.error is not None:
            raise DeviceError(f"no RPC server could be started here: {result.message}", remedy="run `tchub doctor`")
        return result.value

    def start_server(self, key: str | None = None) -> int:
        """Start one more server, under the farm's key or another; return its index in `servers`."""
        group, _ = self._serve(key or self.address.key, self.address.port)
        self.servers.append(group)
        return len(self.servers) - 1

    def signal(self, server: int, number: int) -> None:
        """Send a signal to all processes of a server, e.g. SIGKILL, SIGSTOP or SIGCONT."""
        os.killpg(self.servers[server], number)

    def close(self) -> None:
        """Kill the tracker and the servers."""
        for group in (self._tracker, *self.servers):
            with contextlib.suppress(ProcessLookupError):  # it ended before
                os.killpg(group, signal.SIGKILL)
        for worker in self._workers:
            worker.stop()
        self._zygote.close()

"""What a client asks of TVM's RPC tracker: which servers a key has, and the use of a free one, each within a time.

`tvm.rpc.TrackerSession` waits without end for a tracker that hangs, waits a minute for one that is not there, and
does not say which server it got. This speaks the same protocol (`tvm.rpc.base`) with time-outs and addresses.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import NoServerError
from .rpc_address import RpcAddress

Endpoint = tuple[str, int]


@dataclass(frozen=True)
class Offer:
    """A server that the tracker reserved.

    Attributes:
        endpoint: host and port of the server.
        matchkey: lets one client in, once. An offer that nobody takes up is void after some seconds.
    """

    endpoint: Endpoint
    matchkey: str


class TrackerClient:
    """A tracker's servers of one key. Each question is a connection of its own, so threads may share a client.

    Args:
        address: the tracker and the key.
        timeout: seconds for the tracker to answer a question.
    """

    def __init__(self, address: RpcAddress, timeout: float = 5.0) -> None:
        self.address = address
        self._timeout = timeout

    def servers(self) -> list[Endpoint]:
        """The servers that are registered now, free or in use.

        Raises:
            NoServerError: the tracker does not answer.
        """
        from tvm.rpc.base import TrackerCode

        with self._connected() as connection:
            summary = _ask(connection, [TrackerCode.SUMMARY])
        wanted = f"server:{self.address.key}"
        return sorted((str(s["addr"][0]), int(s["addr"][1])) for s in summary["server_info"] if s["key"] == wanted)

    def request(self, patience: float) -> Offer | None:
        """Reserve a server; None when none was free for `patience` seconds.

        Raises:
            NoServerError: the tracker does not answer.
        """
        from tvm.rpc.base import TrackerCode

        priority = 1
        with self._connected() as connection:
            connection.settimeout(patience)
            try:
                host, port, matchkey = _ask(connection, [TrackerCode.REQUEST, self.address.key, "", priority])
            except TimeoutError:
                return None
        return Offer((str(host), int(port)), str(matchkey))

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        from tvm.rpc.base import RPC_TRACKER_MAGIC, recvall

        try:
            with socket.create_connection((self.address.host, self.address.port), self._timeout) as connection:
                # A question is two small writes, and the second must not wait for the first to be acknowledged.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(struct.pack("<i", RPC_TRACKER_MAGIC))
                if struct.unpack("<i", recvall(connection, 4))[0] != RPC_TRACKER_MAGIC:
                    raise OSError("what answers is no RPC tracker")
                yield connection
        except (OSError, ValueError) as error:
            raise NoServerError(
                f"the RPC tracker at {self.address.host}:{self.address.port} does not answer: {error}",
                remedy=f"start one there: python -m tvm.exec.rpc_tracker --port {self.address.port}",
                address=str(self.address),
                last=str(error),
            ) from error


def _ask(connection: socket.socket, question: list[Any]) -> Any:
    from tvm.rpc.base import TrackerCode, recvjson, sendjson

    sendjson(connection, question)
    code, answer = recvjson(connection)
    if code != TrackerCode.SUCCESS:
        raise OSError(f"the tracker answers with code {code}")
    return answer

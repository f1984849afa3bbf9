"""TVM's RPC tracker: its address in `--device`, and the servers that it has for a key."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from .errors import DeviceError, NoServerError

LOCAL = "local"
Endpoint = tuple[str, int]


@dataclass(frozen=True)
class RpcAddress:
    """Tracker and key of some servers.

    Attributes:
        host, port: of the tracker.
        key: the name under which servers of one kind of device register.
    """

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rpc://{host}:{self.port}/{self.key}"


def parse_device(text: str) -> RpcAddress | None:
    """Return the address in `rpc://host:port/key`; None for `local`.

    Raises:
        DeviceError: neither of the two.
    """
    if text == LOCAL:
        return None
    try:
        parts = urlsplit(text)
        host, port, key = parts.hostname, parts.port, unquote(parts.path.removeprefix("/"))
    except ValueError as error:  # a port that is no number, or brackets that do not close
        raise _malformed(text, str(error)) from error
    if parts.scheme != "rpc" or not host or not port or not key:
        raise _malformed(text, "it is neither local, nor cuda or cuda:N, nor an rpc:// address with host, port and key")
    # TVM's servers append a random number to the key after a colon, and options after a space.
    if any(sign in key for sign in " :/") or parts.query or parts.fragment or parts.username:
        raise _malformed(text, "a key has no space, colon or slash, and nothing follows it")
    return RpcAddress(host, port, key)


def _malformed(text: str, why: str) -> DeviceError:
    return DeviceError(
        f"cannot measure on the device {text!r}: {why}",
        remedy="give local, or rpc://host:port/key with the tracker's host and port and the servers' key",
        device=text,
    )


class TrackerClient:
    """A tracker's servers of one key. Each question is a connection of its own, so threads may share a client.

    Args:
        timeout: seconds for the tracker to answer a question. TVM's own client has none.
    """

    def __init__(self, address: RpcAddress, timeout: float = 5.0) -> None:
        self.address = address
        self._timeout = timeout

    def servers(self) -> list[Endpoint]:
        """Return the servers that are registered now, free or in use.

        Raises:
            NoServerError: the tracker does not answer.
        """
        from tvm.rpc.base import TrackerCode

        with self._connected() as connection:
            summary = _ask(connection, [TrackerCode.SUMMARY])
        wanted = f"server:{self.address.key}"
        return sorted((str(s["addr"][0]), int(s["addr"][1])) for s in summary["server_info"] if s["key"] == wanted)

    def request(self, seconds: float) -> tuple[Endpoint, str] | None:
        """Reserve a server: its endpoint, and the key that lets one client in, once; None when none was free in time.

        A reservation that nobody takes up is void after some seconds.

        Raises:
            NoServerError: the tracker does not answer.
        """
        from tvm.rpc.base import TrackerCode

        priority = 1
        with self._connected() as connection:
            connection.settimeout(seconds)
            try:
                host, port, matchkey = _ask(connection, [TrackerCode.REQUEST, self.address.key, "", priority])
            except TimeoutError:
                return None
        return (str(host), int(port)), str(matchkey)

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

"""`--device`: this machine, or the servers of one key behind TVM's RPC tracker."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from .errors import DeviceError

LOCAL = "local"


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
    """The address in `rpc://host:port/key`; None for `local`.

    Raises:
        DeviceError: neither of the two.
    """
    if text == LOCAL:
        return None
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:  # a port that is no number, or brackets that do not close
        raise _malformed(text, str(error)) from error
    key = unquote(parts.path.removeprefix("/"))
    if parts.scheme != "rpc":
        raise _malformed(text, "it is neither local nor an rpc:// address")
    for what, value in (("host", parts.hostname), ("port", port), ("key", key)):
        if not value:
            raise _malformed(text, f"it names no {what}")
    # TVM's servers append a random number to the key after a colon, and options after a space.
    if any(sign in key for sign in " :/") or parts.query or parts.fragment or parts.username:
        raise _malformed(text, "a key has no space, colon or slash, and nothing follows it")
    assert parts.hostname is not None
    assert port is not None
    return RpcAddress(parts.hostname, port, key)


def _malformed(text: str, why: str) -> DeviceError:
    return DeviceError(
        f"cannot measure on the device {text!r}: {why}",
        remedy="give local, or rpc://host:port/key with the tracker's host and port and the servers' key",
        device=text,
    )

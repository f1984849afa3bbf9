"""A static web server on loopback that misbehaves as it is told, for the tests of mirrors."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class MirrorServer:
    """What the server holds and how it behaves; tests change it while it runs.

    Attributes:
        files: path -> bytes.
        answers: special answers, each used once and in this order, before the server answers plainly.
        token: the bearer token without which nothing is given.
        seen: `(path, headers)` of all requests so far.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    answers: list[Callable[[Handler], None]] = field(default_factory=list)
    token: str | None = None
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def add(self, root: Path) -> None:
        """Hold all files under a folder."""
        self.files |= {f"/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()}

    @property
    def paths(self) -> list[str]:
        """The paths that were asked for."""
        return [path for path, _ in self.seen]


class Handler(BaseHTTPRequestHandler):
    """Gives out files."""

    state: MirrorServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        mirror = self.state
        mirror.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
        if mirror.answers:
            return mirror.answers.pop(0)(self)
        if mirror.token and self.headers.get("Authorization") != f"Bearer {mirror.token}":
            return self.head(401)
        if self.path not in mirror.files:
            return self.head(404)
        data = mirror.files[self.path]
        self.head(200, len(data))
        self.wfile.write(data)
        return None

    def do_CONNECT(self) -> None:
        """What a proxy is asked for; this one leads nowhere."""
        self.state.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
        self.head(502)

    def head(self, status: int, length: int | None = 0, **headers: str) -> None:
        """Send a status and headers (`_` stands for `-`)."""
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""


@contextmanager
def running(certificate: Path | None = None) -> Iterator[MirrorServer]:
    """A server in a thread of this process; with a certificate (`make_certificate`) it speaks TLS."""
    mirror = MirrorServer()

    class Bound(Handler):
        state = mirror

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    server.block_on_close = False  # some answers never end by themselves
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    mirror.url = f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()


def make_certificate(path: Path) -> Path:
    """A key and a certificate for 127.0.0.1 that nobody signed."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{path}.key", "-out", path]
    subprocess.run([*command, *options], check=True, capture_output=True)
    path.write_bytes(Path(f"{path}.key").read_bytes() + path.read_bytes())
    return path


def status(code: int, **headers: str) -> Callable[[Handler], None]:
    """An answer without a body."""
    return lambda handler: handler.head(code, **headers)


def broken_off(data: bytes, after: int, code: int = 200, **headers: str) -> Callable[[Handler], None]:
    """All of `data` announced, `after` bytes sent."""

    def answer(handler: Handler) -> None:
        handler.head(code, len(data), **headers)
        handler.wfile.write(data[:after])
        handler.close_connection = True

    return answer


def endless(handler: Handler) -> None:
    """A body without an announced length that goes on until the other side hangs up."""
    handler.head(200, None, Connection="close")
    try:
        while True:
            handler.wfile.write(b"x" * 65536)
    except OSError:
        handler.close_connection = True


def silent(seconds: float) -> Callable[[Handler], None]:
    """Nothing for a while, then the connection is closed."""

    def answer(handler: Handler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return answer


def dripping(sent: bytes, seconds: float) -> Callable[[Handler], None]:
    """These bytes of an answer, then one digit every 50 ms for some time, so that no single read times out."""

    def answer(handler: Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(sent)
        until = time.monotonic() + seconds
        with suppress(OSError):
            while time.monotonic() < until:
                handler.wfile.write(b"1")
                time.sleep(0.05)

    return answer

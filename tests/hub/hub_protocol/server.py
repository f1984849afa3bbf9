"""HTTP/1.1 on two ports of loopback: the Hub, and the host that its large files live on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import cards, routes  # noqa: F401  (each registers its routes)
from .state import HubServer
from .wire import Answer, RefusedError, Request, dispatch


@contextmanager
def running() -> Iterator[HubServer]:
    """A server in threads of this process."""
    hub = HubServer()

    class Bound(_Handler):
        state = hub

    servers = [_Server(("127.0.0.1", 0), Bound) for _ in range(2)]
    hub.url, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.faults.clear()  # whoever waits goes on
        for server in servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    """Does not wait for connections that clients keep open."""

    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    state: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        hub = self.state
        line = f"{self.command} {self.path}"
        request = Request(self.command, self.path, self.headers, self._body())
        hub.requests.append(line)
        fault = hub.faults.strike(line)
        if fault and fault.release:
            fault.reached.set()
            fault.release.wait()
        if fault and fault.hangs_up == "before":
            return self._hang_up()
        answer = Answer(fault.status, fault.headers) if fault and fault.status else _carry_out(hub, request)
        if fault and fault.hangs_up == "after":
            return self._hang_up()
        return self._send(answer, fault.truncate if fault else 0)

    do_HEAD = do_GET = do_POST = do_PUT = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _hang_up(self) -> None:
        self.close_connection = True

    def _send(self, answer: Answer, missing: int) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) - missing])
            self.close_connection = bool(missing)


def _carry_out(hub: HubServer, request: Request) -> Answer:
    try:
        with hub.lock:
            return dispatch(hub, request)
    except RefusedError as refused:
        return refused.answer()

"""A small server that speaks the part of the Hub's protocol that downloads use, on loopback.

`HEAD` and `GET` of `/<org>/<name>/resolve/<revision>/<file>`: headers X-Repo-Commit, ETag and Content-Length;
weights answer with a redirect to another host and X-Linked-Etag/-Size, as files in large-file storage do;
failures carry X-Error-Code and X-Error-Message.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class HubServer:
    """What the server holds and how it behaves; tests change it while it runs.

    Attributes:
        repos: repository -> commit -> file name -> bytes.
        gated, private: repositories that refuse whoever brings no good token.
        tokens: the tokens that are good.
        status: answer every request with this status.
        xet: announce that the weights are in Xet storage as well.
        truncate: send this many bytes less than announced, and hang up.
        requests: `METHOD path` of all requests so far.
    """

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    status: int | None = None
    xet: bool = False
    truncate: int = 0
    requests: list[str] = field(default_factory=list)
    url: str = ""
    cdn: str = ""

    def add(self, repo: str, commit: str, folder: Path) -> None:
        """Put a folder's files into a repository."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.repos.setdefault(repo, {})[commit] = files

    def downloads(self) -> list[str]:
        """The files whose bytes were asked for."""
        return [line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET")]


@contextmanager
def running() -> Iterator[HubServer]:
    """A server in a thread of this process."""
    hub = HubServer()

    class Bound(_Handler):
        state = hub

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Bound) for _ in range(2)]
    hub.url, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""

    def _answer(self) -> None:
        hub = self.state
        hub.requests.append(f"{self.command} {self.path}")
        if hub.status is not None:
            return self._fail(hub.status)
        org, name, kind, revision, file = self.path.strip("/").split("/")
        repo = f"{org}/{name}"
        refused = self._refusal(repo, revision, file) if kind == "resolve" else None
        if refused:
            return self._fail(*refused)
        data = hub.repos[repo][revision][file]
        if kind == "resolve" and file.endswith(".safetensors"):
            return self._redirect(repo, revision, file, data)
        return self._send(revision, data)

    def _refusal(self, repo: str, revision: str, file: str) -> tuple[int, str, str] | None:
        hub = self.state
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if token and token not in hub.tokens:
            return 401, "", "Invalid credentials in Authorization header"
        if repo not in hub.repos or (repo in hub.private and not token):
            return 401, "RepoNotFound", "Repository not found"
        if repo in hub.gated and not token:
            return 401, "GatedRepo", "Access to model is restricted"
        if revision not in hub.repos[repo]:
            return 404, "RevisionNotFound", f"Invalid rev id: {revision}"
        if file not in hub.repos[repo][revision]:
            return 404, "EntryNotFound", "Entry not found"
        return None

    def _redirect(self, repo: str, revision: str, file: str, data: bytes) -> None:
        self.send_response(302)
        self.send_header("Location", f"{self.state.cdn}/{repo}/cdn/{revision}/{file}")
        self.send_header("X-Repo-Commit", revision)
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("X-Linked-Etag", f'"{hashlib.sha256(data).hexdigest()}"')
        if self.state.xet:
            self.send_header("X-Xet-Hash", "0" * 64)
            self.send_header("X-Xet-Refresh-Route", f"{self.state.url}/no-such-route")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, revision: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("X-Repo-Commit", revision)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[: len(data) - self.state.truncate])
            self.close_connection = bool(self.state.truncate)

    def _fail(self, status: int, code: str = "", message: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if message:
            self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

"""HTTP/1.1 on two ports of loopback, the Hub and the host that its large files live on, and what both answer."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from .state import MAIN, Commit, File, HubServer, PullRequest, RefusedError, Repo

DATE = "2026-01-02T03:04:05.678Z"
_CARD = re.compile(r"\A\s*---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


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


@dataclass(frozen=True)
class Request:
    """What a route sees of a request."""

    token: str
    query: Mapping[str, list[str]]
    body: bytes

    def flag(self, name: str) -> bool:
        """Whether a query parameter is set to a true value."""
        return self.query.get(name, [""])[0].lower() in ("1", "true")

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"{}")


@dataclass(frozen=True)
class Answer:
    """What goes back."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @classmethod
    def of(cls, value: Any, status: int = 200, **headers: str) -> Self:
        """A JSON answer; `_` stands for `-` in the names of headers."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return cls(status, {"Content-Type": "application/json", **named}, json.dumps(value).encode())


class _Handler(BaseHTTPRequestHandler):
    state: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        hub, line, body = self.state, f"{self.command} {self.path}", self._body()
        hub.requests.append(line)
        fault = hub.faults.strike(line)
        if fault.release:
            fault.reached.set()
            fault.release.wait()
        if fault.hangs_up == "before":
            self.close_connection = True
            return
        answer = Answer(fault.status, fault.headers) if fault.status else self._carry_out(body)
        if fault.hangs_up == "after":
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: len(answer.body) - fault.truncate])
            self.close_connection = bool(fault.truncate)

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

    def _carry_out(self, body: bytes) -> Answer:
        """The answer of the first route that fits; parts of the path arrive unquoted."""
        parts, method = urlsplit(self.path), self.command.replace("HEAD", "GET")
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        request = Request(token, parse_qs(parts.query), body)
        try:
            for wanted, pattern, handler in ROUTES:
                if wanted == method and (match := pattern.fullmatch(parts.path)):
                    with self.state.lock:
                        return handler(self.state, request, *map(unquote, match.groups()))
            raise RefusedError(404, f"Cannot {self.command} {self.path}")
        except RefusedError as error:
            headers = {"X_Error_Message": error.message} | ({"X_Error_Code": error.code} if error.code else {})
            return Answer.of({"error": error.message}, error.status, **headers)


ROUTES: list[tuple[str, re.Pattern[str], Callable[..., Answer]]] = []


def route(method: str, pattern: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Register `handler(hub, request, *parts)`: `{repo}` is `org/name`, `{path}` any number of parts, others one."""
    expression = pattern.replace("{repo}", "([^/]+/[^/]+?)").replace("{path}", "(.+)")

    def register(handler: Callable[..., Answer]) -> Callable[..., Answer]:
        ROUTES.append((method, re.compile(re.sub(r"{\w+}", "([^/]+)", expression)), handler))
        return handler

    return register


# Repositories


@route("GET", "/api/whoami-v2")
def whoami(hub: HubServer, request: Request) -> Answer:
    owner = hub.user(request.token)
    access = {"accessToken": {"displayName": "test", "role": owner.role}}
    return Answer.of({"type": "user", "name": owner.user, "orgs": [{"name": o} for o in owner.orgs], "auth": access})


@route("POST", "/api/repos/create")
def create(hub: HubServer, request: Request) -> Answer:
    """A new repository; 409 with its address when there is one."""
    owner, body = hub.user(request.token), request.json
    repo = f"{body.get('organization') or owner.user}/{body['name']}"
    if owner.role != "write" or not owner.belongs_to(repo):
        raise RefusedError(403, f"You don't have the rights to create a model under this namespace: {repo}")
    answer = {"url": f"{hub.url}/{repo}", "name": repo}
    if repo in hub.repos:
        return Answer.of(answer | {"error": "You already created this model repo"}, 409)
    hub.repos[repo] = Repo(repo, body.get("visibility") == "private" or bool(body.get("private")))
    return Answer.of(answer)


@route("GET", "/api/models/{repo}")
def newest(hub: HubServer, request: Request, repo: str) -> Answer:
    return info(hub, request, repo, MAIN)


@route("GET", "/api/models/{repo}/revision/{revision}")
def info(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """The state at a revision, with the hashes of its files where these are asked for."""
    hashes = request.flag("blobs")
    known = hub.visible(request.token, repo, files=hashes)
    commit = known.at(revision)
    siblings = [{"rfilename": path} | (_facts(file, "blobId") if hashes else {}) for path, file in commit.files.items()]
    facts = {"id": repo, "modelId": repo, "sha": commit.id, "private": known.private, "lastModified": DATE}
    return Answer.of(facts | {"gated": "auto" if known.gated else False, "tags": [], "siblings": siblings})


def _facts(file: File, name: str) -> dict[str, Any]:
    """Size and id of a file."""
    large = {"lfs": {"sha256": file.id, "oid": file.id, "size": len(file.data), "pointerSize": 134}}
    return {"size": len(file.data), name: file.id[:40]} | (large if file.large else {})


@route("GET", "/api/models/{repo}/refs")
def references(hub: HubServer, request: Request, repo: str) -> Answer:
    """The tags alone, which are what is asked for."""
    tags = hub.visible(request.token, repo).tags().items()
    listed = [{"name": name, "ref": f"refs/tags/{name}", "targetCommit": commit} for name, commit in tags]
    return Answer.of({"branches": [], "tags": listed, "converts": []})


@route("GET", "/api/models/{repo}/tree/{revision}")
def tree(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    files = hub.visible(request.token, repo, files=True).at(revision).files
    return Answer.of([{"type": "file", "path": path} | _facts(file, "oid") for path, file in sorted(files.items())])


@route("POST", "/api/models/{repo}/tag/{revision}")
def tag(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    hub.writable(request.token, repo).tag(request.json["tag"], revision)
    return Answer.of({})


# Files down


@route("GET", "/{repo}/resolve/{revision}/{path}")
def resolve(hub: HubServer, request: Request, repo: str, revision: str, path: str) -> Answer:
    """A file at a revision; of a large one where its bytes are."""
    commit = hub.visible(request.token, repo, files=True).at(revision)
    if path not in commit.files:
        return Answer(404, {"X-Repo-Commit": commit.id, "X-Error-Code": "EntryNotFound"})
    file, headers = commit.files[path], {"X-Repo-Commit": commit.id}
    if not file.large:
        return _bytes(file, headers)
    headers |= {"Location": f"{hub.cdn}/cdn/{repo}/{file.id}/{path}"}
    headers |= {"X-Linked-Size": str(len(file.data)), "X-Linked-Etag": f'"{file.id}"'}
    if hub.xet:
        headers |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{hub.url}/no-such-route"}
    return Answer(302, headers)


@route("GET", "/cdn/{repo}/{sha256}/{path}")
def large(hub: HubServer, request: Request, repo: str, sha256: str, path: str) -> Answer:
    """The bytes of a large file, by what they are; this host sees no token."""
    if request.token:
        raise RefusedError(400, "the token has left the Hub")
    return _bytes(File(hub.objects[sha256], large=True), {})


def _bytes(file: File, headers: dict[str, str]) -> Answer:
    return Answer(200, headers | {"ETag": f'"{file.id}"'}, file.data)


# Files up, and what is proposed


@route("POST", "/api/validate-yaml")
def validate(hub: HubServer, request: Request) -> Answer:
    errors = [{"message": error} for error in _card_errors(request.json["content"])]
    return Answer.of({"errors": errors, "warnings": []}, 400 if errors else 200)


def _card_errors(card: str) -> list[str]:
    """What the Hub refuses of a card: a head that names what is no repository."""
    head = _CARD.match(card)
    metadata = yaml.safe_load(head[1]) if head else {}
    listed = [(key, metadata.get(key, [])) for key in ("datasets", "base_model")]
    names = [(key, name) for key, value in listed for name in ([value] if isinstance(value, str) else value)]
    return [f'"{key}" must name repositories of the Hub' for key, name in names if not _REPO_ID.fullmatch(name)]


@route("POST", "/api/models/{repo}/preupload/{revision}")
def preupload(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """For each file: `lfs` or `regular`, and its id where it is there already."""
    there = hub.writable(request.token, repo, proposes=request.flag("create_pr")).at(revision).files
    ways = []
    for wanted in request.json["files"]:
        path = wanted["path"]
        mode = "lfs" if File.of(path, base64.b64decode(wanted["sample"])).large else "regular"
        known = {"oid": there[path].id} if path in there else {}
        ways.append({"path": path, "uploadMode": mode, "shouldIgnore": False} | known)
    return Answer.of({"files": ways})


@route("POST", "/{repo}.git/info/lfs/objects/batch")
def batch(hub: HubServer, request: Request, repo: str) -> Answer:
    """Where each object goes; nothing to do for one that is here."""
    hub.writable(request.token, repo, proposes=True)  # whether the commit is a proposal is told later
    objects = []
    for wanted in request.json["objects"]:
        actions = {"upload": {"href": f"{hub.cdn}/upload/{wanted['oid']}"}}
        objects.append(wanted if wanted["oid"] in hub.objects else wanted | {"actions": actions})
    return Answer.of({"transfer": "basic", "objects": objects})


@route("PUT", "/upload/{sha256}")
def put(hub: HubServer, request: Request, sha256: str) -> Answer:
    """The bytes, which are those that were announced (403)."""
    if hashlib.sha256(request.body).hexdigest() != sha256:
        raise RefusedError(403, "SignatureDoesNotMatch")
    hub.objects[sha256] = request.body
    return Answer()


@route("POST", "/api/models/{repo}/commit/{revision}")
def commit(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """Lines of JSON, the header first; 412 when main is not at `parentCommit` any more."""
    proposes = request.flag("create_pr")
    known = hub.writable(request.token, repo, proposes=proposes)
    header, *operations = [json.loads(line) for line in request.body.splitlines()]
    head, parent = known.resolve(revision), header["value"].get("parentCommit")
    if parent and parent != head and not proposes:
        raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
    base = known.resolve(parent) if parent and proposes else head
    files = _changed(hub, known.commits[base].files, operations)
    new = Commit(files, header["value"]["summary"], header["value"].get("description", ""), base)
    answer = {"success": True, "commitOid": new.id, "commitUrl": f"{hub.url}/{repo}/commit/{new.id}"}
    ref = revision if revision in known.refs else f"refs/heads/{revision}"
    if proposes:
        pull = PullRequest(len(known.pulls) + 1, new.title, new.message, base)
        known.pulls.append(pull)
        answer["pullRequestUrl"], ref = f"{hub.url}/{repo}/discussions/{pull.number}", pull.ref
    known.push(new, ref)
    return Answer.of(answer)


def _changed(hub: HubServer, before: Mapping[str, File], operations: list[dict[str, Any]]) -> dict[str, File]:
    files = dict(before)
    for operation in operations:
        value = operation["value"]
        match operation["key"]:
            case "file":
                files[value["path"]] = File(base64.b64decode(value["content"]))
            case "lfsFile":
                files[value["path"]] = File(hub.objects[value["oid"]], large=True)
            case "deletedFile":
                del files[value["path"]]
    if "README.md" in files and (errors := _card_errors(files["README.md"].data.decode())):
        raise RefusedError(400, errors[0])
    return files


@route("GET", "/api/models/{repo}/discussions")
def discussions(hub: HubServer, request: Request, repo: str) -> Answer:
    """Open requests on one page, the newest first."""
    listed = [
        {"title": pull.title, "num": pull.number, "status": pull.status, "createdAt": DATE, "isPullRequest": True}
        | {"author": {"name": "somebody"}, "repo": {"name": repo, "type": "model"}}
        for pull in reversed(hub.visible(request.token, repo).pulls)
        if pull.status == "open"
    ]
    return Answer.of({"discussions": listed, "count": len(listed), "start": 0})


@route("POST", "/api/models/{repo}/discussions/{number}/merge")
def merge(hub: HubServer, request: Request, repo: str, number: str) -> Answer:
    """A commit on main with the files that the request changed."""
    known = hub.writable(request.token, repo)
    pull = known.pulls[int(number) - 1]
    before, proposed = known.commits[pull.base].files, known.at(pull.ref).files
    changed = {path: file for path, file in proposed.items() if before.get(path) != file}
    files = {path: file for path, file in known.at(MAIN).files.items() if path in proposed or path not in before}
    pull.status = "merged"
    known.push(Commit(files | changed, f"{pull.title} (#{number})", pull.description, known.head))
    return Answer.of({})

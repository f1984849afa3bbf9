"""Repositories with hashes as git makes them, who may read and write, and what goes wrong on purpose."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .wire import RefusedError, Request

MAIN = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def is_large(path: str, sample: bytes) -> bool:
    """Whether a file goes to large-file storage: by .gitattributes, or because it is no text."""
    return path.endswith(".safetensors") or b"\0" in sample


def git_oid(data: bytes, kind: str = "blob") -> str:
    """The id that git gives these bytes."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest()


@dataclass(frozen=True)
class File:
    """The bytes of one file."""

    data: bytes
    large: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        """What git itself holds of a large file."""
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n"
        return text.encode()

    @property
    def oid(self) -> str:
        """Of the git blob."""
        return git_oid(self.pointer if self.large else self.data)


@dataclass(frozen=True)
class Commit:
    """A whole state of the repository."""

    files: Mapping[str, File]
    title: str
    message: str = ""
    author: str = "nobody"
    parent: str | None = None

    @property
    def id(self) -> str:
        """A hash of all that the commit is."""
        tree = {path: file.oid for path, file in sorted(self.files.items())}
        body = {"tree": tree, "parent": self.parent, "author": self.author, "title": self.title, "text": self.message}
        return git_oid(json.dumps(body).encode(), "commit")


@dataclass
class PullRequest:
    """A proposed commit; `status` is open, merged or closed."""

    number: int
    title: str
    description: str
    author: str
    base: str
    status: str = "open"

    @property
    def ref(self) -> str:
        return f"refs/pr/{self.number}"


@dataclass
class Repo:
    """A repository.

    Attributes:
        commits: id -> commit.
        refs: full name (`refs/heads/main`, `refs/tags/v1.0.0`, `refs/pr/1`) -> commit id.
        gated: its files are for members alone.
    """

    id: str
    private: bool = False
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: list[PullRequest] = field(default_factory=list)

    @classmethod
    def create(cls, repo: str, private: bool = False, author: str = "nobody") -> Repo:
        """A new repository, with the first commit that the Hub makes."""
        made = cls(repo, private)
        made.push(Commit({".gitattributes": File(_ATTRIBUTES)}, "initial commit", author=author), "refs/heads/main")
        return made

    @property
    def head(self) -> str:
        """The newest commit of main."""
        return self.refs[f"refs/heads/{MAIN}"]

    def push(self, commit: Commit, ref: str) -> str:
        """Adds a commit and moves a reference to it."""
        self.commits[commit.id] = commit
        self.refs[ref] = commit.id
        return commit.id

    def resolve(self, revision: str) -> str:
        """The commit of a branch, tag, pull request or commit id; RevisionNotFound (404) for none."""
        names = (f"refs/heads/{revision}", f"refs/tags/{revision}", revision)
        found = next((self.refs[name] for name in names if name in self.refs), revision)
        if not _COMMIT.fullmatch(found) or found not in self.commits:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found

    def at(self, revision: str) -> Commit:
        """The state at a revision."""
        return self.commits[self.resolve(revision)]

    def history(self, revision: str) -> list[Commit]:
        """The commit and those before it, the newest first."""
        found, commit = [], self.at(revision)
        while True:
            found.append(commit)
            if commit.parent is None:
                return found
            commit = self.commits[commit.parent]

    def tag(self, name: str, revision: str) -> None:
        """A tag is given once (409)."""
        if f"refs/tags/{name}" in self.refs:
            raise RefusedError(409, "Tag reference exists already")
        self.refs[f"refs/tags/{name}"] = self.resolve(revision)

    def tags(self) -> dict[str, str]:
        """Tag -> commit."""
        return {name[len("refs/tags/") :]: oid for name, oid in self.refs.items() if name.startswith("refs/tags/")}

    def files(self, revision: str = MAIN) -> dict[str, bytes]:
        """The bytes of every file at a revision."""
        return {path: file.data for path, file in self.at(revision).files.items()}


@dataclass(frozen=True)
class Token:
    """An access token's owner and what it allows: role is `read` or `write`."""

    user: str
    role: str = "read"
    orgs: frozenset[str] = frozenset()
    expired: bool = False

    def belongs_to(self, repo: str) -> bool:
        """Whether the repository is the user's, or that of an organisation of theirs."""
        return repo.partition("/")[0] in {self.user, *self.orgs}


def identify(tokens: dict[str, Token], text: str) -> Token | None:
    """The owner of a token; None without a token, 401 for one that is not good."""
    if not text:
        return None
    token = tokens.get(text)
    if token is None or token.expired:
        raise RefusedError(401, "Invalid credentials in Authorization header")
    return token


def require_user(who: Token | None) -> Token:
    """Someone who is logged in (401 otherwise)."""
    if who is None:
        raise RefusedError(401, "Invalid username or password.")
    return who


def require_visible(repo: Repo | None, who: Token | None) -> Repo:
    """A repository that this user may know of; a private one is not told from one that does not exist."""
    if repo is None or (repo.private and not (who and who.belongs_to(repo.id))):
        raise RefusedError(404 if who else 401, "Repository not found", "RepoNotFound")
    return repo


def require_files(repo: Repo, who: Token | None) -> None:
    """The files of a gated repository are for its members."""
    if repo.gated and not (who and who.belongs_to(repo.id)):
        message = f"Access to model {repo.id} is restricted. Visit its page to ask for access."
        raise RefusedError(403 if who else 401, message, "GatedRepo")


def require_writer(who: Token | None, repo: str, *, proposes: bool = False) -> Token:
    """A token that writes, of a member; whoever only proposes a change (a pull request) needs no membership."""
    user = require_user(who)
    if user.role != "write":
        raise RefusedError(403, "you must use a write token to upload to a repository")
    if not proposes and not user.belongs_to(repo):
        raise RefusedError(403, "pass `create_pr=1` as a query parameter to create a Pull Request")
    return user


_ANY = ""


@dataclass
class Fault:
    """What happens to requests whose `METHOD path` the pattern is found in.

    Attributes:
        times: how often; None for always.
        status: answered in place of the true answer, with `headers`.
        truncate: bytes of the true answer that are left out, though announced, before the connection closes.
        hangs_up: close the connection without a word: `before` the request is carried out, or `after`.
        release: the request waits for this event; `reached` tells that one does.
    """

    pattern: str
    times: int | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    truncate: int = 0
    hangs_up: str = ""
    release: threading.Event | None = None
    reached: threading.Event = field(default_factory=threading.Event)


class Faults:
    """The faults that are injected now; the newest is looked at first."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def answer(
        self, status: int, pattern: str = _ANY, *, times: int | None = None, retry_after: int | None = None
    ) -> None:
        """Requests are answered by this status."""
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self._add(Fault(pattern, times, status, headers))

    def truncate(self, missing: int, pattern: str = _ANY, *, times: int | None = None) -> None:
        """Answers break off before the end."""
        self._add(Fault(pattern, times, truncate=missing))

    def hang_up(self, pattern: str = _ANY, *, when: str = "before", times: int | None = None) -> None:
        """The connection is closed without an answer, `before` or `after` the request was carried out."""
        self._add(Fault(pattern, times, hangs_up=when))

    def stall(self, pattern: str = _ANY, *, times: int | None = None, lost: bool = False) -> Fault:
        """Requests wait until `release.set()` or the end of the server; then they are carried out, or are lost."""
        return self._add(Fault(pattern, times, hangs_up="before" if lost else "", release=threading.Event()))

    def clear(self) -> None:
        """All is well again; whoever waits goes on."""
        with self._lock:
            waiting, self._faults = self._faults, []
        for fault in waiting:
            if fault.release:
                fault.release.set()

    def strike(self, line: str) -> Fault | None:
        """The fault that a request meets, counted."""
        with self._lock:
            for fault in reversed(self._faults):
                if fault.times != 0 and re.search(fault.pattern, line):
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault


@dataclass
class HubServer:
    """A Hub.

    Attributes:
        repos: `org/name` -> repository.
        tokens: an access token's text -> its owner.
        objects: large files by sha256, uploaded and maybe in no commit yet.
        faults: what goes wrong.
        xet: announce that large files are in Xet storage as well.
        requests: `METHOD path` of all requests so far, both hosts'.
        url, cdn: addresses of the Hub and of the host of large files.
        lock: held while a request is carried out.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    xet: bool = False
    requests: list[str] = field(default_factory=list)
    url: str = ""
    cdn: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def login(self, token: str, user: str = "ada", role: str = "read", orgs: tuple[str, ...] = ()) -> str:
        """Makes a token good."""
        self.tokens[token] = Token(user, role, frozenset(orgs))
        return token

    def expire(self, token: str) -> None:
        """The token is no longer good."""
        owner = self.tokens[token]
        self.tokens[token] = Token(owner.user, owner.role, owner.orgs, expired=True)

    def add(self, repo: str, files: Path | dict[str, bytes], title: str = "files") -> str:
        """Commits a folder's files, or these, on top of main; the repository is made when it is not there."""
        content = files if isinstance(files, dict) else {path.name: path.read_bytes() for path in files.iterdir()}
        with self.lock:
            target = self.repos.setdefault(repo, Repo.create(repo))
            new = {path: File(data, is_large(path, data[:512])) for path, data in content.items()}
            self.objects |= {file.sha256: file.data for file in new.values() if file.large}
            commit = Commit({**target.at("main").files, **new}, title, parent=target.head)
            return target.push(commit, "refs/heads/main")

    def who(self, request: Request) -> Token | None:
        """Whose token a request carries."""
        return identify(self.tokens, request.token)

    def visible(self, request: Request, repo: str) -> tuple[Repo, Token | None]:
        """A repository that the request may know of."""
        who = self.who(request)
        return require_visible(self.repos.get(repo), who), who

    def readable(self, request: Request, repo: str) -> Repo:
        """A repository whose files the request may read."""
        found, who = self.visible(request, repo)
        require_files(found, who)
        return found

    def downloads(self) -> list[str]:
        """The files whose bytes were asked for, without those that were answered by a redirect."""
        large = [line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET /cdn/")]
        small = [line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET") and "/resolve/" in line]
        return [name for name in small if not name.endswith(".safetensors")] + large

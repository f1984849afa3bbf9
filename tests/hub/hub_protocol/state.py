"""Repositories and their commits, who may read and write them, and what goes wrong on purpose."""

import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

MAIN = "main"


class RefusedError(Exception):
    """A request is answered by this status, with the Hub's name of the error."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class File:
    """The bytes of one file; a large one is known by its sha256, any other by the id that git gives it."""

    data: bytes
    large: bool = False

    @classmethod
    def of(cls, path: str, data: bytes) -> Self:
        """A file that goes to large-file storage by its name, or because it is no text."""
        return cls(data, path.endswith(".safetensors") or b"\0" in data[:512])

    @property
    def id(self) -> str:
        if self.large:
            return hashlib.sha256(self.data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()


@dataclass(frozen=True)
class Commit:
    """A whole state of the repository."""

    files: Mapping[str, File]
    title: str
    message: str = ""
    parent: str | None = None

    @property
    def id(self) -> str:
        """A hash of all that the commit is."""
        tree = sorted((path, file.id) for path, file in self.files.items())
        return hashlib.sha1(repr((tree, self.parent, self.title, self.message)).encode()).hexdigest()


@dataclass
class PullRequest:
    """A proposed commit on top of the commit `base`."""

    number: int
    title: str
    description: str
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

    def __post_init__(self) -> None:
        self.push(Commit({".gitattributes": File(b"*.safetensors filter=lfs -text\n")}, "initial commit"))

    @property
    def head(self) -> str:
        """The newest commit of main."""
        return self.refs[f"refs/heads/{MAIN}"]

    def push(self, commit: Commit, ref: str = f"refs/heads/{MAIN}") -> str:
        """Add a commit and move a reference to it."""
        self.commits[commit.id] = commit
        self.refs[ref] = commit.id
        return commit.id

    def resolve(self, revision: str) -> str:
        """The commit of a branch, tag, pull request or commit id; RevisionNotFound (404) for none."""
        names = (f"refs/heads/{revision}", f"refs/tags/{revision}", revision)
        commit = next((self.refs[name] for name in names if name in self.refs), revision)
        if commit not in self.commits:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def at(self, revision: str) -> Commit:
        """The state at a revision."""
        return self.commits[self.resolve(revision)]

    def history(self, revision: str) -> list[Commit]:
        """The commit and those before it, the newest first."""
        commits = [self.at(revision)]
        while commits[-1].parent is not None:
            commits.append(self.commits[commits[-1].parent])
        return commits

    def tag(self, name: str, revision: str) -> None:
        """Give a tag, once (409)."""
        if f"refs/tags/{name}" in self.refs:
            raise RefusedError(409, "Tag reference exists already")
        self.refs[f"refs/tags/{name}"] = self.resolve(revision)

    def tags(self) -> dict[str, str]:
        """Tag -> commit."""
        tags = "refs/tags/"
        return {name.removeprefix(tags): commit for name, commit in self.refs.items() if name.startswith(tags)}

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


@dataclass
class Fault:
    """What happens to requests whose `METHOD path` the pattern occurs in.

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

    def answer(self, status: int, pattern: str = "", *, times: int | None = None, retry_after: int = 0) -> None:
        """Requests are answered by this status."""
        self._add(Fault(pattern, times, status, {"Retry-After": str(retry_after)} if retry_after else {}))

    def truncate(self, missing: int, pattern: str = "", *, times: int | None = None) -> None:
        """Answers break off before the end."""
        self._add(Fault(pattern, times, truncate=missing))

    def hang_up(self, pattern: str = "", *, when: str = "before", times: int | None = None) -> None:
        """The connection is closed without an answer, `before` or `after` the request was carried out."""
        self._add(Fault(pattern, times, hangs_up=when))

    def stall(self, pattern: str = "", *, times: int | None = None, lost: bool = False) -> Fault:
        """Requests wait until `release.set()` or the end of the server; then they are carried out, or are lost."""
        return self._add(Fault(pattern, times, hangs_up="before" if lost else "", release=threading.Event()))

    def clear(self) -> None:
        """All is well again; whoever waits goes on."""
        with self._lock:
            waiting, self._faults = self._faults, []
        for fault in waiting:
            if fault.release:
                fault.release.set()

    def strike(self, line: str) -> Fault:
        """The fault that a request meets, counted; one that does nothing where there is none."""
        with self._lock:
            for fault in reversed(self._faults):
                if fault.times != 0 and re.search(fault.pattern, line):
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return Fault("")

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
        """Make a token good."""
        self.tokens[token] = Token(user, role, frozenset(orgs))
        return token

    def expire(self, token: str) -> None:
        """Make a token good no longer."""
        self.tokens[token] = replace(self.tokens[token], expired=True)

    def add(self, repo: str, files: Path | dict[str, bytes], title: str = "files") -> str:
        """Commit a folder's files, or these, on top of main; the repository is made when it is not there."""
        content = files if isinstance(files, dict) else {path.name: path.read_bytes() for path in files.iterdir()}
        with self.lock:
            target = self.repos.setdefault(repo, Repo(repo))
            new = {path: File.of(path, data) for path, data in content.items()}
            self.objects |= {file.id: file.data for file in new.values() if file.large}
            return target.push(Commit({**target.at(MAIN).files, **new}, title, parent=target.head))

    def downloads(self) -> list[str]:
        """The files whose bytes were asked for, without those that were answered by a redirect."""
        large = [line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET /cdn/")]
        small = [line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET") and "/resolve/" in line]
        return [name for name in small if not name.endswith(".safetensors")] + large

    # What a token may do

    def user(self, token: str) -> Token:
        """The owner of a token; 401 for none, and for one that is not good."""
        owner = self.tokens.get(token)
        if owner is None or owner.expired:
            raise RefusedError(401, "Invalid username or password.")
        return owner

    def visible(self, token: str, name: str, *, files: bool = False) -> Repo:
        """A repository that may be known of, and its `files` read; a private one is not told from none (404)."""
        repo, owner = self.repos.get(name), self.user(token) if token else None
        member = owner is not None and owner.belongs_to(name)
        if repo is None or (repo.private and not member):
            raise RefusedError(404 if owner else 401, "Repository not found", "RepoNotFound")
        if files and repo.gated and not member:
            raise RefusedError(403 if owner else 401, f"Access to model {name} is restricted.", "GatedRepo")
        return repo

    def writable(self, token: str, name: str, *, proposes: bool = False) -> Repo:
        """A repository that may be written to; whoever only proposes a change needs no membership."""
        repo, owner = self.visible(token, name), self.user(token)
        if owner.role != "write" or not (proposes or owner.belongs_to(name)):
            raise RefusedError(403, "you must use a write token, of a member, to upload to a repository")
        return repo

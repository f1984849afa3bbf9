"""One repository: files, commits, branches, tags and pull requests, with hashes as git makes them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .wire import RefusedError

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
    merged_as: str | None = None

    @property
    def ref(self) -> str:
        return f"refs/pr/{self.number}"


@dataclass
class Repo:
    """A repository.

    Attributes:
        commits: id -> commit.
        refs: full name (`refs/heads/main`, `refs/tags/v1.0.0`, `refs/pr/1`) -> commit id.
        gated: whoever is no member has to be in `granted`.
    """

    id: str
    private: bool = False
    gated: bool = False
    granted: set[str] = field(default_factory=set)
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

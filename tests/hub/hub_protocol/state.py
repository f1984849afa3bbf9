"""What the server holds and how it behaves; tests change it while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from .access import Token, identify, require_files, require_visible
from .faults import Faults
from .repository import Commit, File, Repo, is_large
from .wire import Request


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

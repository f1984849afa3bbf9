"""One repository on the Hub, as publishing needs it: read a state, commit a whole, tag it, propose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..registry.errors import NotInSourceError
from ..registry.files import sha256_of
from .asking import ANSWER_SECONDS, ask
from .errors import ChangedMeanwhileError, NotAllowedError, NotLoggedInError, PublicRepositoryError, PublishError

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, ModelInfo
    from huggingface_hub.hf_api import RepoSibling

T = TypeVar("T")

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Request:
    """A pull request: where it is read, and its commit."""

    url: str
    commit: str


class Repository:
    """A model repository.

    Args:
        repo: `org/name`.
        private: what goes there is for its members' eyes: it is made private, and a public one is refused.
        endpoint: the Hub's address; None for HF_ENDPOINT or the public one.
        seconds: to wait for one answer.

    Raises:
        PublishError: not of the form `org/name`.
    """

    def __init__(
        self, repo: str, *, private: bool = False, endpoint: str | None = None, seconds: float = ANSWER_SECONDS
    ) -> None:
        from huggingface_hub import HfApi

        if not _REPO.fullmatch(repo):
            raise PublishError(f"{repo!r} is no repository", remedy="write ORGANISATION/NAME", repo=repo)
        self.id = repo
        self.uri = f"hf://{repo}"
        self._private = private
        self._api = HfApi(endpoint=endpoint, library_name="tchub")
        self._seconds = seconds

    @property
    def url(self) -> str:
        """Its page."""
        return f"{self._api.endpoint}/{self.id}"

    def require_login(self) -> None:
        """A token that is good, and not one for reading alone.

        Raises:
            NotLoggedInError, TokenError, NotAllowedError: none; refused; it only reads.
        """
        from huggingface_hub import get_token

        if get_token() is None:
            raise NotLoggedInError("there is no access token", remedy="hf auth login, or set HF_TOKEN", repo=self.id)
        who = self._ask(self._api.whoami)
        if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise NotAllowedError(
                f"the token of {who.get('name')} only reads",
                remedy="make a token that writes (Settings, Access Tokens), then: hf auth login",
                repo=self.id,
            )

    def create(self) -> None:
        """Make the repository; one that exists stays as it is."""
        self._ask(lambda: self._api.create_repo(self.id, private=self._private or None, exist_ok=True))

    def head(self) -> str | None:
        """The newest commit of main; None when there is no such repository. Raises PublicRepositoryError."""
        try:
            return self.require_head()
        except NotInSourceError:
            return None

    def require_head(self) -> str:
        """The newest commit of main.

        Raises:
            NotInSourceError: there is no such repository.
            PublicRepositoryError: it is public, and was to be private.
        """
        info = self._info(None)
        if self._private and not info.private:
            raise PublicRepositoryError(
                f"{self.id} is public, and was to be private",
                remedy="make it private in its settings on the Hub, give another --repo, or leave out --private",
                repo=self.id,
            )
        return str(info.sha)

    def is_private(self) -> bool:
        """Whether only its members may see it."""
        return bool(self._info(None).private)

    def tagged(self, tag: str) -> str | None:
        """The commit of a tag."""
        tags = self._ask(lambda: self._api.list_repo_refs(self.id)).tags
        return next((ref.target_commit for ref in tags if ref.name == tag), None)

    def files(self, revision: str) -> dict[str, RepoSibling]:
        """Every file at a revision, with its hash."""
        return {file.rfilename: file for file in self._info(revision, hashes=True).siblings or ()}

    def read(self, name: str, revision: str) -> bytes:
        """A file's bytes; raises NotInSourceError when it is not there."""
        path = self._ask(lambda: self._api.hf_hub_download(self.id, name, revision=revision))
        return Path(path).read_bytes()

    def commit(self, files: Mapping[str, Path], stale: Sequence[str], title: str, text: str, *, parent: str) -> str:
        """Push all files to main as one commit on top of `parent`, without those that are stale.

        A push whose answer was lost is found again: when main then holds these very files, that is the commit.

        Raises:
            ChangedMeanwhileError: main is not at `parent` any more, and does not hold these files.
        """
        try:
            return self._commit(files, stale, title, text, parent=parent, propose=False).oid
        except ChangedMeanwhileError:
            head = self.require_head()
            if differing(files, self.files(head)):
                raise
            return head

    def propose(self, files: Mapping[str, Path], stale: Sequence[str], title: str, text: str, parent: str) -> Request:
        """Open a pull request with all files as one commit on top of `parent`; one that is open with them is kept."""
        known = self.requested(title, lambda ref: not differing(files, self.files(ref)))
        if known is not None:
            return known
        made = self._commit(files, stale, title, text, parent=parent, propose=True)
        return Request(str(made.pr_url), made.oid)

    def requested(self, title: str, fits: Callable[[str], bool]) -> Request | None:
        """An open pull request of this title whose state fits."""
        listed = self._ask(
            lambda: list(
                self._api.get_repo_discussions(self.id, discussion_type="pull_request", discussion_status="open")
            )
        )
        for found in listed:
            ref = f"refs/pr/{found.num}"
            if found.title == title and fits(ref):
                return Request(found.url, str(self._info(ref).sha))
        return None

    def set_tag(self, tag: str, commit: str, text: str) -> None:
        """Tag a commit; a tag that exists stays where it is."""
        self._ask(lambda: self._api.create_tag(self.id, tag=tag, revision=commit, tag_message=text, exist_ok=True))

    def _info(self, revision: str | None, *, hashes: bool = False) -> ModelInfo:
        # Of the client's ways to list files this is the one that takes a timeout; without it, it waits for ever,
        # whatever its session says.
        more: dict[str, Any] = {"revision": revision, "files_metadata": hashes, "timeout": self._seconds}
        return self._ask(lambda: self._api.model_info(self.id, **more))

    def _commit(
        self, files: Mapping[str, Path], stale: Sequence[str], title: str, text: str, *, parent: str, propose: bool
    ) -> CommitInfo:
        def push() -> CommitInfo:
            return self._api.create_commit(
                self.id,
                _operations(files, stale),
                commit_message=title,
                commit_description=text,
                parent_commit=parent,
                create_pr=propose,
            )

        return self._ask(push, once=propose)

    def _ask(self, call: Callable[[], T], *, once: bool = False) -> T:
        return ask(self.id, call, seconds=self._seconds, once=once)


def _operations(files: Mapping[str, Path], stale: Sequence[str]) -> list[CommitOperationAdd | CommitOperationDelete]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    return [
        *(CommitOperationAdd(name, path) for name, path in files.items()),
        *(CommitOperationDelete(name) for name in stale),
    ]


def differing(files: Mapping[str, Path], there: Mapping[str, RepoSibling]) -> list[str]:
    """Names of those local files that are not in a repository's state with the very same bytes."""
    return [name for name, path in files.items() if name not in there or not _is_same(there[name], path)]


def _is_same(there: RepoSibling, path: Path) -> bool:
    from huggingface_hub.utils.sha import git_hash

    if there.lfs is not None:
        return there.lfs.sha256 == sha256_of(path)
    return there.size == path.stat().st_size and there.blob_id == git_hash(path.read_bytes())

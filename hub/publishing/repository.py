"""One repository on the Hub, as publishing needs it: read a state, commit a whole, tag it, propose.

huggingface_hub repeats uploads itself. A longer fault is an error, and the same command goes on where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...zoo.files import file_sha256
from ..registry.errors import NotInSourceError
from ..registry.network import ANSWER_SECONDS, hub_errors, require_network
from .errors import PublishError

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, ModelInfo
    from huggingface_hub.hf_api import RepoSibling

T = TypeVar("T")

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_AGAIN = "run the same command again: it goes on where it stopped"


class Repository:
    """A model repository.

    Args:
        private: only members may see what goes there: it is made private, and a public one is refused.
        endpoint: the Hub's address; None for HF_ENDPOINT or the public one.

    Raises:
        PublishError: not of the form `org/name`.
    """

    def __init__(
        self, repo: str, *, private: bool = False, endpoint: str | None = None, seconds: float = ANSWER_SECONDS
    ) -> None:
        from huggingface_hub import HfApi

        if not _REPO.fullmatch(repo):
            message = f"{repo!r} is no repository"
            raise PublishError(message, reason="form", remedy="write ORGANISATION/NAME", repo=repo)
        self.id = repo
        self.uri = f"hf://{repo}"
        self._private = private
        self._api = HfApi(endpoint=endpoint, library_name="tchub")
        self._seconds = seconds

    @property
    def url(self) -> str:
        return f"{self._api.endpoint}/{self.id}"

    def require_login(self) -> None:
        """Raise PublishError without a token that writes (`login`, `denied`), SourceError for one that is refused."""
        from huggingface_hub import get_token

        if get_token() is None:
            remedy = "hf auth login, or set HF_TOKEN"
            raise PublishError("there is no access token", reason="login", remedy=remedy, repo=self.id)
        who = self._ask(self._api.whoami)
        if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
            remedy = "make a token that writes (Settings, Access Tokens), then: hf auth login"
            message = f"the token of {who.get('name')} only reads"
            raise PublishError(message, reason="denied", remedy=remedy, repo=self.id)

    def create(self) -> None:
        """Make the repository; one that exists stays as it is."""
        self._ask(lambda: self._api.create_repo(self.id, private=self._private or None, exist_ok=True))

    def head(self) -> str | None:
        """Return the newest commit of main; None without a repository. Raises PublishError as `require_head`."""
        try:
            return self.require_head()
        except NotInSourceError:
            return None

    def require_head(self) -> str:
        """Return the newest commit of main; raises NotInSourceError, or PublishError where it should be private."""
        info = self._info(None)
        if self._private and not info.private:
            remedy = "make it private in its settings on the Hub, give another --repo, or leave out --private"
            message = f"{self.id} is public, and was to be private"
            raise PublishError(message, reason="public", remedy=remedy, repo=self.id)
        return str(info.sha)

    def is_private(self) -> bool:
        """Return True if only its members may see it."""
        return bool(self._info(None).private)

    def tagged(self, tag: str) -> str | None:
        """Return the commit of a tag."""
        tags = self._ask(lambda: self._api.list_repo_refs(self.id)).tags
        return next((ref.target_commit for ref in tags if ref.name == tag), None)

    def files(self, revision: str) -> dict[str, RepoSibling]:
        """Return every file at a revision, with its hash."""
        return {file.rfilename: file for file in self._info(revision, hashes=True).siblings or ()}

    def read(self, name: str, revision: str) -> bytes:
        """Return a file's bytes; raises NotInSourceError when it is not there."""
        path = self._ask(lambda: self._api.hf_hub_download(self.id, name, revision=revision))
        return Path(path).read_bytes()

    def commit(
        self, files: Mapping[str, Path], stale: Sequence[str], title: str, text: str, parent: str, **options: Any
    ) -> CommitInfo:
        """Push all files to main as one commit on top of `parent`, without those that are stale.

        Raises:
            PublishError: main is not at `parent` any more (`changed`).
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        changes = [
            *(CommitOperationAdd(name, path) for name, path in files.items()),
            *(CommitOperationDelete(name) for name in stale),
        ]
        options |= {"commit_message": title, "commit_description": text, "parent_commit": parent}
        return self._ask(lambda: self._api.create_commit(self.id, changes, **options))

    def propose(
        self, files: Mapping[str, Path], stale: Sequence[str], title: str, text: str, parent: str
    ) -> tuple[str, str]:
        """Return page and commit of a pull request with all files on top of `parent`, the open one where there is."""
        kinds: Any = {"discussion_type": "pull_request", "discussion_status": "open"}
        for request in self._ask(lambda: list(self._api.get_repo_discussions(self.id, **kinds))):
            ref = f"refs/pr/{request.num}"
            if request.title == title and not differing(files, self.files(ref)):
                return request.url, str(self._info(ref).sha)
        opened = self.commit(files, stale, title, text, parent, create_pr=True)
        return str(opened.pr_url), opened.oid

    def set_tag(self, tag: str, commit: str, text: str) -> None:
        """Tag a commit; a tag that exists stays where it is."""
        self._ask(lambda: self._api.create_tag(self.id, tag=tag, revision=commit, tag_message=text, exist_ok=True))

    def _info(self, revision: str | None, *, hashes: bool = False) -> ModelInfo:
        # Of the client's ways to list files this is the one that takes a timeout; without it, it waits for ever,
        # whatever its session says.
        more: dict[str, Any] = {"revision": revision, "files_metadata": hashes, "timeout": self._seconds}
        return self._ask(lambda: self._api.model_info(self.id, **more))

    def _ask(self, call: Callable[[], T]) -> T:
        """Return the answer of the Hub's client, within `seconds`, with its errors as PublishError and SourceError."""
        require_network(self.id, repo=self.id)
        about: Any = {"alternative": _AGAIN, "fields": {"repo": self.id}}
        with hub_errors(self.id, **about), _refusals(self.id), _answers_within(self._seconds):
            return call()


def differing(files: Mapping[str, Path], there: Mapping[str, RepoSibling]) -> list[str]:
    """Return the local files that are not in a repository's state with the very same bytes."""
    from huggingface_hub.utils.sha import git_hash

    def is_same(path: Path, known: RepoSibling) -> bool:
        if known.lfs is not None:
            return known.lfs.sha256 == file_sha256(path)
        return known.size == path.stat().st_size and known.blob_id == git_hash(path.read_bytes())

    return [name for name, path in files.items() if name not in there or not is_same(path, there[name])]


@contextmanager
def _answers_within(seconds: float) -> Iterator[None]:
    """Bound each answer: the client waits for ever by default."""
    from huggingface_hub import get_session

    session = get_session()
    before, session.timeout = session.timeout, seconds
    try:
        yield
    finally:
        session.timeout = before


@contextmanager
def _refusals(repo: str) -> Iterator[None]:
    """Turn the Hub's refusals of a change into PublishError."""
    from huggingface_hub.errors import BadRequestError, GatedRepoError, HfHubHTTPError

    def refusal(reason: str, message: str, remedy: str) -> PublishError:
        return PublishError(message, reason=reason, remedy=remedy, repo=repo)

    try:
        yield
    except GatedRepoError:
        raise
    except (HfHubHTTPError, RuntimeError, ValueError) as error:
        # A RuntimeError is the client's own of an upload that failed, with the true one behind it.
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
            raise error.__cause__ from error
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if status == 403:
            remedy = "use a token that writes, of a member of the organisation; or --create-pr, to propose it"
            raise refusal("denied", f"the token may not write to {repo}", remedy) from error
        if status == 412:
            message = f"somebody else pushed to {repo} at the same time; nothing was mixed"
            raise refusal("changed", message, _AGAIN) from error
        if status is not None and not isinstance(error, BadRequestError):
            raise
        message = f"the Hub did not accept the files for {repo}: {' '.join(str(error).split())}"
        raise refusal("refused", message, "correct what it names; nothing was committed") from error

"""Who may read and who may write."""

from __future__ import annotations

from dataclasses import dataclass

from .repository import Repo
from .wire import RefusedError


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
    """The files of a gated repository are for its members and for those who accepted its terms."""
    if repo.gated and not (who and (who.belongs_to(repo.id) or who.user in repo.granted)):
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

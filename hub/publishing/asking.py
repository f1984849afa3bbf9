"""Asking the Hub: how long to wait, what to ask again, and what its refusals mean for one who writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..registry.errors import SourceError
from ..registry.network import VARIABLES, hub_errors, network_ruled_out
from .errors import ChangedMeanwhileError, NotAllowedError, PublishError

T = TypeVar("T")

ANSWER_SECONDS = 60.0
_TRIES = 5
_LONGEST_PAUSE = 60.0
_RATE_LIMIT = 429
_FAILING = (500, 502, 503, 504)
GO_ON = "run the same command again: it goes on where it stopped"


def ask(repo: str, call: Callable[[], T], *, seconds: float = ANSWER_SECONDS, once: bool = False) -> T:
    """Calls the Hub's client; a rate limit is waited out, and a failing server asked again.

    Args:
        repo: `org/name`, for errors.
        call: the question.
        seconds: to wait for one answer.
        once: a failing server may have done it already, and twice would be wrong: only a rate limit is waited out.

    Raises:
        NotAllowedError: the token may not write there.
        ChangedMeanwhileError: another commit came first.
        SourceError: the environment rules the network out (`offline`), or the Hub, the token or the network fails.
    """
    if network_ruled_out():
        raise SourceError(
            f"{repo} cannot be reached: the network is ruled out",
            reason="offline",
            remedy=f"run it without {' and '.join(VARIABLES)}",
            repo=repo,
        )
    facts = {"repo": repo}
    with hub_errors(repo, action="reached", alternative=GO_ON, fields=facts), _refusals(repo), _answers_within(seconds):
        return _again(call, (_RATE_LIMIT,) if once else (_RATE_LIMIT, *_FAILING))


def _again(call: Callable[[], T], statuses: tuple[int, ...]) -> T:
    from huggingface_hub.errors import HfHubHTTPError

    for attempt in range(1, _TRIES):
        try:
            return call()
        except HfHubHTTPError as error:
            if error.response.status_code not in statuses:
                raise
            time.sleep(_pause(error.response.headers.get("Retry-After"), attempt))
    return call()


def _pause(told: str | None, attempt: int) -> float:
    """Seconds until the next try: what the server says, else longer each time."""
    seconds = float(told) if told and told.isdecimal() else 2.0 ** (attempt - 1)
    return min(seconds, _LONGEST_PAUSE)


@contextmanager
def _answers_within(seconds: float) -> Iterator[None]:
    """The client waits for ever by default."""
    from huggingface_hub import get_session

    session = get_session()
    before, session.timeout = session.timeout, seconds
    try:
        yield
    finally:
        session.timeout = before


@contextmanager
def _refusals(repo: str) -> Iterator[None]:
    from huggingface_hub.errors import BadRequestError, GatedRepoError, HfHubHTTPError

    try:
        yield
    except GatedRepoError:
        raise
    except BadRequestError as error:
        raise _not_accepted(repo, error) from error
    except HfHubHTTPError as error:
        if error.response.status_code == 403:
            raise NotAllowedError(
                f"the token may not write to {repo}",
                remedy="use a token that writes, of a member of the organisation; or --create-pr, to propose it",
                repo=repo,
            ) from error
        if error.response.status_code == 412:
            raise ChangedMeanwhileError(
                f"somebody else pushed to {repo} at the same time; nothing was mixed", remedy=GO_ON, repo=repo
            ) from error
        raise
    except RuntimeError as error:  # the client's word for an upload that failed, with the true error behind it
        if isinstance(error.__cause__, Exception):
            raise error.__cause__ from error
        raise _not_accepted(repo, error) from error
    except ValueError as error:
        raise _not_accepted(repo, error) from error


def _not_accepted(repo: str, error: Any) -> PublishError:
    text = " ".join(str(error).split())
    return PublishError(
        f"the Hub did not accept the files for {repo}: {text}",
        remedy="correct what it names; nothing was committed",
        repo=repo,
    )

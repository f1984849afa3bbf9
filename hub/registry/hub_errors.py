"""The Hub client's errors as tchub's: one class and one remedy for each thing that can go wrong there."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .errors import (
    GatedError,
    NetworkError,
    NotInSourceError,
    OfflineError,
    RevisionMissingError,
    SourceError,
    TokenError,
    UnknownSourceError,
)
from .offline import VARIABLES
from .store import store_error
from .watched import StalledError, within

T = TypeVar("T")

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
ELSEWHERE = "use --source file:///folder"


@dataclass(frozen=True)
class Errand:
    """What the Hub is asked for, in the words that its errors need.

    Attributes:
        repo: `org/name`.
        doing: what could not be done when the connection fails.
        instead: what else one can do when the server cannot be reached or fails.
        offline: whether the caller ruled the network out.
        fields: of the errors.
    """

    repo: str
    file: str | None = None
    revision: str | None = None
    doing: str = "fetched"
    instead: str = ELSEWHERE
    offline: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)


def answered(errand: Errand, seconds: float, call: Callable[[], T]) -> T:
    """What a call of the Hub's client returns, with its errors as `typed` has them, in bounded time.

    The client has time-outs, but waits for as long as a busy server asks, and for one that sends a byte now and then.

    Raises:
        NetworkError: it took longer than `seconds`.
    """
    with typed(errand):
        try:
            return within(seconds, call)
        except StalledError as error:
            what = f"{errand.file} of {errand.repo}" if errand.file else errand.repo
            raise NetworkError(
                f"the Hub hangs, or is too slow: {what} did not come in {seconds:.0f} s",
                remedy=f"check the connection, proxy and HF_ENDPOINT, try again later, or {errand.instead}",
                **errand.fields,
            ) from error


@contextmanager
def typed(errand: Errand) -> Iterator[None]:
    """Turns what huggingface_hub raises into a SourceError, or a StoreError for its cache."""
    from huggingface_hub import errors as hub
    from huggingface_hub.constants import HF_HUB_CACHE, is_offline_mode

    repo, fields = errand.repo, errand.fields
    try:
        yield
    except hub.HFValidationError as error:
        raise UnknownSourceError(
            f"{repo!r} is not the name of a repository", remedy="write org/name, as its page on the Hub", **fields
        ) from error
    except hub.GatedRepoError as error:
        raise GatedError(
            f"{repo} is gated: its terms have to be accepted first",
            remedy=f"accept them on the page of {repo}, then: hf auth login",
            **fields,
        ) from error
    except hub.RevisionNotFoundError as error:
        raise RevisionMissingError(
            f"{repo} has no commit {errand.revision}",
            remedy="the repository was rewritten; report it, or use another --source",
            **fields,
        ) from error
    except hub.RemoteEntryNotFoundError as error:
        raise NotInSourceError(
            f"{repo} has no file {errand.file} at {errand.revision}", remedy="use another --source", **fields
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise NotInSourceError(
            f"{repo} does not exist, or is private and you are not logged in",
            remedy="check the name; for a private repository: hf auth login",
            **fields,
        ) from error
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as error:
        raise _unreachable(errand, error, errand.offline or is_offline_mode()) from error
    except hub.HfHubHTTPError as error:
        raise _refused(errand, error) from error
    except OSError as error:
        if error.errno in _DISK:
            raise store_error(error, Path(error.filename or HF_HUB_CACHE), "HF_HOME") from error
        raise _failed(errand, error) from error
    except (*_transport_errors(), json.JSONDecodeError) as error:  # the latter of a login page in the Hub's place
        raise _failed(errand, error) from error
    except UnicodeEncodeError:  # not chained: it holds the header, and so the token
        raise TokenError(
            "the access token holds characters that no token has",
            remedy="hf auth login, or set HF_TOKEN again",
            **fields,
        ) from None


def _transport_errors() -> tuple[type[Exception], ...]:
    # The Hub's client lets its HTTP library's errors through when a download breaks; which one that is
    # depends on the client's version.
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(base for base in HfHubHTTPError.__mro__[1:] if base.__name__ in ("HTTPError", "RequestException"))


def _unreachable(errand: Errand, error: Exception, offline: bool) -> SourceError:
    from huggingface_hub.errors import HfHubHTTPError

    if offline:
        missing = (
            f"{errand.file} of {errand.repo} is not in the Hub cache" if errand.file else f"{errand.repo} is asked"
        )
        return OfflineError(
            f"{missing}, and the network is ruled out",
            remedy=f"run once without --offline (and without {' and '.join(VARIABLES)}), or {errand.instead}",
            **errand.fields,
        )
    cause = error.__cause__
    return _refused(errand, cause) if isinstance(cause, HfHubHTTPError) else _failed(errand, cause or error)


def _refused(errand: Errand, error: Any) -> SourceError:
    status = error.response.status_code
    if status in (401, 403):
        return TokenError(
            f"the Hub refused the token for {errand.repo} (HTTP {status})",
            remedy="it may be expired or lack read permission: hf auth login, or check HF_TOKEN",
            status=status,
            **errand.fields,
        )
    pause = error.response.headers.get("Retry-After", "")
    when = f"in {pause} s" if pause.isdecimal() else "later"
    message = f"the Hub answered HTTP {status} for {errand.repo}"
    return NetworkError(message, remedy=f"try again {when}, or {errand.instead}", status=status, **errand.fields)


def _failed(errand: Errand, error: BaseException) -> SourceError:
    text = without_token(str(error).splitlines()[0] if str(error) else "")
    return NetworkError(
        f"{errand.repo} could not be {errand.doing}: {type(error).__name__}{': ' + text if text else ''}",
        remedy=f"check the connection, proxy and HF_ENDPOINT, or {errand.instead}",
        **errand.fields,
    )


def without_token(text: str) -> str:
    """The text with nothing of the access token in it: a client may quote a header that it could not send."""
    from huggingface_hub import get_token

    token = get_token()
    return text.replace(token, "***").replace(repr(token)[1:-1], "***") if token else text

"""Asking the network: not when it is ruled out, in bounded time, and with the Hub client's errors as typed ones."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .errors import IntegrityError, NotInSourceError, SourceError
from .files import store_error

T = TypeVar("T")

VARIABLES = ("TCHUB_OFFLINE", "HF_HUB_OFFLINE")
SLOWEST = 16 << 10  # bytes a second of the slowest line that is waited for
ANSWER_SECONDS = 60.0
ELSEWHERE = "use --source file:///folder"
_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its own
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class StalledError(Exception):
    """Nothing came in time; never leaves this package."""


def network_ruled_out() -> bool:
    """Return True where TCHUB_OFFLINE or HF_HUB_OFFLINE is set."""
    return any(os.environ.get(name, "").upper() in _TRUE for name in VARIABLES)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, or raise its exception, in a thread of its own.

    A socket's time-out is of one read alone: a server that sends a byte now and then never meets it, and looking up
    a name has none. A thread that does not come back is left behind; it is a daemon, so it keeps no process alive.

    Raises:
        StalledError: the call took longer.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # whatever it is: nobody shall wait for a thread that ended
            errors.append(error)

    thread = threading.Thread(target=run, name="tchub-download", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise StalledError(f"nothing came for {seconds:g} s")
    return results[0]


def ask_hub(repo: str, call: Callable[[], T], seconds: float | None = None, **about: Any) -> T:
    """Return the result of a call of the Hub's client, with errors as `hub_errors` has them, in bounded time.

    The client has time-outs, but waits for as long as a busy server asks, and for one that sends a byte now and then.

    Raises:
        SourceError: one reason for each way in which it can fail; `network` where it took longer than `seconds`.
    """
    seconds = seconds or ANSWER_SECONDS
    with hub_errors(repo, **about):
        try:
            return within(seconds, call)
        except StalledError as error:
            file = about.get("file")
            raise SourceError(
                f"the Hub hangs, or is too slow: {f'{file} of ' if file else ''}{repo} did not come in {seconds:.0f} s",
                reason="network",
                remedy="check the connection, proxy and HF_ENDPOINT, try again later, "
                f"or {about.get('alternative', ELSEWHERE)}",
                **about.get("fields", {"source": f"hf://{repo}"}),
            ) from error


def download(
    repo: str, file: str, revision: str, folder: Path, size: int, *, exact: bool = False, **about: Any
) -> None:
    """Download a repository's file straight into a folder; another size is refused before a byte is fetched.

    Args:
        size: the most bytes that it may have, or with `exact` the only number.
        about: as of `hub_errors`.

    Raises:
        SourceError: the Hub does not give it.
        IntegrityError: it has another size.
        StoreError: the folder cannot be written.
    """
    from huggingface_hub import hf_hub_download

    options: dict[str, Any] = {"revision": revision, "local_dir": folder, "library_name": "tchub"}
    options["cache_dir"] = folder / ".cache"  # not its own: a damaged copy there would stay in the way
    about |= {"file": file, "revision": revision}
    try:
        head = ask_hub(repo, lambda: hf_hub_download(repo, file, dry_run=True, **options), **about)
        if head.file_size is not None and (head.file_size > size or (exact and head.file_size != size)):
            raise IntegrityError(
                f"{file} of {repo} has the wrong size: {head.file_size:,} bytes, not {'' if exact else 'up to '}{size:,}",
                remedy="check the repository's name; else report it to its authors",
                outcome="size-mismatch",
                path=f"hf://{repo}/{file}",
                expected=size,
                actual=head.file_size,
            )
        seconds = 2 * ANSWER_SECONDS + size / SLOWEST
        ask_hub(repo, lambda: hf_hub_download(repo, file, **options), seconds, **about)
    finally:
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's own notes on the download


@contextmanager
def hub_errors(
    repo: str,
    *,
    file: str | None = None,
    revision: str | None = None,
    action: str = "fetched",
    alternative: str = ELSEWHERE,
    offline: bool = False,
    fields: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Turn the errors of huggingface_hub into SourceError, or StoreError for the disk.

    Args:
        action: what could not be done when the connection fails.
        alternative: what else one can do when the server cannot be reached or fails.
        offline: the caller ruled the network out.
        fields: of the errors.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub.constants import is_offline_mode

    facts = dict(fields or {"source": f"hf://{repo}"})
    try:
        yield
    except hub.HFValidationError as error:
        message, remedy = f"{repo!r} is not the name of a repository", "write org/name, as its page on the Hub"
        raise SourceError(message, reason="form", remedy=remedy, **facts) from error
    except hub.GatedRepoError as error:
        raise SourceError(
            f"{repo} is gated: its terms have to be accepted first",
            reason="gated",
            remedy=f"accept them on the page of {repo}, then: hf auth login",
            **facts,
        ) from error
    except hub.RevisionNotFoundError as error:
        remedy = "the repository was rewritten; report it, or use another --source"
        raise NotInSourceError(f"{repo} has no commit {revision}", reason="revision", remedy=remedy, **facts) from error
    except hub.RemoteEntryNotFoundError as error:
        raise NotInSourceError(
            f"{repo} has no file {file} at {revision}", remedy="use another --source", **facts
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise NotInSourceError(
            f"{repo} does not exist, or is private and you are not logged in",
            remedy="check the name; for a private repository: hf auth login",
            **facts,
        ) from error
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as error:
        if offline or is_offline_mode():
            state = f"{file} of {repo} is not in the Hub cache" if file else f"{repo} is asked"
            raise SourceError(
                f"{state}, and the network is ruled out",
                reason="offline",
                remedy=f"run once without --offline (and without {' and '.join(VARIABLES)}), or {alternative}",
                **facts,
            ) from error
        raise _failed(repo, error.__cause__ or error, action, alternative, facts) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) or error.errno in _DISK:
            raise store_error(error, Path(error.filename or ".")) from error
        raise _failed(repo, error, action, alternative, facts) from error
    except (*_transport_errors(), json.JSONDecodeError) as error:  # the latter of a login page in the Hub's place
        raise _failed(repo, error, action, alternative, facts) from error
    except UnicodeEncodeError:  # not chained: it holds the header, and so the token
        raise SourceError(
            "the access token holds characters that no token has",
            reason="token",
            remedy="hf auth login, or set HF_TOKEN again",
            **facts,
        ) from None


def _transport_errors() -> tuple[type[Exception], ...]:
    # The Hub's client lets its HTTP library's errors through when a download breaks; which one that is
    # depends on the client's version.
    from huggingface_hub.errors import HfHubHTTPError

    names = ("HTTPError", "RequestException")
    return (HfHubHTTPError, *(base for base in HfHubHTTPError.__mro__[1:] if base.__name__ in names))


def _failed(repo: str, error: BaseException, action: str, alternative: str, fields: Mapping[str, Any]) -> SourceError:
    from huggingface_hub.errors import HfHubHTTPError

    if not isinstance(error, HfHubHTTPError):
        text = without_token(str(error).splitlines()[0] if str(error) else "")
        return SourceError(
            f"{repo} could not be {action}: {type(error).__name__}{': ' + text if text else ''}",
            reason="network",
            remedy=f"check the connection, proxy and HF_ENDPOINT, or {alternative}",
            **fields,
        )
    status = error.response.status_code
    if status in (401, 403):
        message = f"the Hub refused the token for {repo} (HTTP {status})"
        remedy = "it may be expired or lack read permission: hf auth login, or check HF_TOKEN"
        return SourceError(message, reason="token", remedy=remedy, status=status, **fields)
    pause = error.response.headers.get("Retry-After", "")
    remedy = f"try again {f'in {pause} s' if pause.isdecimal() else 'later'}, or {alternative}"
    message = f"the Hub answered HTTP {status} for {repo}"
    return SourceError(message, reason="network", remedy=remedy, status=status, **fields)


def without_token(text: str) -> str:
    """Return the text without the access token: a client may quote a header that it could not send."""
    from huggingface_hub import get_token

    token = get_token()
    return text.replace(token, "***").replace(repr(token)[1:-1], "***") if token else text

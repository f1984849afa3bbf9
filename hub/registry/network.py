"""Asking the network: not when it is ruled out, in bounded time, and with the Hub client's errors as typed ones."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ...zoo.files import NO_PERMISSION
from .errors import NotInSourceError, SourceError
from .files import Outcome, Verification, storing_in

T = TypeVar("T")

VARIABLES = ("TCHUB_OFFLINE", "HF_HUB_OFFLINE")
SLOWEST = 16 << 10  # bytes a second of the slowest line that is waited for
ANSWER_SECONDS = 60.0
ELSEWHERE = "use --source file:///folder"
_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its own
_DISK = (errno.ENOSPC, errno.EDQUOT, *NO_PERMISSION)


def network_ruled_out() -> bool:
    """Return True where TCHUB_OFFLINE or HF_HUB_OFFLINE is set."""
    return any(os.environ.get(name, "").upper() in _TRUE for name in VARIABLES)


def require_network(what: str, offline: bool = False, **fields: Any) -> None:
    """Raise SourceError where the caller or the environment rules the network out that is needed for something."""
    if offline or network_ruled_out():
        remedy = f"run it without --offline (and without {' and '.join(VARIABLES)}), or {ELSEWHERE}"
        message = f"{what} needs the network, which is ruled out"
        raise SourceError(message, reason="offline", remedy=remedy, **fields)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call, or raise its exception, in a thread of its own; raises TimeoutError.

    A socket's time-out is of one read alone: a server that sends a byte now and then never meets it, and looking up
    a name has none. A thread that does not come back is left behind; it is a daemon, so it keeps no process alive.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # whatever it is: nobody shall wait for a thread that ended
            future.set_exception(error)

    threading.Thread(target=run, name="tchub-download", daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"nothing came for {seconds:g} s")
    return future.result()


def ask_hub(repo: str, call: Callable[[], T], seconds: float | None = None, **about: Any) -> T:
    """Return the result of a call of the Hub's client, in bounded time and with errors as `hub_errors` has them.

    The client has time-outs, but waits for as long as a busy server asks, and for one that sends a byte now and then.
    """
    seconds = seconds or ANSWER_SECONDS
    with hub_errors(repo, **about):
        try:
            return within(seconds, call)
        except TimeoutError as error:
            asked = f"{about['file']} of {repo}" if about.get("file") else repo
            way_out = about.get("alternative", ELSEWHERE)
            raise SourceError(
                f"the Hub hangs, or is too slow: {asked} did not come in {seconds:.0f} s",
                reason="network",
                remedy=f"check the connection, proxy and HF_ENDPOINT, try again later, or {way_out}",
                **about.get("fields", {"source": f"hf://{repo}"}),
            ) from error


def require_size(
    repo: str, file: str, size: int, options: dict[str, Any], *, exact: bool = False, **about: Any
) -> None:
    """Refuse a repository's file that is too large, before a byte of it is fetched.

    Args:
        size: the most bytes that it may have, or with `exact` the only number.
        about: as of `hub_errors`.

    Raises:
        SourceError, IntegrityError: the Hub does not give it, or it has another size.
    """
    from huggingface_hub import hf_hub_download

    head = ask_hub(repo, lambda: hf_hub_download(repo, file, dry_run=True, **options), file=file, **about)
    actual = head.file_size
    if actual is not None and (actual > size or (exact and actual != size)):
        check = Verification(Outcome.SIZE_MISMATCH, f"hf://{repo}/{file}", size, actual)
        check.require("check the repository's name; else report it to its authors")


def download(
    repo: str, file: str, revision: str, folder: Path, size: int, *, exact: bool = False, **about: Any
) -> None:
    """Download a repository's file straight into a folder; arguments and errors as of `require_size`."""
    from huggingface_hub import hf_hub_download

    options: dict[str, Any] = {"revision": revision, "local_dir": folder, "library_name": "tchub"}
    options["cache_dir"] = folder / ".cache"  # not its own: a damaged copy there would stay in the way
    about |= {"revision": revision}
    try:
        require_size(repo, file, size, options, exact=exact, **about)
        seconds = 2 * ANSWER_SECONDS + size / SLOWEST
        ask_hub(repo, lambda: hf_hub_download(repo, file, **options), seconds, file=file, **about)
    finally:
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's own notes on the download


@contextmanager
def hub_errors(
    repo: str,
    *,
    file: str | None = None,
    revision: str | None = None,
    alternative: str = ELSEWHERE,
    offline: bool = False,
    fields: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Turn the errors of huggingface_hub into SourceError, or StorageError for the disk.

    Args:
        alternative: what else one can do when the server fails; offline: the caller ruled the network out.
    """
    from huggingface_hub import errors as hub
    from huggingface_hub.constants import is_offline_mode

    def failed(reason: str, message: str, remedy: str, **more: Any) -> SourceError:
        kind = NotInSourceError if reason in ("missing", "revision") else SourceError
        return kind(message, reason=reason, remedy=remedy, **(fields or {"source": f"hf://{repo}"}), **more)

    try:
        yield
    except hub.HFValidationError as error:
        remedy = "write org/name, as its page on the Hub"
        raise failed("form", f"{repo!r} is not the name of a repository", remedy) from error
    except hub.GatedRepoError as error:
        remedy = f"accept them on the page of {repo}, then: hf auth login"
        raise failed("gated", f"{repo} is gated: its terms have to be accepted first", remedy) from error
    except hub.RevisionNotFoundError as error:
        remedy = "the repository was rewritten; report it, or use another --source"
        raise failed("revision", f"{repo} has no commit {revision}", remedy) from error
    except hub.RemoteEntryNotFoundError as error:
        raise failed("missing", f"{repo} has no file {file} at {revision}", "use another --source") from error
    except hub.RepositoryNotFoundError as error:
        remedy = "check the name; for a private repository: hf auth login"
        raise failed("missing", f"{repo} does not exist, or is private and you are not logged in", remedy) from error
    except UnicodeEncodeError:  # not chained: it holds the header, and so the token
        remedy = "hf auth login, or set HF_TOKEN again"
        raise failed("token", "the access token holds characters that no token has", remedy) from None
    except (OSError, json.JSONDecodeError, *_transport_errors()) as error:
        cause: Any = error
        if isinstance(error, hub.LocalEntryNotFoundError | hub.OfflineModeIsEnabled):
            if offline or is_offline_mode():
                state = f"{file} of {repo} is not in the Hub cache" if file else f"{repo} is asked"
                remedy = f"run once without --offline (and without {' and '.join(VARIABLES)}), or {alternative}"
                raise failed("offline", f"{state}, and the network is ruled out", remedy) from error
            cause = error.__cause__ or error
        elif isinstance(error, OSError) and error.errno in _DISK:
            with storing_in(Path(error.filename or ".")):
                raise
        if not isinstance(cause, hub.HfHubHTTPError):
            text = _without_token(str(cause).partition("\n")[0])
            message = f"{repo} could not be reached: {type(cause).__name__}{': ' + text if text else ''}"
            remedy = f"check the connection, proxy and HF_ENDPOINT, or {alternative}"
            raise failed("network", message, remedy) from error
        status, pause = cause.response.status_code, cause.response.headers.get("Retry-After", "")
        reason, message = "network", f"the Hub answered HTTP {status} for {repo}"
        remedy = f"try again {f'in {pause} s' if pause.isdecimal() else 'later'}, or {alternative}"
        if status in (401, 403):
            reason, message = "token", f"the Hub refused the token for {repo} (HTTP {status})"
            remedy = "it may be expired or lack read permission: hf auth login, or check HF_TOKEN"
        raise failed(reason, message, remedy, status=status) from error


def _transport_errors() -> tuple[type[Exception], ...]:
    # The Hub's client lets its HTTP library's errors through when a download breaks; which library that is depends on
    # the client's version.
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(base for base in HfHubHTTPError.__mro__ if base.__name__ in ("HTTPError", "RequestException"))


def _without_token(text: str) -> str:
    """Return the text without the access token: a client may quote a header that it could not send."""
    from huggingface_hub import get_token

    token = get_token()
    return text.replace(token, "***").replace(repr(token)[1:-1], "***") if token else text

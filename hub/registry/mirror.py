"""A static mirror: any web server that gives out a folder of checkpoints as files.

Read by requests, whose proxies (HTTPS_PROXY, NO_PROXY), certificates (REQUESTS_CA_BUNDLE) and ~/.netrc hold here too;
plain http, which is for this machine's own servers, goes by no proxy.
"""

import io
import ipaddress
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin, urlsplit

from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import InvalidURL
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import Retry

from .entry import Entry
from .errors import NotInSourceError, SourceError
from .files import Outcome, Verification
from .network import SLOWEST, require_network, within

TOKEN_VARIABLE = "TCHUB_MIRROR_TOKEN"
_TRIES = 4  # of a request that fails, and of a download that breaks off
_LONGEST_PAUSE = 20.0  # seconds that a server may ask for before the next try
_PIECE = 1 << 16
_BROKEN = (RequestException, HTTPError, OverflowError)  # the last one of a pause beyond all calendars


class PatientRetry(Retry):
    """Waits as long as the server asks for, and gives up at once where that is too long."""

    def increment(self, method: Any = None, url: Any = None, response: Any = None, *args: Any, **kw: Any) -> Any:
        if response is not None and (self.get_retry_after(response) or 0.0) > _LONGEST_PAUSE:
            raise MaxRetryError(kw["_pool"], url)  # raise_on_status is off: the answer itself is given back
        return super().increment(method, url, response, *args, **kw)


class MirrorSession(Session):
    """Tries again, follows a few safe redirects, and keeps the token to one host."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self.max_redirects = 4
        # Compressed bytes would have another size than the index says, and might unpack to any size.
        self.headers.update({"Accept-Encoding": "identity", "User-Agent": "tchub"})
        if token:  # not a header of the session: requests drops this one when a redirect leads to another host
            self.auth = lambda request: request.headers.update(Authorization=f"Bearer {token}") or request
        retry = PatientRetry(
            total=_TRIES - 1,
            backoff_factor=0.3,  # pauses of 0, 0.6 and 1.2 s where the server asks for none
            status_forcelist=(429, 500, 502, 503, 504),
            allowed_methods=("GET",),
            raise_on_status=False,
        )
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(max_retries=retry))

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        # All of plain http, to this machine's own servers, would be read by a proxy. trust_env stays, for ~/.netrc.
        if (request.url or "").startswith("http:"):
            kwargs["proxies"] = {}
            request.headers.pop("Proxy-Authorization", None)  # a redirect brings it along
        return super().send(request, **kwargs)

    def get_redirect_target(self, resp: Response) -> str | None:
        """Return where an answer leads to; raises SourceError where that is not safe."""
        target = super().get_redirect_target(resp)
        if target is not None:
            try:
                target = urljoin(resp.url, target)
                _require_private(target, inside=resp.url)
            except ValueError as error:  # an address that is none
                raise InvalidURL("a redirect leads to no address") from error
        return target


class Mirror:
    """`https://host/folder`, which holds `<name>/<version>/<file>`.

    The environment variable TCHUB_MIRROR_TOKEN is sent to that host, as a bearer token, and to no other.

    Args:
        uri: the folder's address; `http` is for servers on this machine only.
        named: the user named it. One that an index or a lock file lists is sent no token: who wrote that file could
            have it sent anywhere.
        patience: seconds that a connection and a read may take; a file may take three times as long, besides the
            time that its bytes take on a slow line.

    Raises:
        SourceError: no plain address (`form`), or http to another machine (`insecure`).
    """

    def __init__(self, uri: str, *, named: bool = True, patience: float = 20.0) -> None:
        _require_folder(uri)
        _require_private(uri)
        self.uri = uri.rstrip("/")
        self.named = named
        self.patience = patience

    def read(self, name: str, limit: int, *, offline: bool = False) -> bytes:
        data = io.BytesIO()
        self._download(name, data, limit, offline)
        return data.getvalue()

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Download the files; a download that breaks off is begun again, one of another size refused."""
        for name, record in entry.files.items():
            with (dest / name).open("wb") as file:
                self._download(f"{entry.name}/{entry.version}/{name}", file, record.size, offline, exact=True)

    def _download(self, name: str, file: BinaryIO, limit: int, offline: bool, *, exact: bool = False) -> None:
        """Write a file of at most `limit` bytes, or of exactly so many, in bounded time; raises SourceError.

        The texts of the session's errors are left out: they hold addresses that a redirect may have led to, with what
        is secret in them.
        """
        require_network(f"{name} of {self.uri}", offline, source=self.uri, file=name)
        token = _token() if self.named else None

        def run() -> None:
            with MirrorSession(token) as session:
                for _ in range(_TRIES):
                    if self._receive(session, name, file, limit, exact):
                        return
            message = f"{self.uri}/{name} broke off {_TRIES} times, the last time after {file.tell()} of {limit} bytes"
            raise self._error("network", message, "try again; use another --source if it happens again", name)

        try:
            within(3 * self.patience + limit / SLOWEST, run)
        except (TimeoutError, *_BROKEN) as error:
            inner = error.args[0] if error.args else None
            cause = type(getattr(inner, "reason", None) or error).__name__  # e.g. NameResolutionError
            slow = isinstance(error, TimeoutError)
            message = f"{self.uri} {f'hangs, or is too slow: {error}' if slow else f'could not be read: {cause}'}"
            remedy = "check the connection and HTTPS_PROXY, try again later, or use another --source"
            raise self._error("network", message, remedy, name) from error

    def _receive(self, session: Session, name: str, file: BinaryIO, limit: int, exact: bool) -> bool:
        """Write the whole file, from its begin; return False where it broke off."""
        if file.tell():
            file.seek(0)
            file.truncate()
        with session.get(f"{self.uri}/{name}", stream=True, timeout=self.patience) as response:
            self._require_good(response, name)
            announced = response.headers.get("Content-Length", "")
            if announced.isascii() and announced.isdecimal() and len(announced) < 20:
                self._require_size(name, int(announced), limit, exact)
            with suppress(*_BROKEN):
                while piece := response.raw.read(_PIECE, decode_content=False):
                    if file.tell() + len(piece) > limit:
                        self._require_size(name, file.tell() + len(piece), limit, exact)
                    file.write(piece)
                return not exact or file.tell() == limit
        return False

    def _require_size(self, name: str, actual: int, limit: int, exact: bool) -> None:
        if exact and actual != limit:
            check = Verification(Outcome.SIZE_MISMATCH, f"{self.uri}/{name}", limit, actual)
            check.require("the mirror and the index disagree; use another --source")
        if actual > limit:
            message = f"{self.uri}/{name} has more than {limit} bytes, so it is not what it should be"
            raise self._error("content", message, "check the address, or use another --source", name)

    def _require_good(self, response: Response, name: str) -> None:
        status, pause = response.status_code, response.headers.get("Retry-After", "")
        if status in (401, 403):
            remedy = f"set {TOKEN_VARIABLE}, or check that it is right and still valid"
            if not self.named:
                remedy = f"name {self.uri} by --source or in TCHUB_SOURCES: {TOKEN_VARIABLE} goes to no other mirror"
            remedy += "; some servers say the same of a file that is not there"
            raise self._error("token", f"{self.uri} refused to give {name} (HTTP {status})", remedy, name)
        if status in (404, 410):
            remedy = f"check the address {self.uri}/{name}, or use another --source"
            raise NotInSourceError(f"{self.uri} has no {name}", remedy=remedy, source=self.uri, file=name)
        if status != 200:
            remedy = f"try again {f'in {pause} s' if pause.isdecimal() else 'later'}, or use another --source"
            message = f"{self.uri} answered HTTP {status} for {name}"
            raise self._error("network", message, remedy, name, status=status)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            message = f"{self.uri} sends {name} compressed, which it was not asked for"
            remedy = "have the server send files as they are, or use another --source"
            raise self._error("content", message, remedy, name)

    def _error(self, reason: str, message: str, remedy: str, name: str, **fields: object) -> SourceError:
        return SourceError(message, reason=reason, remedy=remedy, source=self.uri, file=name, **fields)


def _token() -> str | None:
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not (token.isascii() and token.isprintable()):
        remedy = "set it again, to the token alone, or unset it"
        raise SourceError(f"{TOKEN_VARIABLE} holds characters that no token has", reason="token", remedy=remedy)
    return token or None


def _require_folder(url: str) -> None:
    """Refuse an address that names no folder, or that holds what should not be shown in messages and files."""
    try:
        parts = urlsplit(url)
        plain = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        parts, plain = urlsplit(""), False
    if not plain or "@" in parts.netloc or "?" in url or "#" in url:
        raise SourceError(
            f"the mirror's address at {parts.hostname or 'no host'} is not that of a folder",
            reason="form",
            remedy=f"write https://host/folder; a token goes into {TOKEN_VARIABLE}, a password into ~/.netrc",
        )


def _require_private(url: str, inside: str = "") -> None:
    """Refuse addresses that others could read or change on the way: anything but https, and http to this machine.

    A redirect from `inside` https may not even lead to this machine's http, whose servers may trust who asks from here.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    local = host == "localhost"
    with suppress(ValueError):
        local = local or ipaddress.ip_address(host).is_loopback
    if parts.scheme == "https" or (parts.scheme == "http" and local and not inside.startswith("https:")):
        return
    raise SourceError(
        f"{parts.scheme}://{host} is not encrypted: anyone on the way could read and change what it sends",
        reason="insecure",
        remedy="use https:// or file:///folder; plain http is for addresses of this machine",
        host=host,
    )

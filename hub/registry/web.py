"""Reading from a static web server: TLS, a few redirects, retries, and an end in bounded time.

Through requests, whose proxies (HTTPS_PROXY, NO_PROXY), certificates (REQUESTS_CA_BUNDLE) and ~/.netrc hold here too;
plain http, which is for this machine's own servers, goes by no proxy.
Imported when a mirror is asked, so that nothing else pays for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.exceptions import InvalidURL
from urllib3.exceptions import HTTPError, InvalidHeader, MaxRetryError
from urllib3.response import BaseHTTPResponse
from urllib3.util import Retry

from .address import require_private
from .watched import watched

# What a connection that breaks, or never comes about, raises.
BROKEN = (RequestException, HTTPError)
LONGEST_PAUSE = 20.0  # seconds that a server may ask for before the next try
_PIECE = 1 << 16
_REDIRECTS = 4
_TRIES = 4


def open_session(token: str | None = None) -> Session:
    """A session that tries again, follows a few safe redirects, and sends the token to the first host alone."""
    session = _SafeSession()
    session.max_redirects = _REDIRECTS
    # Compressed bytes would have another size than the index says, and might unpack to any size.
    session.headers["Accept-Encoding"] = "identity"
    session.headers["User-Agent"] = "tchub"
    session.auth = _Bearer(token) if token else None
    retries = _PatientRetry(
        total=_TRIES - 1,
        backoff_factor=0.3,  # pauses of 0, 0.6 and 1.2 s where the server asks for none
        status_forcelist=(429, 500, 502, 503, 504),
        allowed_methods=("GET",),
        raise_on_status=False,
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retries))
    return session


def ask(session: Session, url: str, headers: dict[str, str], patience: float) -> tuple[Response, Iterator[bytes]]:
    """The head of the answer to a GET, and its body as it is sent, in pieces of 64 KiB.

    Args:
        patience: seconds that a connection, a read and every piece may take; the head may take three times as long,
            which leaves room for further tries.

    Raises:
        StalledError: too slow; also while iterating.
        RequestException, HTTPError (`BROKEN`): broken; also while iterating.
        InsecureSourceError: a redirect leads away from TLS.
    """

    def produce() -> Iterator[Any]:
        with session.get(url, headers=headers, stream=True, timeout=patience) as response:
            yield response
            while piece := response.raw.read(_PIECE, decode_content=False):
                yield piece

    answer = watched(produce, 3 * patience, patience)
    return next(answer), answer


def pause_asked_for(response: Response) -> float | None:
    """Seconds that the header Retry-After names, or None."""
    return _PatientRetry().get_retry_after(response.raw)


def reason_of(error: BaseException) -> str:
    """The name of what went wrong, e.g. `NameResolutionError`: the innermost that urllib3 and requests tell of."""
    inner = error.args[0] if error.args else None
    return type(getattr(inner, "reason", None) or error).__name__


class _SafeSession(Session):
    """Looks at where a redirect leads before it goes there, and asks this machine's own servers by no proxy."""

    def send(self, request: PreparedRequest, **kwargs: Any) -> Response:
        # Only this machine is asked by plain http, all of which a proxy would read. trust_env stays, for ~/.netrc.
        if (request.url or "").startswith("http:"):
            kwargs["proxies"] = {}
            request.headers.pop("Proxy-Authorization", None)  # a redirect brings it along
        return super().send(request, **kwargs)

    def get_redirect_target(self, resp: Response) -> str | None:
        target = super().get_redirect_target(resp)
        if target is not None:
            try:
                target = urljoin(resp.url, target)
                require_private(target, inside=resp.url)
            except ValueError as error:  # an address that is none
                raise InvalidURL("a redirect leads to no address") from error
        return target


class _Bearer(AuthBase):
    """As `auth`, not as a header of the session: requests drops it when a redirect leads to another host."""

    def __init__(self, token: str) -> None:
        self.token = token

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request


class _PatientRetry(Retry):
    """Waits as long as the server asks for, and gives up where that is too long."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        try:
            return super().get_retry_after(response)
        except (InvalidHeader, OverflowError):
            return None

    def increment(self, method: Any = None, url: Any = None, response: Any = None, *args: Any, **kwargs: Any) -> Any:
        if response is not None and (self.get_retry_after(response) or 0.0) > LONGEST_PAUSE:
            raise MaxRetryError(kwargs["_pool"], url)  # raise_on_status is off: the answer itself is given back
        return super().increment(method, url, response, *args, **kwargs)

"""Which web addresses a checkpoint may come from."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from .errors import InsecureSourceError, UnknownSourceError


def require_plain(url: str) -> None:
    """Refuse an address that names no folder, or that holds what should not be shown in messages and files.

    Raises:
        UnknownSourceError: no host, or a user name, a password, a query or a fragment in it.
    """
    try:
        parts = urlsplit(url)
        plain = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        parts, plain = urlsplit(""), False
    if not plain or "@" in parts.netloc or "?" in url or "#" in url:
        raise UnknownSourceError(
            f"the mirror's address at {parts.hostname or 'no host'} is not that of a folder",
            remedy="write https://host/folder; a token goes into TCHUB_MIRROR_TOKEN, a password into ~/.netrc",
        )


def require_private(url: str, inside: str = "") -> None:
    """Refuse what others could read and change on its way: anything but https, and http to this machine itself.

    Args:
        inside: where a redirect to `url` came from; one that came by https may not even lead to this machine's http,
            whose servers may trust whoever asks from here.

    Raises:
        InsecureSourceError: another scheme, or http to another machine.
        ValueError: no address at all.
    """
    parts = urlsplit(url)
    local = parts.scheme == "http" and _is_loopback(parts.hostname or "")
    if parts.scheme == "https" or (local and not inside.startswith("https:")):
        return
    raise InsecureSourceError(
        f"{parts.scheme}://{parts.hostname} is not encrypted: anyone on the way could read and change what it sends",
        remedy="use https:// or file:///folder; plain http is for addresses of this machine",
        host=parts.hostname,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

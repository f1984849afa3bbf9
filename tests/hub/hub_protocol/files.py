"""Files go down: small ones at once, large ones by a redirect to the other host, whole or in part."""

from __future__ import annotations

import re

from .repository import File
from .state import HubServer
from .wire import Answer, RefusedError, Request, route


@route("GET", "/{repo}/resolve/{revision}/{path:path}")
def resolve(hub: HubServer, request: Request, repo: str, revision: str, path: str) -> Answer:
    """A file at a revision."""
    commit = hub.readable(request, repo).at(revision)
    if path not in commit.files:
        raise RefusedError(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit.id})
    file, told = commit.files[path], {"X-Repo-Commit": commit.id}
    return _redirect(hub, repo, path, file, told) if file.large else _bytes(request, file, told)


def _redirect(hub: HubServer, repo: str, path: str, file: File, told: dict[str, str]) -> Answer:
    told |= {
        "Location": f"{hub.cdn}/cdn/{repo}/{file.sha256}/{path}",
        "X-Linked-Size": str(len(file.data)),
        "X-Linked-Etag": f'"{file.sha256}"',
    }
    if hub.xet:
        told |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": f"{hub.url}/no-such-route"}
    return Answer(302, told)


@route("GET", "/cdn/{repo}/{sha256}/{path:path}")
def large(hub: HubServer, request: Request, repo: str, sha256: str, path: str) -> Answer:
    """The bytes of a large file, by what they are; this host sees no token."""
    if request.token:
        raise RefusedError(400, "the token has left the Hub")
    return _bytes(request, File(hub.objects[sha256], large=True), {})


def _bytes(request: Request, file: File, told: dict[str, str]) -> Answer:
    told |= {"ETag": f'"{file.sha256 if file.large else file.oid}"', "Accept-Ranges": "bytes"}
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range") or "")
    if wanted is None:
        return Answer(200, told, file.data)
    first, last = int(wanted[1]), min(int(wanted[2] or len(file.data) - 1), len(file.data) - 1)
    if first > last:
        raise RefusedError(416, "Range Not Satisfiable", headers={"Content-Range": f"bytes */{len(file.data)}"})
    told["Content-Range"] = f"bytes {first}-{last}/{len(file.data)}"
    return Answer(206, told, file.data[first : last + 1])

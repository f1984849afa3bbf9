"""Large files go up: git-lfs' batch request, a PUT to the other host, a check that it arrived.

Only the `basic` transfer is spoken.
"""

from __future__ import annotations

import hashlib
from typing import Any

from .access import require_writer
from .state import HubServer
from .wire import Answer, RefusedError, Request, as_json, route


@route("POST", "/{repo}.git/info/lfs/objects/batch")
def batch(hub: HubServer, request: Request, repo: str) -> Answer:
    """Where each object goes; nothing to do for one that is here."""
    _, who = hub.visible(request, repo)
    require_writer(who, repo, proposes=True)  # whether the commit is a proposal is told later
    body = request.json
    if body["operation"] != "upload" or "basic" not in body["transfers"]:
        raise RefusedError(422, "only basic uploads are spoken here")
    return as_json({"transfer": "basic", "objects": [_actions(hub, repo, wanted) for wanted in body["objects"]]})


def _actions(hub: HubServer, repo: str, wanted: dict[str, Any]) -> dict[str, Any]:
    here = hub.objects.get(wanted["oid"])
    if here is not None and len(here) == wanted["size"]:
        return wanted
    upload = {"href": f"{hub.cdn}/upload/{wanted['oid']}?signature=good"}
    verify = {"href": f"{hub.url}/{repo}.git/info/lfs/verify"}
    return {**wanted, "actions": {"upload": upload, "verify": verify}}


@route("PUT", "/upload/{oid}")
def put(hub: HubServer, request: Request, oid: str) -> Answer:
    """The bytes; what was signed for is another object's upload otherwise (403)."""
    if request.query.get("signature") != ["good"] or hashlib.sha256(request.body).hexdigest() != oid:
        raise RefusedError(403, "SignatureDoesNotMatch")
    hub.objects[oid] = request.body
    return Answer(headers={"ETag": f'"{hashlib.md5(request.body).hexdigest()}"'})


@route("POST", "/{repo}.git/info/lfs/verify")
def verify(hub: HubServer, request: Request, repo: str) -> Answer:
    """Did it arrive whole?"""
    hub.visible(request, repo)
    if len(hub.objects.get(request.json["oid"], b"")) != request.json["size"]:
        raise RefusedError(404, "Object does not exist on the server")
    return as_json({})

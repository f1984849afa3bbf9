"""Commits: which way each file goes, and the commit itself, on a branch or as a pull request."""

from __future__ import annotations

import base64
import json
from typing import Any

from .access import require_writer
from .cards import check_card
from .repository import MAIN, Commit, File, PullRequest, Repo, is_large
from .state import HubServer
from .wire import Answer, RefusedError, Request, as_json, route


@route("POST", "/api/models/{repo}/preupload/{revision}")
def preupload(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """For each file: `lfs` or `regular`, and its id where it is there already."""
    found, who = hub.visible(request, repo)
    require_writer(who, repo, proposes=request.flag("create_pr"))
    present = found.at(revision).files
    return as_json({"files": [_way(wanted, present.get(wanted["path"])) for wanted in request.json["files"]]})


def _way(wanted: dict[str, Any], present: File | None) -> dict[str, Any]:
    large = is_large(wanted["path"], base64.b64decode(wanted["sample"]))
    way = {"path": wanted["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
    if present:
        way["oid"] = present.sha256 if present.large else present.oid
    return way


@route("POST", "/api/models/{repo}/commit/{revision}")
def commit(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """Lines of JSON, the header first; 412 when main is not at `parentCommit` any more."""
    found, who = hub.visible(request, repo)
    proposes = request.flag("create_pr")
    author = require_writer(who, repo, proposes=proposes).user
    header, *operations = [json.loads(line) for line in request.body.splitlines()]
    head, parent = found.resolve(revision), header["value"].get("parentCommit")
    if parent and parent != head and not proposes:
        raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
    base = found.resolve(parent) if parent and proposes else head
    files = _apply(hub, found, base, [(one["key"], one["value"]) for one in operations])
    made = Commit(files, header["value"]["summary"], header["value"].get("description", ""), author, base)
    answer = {"success": True, "commitOid": made.id, "commitUrl": f"{hub.url}/{repo}/commit/{made.id}"}
    if proposes:
        pull = PullRequest(len(found.pulls) + 1, made.title, made.message, author, base)
        found.pulls.append(pull)
        answer["pullRequestUrl"] = f"{hub.url}/{repo}/discussions/{pull.number}"
    found.push(made, pull.ref if proposes else _branch(found, revision))
    return as_json(answer)


def _branch(repo: Repo, revision: str) -> str:
    """The full name of a branch or pull request that a commit may be added to."""
    names = (f"refs/heads/{revision or MAIN}", revision)
    found = next((name for name in names if name in repo.refs), None)
    if found is None:
        raise RefusedError(400, f"{revision} is no branch")
    return found


def _apply(hub: HubServer, repo: Repo, base: str, operations: list[tuple[str, dict[str, Any]]]) -> dict[str, File]:
    files = dict(repo.commits[base].files)
    for key, value in operations:
        path = value["path"]
        if key == "file":
            files[path] = File(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            files[path] = _large(hub, value)
        elif key == "deletedFile":
            files.pop(path)
        elif key == "deletedFolder":
            files = {name: file for name, file in files.items() if not name.startswith(path.rstrip("/") + "/")}
        else:
            raise RefusedError(400, f"unknown operation {key}")
    if "README.md" in files and (errors := check_card(files["README.md"].data.decode())):
        raise RefusedError(400, errors[0])
    return files


def _large(hub: HubServer, value: dict[str, Any]) -> File:
    if value["oid"] not in hub.objects:
        raise RefusedError(400, f"the large file {value['path']} was not uploaded")
    return File(hub.objects[value["oid"]], large=True)

"""What the Hub answers: repositories, files down (by a redirect if large) and up, commits, pull requests."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from .cards import check_card
from .state import (
    MAIN,
    Commit,
    File,
    HubServer,
    PullRequest,
    Repo,
    is_large,
    require_files,
    require_user,
    require_writer,
)
from .wire import Answer, RefusedError, Request, as_json, route

DATE = "2026-01-02T03:04:05.678Z"


@route("GET", "/api/whoami-v2")
def whoami(hub: HubServer, request: Request) -> Answer:
    """The token's owner."""
    owner = require_user(hub.who(request))
    access = {"accessToken": {"displayName": "test", "role": owner.role}}
    return as_json({"type": "user", "name": owner.user, "orgs": [{"name": o} for o in owner.orgs], "auth": access})


@route("POST", "/api/repos/create")
def create(hub: HubServer, request: Request) -> Answer:
    """A new repository; 409 with its address when there is one."""
    who, body = require_user(hub.who(request)), request.json
    repo = f"{body.get('organization') or who.user}/{body['name']}"
    url = f"{hub.url}/{repo}"
    if who.role != "write" or not who.belongs_to(repo):
        raise RefusedError(403, f"You don't have the rights to create a model under this namespace: {repo}")
    if repo in hub.repos:
        return as_json({"error": "You already created this model repo", "url": url}, 409)
    private = body.get("visibility") == "private" or bool(body.get("private"))
    hub.repos[repo] = Repo.create(repo, private, who.user)
    return as_json({"url": url, "name": repo})


@route("GET", "/api/models/{repo}")
def newest(hub: HubServer, request: Request, repo: str) -> Answer:
    """The state of main."""
    return info(hub, request, repo, MAIN)


@route("GET", "/api/models/{repo}/revision/{revision}")
def info(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """The state at a revision."""
    found, who = hub.visible(request, repo)
    if request.flag("blobs"):
        require_files(found, who)
    commit = found.at(revision)
    siblings = [
        {"rfilename": path} | (_blob(file) if request.flag("blobs") else {}) for path, file in commit.files.items()
    ]
    facts = {"id": repo, "modelId": repo, "sha": commit.id, "private": found.private, "lastModified": DATE}
    return as_json(facts | {"gated": "auto" if found.gated else False, "tags": [], "siblings": siblings})


@route("GET", "/api/models/{repo}/refs")
def references(hub: HubServer, request: Request, repo: str) -> Answer:
    """Branches, tags and, if asked, pull requests."""
    found, _ = hub.visible(request, repo)
    listed: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "converts": [], "pullRequests": []}
    for ref, commit in found.refs.items():
        kind = {"heads": "branches", "tags": "tags", "pr": "pullRequests"}[ref.split("/")[1]]
        name = ref if kind == "pullRequests" else ref.split("/", 2)[2]
        listed[kind].append({"name": name, "ref": ref, "targetCommit": commit})
    if not request.flag("include_prs"):
        del listed["pullRequests"]
    return as_json(listed)


@route("GET", "/api/models/{repo}/tree/{revision}")
def tree(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """Files, and folders in their place unless all is asked for."""
    found = hub.readable(request, repo)
    files = found.at(revision).files
    if request.flag("recursive"):
        return as_json([_listed(path, file) for path, file in sorted(files.items())])
    folders = sorted({path.split("/", 1)[0] for path in files if "/" in path})
    rows = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in folders]
    return as_json(rows + [_listed(path, file) for path, file in sorted(files.items()) if "/" not in path])


@route("POST", "/api/models/{repo}/tag/{revision}")
def tag(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """A tag on a revision; 409 when it exists."""
    found, who = hub.visible(request, repo)
    require_writer(who, repo)
    found.tag(request.json["tag"], revision)
    return as_json({})


def _listed(path: str, file: File) -> dict[str, Any]:
    facts: dict[str, Any] = {"type": "file", "path": path, "size": len(file.data), "oid": file.oid}
    if file.large:
        facts["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": len(file.pointer)}
    return facts


def _blob(file: File) -> dict[str, Any]:
    facts: dict[str, Any] = {"size": len(file.data), "blobId": file.oid}
    if file.large:
        facts["lfs"] = {"sha256": file.sha256, "size": len(file.data), "pointerSize": len(file.pointer)}
    return facts


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
        else:
            raise RefusedError(400, f"unknown operation {key}")
    if "README.md" in files and (errors := check_card(files["README.md"].data.decode())):
        raise RefusedError(400, errors[0])
    return files


def _large(hub: HubServer, value: dict[str, Any]) -> File:
    if value["oid"] not in hub.objects:
        raise RefusedError(400, f"the large file {value['path']} was not uploaded")
    return File(hub.objects[value["oid"]], large=True)


@route("GET", "/api/models/{repo}/discussions")
def listed(hub: HubServer, request: Request, repo: str) -> Answer:
    """All on one page, the newest first."""
    found, _ = hub.visible(request, repo)
    wanted = request.query.get("status", ["all"])[0]
    shown = [pull for pull in reversed(found.pulls) if wanted == "all" or (pull.status == "open") == (wanted == "open")]
    return as_json({"discussions": [_facts(repo, pull) for pull in shown], "count": len(shown), "start": 0})


@route("POST", "/api/models/{repo}/discussions/{number}/merge")
def merge(hub: HubServer, request: Request, repo: str, number: str) -> Answer:
    """A commit on main with the change."""
    found, who = hub.visible(request, repo)
    author = require_writer(who, repo).user
    pull = next(pull for pull in found.pulls if str(pull.number) == number)
    before, proposed = found.commits[pull.base].files, found.at(pull.ref).files
    changed = {path for path in {*before, *proposed} if before.get(path) != proposed.get(path)}
    files = {path: file for path, file in found.at("main").files.items() if path not in changed}
    files |= {path: proposed[path] for path in changed if path in proposed}
    merged = Commit(files, f"{pull.title} (#{pull.number})", pull.description, author, found.head)
    pull.status = "merged"
    found.push(merged, "refs/heads/main")
    return as_json({})


def _facts(repo: str, pull: PullRequest) -> dict[str, Any]:
    facts = {"title": pull.title, "num": pull.number, "status": pull.status, "createdAt": DATE, "isPullRequest": True}
    return facts | {"author": {"name": pull.author}, "repo": {"name": repo, "type": "model"}}

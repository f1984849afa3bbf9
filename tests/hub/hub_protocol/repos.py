"""Who is asking, and repositories: created, described, listed, tagged."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from .access import require_files, require_user, require_writer
from .repository import MAIN, Commit, File, Repo
from .state import HubServer
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


@route("GET", "/api/models/{repo}/commits/{revision}")
def commits(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """The history, the newest first."""
    found, _ = hub.visible(request, repo)
    return as_json([_log(commit) for commit in found.history(revision)])


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


@route("POST", "/api/models/{repo}/paths-info/{revision}")
def paths_info(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """The files of these names that exist."""
    files = hub.readable(request, repo).at(revision).files
    names = parse_qs(request.body.decode()).get("paths", [])
    return as_json([_listed(name, files[name]) for name in names if name in files])


@route("POST", "/api/models/{repo}/tag/{revision}")
def tag(hub: HubServer, request: Request, repo: str, revision: str) -> Answer:
    """A tag on a revision; 409 when it exists."""
    found, who = hub.visible(request, repo)
    require_writer(who, repo)
    found.tag(request.json["tag"], revision)
    return as_json({})


@route("POST", "/api/models/{repo}/branch/{branch}")
def branch(hub: HubServer, request: Request, repo: str, branch: str) -> Answer:
    """A branch at a revision, else at main; 409 when it exists."""
    found, who = hub.visible(request, repo)
    require_writer(who, repo)
    if f"refs/heads/{branch}" in found.refs:
        raise RefusedError(409, "Reference already exists")
    found.refs[f"refs/heads/{branch}"] = found.resolve(request.json.get("startingPoint", MAIN))
    return as_json({})


def _log(commit: Commit) -> dict[str, Any]:
    authors = [{"user": commit.author}]
    return {"id": commit.id, "title": commit.title, "message": commit.message, "authors": authors, "date": DATE}


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

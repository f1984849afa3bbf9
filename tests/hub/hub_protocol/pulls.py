"""Pull requests: listed, read, merged."""

from __future__ import annotations

from typing import Any

from .access import require_writer
from .repos import DATE
from .repository import Commit, PullRequest, Repo
from .state import HubServer
from .wire import Answer, RefusedError, Request, as_json, route


@route("GET", "/api/models/{repo}/discussions")
def listed(hub: HubServer, request: Request, repo: str) -> Answer:
    """All on one page, the newest first."""
    found, _ = hub.visible(request, repo)
    wanted = request.query.get("status", ["all"])[0]
    shown = [pull for pull in reversed(found.pulls) if wanted == "all" or (pull.status == "open") == (wanted == "open")]
    return as_json({"discussions": [_facts(repo, pull) for pull in shown], "count": len(shown), "start": 0})


@route("GET", "/api/models/{repo}/discussions/{number}")
def details(hub: HubServer, request: Request, repo: str, number: str) -> Answer:
    """One with its change."""
    found, _ = hub.visible(request, repo)
    pull = _pull(found, number)
    changes = {"base": "refs/heads/main", "mergeCommitId": pull.merged_as}
    return as_json(
        _facts(repo, pull) | {"changes": changes, "filesWithConflicts": _conflicts(found, pull), "events": []}
    )


@route("POST", "/api/models/{repo}/discussions/{number}/merge")
def merge(hub: HubServer, request: Request, repo: str, number: str) -> Answer:
    """A commit on main with the change; 409 when main changed the same files."""
    found, who = hub.visible(request, repo)
    author = require_writer(who, repo).user
    pull = _pull(found, number)
    if pull.status != "open" or _conflicts(found, pull):
        raise RefusedError(409, "This pull request cannot be merged")
    proposed = found.at(pull.ref).files
    files = {path: file for path, file in found.at("main").files.items() if path not in _changed(found, pull)}
    files |= {path: proposed[path] for path in _changed(found, pull) if path in proposed}
    merged = Commit(files, f"{pull.title} (#{pull.number})", pull.description, author, found.head)
    pull.status, pull.merged_as = "merged", found.push(merged, "refs/heads/main")
    return as_json({})


def _pull(repo: Repo, number: str) -> PullRequest:
    found = next((pull for pull in repo.pulls if str(pull.number) == number), None)
    if found is None:
        raise RefusedError(404, "Discussion not found")
    return found


def _facts(repo: str, pull: PullRequest) -> dict[str, Any]:
    facts = {"title": pull.title, "num": pull.number, "status": pull.status, "createdAt": DATE, "isPullRequest": True}
    return facts | {"author": {"name": pull.author}, "repo": {"name": repo, "type": "model"}}


def _changed(repo: Repo, pull: PullRequest, ref: str = "") -> set[str]:
    """The files by which a reference (the request's own, or another) differs from the request's base."""
    before, after = repo.commits[pull.base].files, repo.at(ref or pull.ref).files
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}


def _conflicts(repo: Repo, pull: PullRequest) -> list[str]:
    return sorted(_changed(repo, pull) & _changed(repo, pull, "main"))

"""A checkpoint goes out: checked, one commit, a tag, a request to the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from ..registry.files import sha256_of
from .check import check
from .errors import VersionTakenError
from .index_request import IndexRequest, request_entry
from .plan import Plan, lay_out, make_plan
from .repository import Repository, differing
from .tenant import require_own

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus

Outcome = Literal["published", "already-published", "proposed", "dry-run"]


@dataclass(frozen=True)
class Published:
    """What is on the Hub now.

    Attributes:
        url: of the repository at its tag, or of the pull request.
        commit: that holds the files; None after a dry run.
        tag: on that commit; None for what is only proposed.
        index: the request to the index; None when none was asked.
        files: path in the repository -> sha256.
    """

    name: str
    version: str
    repo: str
    outcome: Outcome
    files: Mapping[str, str]
    url: str
    commit: str | None = None
    tag: str | None = None
    index: IndexRequest | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def publish(
    path: Path | str,
    repo: str,
    *,
    version: str | None = None,
    private: bool = False,
    create_pr: bool = False,
    index_repo: str | None = None,
    index_named: bool = True,
    corpora: Sequence[Path | str | Corpus] = (),
    evaluate: bool = True,
    threads: int = 1,
    dry_run: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Published:
    """Publish a checkpoint on the Hub, once: a version never changes.

    What was begun and interrupted is finished by the same call, without a second commit.

    Args:
        path: the checkpoint's folder; it stays as it is. Its card is rendered from config.json and metrics.json.
        repo: `org/name`; made when it is not there.
        version: to publish it as; None for its config's.
        private: only in a private repository: one that is made is private, and a public one is refused.
        create_pr: open a pull request in `repo` instead; nothing is tagged and no index asked before it is merged.
        index_repo: `org/name` of the index that is asked to list it; None for none.
        index_named: whether a person named that index; one that is asked by default is told of no private repository.
        corpora, evaluate, threads: see `check`.
        dry_run: check, and tell what would be uploaded.
        note: told what is being done.

    Raises:
        CheckFailedError: it may not be published as it is.
        PublishError: not logged in, not allowed, the repository is public or another checkpoint's, the version is
            taken, or somebody else pushed meanwhile.
        SourceError: a class each for what the Hub, the token or the network refuses.
    """
    repository = Repository(repo, private=private)
    index = Repository(index_repo) if index_repo else None
    if not dry_run:
        repository.require_login()
        if private:
            repository.head()  # that it is public is told before anything is evaluated, and again before the upload
    with TemporaryDirectory(prefix="tchub-publish-") as scratch:
        folder = Path(scratch) / "checkpoint"
        lay_out(Path(path), folder, version)
        check(folder, corpora=corpora, evaluate=evaluate, threads=threads, note=note).require()
        plan = make_plan(folder, Path(scratch), repo)
        if dry_run:
            return _published(plan, repository, "dry-run", repository.url)
        if create_pr:
            return _propose(plan, repository)
        return _push(plan, repository, index, index_named, note)


def _push(
    plan: Plan, repository: Repository, index: Repository | None, named: bool, note: Callable[[str], None]
) -> Published:
    head = repository.head()
    if head is None:
        note(f"making the repository {repository.id}")
        repository.create()
        head = repository.require_head()
    require_own(plan.entry, repository, head)
    commit, outcome = repository.tagged(plan.tag), "already-published"
    if commit is None:
        outcome = "published"
        note(f"committing {len(plan.files)} files")
        commit = _commit(plan, repository, head)
        repository.set_tag(plan.tag, commit, _title(plan))
        commit = repository.tagged(plan.tag) or commit  # somebody else may have been first
    _require_same(plan, repository, commit)
    request = None
    if index is not None and not named and repository.is_private():
        note(f"{repository.id} is private: as with --private, no index is asked that is not named by --index-repo")
    elif index is not None:
        note(f"asking {index.id} to list {plan.entry.id}")
        request = request_entry(index, replace(plan.entry, revision=commit))
    url = f"{repository.url}/tree/{plan.tag}"
    return _published(plan, repository, outcome, url, commit=commit, tag=plan.tag, index=request)


def _commit(plan: Plan, repository: Repository, head: str) -> str:
    """The commit that holds the files: the newest one, where an earlier try got so far, else a new one."""
    there = repository.files(head)
    if not differing(plan.listed, there):
        return head
    return repository.commit(plan.files, plan.stale(there), _title(plan), _text(plan), parent=head)


def _propose(plan: Plan, repository: Repository) -> Published:
    head = repository.require_head()
    require_own(plan.entry, repository, head)
    tagged = repository.tagged(plan.tag)
    if tagged is not None:
        _require_same(plan, repository, tagged)
        url = f"{repository.url}/tree/{plan.tag}"
        return _published(plan, repository, "already-published", url, commit=tagged, tag=plan.tag)
    stale = plan.stale(repository.files(head))
    request = repository.propose(plan.files, stale, _title(plan), _text(plan), head)
    return _published(plan, repository, "proposed", request.url, commit=request.commit)


def _require_same(plan: Plan, repository: Repository, commit: str) -> None:
    changed = differing(plan.listed, repository.files(commit))
    if changed:
        raise VersionTakenError.of(plan.entry, repository.id, f"has {plan.tag}", changed)


def _title(plan: Plan) -> str:
    return f"Publish {plan.entry.id}"


def _text(plan: Plan) -> str:
    return f"{plan.entry.arch} for {plan.entry.family}, checked and uploaded by tchub publish."


def _published(plan: Plan, repository: Repository, outcome: Outcome, url: str, **more: Any) -> Published:
    entry, files = plan.entry, {name: sha256_of(path) for name, path in plan.files.items()}
    return Published(entry.name, entry.version, repository.id, outcome, files, url, **more)

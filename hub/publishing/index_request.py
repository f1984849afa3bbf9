"""The pull request that asks an index to list a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..registry.entry import METRICS, Entry
from ..registry.errors import IndexFileError, NotInSourceError
from ..registry.index import INDEX_FILE, Index
from .errors import PublishError
from .repository import Repository


@dataclass(frozen=True)
class IndexRequest:
    """The request to an index.

    Attributes:
        repo: the index's repository.
        url: of the pull request; None when the checkpoint is listed already.
        serial: the index's number once it is merged, or now.
    """

    repo: str
    url: str | None
    serial: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def request_entry(repository: Repository, entry: Entry) -> IndexRequest:
    """Ask the index in `repository` to list `entry`, unless it does or is asked already.

    The request changes index.json on top of the newest commit and raises its serial. A maintainer adds the
    signed metadata to it and merges it.

    Raises:
        PublishError: the index lists this version with other files (`taken`).
        IndexFileError: its index.json cannot be read.
        SourceError: the Hub or the token fails, or there is no such repository.
    """
    head = _head_of_index(repository)
    index = _index_at(repository, head)
    listed = _find(index, entry)
    if listed is not None:
        _require_same(repository, listed, entry)
        if listed.revision is not None:
            return IndexRequest(repository.id, None, index.serial)
    title = f"Add {entry.id}"
    # A file that is listed without a commit gets one.
    others = tuple(one for one in index.entries if one is not listed)
    wanted = replace(index, entries=(*others, entry), serial=index.serial + 1)
    known = repository.requested(title, lambda ref: _asks_for(repository, ref, entry))
    if known is not None:
        return IndexRequest(repository.id, known.url, wanted.serial)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / INDEX_FILE
        path.write_text(wanted.to_json(), encoding="utf-8")
        opened = repository.propose({INDEX_FILE: path}, (), title, _describe(entry, wanted), head)
    return IndexRequest(repository.id, opened.url, wanted.serial)


def version_taken(entry: Entry, repo: str, state: str, files: Sequence[str]) -> PublishError:
    """Return the error of a version that a repository has, in words of its `state`, with other files."""
    return PublishError(
        f"{repo} {state} with another {', '.join(files)}; versions never change",
        reason="taken",
        remedy=f"publish it as a new version: --version {entry.semver.next_minor()}",
        repo=repo,
        version=entry.version,
        files=list(files),
    )


def _head_of_index(repository: Repository) -> str:
    try:
        return repository.require_head()
    except NotInSourceError as error:
        raise NotInSourceError(
            f"there is no index {repository.id} to ask, or it is private and you are not logged in",
            remedy="name another with --index-repo, or ask none with --no-index; the checkpoint itself is published",
            repo=repository.id,
        ) from error


def _index_at(repository: Repository, revision: str) -> Index:
    """Return the index of a revision; an empty one where there is no file yet."""
    try:
        text = repository.read(INDEX_FILE, revision)
    except NotInSourceError:
        return Index()
    return Index.parse(text, f"{repository.uri}/{INDEX_FILE}")


def _asks_for(repository: Repository, ref: str, entry: Entry) -> bool:
    """Return whether a pull request is this very one; anybody may have opened it, so its file may be anything."""
    try:
        return _find(_index_at(repository, ref), entry) == entry
    except IndexFileError:
        return False


def _find(index: Index, entry: Entry) -> Entry | None:
    return next((listed for listed in index.entries if listed.id == entry.id), None)


def _require_same(repository: Repository, listed: Entry, entry: Entry) -> None:
    changed = sorted({*listed.files, *entry.files} - {n for n, r in entry.files.items() if listed.files.get(n) == r})
    if changed:
        raise version_taken(entry, repository.id, f"lists {entry.id}", changed)


def _describe(entry: Entry, index: Index) -> str:
    """Return the text that a reviewer reads first."""
    scores = ", ".join(f"{key} {value:.3f}" for key in METRICS if (value := entry.metrics.get(key)) is not None)
    files = "\n".join(
        f"- `{name}`: {record.size:,} bytes, sha256 `{record.sha256}`" for name, record in sorted(entry.files.items())
    )
    return (
        f"Lists {entry.id} ({entry.arch}, family {entry.family}), from {', '.join(entry.sources)} at commit "
        f"`{entry.revision}`.\n\nScores of its own test tasks: {scores or 'none'}. Licences: weights "
        f"{entry.weights_licence}; data {entry.data_licence}.\n\n{files}\n\nSerial {index.serial}. Before merging, "
        "sign this index.json (`tchub index sign`) and add the files of metadata/, so that all change at once."
    )

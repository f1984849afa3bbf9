"""Publish a checkpoint: checked, one commit, a tag, a request to the index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from ...cards import draw, render_card
from ...zoo.files import file_sha256
from ...zoo.untrusted import parse_json
from ..registry.entry import METRICS, Entry, Version, as_object, describe
from ..registry.errors import NotInSourceError
from ..registry.files import CARD_FILE, CONFIG_FILE, METRICS_FILE, SCHEDULES_FILE, WEIGHTS_FILE, read_json
from ..registry.index import INDEX_FILE, Index
from .check import check
from .check_files import CHECKPOINT_FILES, PLOTS
from .errors import PublishError
from .repository import Repository, differing

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus


@dataclass(frozen=True)
class IndexRequest:
    """The request to an index: its page, None when the checkpoint is listed already, and the number of the index."""

    repo: str
    url: str | None
    serial: int


@dataclass(frozen=True)
class PublishResult:
    """The state on the Hub.

    Attributes:
        files: path in the repository -> sha256.
        url: of the repository at its tag, or of the pull request.
        commit: that holds the files; None after a dry run.
        tag: on that commit; None for what is only proposed.
        index: the request to the index; None when none was asked.
    """

    name: str
    version: str
    repo: str
    outcome: Literal["published", "already-published", "proposed", "dry-run"]
    files: Mapping[str, str]
    url: str
    commit: str | None = None
    tag: str | None = None
    index: IndexRequest | None = None


@dataclass(frozen=True)
class PublishConfig:
    """Settings of a publication.

    Attributes:
        version: to publish it as; None for its config's.
        private: only in a private repository: one that is made is private, and a public one is refused.
        create_pr: open a pull request in `repo` instead; nothing is tagged and no index asked before it is merged.
        index_repo: `org/name` of the index that is asked to list it; None for none.
        index_named: a person named that index; one that is asked by default hears of no private repository.
        evaluate, threads: see `check`.
        dry_run: check, and return what would be uploaded.
    """

    version: str | None = None
    private: bool = False
    create_pr: bool = False
    index_repo: str | None = None
    index_named: bool = True
    evaluate: bool = True
    threads: int = 1
    dry_run: bool = False


def publish(
    path: Path | str,
    repo: str,
    *,
    corpora: Sequence[Path | str | Corpus] = (),
    config: PublishConfig | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> PublishResult:
    """Publish a checkpoint on the Hub, once: a version never changes.

    An interrupted publication is finished by the same call, without a second commit.

    Args:
        path: the checkpoint's folder; it stays as it is. Its card is rendered from config.json and metrics.json.
        repo: `org/name`; made when it is not there.

    Raises:
        PublishError: the check failed, nobody is logged in or may write, the repository is public or another
            checkpoint's, the version is taken, or somebody else pushed meanwhile: see its `reason`.
        SourceError: the Hub, the token or the network fails.
    """
    config = config or PublishConfig()
    repository = Repository(repo, private=config.private)
    index = Repository(config.index_repo) if config.index_repo else None
    if not config.dry_run:
        repository.require_login()
        if config.private:
            repository.head()  # a public one is refused before anything is evaluated, and again before the upload
    with TemporaryDirectory(prefix="tchub-publish-") as scratch:
        folder = Path(scratch) / "checkpoint"
        _lay_out(Path(path), folder, config.version)
        check(folder, corpora=corpora, evaluate=config.evaluate, threads=config.threads, note=note).require()
        body = read_json(folder / CONFIG_FILE)
        entry = describe(folder, str(body.get("name")), str(body.get("version")), sources=[repository.uri])
        drawn = draw(read_json(folder / METRICS_FILE), folder / PLOTS)
        files = {name: folder / name for name in (*entry.files, *(f"{PLOTS}/{name}" for name in drawn))}
        publication = Publication(entry, files, repository, note)
        if config.dry_run:
            return publication.result("dry-run", repository.url)
        if config.create_pr:
            return publication.propose()
        return publication.push(index, config.index_named)


def _lay_out(source: Path, folder: Path, version: str | None) -> None:
    """Put a checkpoint's files into a new folder as they go out: the card is rendered, the version is set."""
    folder.mkdir()
    for name in (CONFIG_FILE, WEIGHTS_FILE, SCHEDULES_FILE, METRICS_FILE):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    config = read_json(folder / CONFIG_FILE)
    if not config:
        return  # the check says what is missing
    if version is not None and config.get("version") != version:
        config["version"] = str(Version.parse(version))
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / CARD_FILE).write_text(render_card(config, read_json(folder / METRICS_FILE)), encoding="utf-8")


@dataclass(frozen=True)
class Publication:
    """A checkpoint that is ready to go out.

    Attributes:
        entry: its entry of an index, without the commit, whose files are the same for good under a tag.
        files: all that is uploaded: path in the repository -> file.
    """

    entry: Entry
    files: Mapping[str, Path]
    repository: Repository
    note: Callable[[str], None]

    @property
    def tag(self) -> str:
        return f"v{self.entry.version}"

    def result(self, outcome: Any, url: str, **more: Any) -> PublishResult:
        files = {name: file_sha256(path) for name, path in self.files.items()}
        return PublishResult(self.entry.name, self.entry.version, self.repository.id, outcome, files, url, **more)

    def push(self, index: Repository | None, named: bool) -> PublishResult:
        """Commit, tag, and ask the index; what an earlier try did is not done again."""
        repository, tag = self.repository, self.tag
        head = repository.head()
        if head is None:
            self.note(f"making the repository {repository.id}")
            repository.create()
            head = repository.require_head()
        self._require_own(head)
        commit, outcome = repository.tagged(tag), "already-published"
        if commit is None:
            outcome, commit = "published", head
            if differing(self._listed(), repository.files(head)):  # else an earlier try came as far as the commit
                self.note(f"committing {len(self.files)} files")
                commit = self._send(repository.commit, head).oid
            repository.set_tag(tag, commit, f"Publish {self.entry.id}")
            commit = repository.tagged(tag) or commit  # somebody else may have been first
        self._require_same(commit)
        request = None
        if index is not None and not named and repository.is_private():
            self.note(
                f"{repository.id} is private: as with --private, no index is asked that is not named by --index-repo"
            )
        elif index is not None:
            self.note(f"asking {index.id} to list {self.entry.id}")
            request = _request_entry(index, replace(self.entry, revision=commit))
        return self.result(outcome, f"{repository.url}/tree/{tag}", commit=commit, tag=tag, index=request)

    def propose(self) -> PublishResult:
        """Open a pull request with the files; a version that is published already stays as it is."""
        head = self.repository.require_head()
        self._require_own(head)
        if tagged := self.repository.tagged(self.tag):
            self._require_same(tagged)
            url = f"{self.repository.url}/tree/{self.tag}"
            return self.result("already-published", url, commit=tagged, tag=self.tag)
        url, commit = self._send(self.repository.propose, head)
        return self.result("proposed", url, commit=commit)

    def _listed(self) -> dict[str, Path]:
        return {name: self.files[name] for name in self.entry.files}

    def _send(self, send: Callable[..., Any], head: str) -> Any:
        """Send all files on top of `head`, without those of an older version that this one does not have."""
        ours = [
            n
            for n in self.repository.files(head)
            if n in (*CHECKPOINT_FILES, SCHEDULES_FILE) or n.startswith(f"{PLOTS}/")
        ]
        stale = [name for name in ours if name not in self.files]
        text = f"{self.entry.arch} for {self.entry.family}, checked and uploaded by tchub publish."
        return send(self.files, stale, f"Publish {self.entry.id}", text, head)

    def _require_same(self, commit: str) -> None:
        if changed := differing(self._listed(), self.repository.files(commit)):
            raise _version_taken(self.entry, self.repository.id, f"has {self.tag}", changed)

    def _require_own(self, head: str) -> None:
        """Raise PublishError where config.json is not this checkpoint's: files would be replaced, and tags mixed."""
        repository, held = self.repository, None
        config = repository.files(head).get(CONFIG_FILE)
        if config is None:
            return
        if (config.size or 0) <= 1 << 20:
            with suppress(ValueError):
                raw = as_object(parse_json(repository.read(CONFIG_FILE, head)))
                held = str(raw.get("name")) if "feature_schema" in raw else None
        if held != self.entry.name:
            own = f"{repository.id.partition('/')[0]}/{self.entry.name}"
            other = held if held and held.isprintable() and len(held) <= 128 else "another model"
            raise PublishError(
                f"{repository.id} holds {other}; a repository is for one checkpoint",
                reason="occupied",
                remedy=f"publish it to a repository of its own: --repo {own}",
                repo=repository.id,
            )


def _version_taken(entry: Entry, repo: str, state: str, files: Sequence[str]) -> PublishError:
    return PublishError(
        f"{repo} {state} with another {', '.join(files)}; versions never change",
        reason="taken",
        remedy=f"publish it as a new version: --version {entry.semver.next_minor()}",
        repo=repo,
        version=entry.version,
        files=list(files),
    )


# The index


def _request_entry(repository: Repository, entry: Entry) -> IndexRequest:
    """Ask the index in `repository` to list `entry`, unless it does or is asked already.

    The request changes index.json on top of the newest commit and raises its serial. A maintainer adds the
    signed metadata to it and merges it.
    """
    head = repository.head()
    if head is None:
        raise NotInSourceError(
            f"there is no index {repository.id} to ask, or it is private and you are not logged in",
            remedy="name another with --index-repo, or ask none with --no-index; the checkpoint itself is published",
            repo=repository.id,
        )
    try:
        index = Index.parse(repository.read(INDEX_FILE, head), f"{repository.uri}/{INDEX_FILE}")
    except NotInSourceError:
        index = Index()
    listed = next((one for one in index.entries if one.id == entry.id), None)
    if listed is not None:
        names = sorted({*listed.files, *entry.files})
        if changed := [name for name in names if listed.files.get(name) != entry.files.get(name)]:
            raise _version_taken(entry, repository.id, f"lists {entry.id}", changed)
        if listed.revision is not None:
            return IndexRequest(repository.id, None, index.serial)
    # A file that is listed without a commit gets one.
    others = tuple(one for one in index.entries if one is not listed)
    wanted = replace(index, entries=(*others, entry), serial=index.serial + 1)
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / INDEX_FILE
        path.write_text(wanted.to_json(), encoding="utf-8")
        text = _describe_request(entry, wanted.serial)
        url, _ = repository.propose({INDEX_FILE: path}, (), f"Add {entry.id}", text, head)
    return IndexRequest(repository.id, url, wanted.serial)


def _describe_request(entry: Entry, serial: int) -> str:
    """Return the text that a reviewer reads first."""
    scores = ", ".join(f"{key} {value:.3f}" for key in METRICS if (value := entry.metrics.get(key)) is not None)
    files = "\n".join(
        f"- `{name}`: {record.size:,} bytes, sha256 `{record.sha256}`" for name, record in sorted(entry.files.items())
    )
    return (
        f"Lists {entry.id} ({entry.arch}, family {entry.family}), from {', '.join(entry.sources)} at commit "
        f"`{entry.revision}`.\n\nScores of its own test tasks: {scores or 'none'}. Licences: weights "
        f"{entry.weights_licence}; data {entry.data_licence}.\n\n{files}\n\nSerial {serial}. Before merging, "
        "sign this index.json (`tchub index sign`) and add the files of metadata/, so that all change at once."
    )

"""Publish a checkpoint: checked, one commit, a tag, a request to the index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from ...cards import draw, render_card
from ...zoo.untrusted import parse_json
from ..registry.entry import Entry, Version, describe
from ..registry.files import CARD_FILE, CONFIG_FILE, METRICS_FILE, WEIGHTS_FILE, read_json, sha256_of
from .check import check
from .check_files import CHECKPOINT_FILES, PLOTS
from .errors import PublishError
from .index_request import IndexRequest, request_entry, version_taken
from .repository import Repository, differing

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus

_MAX_CONFIG_BYTES = 1 << 20


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

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class PublishPlan:
    """A checkpoint that is ready to go out.

    Attributes:
        entry: its entry of an index, without the commit.
        folder: its files, and nothing else.
        plots: pictures of its card: path in the repository -> file.
    """

    entry: Entry
    folder: Path
    plots: Mapping[str, Path]

    @property
    def tag(self) -> str:
        """The tag of its version."""
        return f"v{self.entry.version}"

    @property
    def listed(self) -> dict[str, Path]:
        """Files that the index lists: verified after every fetch, and the same for good under a tag."""
        return {name: self.folder / name for name in self.entry.files}

    @property
    def files(self) -> dict[str, Path]:
        """All that is uploaded: path in the repository -> file."""
        return {**self.listed, **self.plots}

    @property
    def title(self) -> str:
        """Title of the commit."""
        return f"Publish {self.entry.id}"

    @property
    def text(self) -> str:
        """Text of the commit."""
        return f"{self.entry.arch} for {self.entry.family}, checked and uploaded by tchub publish."

    def stale(self, there: Mapping[str, Any]) -> list[str]:
        """Return the repository's files of an older version that this one does not have."""
        ours = [name for name in there if name in CHECKPOINT_FILES or name.startswith(f"{PLOTS}/")]
        return [name for name in ours if name not in self.files]

    def result(self, repository: Repository, outcome: Any, url: str, **more: Any) -> PublishResult:
        """Return the result of an outcome."""
        files = {name: sha256_of(path) for name, path in self.files.items()}
        return PublishResult(self.entry.name, self.entry.version, repository.id, outcome, files, url, **more)


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
        corpora: see `check`.
        note: called with a line on what is being done.

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
        report = check(folder, corpora=corpora, evaluate=config.evaluate, threads=config.threads, note=note)
        report.require()
        plan = _plan(folder, Path(scratch), repo)
        if config.dry_run:
            return plan.result(repository, "dry-run", repository.url)
        if config.create_pr:
            return _propose(plan, repository)
        return _push(plan, repository, index, config.index_named, note)


def _lay_out(source: Path, folder: Path, version: str | None) -> None:
    """Put a checkpoint's files into a new folder as they go out: the card is rendered, the version is set.

    Raises:
        IndexFileError: config.json or metrics.json is no JSON object.
        CheckpointNameError: not a version.
        CardError: a field of either has the wrong type.
    """
    folder.mkdir()
    for name in (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    config = read_json(folder / CONFIG_FILE)
    if not config:
        return  # the check says what is missing
    if version is not None and config.get("version") != version:
        config["version"] = str(Version.parse(version))
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / CARD_FILE).write_text(render_card(config, read_json(folder / METRICS_FILE)), encoding="utf-8")


def _plan(folder: Path, scratch: Path, repo: str) -> PublishPlan:
    """Return the plan of a laid out folder; its plots are drawn in `scratch`."""
    config = read_json(folder / CONFIG_FILE)
    entry = describe(folder, str(config.get("name")), str(config.get("version")), sources=[f"hf://{repo}"])
    drawn = draw(read_json(folder / METRICS_FILE), scratch / PLOTS)
    return PublishPlan(entry, folder, {f"{PLOTS}/{name}": scratch / PLOTS / name for name in drawn})


def _push(
    plan: PublishPlan, repository: Repository, index: Repository | None, named: bool, note: Callable[[str], None]
) -> PublishResult:
    head = repository.head()
    if head is None:
        note(f"making the repository {repository.id}")
        repository.create()
        head = repository.require_head()
    _require_own(plan.entry, repository, head)
    commit, outcome = repository.tagged(plan.tag), "already-published"
    if commit is None:
        outcome = "published"
        there = repository.files(head)
        if differing(plan.listed, there):
            note(f"committing {len(plan.files)} files")
            commit = repository.commit(plan.files, plan.stale(there), plan.title, plan.text, parent=head)
        repository.set_tag(plan.tag, commit or head, plan.title)  # an earlier try may have come as far as the commit
        commit = repository.tagged(plan.tag) or commit or head  # somebody else may have been first
    _require_same(plan, repository, commit)
    request = None
    if index is not None and not named and repository.is_private():
        note(f"{repository.id} is private: as with --private, no index is asked that is not named by --index-repo")
    elif index is not None:
        note(f"asking {index.id} to list {plan.entry.id}")
        request = request_entry(index, replace(plan.entry, revision=commit))
    url = f"{repository.url}/tree/{plan.tag}"
    return plan.result(repository, outcome, url, commit=commit, tag=plan.tag, index=request)


def _propose(plan: PublishPlan, repository: Repository) -> PublishResult:
    head = repository.require_head()
    _require_own(plan.entry, repository, head)
    tagged = repository.tagged(plan.tag)
    if tagged is not None:
        _require_same(plan, repository, tagged)
        url = f"{repository.url}/tree/{plan.tag}"
        return plan.result(repository, "already-published", url, commit=tagged, tag=plan.tag)
    request = repository.propose(plan.files, plan.stale(repository.files(head)), plan.title, plan.text, head)
    return plan.result(repository, "proposed", request.url, commit=request.commit)


def _require_same(plan: PublishPlan, repository: Repository, commit: str) -> None:
    if changed := differing(plan.listed, repository.files(commit)):
        raise version_taken(plan.entry, repository.id, f"has {plan.tag}", changed)


def _require_own(entry: Entry, repository: Repository, head: str) -> None:
    """Refuse a repository with another content: its files would be replaced, and its tags mixed with ours.

    Raises:
        PublishError: its config.json is that of another checkpoint, or of no checkpoint (`occupied`).
    """
    config = repository.files(head).get(CONFIG_FILE)
    if config is None:
        return
    held = _name(repository.read(CONFIG_FILE, head)) if (config.size or 0) <= _MAX_CONFIG_BYTES else None
    if held != entry.name:
        raise PublishError(
            f"{repository.id} holds {held or 'another model'}; a repository is for one checkpoint",
            reason="occupied",
            remedy=f"publish it to a repository of its own: --repo {repository.id.partition('/')[0]}/{entry.name}",
            repo=repository.id,
            held=held,
        )


def _name(config: bytes) -> str | None:
    """Return the checkpoint's name of a config; None where it is not one of a checkpoint."""
    try:
        raw = parse_json(config)
    except ValueError:
        return None
    name = raw.get("name") if isinstance(raw, dict) and "feature_schema" in raw else None
    return name if isinstance(name, str) and name.isprintable() and len(name) <= 128 else None

"""Where a signed index is fetched from: a folder, a static mirror, or a repository on the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...zoo.untrusted import read_plain
from .errors import NotInSourceError, OfflineError, SourceError
from .hf import HfSource
from .hub_errors import Errand, answered
from .mirror import Mirror, Reply
from .offline import network_ruled_out
from .sources import FolderSource, parse_source

INDEX_REPO = "tchub/index"
VARIABLE = "TCHUB_INDEX_SOURCE"
REPO_VARIABLE = "TCHUB_INDEX_REPO"
_SECONDS, _FILE_SECONDS = 60.0, 600.0  # for an answer, and for a file of up to 8 MiB on a slow line


@dataclass(frozen=True)
class IndexPlace:
    """A place whose small files are read, all of one state of it.

    Attributes:
        uri: as a user writes it.
        read: a file's bytes by its name and the most bytes that it may have; a third argument is the ETag of an
            earlier reply. Raises NotInSourceError for no such file, else another SourceError.
        commit, date: which state it is, where the place has a history.
    """

    uri: str
    read: Callable[[str, int, str | None], Reply]
    commit: str | None = None
    date: str | None = None


def open_place(text: str | None = None) -> IndexPlace:
    """The place that a user named, that TCHUB_INDEX_SOURCE names, or the project's own repository.

    Raises:
        UnknownSourceError: not one of the known forms.
        SourceError: the Hub cannot be reached.
    """
    source = parse_source(text or os.environ.get(VARIABLE) or f"hf://{INDEX_REPO}")
    if isinstance(source, HfSource):
        return _on_hub(source.repo)
    if isinstance(source, FolderSource):
        root = source.root
        return IndexPlace(source.uri, lambda name, limit, _: Reply(_bounded(root / name, limit), None))
    assert isinstance(source, Mirror)
    return IndexPlace(source.uri, source.read)


def index_to_ask() -> str:
    """The repository that is asked to list what is published: what TCHUB_INDEX_REPO names, or the project's own."""
    return os.environ.get(REPO_VARIABLE) or INDEX_REPO


def _bounded(path: Path, limit: int) -> bytes:
    about = {"remedy": "use another --source", "path": str(path)}
    try:
        return read_plain(path, limit)
    except FileNotFoundError as error:
        raise NotInSourceError(f"{path.parent} has no {path.name}", **about) from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}", **about) from error


def _on_hub(repo: str) -> IndexPlace:
    """The newest commit is asked for once, and everything is read at that one."""
    from huggingface_hub import HfApi

    uri = f"hf://{repo}"
    if network_ruled_out():
        raise OfflineError(
            f"{uri} cannot be asked: the network is ruled out",
            remedy="run it without TCHUB_OFFLINE and HF_HUB_OFFLINE, or use --source file:///folder",
            source=uri,
        )
    errand = Errand(repo, fields={"source": uri})
    found = answered(errand, _SECONDS, lambda: HfApi(library_name="tchub").model_info(repo))
    commit, date = str(found.sha), found.last_modified
    return IndexPlace(
        uri,
        lambda name, limit, _: Reply(_from_hub(repo, name, commit, limit), None),
        commit,
        date and date.isoformat(timespec="seconds"),
    )


def _from_hub(repo: str, name: str, commit: str, limit: int) -> bytes:
    """Past the Hub's cache: a damaged copy there would stay in the way."""
    from huggingface_hub import hf_hub_download

    errand = Errand(repo, name, commit, fields={"source": f"hf://{repo}", "file": name})
    with TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # a download that was given up may go on in it
        ask: dict[str, Any] = {"revision": commit, "cache_dir": scratch, "library_name": "tchub"}
        size = answered(errand, _SECONDS, lambda: hf_hub_download(repo, name, dry_run=True, **ask).file_size)
        if size is not None and size > limit:
            raise SourceError(
                f"{name} of {repo} has {size} bytes, and no more than {limit} are read",
                remedy="check the repository's name",
                **errand.fields,
            )
        return _bounded(Path(answered(errand, _FILE_SECONDS, lambda: hf_hub_download(repo, name, **ask))), limit)

"""Where checkpoints come from: the wheel, a plain folder, a static mirror, the Hugging Face Hub. One interface.

Order, unless `--source` forces one: the wheel; the sources in TCHUB_SOURCES (comma-separated: a cluster's own
mirror); then those that the index lists for the checkpoint. What arrives is checked against the index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ...zoo.errors import TchubError
from ...zoo.untrusted import open_plain
from .entry import Entry
from .entry_files import FileRecord
from .errors import IntegrityError, NoSourceError, NotInSourceError, SourceError, StoreError, UnknownSourceError
from .hf import HfSource
from .index import INDEX_FILE, Index
from .mirror import Mirror
from .verify import Outcome, Verification, verify_folder

_FORMS = "bundled, file:///folder, https://host/folder or hf://org/name"
_OTHER_FILES = "holds other files than the index; use another --source"
_PIECE = 1 << 20


class Source(Protocol):
    """A place that checkpoints come from.

    Attributes:
        uri: how a user writes it.
        network: whether it may need the network.
    """

    @property
    def uri(self) -> str: ...

    @property
    def network(self) -> bool: ...

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Put the entry's files into the folder `dest`; raises a SourceError."""
        ...

    def index(self, *, offline: bool = False) -> Index:
        """The checkpoints that the source lists itself; empty where it has no index. Raises a SourceError."""
        ...


class FolderSource:
    """A plain folder, for machines without internet.

    It holds `<name>/<version>/<files>` like the wheel and the store, `<name>/<files>` like clones of Hub
    repositories, or one checkpoint's files themselves.
    """

    network = False

    def __init__(self, root: Path, uri: str | None = None) -> None:
        self.root = root
        self.uri = uri or root.absolute().as_uri()

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Copy the files.

        Raises:
            NotInSourceError: one is not there, or cannot be read.
            IntegrityError: one has another size than in the index; nothing of it is copied.
        """
        for name, record in entry.files.items():
            with (dest / name).open("wb") as copy:
                for piece in self._read(entry, name, record):
                    copy.write(piece)

    def index(self, *, offline: bool = False) -> Index:
        """Its `index.json`, where it has one; raises IndexFileError."""
        path = self.root / INDEX_FILE
        return Index.read(path) if path.is_file() else Index()

    def _read(self, entry: Entry, name: str, record: FileRecord) -> Iterator[bytes]:
        """A file in pieces, of the size that the index says."""
        try:
            path = self._folder(entry) / name
            with open_plain(path) as (file, size):
                if size != record.size:
                    Verification(Outcome.SIZE_MISMATCH, path, record.size, size).require(f"{self.uri} {_OTHER_FILES}")
                for _ in range(0, size, _PIECE):
                    yield file.read(_PIECE)
        except (OSError, ValueError) as error:
            raise NotInSourceError(
                f"{name} of {self.uri} cannot be read: {getattr(error, 'strerror', None) or error}",
                remedy="copy the checkpoint's whole folder, and check the files' permissions",
                **_about(self, entry),
            ) from error

    def _folder(self, entry: Entry) -> Path:
        for folder in (self.root / entry.name / entry.version, self.root / entry.name, self.root):
            if (folder / "config.json").is_file():
                return folder
        raise NotInSourceError(
            f"{self.uri} does not hold {entry.id}",
            remedy=f"put its files into {self.root / entry.name / entry.version}, or use another --source",
            **_about(self, entry),
        )


def bundled(root: Path | None = None) -> FolderSource:
    """The checkpoints that ship in the wheel."""
    return FolderSource(root or bundled_root(), "bundled")


def bundled_root() -> Path:
    """The wheel's folder of checkpoints."""
    return Path(str(resources.files("tchub.zoo.checkpoints")))


def parse_source(text: str, *, named: bool = True) -> Source:
    """The source of a uri.

    Args:
        named: whether the user wrote it; False for what an index or a lock file lists, which is sent no token.

    Raises:
        UnknownSourceError: not one of the known forms.
        InsecureSourceError: http to another machine.
    """
    if text == "bundled":
        return bundled()
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return FolderSource(Path(unquote(parts.path)), text)
    if parts.scheme == "hf" and text.removeprefix("hf://").count("/") == 1:
        return HfSource(text.removeprefix("hf://"))
    if parts.scheme in ("https", "http"):
        return Mirror(text, named=named)
    raise UnknownSourceError(f"{text!r} is not a source", remedy=f"write {_FORMS}", source=text)


def sources_for(entry: Entry, forced: str | None = None) -> list[Source]:
    """The sources to try for a checkpoint, in order; raises UnknownSourceError for one that the user wrote."""
    if forced is not None:
        return [parse_source(forced)]
    mirrors = [item.strip() for item in os.environ.get("TCHUB_SOURCES", "").split(",") if item.strip()]
    listed = [text for text in entry.sources if text != "bundled"]
    return [bundled(), *(parse_source(text) for text in mirrors if text != "bundled"), *map(_listed, listed)]


def _listed(text: str) -> Source:
    try:
        return parse_source(text, named=False)
    except SourceError as error:
        return _UnusableSource(text, error)


class _UnusableSource:
    """A source of an index that this tchub does not know, or does not trust: others may give the checkpoint."""

    network = False

    def __init__(self, uri: str, error: SourceError) -> None:
        self.uri = uri
        self.error = error

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        raise self.error

    def index(self, *, offline: bool = False) -> Index:
        return Index()


def fetch(entry: Entry, dest: Path, sources: list[Source], *, offline: bool = False) -> str:
    """Fetch from the first source that has it, whole.

    Returns:
        The uri of the source that gave the files.

    Raises:
        SourceError, IntegrityError, StoreError: of the only telling source, or NoSourceError with what each said. A
            StoreError is of a source's own cache; what cannot be written into `dest` is an OSError, and ends it.
    """
    failed: dict[str, TchubError] = {}
    for source in sources:
        try:
            source.fetch(entry, dest, offline=offline)
            verify_folder(dest, entry.files).require(f"{source.uri} {_OTHER_FILES}")
            return source.uri
        except (SourceError, IntegrityError, StoreError) as error:
            failed[source.uri] = error
            _empty(dest)
    raise _nowhere(entry, failed)


def _nowhere(entry: Entry, failed: dict[str, TchubError]) -> TchubError:
    # That the wheel does not hold it is no news when there was another place to look.
    telling = {uri: e for uri, e in failed.items() if uri != "bundled" or isinstance(e, IntegrityError)} or failed
    last = list(telling.values())[-1]
    if len(telling) == 1:
        return last
    return NoSourceError(
        f"no source gave {entry.id} ({'; '.join(f'{uri}: {e.message}' for uri, e in telling.items())})",
        remedy=last.remedy,
        checkpoint=entry.id,
        tried={uri: error.as_dict() for uri, error in failed.items()},
    )


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _about(source: Source, entry: Entry) -> dict[str, str]:
    return {"source": source.uri, "checkpoint": entry.id}

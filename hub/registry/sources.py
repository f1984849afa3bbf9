"""Sources of checkpoints: the wheel, a plain folder, a static mirror, the Hugging Face Hub. One interface.

Order, unless `--source` forces one: the wheel; the sources in TCHUB_SOURCES (comma-separated: a cluster's own
mirror); then those that the index lists for the checkpoint. What arrives is checked against the index.
"""

import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ...zoo.errors import TchubError
from ...zoo.untrusted import open_plain, read_plain
from .entry import Entry
from .errors import IntegrityError, NotInSourceError, SourceError
from .files import CONFIG_FILE, MAX_BYTES, Outcome, Verification, verify_folder
from .index import INDEX_FILE, Index
from .network import ask_hub, download, hub_errors, network_ruled_out, require_network

_FORMS = "bundled, file:///folder, https://host/folder or hf://org/name"
_OTHER_FILES = "holds other files than the index; use another --source"


class Source(Protocol):
    """A place that checkpoints and signed indexes come from; `uri` is how a user writes it."""

    @property
    def uri(self) -> str: ...

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Put the entry's files into the folder `dest`; raises SourceError, or IntegrityError for another size."""
        ...

    def read(self, name: str, limit: int, *, offline: bool = False) -> bytes:
        """Return a small file of at most `limit` bytes; raises SourceError."""
        ...


class FolderSource:
    """A plain folder, for machines without internet.

    It holds `<name>/<version>/<files>` like the wheel and the store, `<name>/<files>` like clones of Hub
    repositories, or one checkpoint's files themselves.
    """

    def __init__(self, root: Path, uri: str | None = None) -> None:
        self.root = root
        self.uri = uri or root.absolute().as_uri()

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Copy the files; one of another size is refused before a byte of it is read."""
        about = {"source": self.uri, "checkpoint": entry.id}
        own = self.root / entry.name
        folder = next((path for path in (own / entry.version, own, self.root) if (path / CONFIG_FILE).is_file()), None)
        if folder is None:
            remedy = f"put its files into {own / entry.version}, or use another --source"
            raise NotInSourceError(f"{self.uri} does not hold {entry.id}", remedy=remedy, **about)
        for name, record in entry.files.items():
            try:
                with open_plain(folder / name) as (file, size):
                    data = file.read(size) if size == record.size else b""
            except (OSError, ValueError) as error:
                message = f"{name} of {self.uri} cannot be read: {getattr(error, 'strerror', None) or error}"
                remedy = "copy the checkpoint's whole folder, and check the files' permissions"
                raise NotInSourceError(message, remedy=remedy, **about) from error
            if size != record.size:
                check = Verification(Outcome.SIZE_MISMATCH, folder / name, record.size, size)
                check.require(f"{self.uri} {_OTHER_FILES}")
            (dest / name).write_bytes(data)

    def read(self, name: str, limit: int, *, offline: bool = False) -> bytes:
        about = {"remedy": "use another --source", "source": self.uri}
        try:
            return read_plain(self.root / name, limit)
        except FileNotFoundError as error:
            raise NotInSourceError(f"{self.uri} has no {name}", **about) from error
        except (OSError, ValueError) as error:
            message = f"{self.root / name} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise SourceError(message, reason="content", **about) from error


class HfSource:
    """A model repository on the Hugging Face Hub: checkpoints at the commit that the index pins, never at a branch.

    Through huggingface_hub, whose token, HF_ENDPOINT and HF_HUB_OFFLINE hold here too; its cache serves offline.
    """

    def __init__(self, repo: str) -> None:
        self.repo = repo
        self.uri = f"hf://{repo}"

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Download the files straight into `dest`; offline copy them from the Hub's cache."""
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import OfflineModeIsEnabled

        about = {"source": self.uri, "checkpoint": entry.id}
        if entry.revision is None:
            message = f"the index pins no commit of {self.repo} for {entry.id}"
            remedy = "use an index that pins a commit; tchub never follows a branch"
            raise NotInSourceError(message, reason="revision", remedy=remedy, **about)
        for name, record in entry.files.items():
            if offline or network_ruled_out():
                # Without the client's downloads: those ask the Hub even offline.
                cached = try_to_load_from_cache(self.repo, name, revision=entry.revision)
                with hub_errors(self.repo, file=name, offline=True, fields=about):
                    if not isinstance(cached, str):
                        raise OfflineModeIsEnabled(name)
                    shutil.copyfile(cached, dest / name)
            else:
                download(self.repo, name, entry.revision, dest, record.size, exact=True, fields=about)

    def read(self, name: str, limit: int, *, offline: bool = False) -> bytes:
        """Return a small file of the newest commit, which is asked for once; raises SourceError."""
        require_network(f"{name} of {self.uri}", offline, source=self.uri)
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # an abandoned download may go on in it
            download(self.repo, name, self.head, Path(folder), limit)
            return FolderSource(Path(folder), self.uri).read(name, limit)

    @cached_property
    def head(self) -> str:
        """The newest commit."""
        from huggingface_hub import HfApi

        return str(ask_hub(self.repo, lambda: HfApi(library_name="tchub").model_info(self.repo)).sha)


def bundled_root() -> Path:
    """Return the wheel's folder of checkpoints."""
    return Path(str(resources.files("tchub.zoo.checkpoints")))


def parse_source(text: str, *, named: bool = True) -> Source:
    """Return the source of a uri; raises SourceError for other forms, and for http to another machine.

    Args:
        named: True where the user wrote it; False for one that an index or a lock file lists, which is sent no token.
    """
    if text == "bundled":
        return FolderSource(bundled_root(), text)
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return FolderSource(Path(unquote(parts.path)), text)
    if parts.scheme == "hf" and text.removeprefix("hf://").count("/") == 1:
        return HfSource(text.removeprefix("hf://"))
    if parts.scheme in ("https", "http"):
        from .mirror import Mirror  # brings requests

        return Mirror(text, named=named)
    raise SourceError(f"{text!r} is not a source", reason="form", remedy=f"write {_FORMS}", source=text)


def own_index_of(source: Source, *, offline: bool = False) -> Index:
    """Return the checkpoints that a folder or a mirror lists itself; empty without an index, and for the Hub."""
    if isinstance(source, HfSource):
        return Index()
    try:
        return Index.parse(source.read(INDEX_FILE, MAX_BYTES, offline=offline), f"{source.uri}/{INDEX_FILE}")
    except NotInSourceError:
        return Index()


def sources_for(entry: Entry, forced: str | None, wheel: Path) -> list[Source | str]:
    """Return the sources to try for a checkpoint, in order; those that the index lists as they are written there."""
    bundled = FolderSource(wheel, "bundled")
    if forced is not None:
        return [bundled if forced == "bundled" else parse_source(forced)]
    own = (item.strip() for item in os.environ.get("TCHUB_SOURCES", "").split(","))
    named = dict.fromkeys(text for text in own if text not in ("", "bundled"))
    others = [*map(parse_source, named), *(text for text in entry.sources if text != "bundled" and text not in named)]
    return [bundled, *others] if (wheel / entry.name / entry.version).is_dir() or not others else others


def fetch(entry: Entry, dest: Path, sources: Sequence[Source | str], *, offline: bool = False) -> str:
    """Fetch from the first source that has it, whole, and return that source's uri.

    Args:
        sources: to be tried in this order; a text is one that an index or a lock file lists.

    Raises:
        SourceError, IntegrityError: of the only source, or with the reason `sources` and each one's error.
        OSError: `dest` cannot be written.
    """
    failed: dict[str, TchubError] = {}
    for source in sources:
        uri = source if isinstance(source, str) else source.uri
        try:
            one = parse_source(source, named=False) if isinstance(source, str) else source
            one.fetch(entry, dest, offline=offline)
            verify_folder(dest, entry.files).require(f"{uri} {_OTHER_FILES}")
            return uri
        except (SourceError, IntegrityError) as error:
            failed[uri] = error
            for path in dest.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    *_, last = failed.values()
    if len(failed) == 1:
        raise last
    raise SourceError(
        f"no source gave {entry.id} ({'; '.join(f'{uri}: {e.message}' for uri, e in failed.items())})",
        reason="sources",
        remedy=last.remedy,
        checkpoint=entry.id,
        tried={uri: error.as_dict() for uri, error in failed.items()},
    )

"""The refreshed index, by The Update Framework (TUF): whoever holds the trusted root's keys vouches for it.

A source of a signed index has `index.json`, and beside it in `metadata/` TUF's `N.root.json`, `timestamp.json`,
`snapshot.json` and `targets.json`. python-tuf's client checks signatures, versions and days, and follows the roots.
"""

# The public modules of tuf and securesystemslib re-export these names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.errors import TchubError, TchubWarning
from ...zoo.files import locked, write_atomically
from ...zoo.untrusted import parse_json, read_plain
from .errors import NotInSourceError, SourceError, UntrustedError
from .files import MAX_BYTES, convert, read_bytes, storing_in, unusable
from .index import INDEX_FILE, Index, own_index
from .sources import HfSource, Source, parse_source
from .store import cache_root

if TYPE_CHECKING:
    from tuf.api.metadata import Root
    from tuf.ngclient import FetcherInterface

INDEX_REPO = "tchub/index"
SOURCE_VARIABLE, REPO_VARIABLE = "TCHUB_INDEX_SOURCE", "TCHUB_INDEX_REPO"
ROOT_VARIABLE = "TCHUB_TRUSTED_KEYS"
ROOT_FILE, METADATA, REFRESHED = "root.json", "metadata", "refreshed.json"
_MAX_ROOT = 512_000
_REMEDY = "run: tchub index refresh"


def current_index() -> Index:
    """Return the index of the file that TCHUB_INDEX names, else the wheel's with what `tchub index refresh` brought.

    A refreshed index that cannot be used is left out with a warning.
    """
    if own := own_index():
        return Index.read(own)
    shipped = Index.shipped()
    try:
        trusted = TrustedIndexes.default()
        stored = trusted.stored() if trusted else None
        return shipped.joined(stored.parsed) if stored else shipped
    except TchubError as error:
        text = f"the refreshed index is left out: {error.message}; `tchub index refresh` fetches it anew"
        warnings.warn(text, TchubWarning, stacklevel=2)
        return shipped


def index_to_ask() -> str:
    """Return the repository that is asked to list new checkpoints: TCHUB_INDEX_REPO, or the project's own."""
    return os.environ.get(REPO_VARIABLE) or INDEX_REPO


@dataclass(frozen=True)
class RefreshedIndex:
    """An index as the last refresh brought it.

    Attributes:
        source: where from, as a user writes it; commit: of the Hub, that it was read at.
        fetched: when (UTC, ISO 8601); expires: the last moment at which a refresh takes it for the newest.
        index, targets: the texts of index.json and of the signed metadata that vouches for it.
    """

    source: str
    fetched: str
    expires: str
    index: str
    targets: str
    commit: str | None = None

    @cached_property
    def parsed(self) -> Index:
        """The index; raises IndexFileError."""
        return Index.parse(self.index, f"{self.source}/{INDEX_FILE}")


@dataclass(frozen=True)
class IndexUpdate:
    """The result of a refresh.

    Attributes:
        serial, before: of the index now, and of the stored one before; None where there was none.
        keys: version of the trusted root.
        added: checkpoints that neither the wheel nor the index before had; deprecated: those that were not before.
        unusable: why what was stored before could not be used, or None.
    """

    source: str
    commit: str | None
    serial: int
    before: int | None
    keys: int
    expires: str
    added: tuple[str, ...]
    deprecated: tuple[str, ...]
    unusable: str | None


@dataclass(frozen=True)
class TrustedIndexes:
    """The indexes that the holders of one root vouch for.

    Attributes:
        root: the text of the root metadata that is trusted to begin with.
        folder: the state: TUF's metadata, and the refreshed index. Each root has its own.
    """

    root: bytes
    folder: Path

    @classmethod
    def default(cls) -> TrustedIndexes | None:
        """Return those of the file that TCHUB_TRUSTED_KEYS names, else of the wheel's root; None where it has none."""
        shipped = resources.files("tchub.hub.registry") / ROOT_FILE
        if named := os.environ.get(ROOT_VARIABLE):
            root = read_bytes(Path(named).expanduser(), _MAX_ROOT)
        elif shipped.is_file():
            root = shipped.read_bytes()
        else:
            return None
        return cls(root, cache_root().parent / "index" / hashlib.sha256(root).hexdigest()[:16])

    def stored(self) -> RefreshedIndex | None:
        """Return the index of the last refresh, verified again, whatever the day; None where there was none.

        Raises:
            IndexFileError: it is damaged.
            UntrustedError: the newest root that was seen does not vouch for it (any more).
        """
        path = self.folder / REFRESHED
        try:
            raw = parse_json(read_plain(path, 3 * MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise unusable(str(path), str(error), _REMEDY) from error
        stored = convert(raw, RefreshedIndex, str(path), _REMEDY)
        from tuf.api.metadata import Metadata, Targets

        with _tuf_errors(stored.source):
            targets = Metadata[Targets].from_bytes(stored.targets.encode())
            self.current_root().verify_delegate(Targets.type, targets.signed_bytes, targets.signatures)
            targets.signed.targets[INDEX_FILE].verify_length_and_hashes(stored.index.encode())
        return stored

    def current_root(self) -> Root:
        """Return the newest root that the stored chain leads to, every link verified; raises UntrustedError."""
        from tuf.api.exceptions import BadVersionNumberError
        from tuf.api.metadata import Metadata, Root

        with _tuf_errors(str(self.folder)):
            root = Metadata[Root].from_bytes(self.root).signed
            while (path := self.folder / METADATA / "root_history" / f"{root.version + 1}.root.json").is_file():
                following = Metadata[Root].from_bytes(read_bytes(path, _MAX_ROOT))
                for one in (root, following.signed):
                    one.verify_delegate(Root.type, following.signed_bytes, following.signatures)
                if following.signed.version != root.version + 1:
                    raise BadVersionNumberError(f"{path.name} has version {following.signed.version}")
                root = following.signed
        return root

    def refresh(self, source: Source, shipped: Index) -> IndexUpdate:
        """Replace the stored index by the one of a source, where TUF's checks hold; see `refresh_index`."""
        with storing_in(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder / ".lock", seconds=120.0):
                return self._refresh(source, shipped)

    def _refresh(self, source: Source, shipped: Index) -> IndexUpdate:
        from tuf.api.metadata import Metadata, Timestamp
        from tuf.ngclient import Updater, UpdaterConfig

        metadata, fetcher, before, unusable = self.folder / METADATA, _fetcher(source), None, None
        config = UpdaterConfig(root_max_length=_MAX_ROOT, prefix_targets_with_hash=False)
        with _tuf_errors(source.uri):
            url = f"{source.uri}/{METADATA}/"
            updater = Updater(str(metadata), url, fetcher=fetcher, config=config, bootstrap=self.root)
            updater.refresh()
            if (target := updater.get_targetinfo(INDEX_FILE)) is None:
                raise KeyError(f"no {INDEX_FILE} in the signed list")
        try:  # after TUF's checks: a key that was taken back meanwhile vouches for nothing
            before = self.stored()
        except TchubError as error:
            unusable = error.message
        with _tuf_errors(source.uri):
            data = before.index.encode() if before else b""
            if hashlib.sha256(data).hexdigest() != target.hashes.get("sha256"):
                data = fetcher.download_bytes(f"{source.uri}/{INDEX_FILE}", min(target.length, MAX_BYTES))
            target.verify_length_and_hashes(data)
        index = Index.parse(data, f"{source.uri}/{INDEX_FILE}")
        known = shipped.joined(before.parsed) if before else shipped
        old, now = ({entry.id: entry for entry in one.entries} for one in (known, index))
        if changed := [id for id, entry in now.items() if id in old and old[id].changed_in(entry)]:
            raise UntrustedError(
                f"the index lists other files for {changed[0]} than before; versions never change",
                reason="changed",
                remedy="tell who publishes it; your index stays as it was",
                path=changed[0],
            )
        refreshed = RefreshedIndex(
            source=source.uri,
            fetched=datetime.now(UTC).isoformat(timespec="seconds"),
            expires=Metadata[Timestamp].from_file(str(metadata / "timestamp.json")).signed.expires.isoformat(),
            index=data.decode(),
            targets=(metadata / "targets.json").read_text(encoding="utf-8"),
            commit=source.head if isinstance(source, HfSource) else None,
        )
        write_atomically(self.folder / REFRESHED, json.dumps(asdict(refreshed), indent=2).encode())
        return IndexUpdate(
            source=source.uri,
            commit=refreshed.commit,
            serial=index.serial,
            before=before.parsed.serial if before else None,
            keys=self.current_root().version,
            expires=refreshed.expires,
            added=tuple(id for id in now if id not in old),
            deprecated=tuple(id for id in now if now[id].deprecated and not (id in old and old[id].deprecated)),
            unusable=unusable,
        )


def refresh_index(source: str | None = None) -> IndexUpdate:
    """Fetch the newest index, check that the trusted keys vouch for it, and use it from now on.

    Whatever goes wrong, the index that was there stays; newer keys that were seen stay too.

    Args:
        source: `file:///folder`, `https://host/folder` or `hf://org/name`; None for TCHUB_INDEX_SOURCE, else the
            project's repository.

    Raises:
        SourceError: the source does not give it.
        UntrustedError: no key is trusted here, or the index is not signed, older than the one here, or out of date.
    """
    origin = parse_source(source or os.environ.get(SOURCE_VARIABLE) or f"hf://{INDEX_REPO}")
    trusted = TrustedIndexes.default()
    if trusted is None:
        raise UntrustedError(
            f"{origin.uri} cannot be checked: this tchub trusts no key",
            reason="keys",
            remedy=f"get the publisher's root.json by a way that you trust, and set {ROOT_VARIABLE} to it",
            path=origin.uri,
        )
    return trusted.refresh(origin, Index.shipped())


def describe_index() -> dict[str, Any]:
    """Return the indexes in use (None for one that is not), the trusted keys and deprecated checkpoints.

    Raises:
        UntrustedError, IndexFileError: the refreshed index, the wheel's, or TCHUB_INDEX's cannot be used.
    """

    def facts(index: Index, **more: Any) -> dict[str, Any]:
        return {"serial": index.serial, "checkpoints": len(index.entries)} | more

    own, shipped, trusted = own_index(), Index.shipped(), TrustedIndexes.default()
    stored = None if own or trusted is None else trusted.stored()
    used = Index.read(own) if own else shipped.joined(stored.parsed) if stored else shipped
    root = trusted.current_root() if trusted else None
    keys = [keyid[:16] for keyid in root.roles["targets"].keyids] if root else []
    about = {key: getattr(stored, key) for key in ("source", "commit", "fetched", "expires")} if stored else {}
    return {
        "override": own and facts(used, path=str(own)),
        "shipped": None if own else facts(shipped),
        "refreshed": stored and facts(stored.parsed, **about),
        "keys": root and {"version": root.version, "expires": root.expires.isoformat(), "trusted": keys},
        "deprecated": {entry.id: entry.deprecated for entry in used.entries if entry.deprecated},
    }


def _fetcher(source: Source) -> FetcherInterface:
    """Return TUF's way to a source: the sources bound each file in size and time, and keep to --offline."""
    from tuf.api.exceptions import DownloadHTTPError
    from tuf.ngclient import FetcherInterface

    class SourceFetcher(FetcherInterface):
        def _fetch(self, url: str) -> Iterator[bytes]:
            try:
                yield source.read(url.removeprefix(f"{source.uri}/"), MAX_BYTES)
            except NotInSourceError as error:
                raise DownloadHTTPError(error.message, 404) from error
            except SourceError as error:
                if error.reason == "token":  # some servers refuse what is not there
                    raise DownloadHTTPError(error.message, 403) from error
                raise

    return SourceFetcher()


@contextmanager
def _tuf_errors(path: str) -> Iterator[None]:
    """Turn TUF's errors into SourceError and UntrustedError."""
    from tuf.api import exceptions as tuf

    faults: dict[type[Exception], tuple[str, str, str]] = {
        tuf.ExpiredMetadataError: (
            *("expired", "was to be replaced by now"),
            "check this machine's clock; else newer ones are held back from you: use another --source",
        ),
        tuf.UnsignedMetadataError: (
            *("signature", "is not signed by the keys that are trusted here"),
            f"check where it comes from; to trust another publisher set {ROOT_VARIABLE} to their root.json",
        ),
        tuf.BadVersionNumberError: (
            *("rollback", "is older than what was seen before"),
            "use an up-to-date --source; an older state stands in place of a newer one",
        ),
        Exception: (
            *("content", "is not what was signed"),
            "fetch it again from another source; if it stays so, tell who publishes it",
        ),
    }
    try:
        yield
    except tuf.DownloadHTTPError as error:
        raise error.__cause__ or error from None
    except tuf.DownloadLengthMismatchError as error:
        message, remedy = f"{path} sends too much: {error}", "check the address, or use another --source"
        raise SourceError(message, reason="content", remedy=remedy, source=path) from error
    except (tuf.RepositoryError, KeyError) as error:
        reason, what, remedy = next(fault for kind, fault in faults.items() if isinstance(error, kind))
        raise UntrustedError(f"{path} {what}: {error}", reason=reason, remedy=remedy, path=path) from error

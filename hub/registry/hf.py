"""Checkpoints from the Hugging Face Hub.

Through huggingface_hub, whose cache, token, HF_ENDPOINT and HF_HUB_OFFLINE hold here too.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .entry import Entry
from .errors import (
    GatedError,
    NetworkError,
    NotInSourceError,
    OfflineError,
    RevisionMissingError,
    SourceError,
    TokenError,
)
from .store import store_error
from .verify import Outcome, Verification, verify_file

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class HfSource:
    """A model repository on the Hub, read at the commit that the index pins, never at a branch.

    Args:
        repo: `org/name`.
        endpoint: the Hub's address; None for HF_ENDPOINT or the public one.
        cache_dir: huggingface_hub's cache; None for its own default (HF_HOME, HF_HUB_CACHE).
    """

    network = True

    def __init__(self, repo: str, *, endpoint: str | None = None, cache_dir: Path | None = None) -> None:
        self.repo = repo
        self.uri = f"hf://{repo}"
        self._where = {"endpoint": endpoint, "cache_dir": cache_dir}

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Download what the Hub's cache does not hold yet, and copy it to `dest`.

        Raises:
            SourceError: one class for each of: gated, token refused, repository, revision or file missing,
                offline, server or network failing, no commit pinned.
            IntegrityError: the Hub's file is not the one in the index.
            StoreError: the Hub's cache cannot be written.
        """
        if entry.revision is None:
            raise RevisionMissingError(
                f"the index pins no commit of {self.repo} for {entry.id}",
                remedy="use an index that pins a commit; tchub never follows a branch",
                source=self.uri,
                checkpoint=entry.id,
            )
        for name in entry.files:
            cached = self._download(entry, name, offline=offline)
            shutil.copyfile(cached, dest / name)

    def _download(self, entry: Entry, name: str, *, offline: bool) -> Path:
        """The file in the Hub's cache, which is refreshed once when it is damaged."""
        from huggingface_hub.constants import is_offline_mode

        with self._typed(entry, name, offline):
            path, cached = self._get(entry, name, offline=offline, force=False)
            if cached and not (offline or is_offline_mode()) and not verify_file(path, entry.files[name]).ok:
                path, _ = self._get(entry, name, offline=False, force=True)
        return path

    def _get(self, entry: Entry, name: str, *, offline: bool, force: bool) -> tuple[Path, bool]:
        """The file's resolved path, and whether it was in the cache before."""
        from huggingface_hub import hf_hub_download

        ask: dict[str, Any] = {"revision": entry.revision, "local_files_only": offline, **self._where}
        # Ask for the size first: a server that would send something else is refused before a byte is stored.
        known = hf_hub_download(self.repo, name, dry_run=True, **ask)
        size = entry.files[name].size
        if known.file_size not in (None, size) and not known.is_cached:
            Verification(Outcome.SIZE_MISMATCH, Path(self.uri) / name, size, known.file_size).require(
                "the repository and the index disagree; report it to the checkpoint's authors"
            )
        path = hf_hub_download(self.repo, name, force_download=force, library_name="tchub", **ask)
        return Path(path).resolve(), known.is_cached

    @contextmanager
    def _typed(self, entry: Entry, name: str, offline: bool) -> Iterator[None]:
        from huggingface_hub import errors as hub
        from huggingface_hub.constants import HF_HUB_CACHE, is_offline_mode

        about: dict[str, Any] = {"source": self.uri, "checkpoint": entry.id, "file": name}
        try:
            yield
        except hub.GatedRepoError as error:
            raise GatedError(
                f"{self.repo} is gated: its terms have to be accepted first",
                remedy=f"accept them on the page of {self.repo}, then: hf auth login",
                **about,
            ) from error
        except hub.RevisionNotFoundError as error:
            raise RevisionMissingError(
                f"{self.repo} has no commit {entry.revision}",
                remedy="the repository was rewritten; report it, or use another --source",
                **about,
            ) from error
        except hub.RemoteEntryNotFoundError as error:
            raise NotInSourceError(
                f"{self.repo} has no file {name} at {entry.revision}", remedy="use another --source", **about
            ) from error
        except hub.RepositoryNotFoundError as error:
            raise NotInSourceError(
                f"{self.repo} does not exist, or is private and you are not logged in",
                remedy="check the name; for a private repository: hf auth login",
                **about,
            ) from error
        except hub.LocalEntryNotFoundError as error:
            raise _unreachable(self, error, offline or is_offline_mode(), about) from error
        except hub.HfHubHTTPError as error:
            raise _refused(self, error, about) from error
        except OSError as error:
            if error.errno in _DISK:
                raise store_error(error, Path(error.filename or HF_HUB_CACHE), "HF_HOME") from error
            raise _failed(self, error, about) from error
        except _transport_errors() as error:
            raise _failed(self, error, about) from error


def _transport_errors() -> tuple[type[Exception], ...]:
    # The Hub's client lets its HTTP library's errors through when a download breaks; which one that is
    # depends on the client's version.
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(base for base in HfHubHTTPError.__mro__[1:] if base.__name__ in ("HTTPError", "RequestException"))


def _unreachable(source: HfSource, error: Exception, offline: bool, about: dict[str, Any]) -> SourceError:
    from huggingface_hub.errors import HfHubHTTPError

    if offline:
        return OfflineError(
            f"{about['file']} of {source.repo} is not in the Hub cache, and the network is ruled out",
            remedy="run once without --offline (and without HF_HUB_OFFLINE), or use --source file:///folder",
            **about,
        )
    cause = error.__cause__
    return (
        _refused(source, cause, about) if isinstance(cause, HfHubHTTPError) else _failed(source, cause or error, about)
    )


def _refused(source: HfSource, error: Any, about: dict[str, Any]) -> SourceError:
    status = error.response.status_code
    if status in (401, 403):
        return TokenError(
            f"the Hub refused the token for {source.repo} (HTTP {status})",
            remedy="it may be expired or lack read permission: hf auth login, or check HF_TOKEN",
            status=status,
            **about,
        )
    remedy = "wait a little and try again" if status == 429 else "try again later, or use --source file:///folder"
    return NetworkError(f"the Hub answered HTTP {status} for {source.repo}", remedy=remedy, status=status, **about)


def _failed(source: HfSource, error: BaseException, about: dict[str, Any]) -> SourceError:
    text = str(error).splitlines()[0] if str(error) else ""
    return NetworkError(
        f"{source.repo} could not be fetched: {type(error).__name__}{': ' + text if text else ''}",
        remedy="check the connection, proxy and HF_ENDPOINT, or use --source file:///folder",
        **about,
    )

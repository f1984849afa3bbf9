"""Checkpoints from the Hugging Face Hub.

Through huggingface_hub, whose cache, token, HF_ENDPOINT and HF_HUB_OFFLINE hold here too.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from .entry import Entry
from .errors import RevisionMissingError
from .hub_errors import Errand, answered, typed
from .index import Index
from .offline import network_ruled_out
from .verify import Outcome, Verification, verify_file

SLOWEST = 16 << 10  # bytes a second of the slowest line that is waited for


class HfSource:
    """A model repository on the Hub, read at the commit that the index pins, never at a branch.

    Args:
        repo: `org/name`.
        endpoint: the Hub's address; None for HF_ENDPOINT or the public one.
        cache_dir: huggingface_hub's cache; None for its own default (HF_HOME, HF_HUB_CACHE).
        patience: seconds that a file may take, besides the time that its bytes take on a slow line.
    """

    network = True

    def __init__(
        self, repo: str, *, endpoint: str | None = None, cache_dir: Path | None = None, patience: float = 120.0
    ) -> None:
        self.repo = repo
        self.patience = patience
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
        offline = offline or network_ruled_out()
        for name in entry.files:
            cached = self._download(entry, name, offline=offline)
            shutil.copyfile(cached, dest / name)

    def index(self, *, offline: bool = False) -> Index:
        """None: what a repository holds is said by the index that names it."""
        return Index()

    def _download(self, entry: Entry, name: str, *, offline: bool) -> Path:
        """The file in the Hub's cache, which is refreshed once when it is damaged."""
        about = {"source": self.uri, "checkpoint": entry.id, "file": name}
        seconds = self.patience + entry.files[name].size / SLOWEST
        errand = Errand(self.repo, name, entry.revision, offline=offline, fields=about)
        if offline:
            with typed(errand):
                return self._cached(entry, name)
        return answered(errand, seconds, lambda: self._get_whole(entry, name))

    def _cached(self, entry: Entry, name: str) -> Path:
        """The file in the Hub's cache, found without the client's downloads: those ask the Hub even offline."""
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import OfflineModeIsEnabled

        path = try_to_load_from_cache(self.repo, name, self._where["cache_dir"], entry.revision)
        if not isinstance(path, str):
            raise OfflineModeIsEnabled(name)
        return Path(path).resolve()

    def _get_whole(self, entry: Entry, name: str) -> Path:
        path, cached = self._get(entry, name, force=False)
        if cached and not verify_file(path, entry.files[name]).ok:
            path, _ = self._get(entry, name, force=True)
        return path

    def _get(self, entry: Entry, name: str, *, force: bool) -> tuple[Path, bool]:
        """The file's resolved path, and whether it was in the cache before."""
        from huggingface_hub import hf_hub_download

        ask: dict[str, Any] = {"revision": entry.revision, **self._where}
        # Ask for the size first: a server that would send something else is refused before a byte is stored.
        known = hf_hub_download(self.repo, name, dry_run=True, **ask)
        size = entry.files[name].size
        if known.file_size not in (None, size) and not known.is_cached:
            Verification(Outcome.SIZE_MISMATCH, Path(self.uri) / name, size, known.file_size).require(
                "the repository and the index disagree; report it to the checkpoint's authors"
            )
        path = hf_hub_download(self.repo, name, force_download=force, library_name="tchub", **ask)
        return Path(path).resolve(), known.is_cached

"""A bundle on disk, zipped or unpacked: its manifest, and its files checked against their sha256."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from .faults import OnsiteError

FORMAT = 1
MANIFEST = "manifest.json"


class Package:
    """A bundle opened for reading.

    Args:
        path: the zip file, or the folder it was unpacked into.

    Attributes:
        manifest: the parsed manifest.
        identity: sha256 of the manifest, which names the sha256 of every other file.

    Raises:
        OnsiteError: no bundle, or one that is damaged or of a newer format.
    """

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        try:
            self._zip = zipfile.ZipFile(path) if self._folder.is_file() else None
            text = self.read(MANIFEST)
            self.manifest: dict[str, Any] = json.loads(text)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise OnsiteError(f"{path} is no bundle: {error}", 2) from error
        self.identity = hashlib.sha256(text).hexdigest()
        if self.manifest.get("format") != FORMAT:
            raise OnsiteError(f"{path} has the format {self.manifest.get('format')}, this reader knows {FORMAT}", 2)

    def read(self, name: str) -> bytes:
        """A file of the bundle."""
        return self._zip.read(name) if self._zip else (self._folder / name).read_bytes()

    def check(self) -> None:
        """Compare every file that the manifest names with its sha256.

        Raises:
            OnsiteError: a file is missing or changed.
        """
        wanted = dict(self.manifest["files"])
        wanted.update((p["file"], p["sha256"]) for p in self.manifest["programs"] if p["file"])
        for name, digest in wanted.items():
            try:
                found = hashlib.sha256(self.read(name)).hexdigest()
            except (OSError, KeyError, zipfile.BadZipFile) as error:
                raise OnsiteError(f"{name} cannot be read from the bundle: {error}", 2) from error
            if found != digest:
                raise OnsiteError(f"{name} was changed: its sha256 is {found[:16]}, the manifest says {digest[:16]}", 2)

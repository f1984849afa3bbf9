"""Programs of cards that were compiled before, on disk: a cubin and its launch plan, by the hash of the module.

Whoever can write to the cache must not choose what a card runs. Names and contents are therefore authenticated with a
key that lies in the home, where its owner alone may read it: another's entry, a changed one and one that was cut short
are compiled again.
"""

import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...zoo.files import write_atomically
from ...zoo.untrusted import read_plain

_KEY_BYTES = _DIGEST_BYTES = 32
# Entries lie in so many folders by the first byte of their names, each of which is kept below its share of the limit.
_FOLDERS = 256


@dataclass(frozen=True)
class CubinCache:
    """Compiled programs in a folder, the least recently used of which leave first.

    Nothing here raises: without room or the right to write, programs are compiled as without a cache.

    Attributes:
        folder: may be shared with others, who have keys of their own.
        key: authenticates what this user wrote.
        limit: bytes in all.
    """

    folder: Path
    key: bytes = field(repr=False)
    limit: int = 512 << 20

    @classmethod
    def here(cls) -> Self | None:
        """Return this user's cache, in `TCHUB_CACHE`; None where its key in `TCHUB_HOME` cannot be written or read."""
        from ..registry.store import cache_root, home_root  # which the workers need not import

        path = home_root().parent / "cubins.key"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".cubins-") as file, suppress(FileExistsError):
                    file.write(secrets.token_bytes(_KEY_BYTES))
                    file.flush()
                    os.link(file.name, path)  # whole, and the first one's where several processes make it
            key = read_plain(path, _KEY_BYTES)
        except (OSError, ValueError):
            return None
        return cls(cache_root().parent / "cubins", key) if len(key) == _KEY_BYTES else None

    def name(self, facts: Mapping[str, Any]) -> str:
        """Return the name of the program that these facts decide: module, target, compiler and versions."""
        return self._digest(json.dumps(facts, sort_keys=True).encode()).hex()

    def load(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """Return a program's launch plan and cubin; None where it is not there, or is not what was written."""
        try:
            data = read_plain(path := self._path(name), self.limit // _FOLDERS)
        except (OSError, ValueError):
            return None
        digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, self._digest(name.encode() + body)):
            return None
        with suppress(OSError):
            os.utime(path)
        plan, _, image = body.partition(b"\n")
        return json.loads(plan), image

    def save(self, name: str, plan: Mapping[str, Any], image: bytes) -> None:
        """Write a program, and remove those of its folder that are beyond its share of the limit."""
        body, path = json.dumps(plan).encode() + b"\n" + image, self._path(name)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self._digest(name.encode() + body) + body)
            used, files = 0, list[tuple[Path, os.stat_result]]()
            for one in path.parent.iterdir():  # what a killed process left, too
                with suppress(FileNotFoundError):  # another process removed it meanwhile
                    files.append((one, one.stat()))
            for file, stat in sorted(files, key=lambda one: -one[1].st_mtime_ns):
                used += stat.st_size
                if used > self.limit // _FOLDERS:
                    file.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def _digest(self, data: bytes) -> bytes:
        return hmac.digest(self.key, data, "sha256")

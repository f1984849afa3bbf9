"""A static mirror: any web server that gives out a folder of checkpoints as files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .address import require_plain, require_private
from .entry import Entry
from .entry_files import CONFIG_FILE, FileRecord
from .errors import IntegrityError, NetworkError, NotInSourceError, OfflineError, SourceError, TokenError
from .fields import MAX_BYTES
from .index import INDEX_FILE, Index
from .offline import VARIABLES, network_ruled_out
from .verify import Outcome
from .watched import StalledError

if TYPE_CHECKING:
    from requests import Response, Session

_TRIES = 4  # of a download that breaks; each goes on where the last one stopped
_CHECK = "check the connection and HTTPS_PROXY, try again later, or use another --source"


@dataclass(frozen=True)
class Reply:
    """A small file of a mirror.

    Attributes:
        data: its bytes, or None when it is still the one that the ETag names.
        etag: what the server calls this state of it, or None.
    """

    data: bytes | None
    etag: str | None


class Mirror:
    """`https://host/folder`, laid out like a folder source: `<name>/<version>/<file>`, else `<name>/<file>`.

    The environment variable TCHUB_MIRROR_TOKEN is sent to that host, as a bearer token, and to no other.

    Args:
        uri: the folder's address; `http` is for servers on this machine only.
        named: whether the user named it. One that an index or a lock file lists is sent no token: who wrote that
            file could have it sent anywhere.
        patience: seconds that a connection, a read and each 64 KiB of an answer may take.

    Raises:
        UnknownSourceError: no plain address.
        InsecureSourceError: http to another machine.
    """

    network = True

    def __init__(self, uri: str, *, named: bool = True, patience: float = 20.0) -> None:
        require_plain(uri)
        require_private(uri)
        self.uri = uri.rstrip("/")
        self.named = named
        self.patience = patience

    def read(self, name: str, limit: int, etag: str | None = None, *, offline: bool = False) -> Reply:
        """A small file of the mirror, e.g. its index.

        Args:
            name: its path under the mirror's folder.
            limit: the most bytes that it may have.
            etag: what an earlier reply gave: an unchanged file is not sent again.
            offline: raise OfflineError.

        Raises:
            SourceError: a subclass for each way this can fail.
        """
        etag = etag if etag and etag.isascii() and etag.isprintable() else None  # what a header can carry
        with self._reading(name, offline) as session:
            response, pieces = self._ask(session, name, {"If-None-Match": etag} if etag else {})
            if etag and response.status_code == 304:
                return Reply(None, etag)
            data = bytearray()
            size = _announced(response) or 0
            while max(size, len(data)) <= limit and (piece := next(pieces, b"")):
                data += piece
        if max(size, len(data)) > limit:
            raise SourceError(
                f"{self.uri}/{name} has more than {limit} bytes, so it is not what it should be",
                remedy="check the address, or use another --source",
                **self._about(name),
            )
        return Reply(bytes(data), response.headers.get("ETag"))

    def fetch(self, entry: Entry, dest: Path, *, offline: bool = False) -> None:
        """Download the files; a download that breaks off goes on where it stopped.

        Raises:
            SourceError: a subclass for each way this can fail.
            IntegrityError: a file has another size than in the index; refused before it is stored.
        """
        with self._reading(entry.id, offline) as session:
            folder = self._folder(session, entry, dest)
            for name, record in entry.files.items():
                if name != CONFIG_FILE:
                    self._download(session, f"{folder}/{name}", dest / name, record)

    def index(self, *, offline: bool = False) -> Index:
        """Its `index.json`, where it has one; raises SourceError and IndexFileError."""
        try:
            data = self.read(INDEX_FILE, MAX_BYTES, offline=offline).data
        except NotInSourceError:
            return Index()
        return Index.parse(data or b"", f"{self.uri}/{INDEX_FILE}")

    def _folder(self, session: Session, entry: Entry, dest: Path) -> str:
        """The folder of the mirror from which the config came."""
        for folder in (f"{entry.name}/{entry.version}", entry.name):
            with suppress(NotInSourceError):
                self._download(session, f"{folder}/{CONFIG_FILE}", dest / CONFIG_FILE, entry.files[CONFIG_FILE])
                return folder
        raise NotInSourceError(
            f"{self.uri} does not hold {entry.id}",
            remedy=f"check the address: {self.uri}/{entry.name}/{entry.version}/{CONFIG_FILE}, or use another --source",
            **self._about(entry.id),
        )

    def _download(self, session: Session, name: str, dest: Path, record: FileRecord) -> None:
        with dest.open("wb") as file:
            for _ in range(_TRIES):
                self._receive(session, name, file, record.size)
                if file.tell() == record.size:
                    return
            at = file.tell()
        raise NetworkError(
            f"{self.uri}/{name} broke off {_TRIES} times, the last time after {at} of {record.size} bytes",
            remedy="try again; use another --source if it happens again",
            **self._about(name),
        )

    def _receive(self, session: Session, name: str, file: BinaryIO, size: int) -> None:
        """Add to `file` what it lacks, as far as it comes."""
        from .web import BROKEN

        response, pieces = self._ask(session, name, {"Range": f"bytes={file.tell()}-"} if file.tell() else {})
        if file.tell() and response.status_code != 206:  # the whole file, from a server without ranges
            file.seek(0)
            file.truncate()
        announced = _announced(response)
        if announced is not None:
            self._require_size(name, size, file.tell() + announced)
        with suppress(*BROKEN):
            for piece in pieces:
                if file.tell() + len(piece) > size:
                    self._require_size(name, size, file.tell() + len(piece))
                file.write(piece)

    def _require_size(self, name: str, expected: int, actual: int) -> None:
        if actual != expected:
            raise IntegrityError(
                f"{self.uri}/{name} has the wrong size: expected {expected}, found {actual}",
                remedy="the mirror and the index disagree; use another --source",
                outcome=Outcome.SIZE_MISMATCH.value,
                path=f"{self.uri}/{name}",
                expected=expected,
                actual=actual,
            )

    def _ask(self, session: Session, name: str, headers: dict[str, str]) -> tuple[Response, Iterator[bytes]]:
        """The head and the body of a good answer; also that of 304, which only a question with an ETag gets."""
        from .web import ask, pause_asked_for

        response, pieces = ask(session, f"{self.uri}/{name}", headers, self.patience)
        status = response.status_code
        about = self._about(name) | {"status": status}
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise NetworkError(
                f"{self.uri} sends {name} compressed, which it was not asked for",
                remedy="have the server send files as they are, or use another --source",
                **about,
            )
        if status in (200, 206, 304):
            return response, pieces
        if status in (401, 403):
            raise TokenError(
                f"{self.uri} refused to give {name} (HTTP {status})",
                remedy=f"{self._token_remedy()}; some servers say the same of a file that is not there",
                **about,
            )
        if status in (404, 410):
            raise NotInSourceError(f"{self.uri} has no {name}", remedy="use another --source", **about)
        seconds = pause_asked_for(response)
        when = f"in {seconds:.0f} s" if seconds else "later"
        raise NetworkError(
            f"{self.uri} answered HTTP {status} for {name}",
            remedy=f"try again {when}, or use another --source",
            retry_after=seconds,
            **about,
        )

    @contextmanager
    def _reading(self, what: str, offline: bool) -> Iterator[Session]:
        """A session whose failures are told as NetworkError; without the texts of its errors, which hold addresses
        that a redirect may have led to, with what is secret in them."""
        if offline or network_ruled_out():
            raise OfflineError(
                f"{what} of {self.uri} needs the network, which is ruled out",
                remedy=f"run once without --offline (and without {' and '.join(VARIABLES)}), or use file:///folder",
                **self._about(what),
            )
        from .web import BROKEN, open_session, reason_of

        try:
            with open_session(_token() if self.named else None) as session:
                yield session
        except StalledError as error:
            raise NetworkError(
                f"{self.uri} hangs, or is too slow: {error}", remedy=_CHECK, **self._about(what)
            ) from error
        except BROKEN as error:
            raise NetworkError(
                f"{self.uri} could not be read: {reason_of(error)}", remedy=_CHECK, **self._about(what)
            ) from error

    def _token_remedy(self) -> str:
        if self.named:
            return "set TCHUB_MIRROR_TOKEN, or check that it is right and still valid"
        return f"name {self.uri} by --source or in TCHUB_SOURCES: TCHUB_MIRROR_TOKEN goes to no other mirror"

    def _about(self, what: str) -> dict[str, str]:
        return {"source": self.uri, "file": what}


def _token() -> str:
    token = os.environ.get("TCHUB_MIRROR_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise TokenError(
            "TCHUB_MIRROR_TOKEN holds characters that no token has",
            remedy="set it again, to the token alone, or unset it",
        )
    return token


def _announced(response: Response) -> int | None:
    """The bytes that the body should have, or None when the server does not say."""
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None

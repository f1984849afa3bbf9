"""The publisher's side of a signed index: TUF metadata beside `index.json`, its keys, and how keys are replaced."""

# The public modules of tuf and securesystemslib re-export these names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.files import write_files
from .errors import IndexFileError
from .files import read_bytes, unusable
from .index import INDEX_FILE, Index
from .trust import METADATA

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey
    from tuf.api.metadata import Metadata, Root

ROLES = ("root", "timestamp", "snapshot", "targets")
_ROOT_DAYS, _RENEW_DAYS = 730, 180  # how long a root is good for, and from how many days on it is written anew
_SHOWN_ID = 16  # hex digits of a key's id in messages; as many name it in `revoke`
_MAX_KEY = 16 << 10


@dataclass(frozen=True)
class SignedIndex:
    """The result of signing.

    Attributes:
        root: the newest root metadata, which clients trust or find; keys: ids of the keys that are trusted now.
        version: of the signed state; grows with every signing.
        expires: the last moment at which clients take this state for the newest.
    """

    path: str
    root: str
    serial: int
    version: int
    root_version: int
    keys: tuple[str, ...]
    expires: str


def load_signer(path: Path, passphrase: Callable[[], str]) -> CryptoSigner:
    """Return the signer of a private key in PEM (PKCS #8), e.g. of `openssl genpkey -algorithm ed25519`.

    Args:
        passphrase: is asked where the key needs one.

    Raises:
        IndexFileError: it is missing, others may read it, it is no private key, or the passphrase is wrong.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    text = read_bytes(path, _MAX_KEY)
    if path.stat().st_mode & 0o077:
        raise IndexFileError(f"others may read {path}", remedy=f"chmod 600 {path}", path=str(path))
    locked = b"BEGIN ENCRYPTED PRIVATE KEY" in text
    try:
        private: Any = load_pem_private_key(text, passphrase().encode() if locked else None)
        return CryptoSigner(private)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        remedy = "make one: (umask 077; openssl genpkey -algorithm ed25519 -out release.pem)"
        raise unusable(str(path), "no private key in it, or the passphrase is wrong", remedy) from error


def load_public(path: Path) -> SSlibKey:
    """Return a public key in PEM, e.g. of `openssl pkey -in release.pem -pubout`; raises IndexFileError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        return SSlibKey.from_crypto(load_pem_public_key(read_bytes(path, _MAX_KEY)))
    except (ValueError, UnsupportedAlgorithm) as error:
        remedy = f"write it: openssl pkey -in release.pem -pubout -out {path}"
        raise unusable(str(path), "no public key in it", remedy) from error


def sign_index(
    folder: Path,
    signers: Sequence[CryptoSigner],
    *,
    trust: Sequence[SSlibKey] = (),
    revoke: Sequence[str] = (),
    days: int = 365,
) -> SignedIndex:
    """Sign the `index.json` of a folder: write TUF's metadata into `metadata/`.

    The first time the signers' keys become the trusted ones. Later one of them signs, and keys are added or taken back
    by a new root, which a key of the root before it has to sign as well.

    Args:
        trust: further keys whose signatures count from now on.
        revoke: ids of keys, or their first 16 hex digits, whose signatures do not count any more.
        days: how long clients take this state for the newest.

    Raises:
        IndexFileError: clients would not take the index, its serial did not grow, a key to take back is unknown, or
            the signers are not those that clients trust.
    """
    from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp

    path, metadata = folder / INDEX_FILE, folder / METADATA
    data = read_bytes(path)
    index = Index.parse(data, str(path))
    now = datetime.now(UTC).replace(microsecond=0)
    root = _next_root(metadata, signers, trust, revoke, now)
    usable = [signer for signer in signers if signer.public_key.keyid in root.signed.roles["targets"].keyids]
    last = metadata / "timestamp.json"
    version = Metadata[Timestamp].from_file(str(last)).signed.version + 1 if last.is_file() else 1
    expires = now + timedelta(days=days)
    target = TargetFile.from_data(INDEX_FILE, data, ["sha256"])
    target.unrecognized_fields["custom"] = {"serial": index.serial}
    if version > 1:
        before = Metadata[Targets].from_file(str(metadata / "targets.json")).signed.targets[INDEX_FILE]
        if before.hashes != target.hashes and index.serial <= before.custom["serial"]:
            remedy = f"set its serial to {before.custom['serial'] + 1} or more"
            raise unusable(str(path), f"it changed, and its serial is still {index.serial}", remedy)

    def signed(body: Any) -> bytes:
        document: Metadata[Any] = Metadata(body)
        for signer in usable:
            document.sign(signer, append=True)
        return document.to_bytes()

    def meta(data: bytes) -> MetaFile:
        return MetaFile(version, len(data), {"sha256": hashlib.sha256(data).hexdigest()})

    state: dict[str, Any] = {"version": version, "expires": expires}
    files = {f"{root.signed.version}.root.json": root.to_bytes()} if root.signatures else {}
    files["targets.json"] = signed(Targets(**state, targets={INDEX_FILE: target}))
    files["snapshot.json"] = signed(Snapshot(**state, meta={"targets.json": meta(files["targets.json"])}))
    files["timestamp.json"] = signed(Timestamp(**state, snapshot_meta=meta(files["snapshot.json"])))
    write_files(metadata, files)  # the root first, the timestamp last: clients begin at these
    return SignedIndex(
        path=str(path),
        root=str(metadata / f"{root.signed.version}.root.json"),
        serial=index.serial,
        version=version,
        root_version=root.signed.version,
        keys=tuple(keyid[:_SHOWN_ID] for keyid in root.signed.roles["targets"].keyids),
        expires=expires.isoformat(),
    )


def _next_root(
    metadata: Path, signers: Sequence[CryptoSigner], trust: Sequence[SSlibKey], revoke: Sequence[str], now: datetime
) -> Metadata[Root]:
    """Return the newest root, or a signed following one where keys change or its last day comes near."""
    from tuf.api.metadata import Metadata, Root

    versions = [int(path.name.partition(".")[0]) for path in metadata.glob("[0-9]*.root.json")]
    if not versions:
        root = Root(version=1, expires=now + timedelta(days=_ROOT_DAYS), consistent_snapshot=False)
        added, trusting = [*(signer.public_key for signer in signers), *trust], root
    else:
        stored = Metadata[Root].from_file(str(metadata / f"{max(versions)}.root.json"))
        root, added, trusting = stored.signed, list(trust), Root.from_dict(stored.signed.to_dict())
        known = root.roles["root"].keyids
        gone = [keyid for keyid in known for name in revoke if len(name) >= _SHOWN_ID and keyid.startswith(name)]
        if len(gone) != len(revoke):
            remedy = f"give ids of its keys: {', '.join(keyid[:_SHOWN_ID] for keyid in known)}"
            raise unusable(str(metadata), f"the root trusts no key {', '.join(revoke)}", remedy)
        _require_trusted(signers, known, metadata)
        if not (added or gone or root.expires - now < timedelta(days=_RENEW_DAYS)):
            return Metadata(root)
        for keyid in gone:
            for role in ROLES:
                root.revoke_key(keyid, role)
        root.version += 1
        root.expires = now + timedelta(days=_ROOT_DAYS)
    for key in added:
        for role in ROLES:
            root.add_key(key, role)
    following = Metadata(root)
    for signer in signers:
        following.sign(signer, append=True)
    for one in (root, trusting):
        _require_trusted(signers, one.roles["root"].keyids, metadata)
    return following


def _require_trusted(signers: Sequence[CryptoSigner], keyids: Sequence[str], metadata: Path) -> None:
    if not any(signer.public_key.keyid in keyids for signer in signers):
        names = ", ".join(keyid[:_SHOWN_ID] for keyid in keyids) or "none"
        remedy = "sign by a key that clients trust, and where that one is taken back by a key that stays as well"
        raise unusable(str(metadata), f"none of the given keys is among those that it needs: {names}", remedy)

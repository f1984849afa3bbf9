"""Archives that unpack to more than memory holds: refused while less than a gigabyte is taken."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_kit import GOOD, toy_bundle

LARGE = 256 << 20
# Opens an archive while this process may take a gigabyte more than it has.
OPEN = """
import resource, sys
from pathlib import Path
from tchub.hub.bundle.archive import Bundle
from tchub.hub.bundle.archive import BundleError
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
try:
    Bundle(sys.argv[1])
except BundleError as error:
    print(error.message)
"""


def _manifest(data: bytes, method: int = zipfile.ZIP_DEFLATED, *others: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("manifest.json", *others):
            archive.writestr(name, data)
    return file.getvalue()


STORED = zipfile.ZIP_STORED
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "large": (lambda: _manifest(bytes(LARGE)), "unpacks to more than 64 MiB"),
    "many": (lambda: _manifest(bytes(LARGE >> 3), zipfile.ZIP_DEFLATED, *"abcdefg"), "more than 100 times its size"),
    # It says of a large file that it is small.
    "liar": (
        lambda: _manifest(bytes(LARGE)).replace(struct.pack("<L", LARGE), struct.pack("<L", 100)), "is no bundle",
    ),
    "bzip2": (lambda: _manifest(bytes(LARGE), zipfile.ZIP_BZIP2), "compressed by other means"),
    "lists": (lambda: _manifest(b"[" + b"[]," * (5 << 21) + b"0]", STORED), "lists and objects"),
    "nested": (lambda: _manifest(b"[" * 1_000_000, STORED), "is no bundle"),
    "bare": (lambda: _manifest(b'{"format":1}', STORED), "is no bundle"),
    "torn": (lambda: b"PK\x03\x04 torn", "is no zip file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_a_gigabyte(tmp_path: Path, name: str) -> None:
    make, complaint = BOMBS[name]
    path = tmp_path / "bomb.zip"
    path.write_bytes(make())
    done = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=False)
    assert complaint in done.stdout, done.stderr


def test_a_bundle_unpacks_within_the_same_limits(tmp_path: Path) -> None:
    bundle = toy_bundle(tmp_path, [GOOD] * 4)
    done = subprocess.run([sys.executable, "-c", OPEN, str(bundle)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

"""Archives that unpack to more than memory holds: refused while less than a gigabyte is taken."""

from __future__ import annotations

import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bundle_kit import GOOD, toy_bundle

LARGE = 256 << 20
# Opens an archive while this process may take a gigabyte more than it has.
OPEN = """
import resource, sys
from pathlib import Path
from tchub.hub.bundle.archive import Bundle
from tchub.hub.bundle.target import BundleError
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
try:
    Bundle(sys.argv[1])
except BundleError as error:
    print(error.message)
"""


def _zip(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def _liar(path: Path) -> Path:
    """An archive that says of a large file that it is small."""
    _zip(path, {"manifest.json": bytes(LARGE)})
    path.write_bytes(path.read_bytes().replace(struct.pack("<L", LARGE), struct.pack("<L", 100)))
    return path


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("large", "unpacks to more than 64 MiB"),
        ("many", "more than 100 times its size"),
        ("liar", "is no bundle"),
        ("bzip2", "compressed by other means"),
        ("lists", "lists and objects"),
        ("nested", "is no bundle"),
        ("bare", "is no bundle"),
        ("torn", "is no zip file"),
    ],
)
def test_a_bomb_is_refused_within_a_gigabyte(tmp_path: Path, name: str, complaint: str) -> None:
    path = tmp_path / "bomb.zip"
    if name == "large":
        _zip(path, {"manifest.json": bytes(LARGE)})
    elif name == "many":
        _zip(path, {f"{number}": bytes(LARGE >> 3) for number in range(8)})
    elif name == "liar":
        _liar(path)
    elif name == "bzip2":
        _zip(path, {"manifest.json": bytes(LARGE)}, zipfile.ZIP_BZIP2)
    elif name == "torn":
        path.write_bytes(b"PK\x03\x04 torn")
    else:
        text = {"lists": b"[" + b"[]," * (5 << 21) + b"0]", "nested": b"[" * 1_000_000, "bare": b'{"format":1}'}[name]
        _zip(path, {"manifest.json": text}, zipfile.ZIP_STORED)
    done = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=False)
    assert complaint in done.stdout, done.stderr


def test_a_bundle_unpacks_within_the_same_limits(tmp_path: Path) -> None:
    bundle = toy_bundle(tmp_path, [GOOD] * 4)
    done = subprocess.run([sys.executable, "-c", OPEN, str(bundle)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

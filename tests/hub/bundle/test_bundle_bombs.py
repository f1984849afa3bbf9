"""Archives that unpack to more than memory holds: refused while less than a gigabyte is taken."""

import io
import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache

import pytest
from bundle_kit import GOOD, toy_bundle

LARGE = 256 << 20
# Opens archives while this process may take a gigabyte more than it has; a child for each has the imports already.
OPEN = """
import json, os, pathlib, resource, sys
from tchub.hub.bundle.archive import Bundle, BundleError
taken = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
for path in map(pathlib.Path, sys.argv[1:]):
    if not os.fork():
        try:
            Bundle(path)
            message = None
        except BundleError as error:
            message = error.message
        print(json.dumps([path.stem, message]), flush=True)
        os._exit(0)
    os.wait()
"""


def _manifest(data: bytes, method: int = zipfile.ZIP_DEFLATED, *others: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("manifest.json", *others):
            archive.writestr(name, data)
    return file.getvalue()


@cache
def _large() -> bytes:
    return _manifest(bytes(LARGE))


STORED = zipfile.ZIP_STORED
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "large": (_large, "unpacks to more than 64 MiB"),
    "many": (lambda: _manifest(bytes(LARGE >> 3), zipfile.ZIP_DEFLATED, *"abcdefg"), "more than 100 times its size"),
    # It says of a large file that it is small.
    "liar": (
        lambda: _large().replace(struct.pack("<L", LARGE), struct.pack("<L", 100)), "is no bundle",
    ),
    "bzip2": (lambda: _manifest(bytes(LARGE >> 3), zipfile.ZIP_BZIP2), "compressed by other means"),
    "lists": (lambda: _manifest(b"[" + b"[]," * (5 << 21) + b"0]", STORED), "lists and objects"),
    "nested": (lambda: _manifest(b"[" * 1_000_000, STORED), "is no bundle"),
    "bare": (lambda: _manifest(b'{"format":1}', STORED), "is no bundle"),
    "torn": (lambda: b"PK\x03\x04 torn", "is no zip file"),
}  # fmt: skip


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What is said of each bomb, and of a bundle."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, (make, _) in BOMBS.items():
        (folder / f"{name}.zip").write_bytes(make())
    paths = [*folder.glob("*.zip"), toy_bundle(folder / "toy", [GOOD] * 4)]
    done = subprocess.run([sys.executable, "-c", OPEN, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_a_gigabyte(messages: dict[str, str | None], name: str) -> None:
    assert BOMBS[name][1] in (messages[name] or "it is taken")


def test_a_bundle_unpacks_within_the_same_limits(messages: dict[str, str | None]) -> None:
    assert messages["bundle"] is None

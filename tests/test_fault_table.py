"""docs/faults.md: every fault that a hub meets has a row, and behind each row is a test that runs."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Row(NamedTuple):
    """One line of the table."""

    fault: str
    shown: str
    lost: str
    test: str


ROWS = [
    Row(*(cell.strip() for cell in line.strip("|").split(" | ")))
    for line in (ROOT / "docs" / "faults.md").read_text().splitlines()
    if line.startswith("|") and not line.startswith(("| Fault |", "|---"))
]
# What a hub must survive -> what one row of the table must say at least.
FAULTS = {
    "truncated file": r"Truncated weights.*size-mismatch",
    "flipped bit": r"flipped bit.*hash-mismatch",
    "wrong sha256": r"Other bytes of the right length.*hash-mismatch",
    "newer format": r"newer format.*(UnknownCheckpoint|CheckpointError)",
    "pickle in disguise": r"pickle.*CorruptCheckpointError",
    "zip bomb": r"bomb.*CorruptCheckpointError",
    "huge header": r"header.*256 KiB",
    "path traversal in a name": r"one that is a path.*CheckpointNameError",
    "path traversal in a file": r"leaves its folder.*IndexFileError",
    "symlink": r"A link in place of a file.*not-a-file",
    "full disk": r"Full while fetching.*StorageError",
    "read-only cache": r"Read-only cache \|.*StorageError",
    "killed download": r"killed.*while it downloads",
    "50 concurrent pulls": r"50 processes pull at once",
    "expired or wrong token": r"Expired or wrong token.*SourceError",
    "gated repository": r"Gated.*gated",
    "missing revision": r"commit is gone.*revision",
    "rate limit": r"Rate limit.*SourceError",
    "server that hangs": r"hangs.*SourceError",
}


@cache
def defined_in(path: str) -> frozenset[str]:
    """Tests that a file defines and does not skip for good."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    skipped = {f.name for f in functions if any("skip(" in ast.unparse(d) for d in f.decorator_list)}
    return frozenset(f.name for f in functions if f.name.startswith("test_")) - skipped


@cache
def errors() -> frozenset[str]:
    """Classes of errors in the packages."""
    text = "\n".join(path.read_text() for floor in ("hub", "zoo", "cards") for path in (ROOT / floor).rglob("*.py"))
    return frozenset(re.findall(r"^class (\w+Error)\b", text, re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault)
def test_a_row_says_what_is_shown_and_what_is_lost_and_names_a_test(row: Row) -> None:
    assert all(row), "an empty cell"
    assert set(re.findall(r"`(\w+Error)`", row.shown)) <= errors()
    assert row.shown.startswith(("`", "none", "an error line", "a finding"))
    path, name = row.test.strip("` |").split("::")
    assert name in defined_in(path)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_a_hub_must_survive_has_a_row(fault: str) -> None:
    assert [row for row in ROWS if re.search(FAULTS[fault], " | ".join(row))]


def test_no_row_stands_twice() -> None:
    assert len({(row.fault, row.test) for row in ROWS}) == len(ROWS)

"""Packed logs that unpack to more than anybody has: importers take them line by line, and a line in pieces."""

from __future__ import annotations

import lzma
import sys
from collections import Counter
from pathlib import Path

import pytest
from tchub.zoo.corpus.importers.base import Broken, ImportContext
from tchub.zoo.corpus.importers.files import LONGEST_LINE
from tchub.zoo.corpus.importers.run import read_entries

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from fuzz_seeds import ansor
from limits import limited


@pytest.mark.parametrize("framework", ["ansor", "autotvm"])
def test_a_line_without_end_is_broken_in_pieces_and_the_rest_is_read(tmp_path: Path, framework: str) -> None:
    log = tmp_path / "log.json.xz"
    good = ansor()[0]
    with lzma.open(log, "wb", preset=0) as file:
        file.write(good)
        for _ in range(20):
            file.write(b"[" * LONGEST_LINE)
        file.write(b"\n" + good)
    assert log.stat().st_size < 1 << 20
    with limited(256 << 20, 60):
        found = Counter(
            entry.kind if isinstance(entry, Broken) else "taken"
            for entry in read_entries(log, framework, ImportContext("v100"))
        )
    assert found["not-json"] == 20
    assert found["taken"] == (2 if framework == "ansor" else 0)

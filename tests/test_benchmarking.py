"""What a benchmark's document says of how it was made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from benchmarking import repeatable


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/somewhere/bench_x.py", "--seeds", "0,1", "--json"], "python scripts/bench_x.py --seeds 0,1 --json"),
        (["bench_x.py", "--minutes", "0.01", "--seeds", "2"], "python scripts/bench_x.py --seeds 2"),
        (["bench_x.py", "--only", "a b", "--minutes", "5"], "python scripts/bench_x.py --only 'a b'"),
    ],
)
def test_the_command_beside_a_figure_makes_it_again(arguments: list[str], command: str):
    """A time limit says where a run was cut, and another machine would be cut elsewhere."""
    assert repeatable(arguments) == command

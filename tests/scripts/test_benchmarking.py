"""What a benchmark's document says of how it was made."""

from __future__ import annotations

import sys

import pytest

from scripts.benchmarks.common import repeatable
from scripts.benchmarks.startup import imported_by


@pytest.mark.parametrize(
    ("name", "arguments", "command"),
    [
        ("x", ["--seeds", "0,1", "--json"], "python -m scripts.benchmarks x --seeds 0,1 --json"),
        ("fuzz", ["--minutes", "0.01", "--seed", "2"], "python -m scripts.fuzz --seed 2"),
        ("x", ["--only", "a b", "--minutes", "5"], "python -m scripts.benchmarks x --only 'a b'"),
    ],
)
def test_the_command_beside_a_figure_makes_it_again(name: str, arguments: list[str], command: str) -> None:
    """A time limit says where a run was cut, and another machine would be cut elsewhere."""
    assert repeatable(name, arguments) == command


def test_what_a_command_imports_is_seen_in_a_run_of_it() -> None:
    modules = imported_by([sys.executable, "-c", "import json.tool"])
    assert {"json", "json.tool"} <= modules
    assert "torch" not in modules

"""Progress in windows of any width, in a pipe, and while TVM writes between its lines."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

from tchub.hub.cli.output import Output
from tchub.hub.cli.progress import shown_progress

NAMES = ["fused_conv2d_add_relu_with_a_long_name_indeed", "fused_dense", "reshape", *map("small_{}".format, range(30))]


def view(done: int = 13) -> Any:
    """A session of 33 tasks of which the first three are heavy; the second has no valid program."""
    tasks = [SimpleNamespace(name=n, weight=12, task_id=n) for n in NAMES]
    progress = [SimpleNamespace(best=1.234e-3 / (i + 1), trials=i, rounds=1, open=lambda: True, exhausted=False)
                for i in range(len(NAMES))]  # fmt: skip
    progress[1].best = inf
    return SimpleNamespace(
        tasks=tasks, progress=progress, untuned={"fused_dense": 0.5}, done=done, trials=128, phase="measure", batch=4,
        current=0, latency=lambda: 6.03,
    )  # fmt: skip


def test_a_pipe_gets_lines_and_quiet_gets_nothing(capsys: Any) -> None:
    for mode, told in (
        ("human", ["import the network", "tuned: 13/128 programs, sum of tasks 6030 ms"]),
        ("quiet", []),
    ):
        with shown_progress(Output(mode)) as progress:
            progress.stage("import the network")
            progress.session("tuned", view())
            progress.session("tuned", view(14))  # too soon for another line
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.splitlines() == told

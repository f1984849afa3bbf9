"""Progress in windows of any width, in a pipe, and while TVM writes between its lines; and the time that is left."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from io import StringIO
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tchub.hub.cli.output import Output
from tchub.hub.cli.progress import Eta, left_text, shown_progress
from tchub.hub.cli.terminal import Terminal

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


def lines_of(renderable: Any, width: int) -> list[str]:
    console = Terminal(width=width, file=StringIO(), force_terminal=True, color_system=None)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


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
        lines = [line.replace(", time left unknown", "") for line in shown.err.splitlines()]
        assert lines == told


PROGRAM = """
import os, sys, time
sys.path.insert(0, {tests!r})
from test_cli_progress import view
from tchub.hub.cli.native_log import native_output_logged
from tchub.hub.cli.output import Output
from tchub.hub.cli.parts import Column
from tchub.hub.cli.progress import shown_progress
out = Output()
with native_output_logged(out, {folder!r}) as log, shown_progress(out, log) as progress:
    progress.stage("import the network")
    time.sleep(0.4)
    for done in range(13, 16):
        os.write(2, b"x.cc:1: Warning: Fast mode segfaults\\n")
        print("words of a compiler")
        progress.session("tuned", view(done))
        time.sleep(0.4)
out.note("all is done and this sentence is longer than the window")
"""


def on_terminal(program: str, columns: int) -> str:
    """What a terminal of so many columns gets, standard output and error together."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env=env | {"TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    told = b""
    while True:
        try:
            told += os.read(ours, 65536)
        except OSError:  # the last process closed its end
            break
    os.close(ours)
    assert child.wait() == 0, told.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told.decode())


def test_nothing_of_tvm_stands_between_the_lines_of_a_terminal(tmp_path: Any) -> None:
    told = on_terminal(PROGRAM.format(tests=os.path.dirname(__file__), folder=str(tmp_path)), 40)
    assert "import the network" in told
    assert "tuned 15/128" in told
    assert "Fast mode" not in told
    assert "compiler" not in told
    assert re.search(r"[123] warnings? in ", told), "the count stands on the screen while the run goes on"
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", told)]
    assert max(map(len, lines)) <= 40
    assert lines[-3:-1] == ["all is done and this sentence is longer", "than the window"]
    assert (tmp_path / "tvm.log").read_text().count("Fast mode") == 3


# The time left

# When each stage, phase and (every second) program came, on two cores beside other work: [seconds, stage or end],
# or [seconds, programs measured, phase, tasks that had their first round].
RECORDED = json.loads(Path(__file__).with_name("recorded_runs.json").read_text())


def moment(done: int, phase: str, visited: int, run: dict[str, Any]) -> Any:
    progress = [SimpleNamespace(rounds=int(i < visited), exhausted=False) for i in range(run["tasks"])]
    return SimpleNamespace(done=done, trials=run["trials"], phase=phase, batch=run["batch"], progress=progress)


def replay(run: dict[str, Any], sessions: int = 1) -> Iterator[tuple[float, Any, float | None]]:
    """Give each moment of a run, what happened then, and how much time was said to be left."""
    now = [0.0]
    eta = Eta(sessions, clock=lambda: now[0])
    for number, (seconds, *event) in enumerate(run["events"]):
        now[0] = seconds
        if event[0] == "stage":
            eta.stage()
        elif event[0] != "end":
            done, phase, visited, *label = event
            eta.session(*(label or ["tuned"]), moment(done, phase, visited, run))
        yield seconds, event, eta.left()
        if number + 1 < len(run["events"]):  # the screen asks while nothing happens, too
            now[0] = (seconds + run["events"][number + 1][0]) / 2
            yield now[0], event, eta.left()


def wrong(told: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of pairs of the time said and the true one in seconds: those a factor of two apart, and more than 10 s."""
    return [(said, true) for said, true in told if not true / 2 <= said <= 2 * true and abs(said - true) > 10]


@pytest.mark.parametrize("name", RECORDED)
def test_the_time_left_of_recorded_runs_is_right_within_a_factor_of_two(name: str) -> None:
    run = RECORDED[name]
    end = run["events"][-1][0]
    moments = list(replay(run))
    assert not wrong([(left, end - now) for now, _, left in moments if left is not None])
    first = next(event for _, event, left in moments if left is not None)
    assert first[0] <= 17, "it is told once two rounds are measured"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "time left unknown"), (1.0, "about 5 s left"), (63.0, "about 65 s left"), (100.0, "about 2 min left")],
)
def test_the_time_left_is_said_no_more_exactly_than_it_is_known(seconds: float | None, text: str) -> None:
    assert left_text(seconds) == text

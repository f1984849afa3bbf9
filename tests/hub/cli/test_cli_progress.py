"""The live view of `tchub tune` in windows of any width, in a pipe, and while TVM writes between its lines."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from io import StringIO
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from tchub.hub.cli.output import Output
from tchub.hub.cli.progress import bar_columns, shown_progress, task_table
from tchub.hub.cli.terminal import Column, Terminal, fitting

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


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_the_tasks_fit_the_window_and_every_number_is_whole(width: int) -> None:
    head, *rows, caption = lines_of(task_table(view(), width), width)
    assert all(len(line) <= width for line in (head, *rows, caption))
    assert caption.strip() == "and 17 smaller tasks"
    assert [title for title in ("task", "trials", "best, ms") if title in head] == ["task", "trials", "best, ms"]
    for line in rows:
        assert all(re.fullmatch(r"[\d.]+[*%]?", word) for word in line.split()[1:])
    assert ("untuned, ms" in head) == (width >= 60)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_bars_fit_the_window_with_the_time_that_is_left(width: int) -> None:
    from rich.progress import Progress

    bars = Progress(*bar_columns(width), console=Terminal(width=width, file=StringIO(), force_terminal=True))
    bars.add_task("few-shot: cross-validate", total=1200, completed=600, note="3 failed")
    (line,) = lines_of(bars.make_tasks_table(bars.tasks), width)
    assert "600/1200" in line
    assert "-:--:--" in line
    assert "…" not in line


def test_columns_leave_in_their_order_before_a_text_is_cut() -> None:
    columns = [Column("name", ["x" * 10]), Column("b", ["1" * 8], leaves=2), Column("c", ["2" * 8], leaves=1)]
    kept = {width: [c.title for c in fitting(columns, width)[0]] for width in (30, 29, 20, 19, 9)}
    assert kept == {30: ["name", "b", "c"], 29: ["name", "b"], 20: ["name", "b"], 19: ["name"], 9: ["name"]}
    assert fitting(columns, 9)[1] == {"name": 9}


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

"""Progress in windows of any width and in a pipe, and the log that takes what TVM writes meanwhile."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tchub.hub.cli.output import LOG_NAME, Output, native_output_logged
from tchub.hub.cli.progress import shown_progress

NAMES = ["fused_conv2d_add_relu_with_a_long_name_indeed", "fused_dense", "reshape", *map("small_{}".format, range(30))]


def view(done: int = 13) -> Any:
    """A session of 33 tasks of which the first three are heavy; the second has no valid program."""
    tasks = [SimpleNamespace(name=n, weight=12, task_id=n) for n in NAMES]
    state = {"rounds": 1, "open": lambda: True, "exhausted": False}
    progress = [SimpleNamespace(best=inf if i == 1 else 1e-3, trials=i, **state) for i in range(len(NAMES))]
    return SimpleNamespace(
        tasks=tasks, progress=progress, untuned={"fused_dense": 0.5}, done=done, trials=128, phase="measure", batch=4,
        current=0, latency=lambda: 6.03,
    )  # fmt: skip


LINES = ["import the network", "it has 33 tasks", "tuned: 13/128 programs, sum of tasks 6030 ms"]


@pytest.mark.parametrize(("mode", "lines"), [("human", LINES), ("quiet", [])])
def test_a_pipe_gets_lines_and_quiet_gets_nothing(capsys, mode, lines):
    with shown_progress(Output(mode)) as progress:
        progress.stage("import the network")
        progress.note("it has 33 tasks")
        progress.session("tuned", view())
        progress.session("tuned", view(14))  # too soon for another line
    shown = capsys.readouterr()
    assert (shown.out, shown.err.splitlines()) == ("", lines)


PROGRAM = """
import os, sys, time
sys.path.insert(0, {tests!r})
from test_cli_progress import view
from tchub.hub.cli.output import Output
from tchub.hub.cli.progress import shown_progress
out = Output()
with shown_progress(out, {folder!r}) as progress:
    progress.stage("import the network")
    time.sleep(0.4)
    for done in range(13, 16):
        os.write(2, b"x.cc:1: Warning: Fast mode segfaults\\n")
        print("text of a compiler")
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
    shown = b""
    with suppress(OSError):  # the last process closed its end
        while True:
            shown += os.read(ours, 65536)
    os.close(ours)
    assert child.wait() == 0, shown.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_nothing_of_tvm_stands_between_the_lines_of_a_terminal(tmp_path):
    shown = on_terminal(PROGRAM.format(tests=os.path.dirname(__file__), folder=str(tmp_path)), 40)
    assert re.search(r"import the network.*tuned +15/128", shown, re.DOTALL)
    assert not re.search("Fast mode|compiler", shown)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown)]
    assert max(map(len, lines)) <= 40
    assert lines[-3:-1] == ["all is done and this sentence is longer", "than the window"]
    assert (tmp_path / "tvm.log").read_text().count("Fast mode") == 3


TVM = "[10:00:00] transform.h:1261: Warning: Fast mode segfaults when there are out-of-bounds indices."
LOGGED = """
import os, signal, subprocess, sys, warnings
from tchub.hub.cli.output import Output, native_output_logged

out = Output(sys.argv[2])
with native_output_logged(out, sys.argv[1]):
    os.write(2, b"{tvm}\\n")
    os.write(1, b"text of a compiler\\n")
    subprocess.run(["sh", "-c", "echo a worker: warning: slow >&2"])
    warnings.warn("torch says so", FutureWarning)
    out.note("a line of progress")
    {inside}
out.data({{"latency": 1}}, "{{'latency': 1}}")
"""


def logged(folder: Path, inside: str = "pass", mode: str = "human") -> subprocess.CompletedProcess[str]:
    program = LOGGED.format(tvm=TVM, inside=inside)
    command = [sys.executable, "-c", program, str(folder), mode]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("mode", ["human", "quiet", "json"])
def test_native_words_go_to_the_log_and_tchubs_own_to_the_person(tmp_path, mode):
    done = logged(tmp_path / "out", mode=mode)
    shown = ["a line of progress", f"3 warnings in {tmp_path / 'out' / LOG_NAME}"]
    assert done.stderr.splitlines() == ([] if mode == "quiet" else shown)
    assert json.loads(done.stdout.replace("'", '"')) == {"latency": 1}
    log = (tmp_path / "out" / LOG_NAME).read_text()
    for text in (TVM, "text of a compiler", "a worker", "FutureWarning: torch says so"):
        assert text in log


def test_an_error_reaches_the_screen_and_not_the_log(tmp_path):
    done = logged(tmp_path, "raise ValueError('the end')")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: the end")
    assert "the end" not in (tmp_path / LOG_NAME).read_text()


def test_a_crash_of_native_code_leaves_its_stack_on_the_screen(tmp_path):
    done = logged(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_an_empty_log_is_not_kept_and_a_folder_that_cannot_be_written_changes_nothing(tmp_path):
    with native_output_logged(Output("quiet"), tmp_path / "out"):
        pass
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").touch()
    with native_output_logged(Output("quiet"), tmp_path / "file" / "out"):
        pass

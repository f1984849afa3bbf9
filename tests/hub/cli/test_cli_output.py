"""The log that takes TVM's words while tchub shows its progress: what goes where, whatever the run ends with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tchub.hub.cli.output import LOG_NAME, Output, native_output_logged

TVM = "[10:00:00] transform.h:1261: Warning: Fast mode segfaults when there are out-of-bounds indices."
PROGRAM = """
import os, signal, subprocess, sys, warnings
from tchub.hub.cli.output import Output, native_output_logged

out = Output(sys.argv[2])
with native_output_logged(out, sys.argv[1]):
    os.write(2, b"{tvm}\\n")
    os.write(1, b"words of a compiler\\n")
    subprocess.run(["sh", "-c", "echo a worker: warning: slow >&2"])
    warnings.warn("torch says so", FutureWarning)
    out.note("a line of progress")
    {inside}
out.data({{"latency": 1}}, "{{'latency': 1}}")
"""


def run(folder: Path, inside: str = "pass", mode: str = "human") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(tvm=TVM, inside=inside)
    command = [sys.executable, "-c", program, str(folder), mode]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("mode", ["human", "quiet", "json"])
def test_native_words_go_to_the_log_and_tchubs_own_to_the_person(tmp_path: Path, mode: str) -> None:
    done = run(tmp_path / "out", mode=mode)
    told = ["a line of progress", f"3 warnings in {tmp_path / 'out' / LOG_NAME}"]
    assert done.stderr.splitlines() == ([] if mode == "quiet" else told)
    assert json.loads(done.stdout.replace("'", '"')) == {"latency": 1}
    log = (tmp_path / "out" / LOG_NAME).read_text()
    for words in (TVM, "words of a compiler", "a worker", "FutureWarning: torch says so"):
        assert words in log


def test_an_error_reaches_the_screen_and_not_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, "raise ValueError('the end')")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: the end")
    assert "died" not in done.stderr
    assert "the end" not in (tmp_path / LOG_NAME).read_text()


def test_a_crash_of_native_code_leaves_its_stack_on_the_screen(tmp_path: Path) -> None:
    done = run(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_an_empty_log_is_not_kept_and_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    with native_output_logged(Output("quiet"), tmp_path / "out"):
        pass
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").touch()
    with native_output_logged(Output("quiet"), tmp_path / "file" / "out"):
        pass

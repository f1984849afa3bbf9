"""A session on a lent card, from packing to the last step, with the stand-in in the card's place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scripts import gpu_session

HUB = Path(__file__).parents[1] / "hub"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network, and a card that this process's children find too."""
    monkeypatch.syspath_prepend(str(HUB))
    import torch
    from paper_card import PaperCard
    from tiny_network import Tiny

    PaperCard.install(tmp_path / "card", monkeypatch)
    path = tmp_path / "tiny.pt2"
    torch.export.save(torch.export.export(Tiny().eval(), (torch.randn(16, 24),)), path)
    return path


def session(tmp_path: Path, network: Path, *options: str) -> list[dict[str, Any]]:
    """Run the script in a process of its own; return its journal."""
    small = ["--networks", str(network), "--workload", str(network), "--trials", "4", "--budget", "12"]
    command = [sys.executable, gpu_session.__file__, "run", *small, "--programs", "8", "--checkpoint", "tcl-t4"]
    # Float32 has the same steps, without the precision in their names.
    command += ["--suite", "pool-average-7x7", "--compare", "torch.compile", "--precisions", "float16"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out"), *options], check=False, capture_output=True)
    assert done.returncode < 7, done.stderr.decode()
    return [json.loads(line) for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_session_runs_to_its_end_and_the_next_call_does_nothing_twice(tmp_path: Path, tiny: Path) -> None:
    rows = session(tmp_path, tiny, "--work", str(tmp_path / "work"))
    steps = ("doctor", "adapt", "tune-tiny-float16", "collect-float16")
    assert [(row["step"], row["code"]) for row in rows] == [(step, 0) for step in steps], [
        row["last_words"] for row in rows if row["code"]
    ]
    assert {"untuned", "tuned"} <= set(rows[2]["figures"]["latency"])
    assert rows[2]["figures"]["runs"]["tuned"]["trials"] == 4
    # Another machine goes on with the state alone.
    shutil.rmtree(tmp_path / "work")
    again = session(tmp_path, tiny, "--work", str(tmp_path / "other"), "--state", str(tmp_path / "out/state.tar.xz"))
    assert again == rows
    assert (tmp_path / "other" / "corpus-float16").is_dir()


def test_what_is_packed_is_unpacked_from_its_parts_beside_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str], **_: Any) -> None:
        """As pip does: a wheel that no part can hold."""
        wheels = Path(command[command.index("-d") + 1])
        wheels.mkdir()
        with zipfile.ZipFile(wheels / "one-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("one/__init__.py", "VALUE = 1\n")
            wheel.writestr("one/data.bin", bytes(range(256)) * 16)
            wheel.writestr("one/noise.bin", random_bytes(3 << 19))
            wheel.writestr("tvm/3rdparty/cutlass.h", "// of no use there")

    monkeypatch.setattr(subprocess, "run", download)
    monkeypatch.setattr(gpu_session, "_BLOCK", 1 << 19)  # several streams of xz
    parts = gpu_session.pack(tmp_path / "packed", 1)
    monkeypatch.undo()
    assert [part.stat().st_size <= 1 << 20 for part in parts] == [True, True]
    for _ in range(2):
        gpu_session.unpack(tmp_path / "packed", site := tmp_path / "site")
    assert (site / "one" / "noise.bin").read_bytes() == random_bytes(3 << 19)
    assert not (site / "tvm").exists()
    code = "import one, tchub.zoo.errors, importlib.metadata as m; print(one.VALUE, m.version('tchub'))"
    command = [sys.executable, "-S", "-c", code]
    assert (
        subprocess.run(command, env={"PYTHONPATH": str(site)}, capture_output=True, check=True).stdout == b"1 0.1.0\n"
    )


def random_bytes(count: int) -> bytes:
    import random

    return random.Random(0).randbytes(count)

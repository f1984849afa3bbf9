"""The page about a new device, command by command, on a small log of invented programs."""

import json
import lzma
import re
import shlex
from itertools import product
from pathlib import Path

import pytest
from tchub.hub.cli import main

PAGE = Path(__file__).resolve().parents[3] / "docs" / "new-device.md"


def record(m: int, n: int, rows: int, columns: int) -> str:
    """A tiled matrix product m x 64 x n in Ansor's form; wide inner tiles are fast, tall ones fill the registers."""
    steps = [
        *(["SP", 2, 0, m, [rows], 1], ["SP", 2, 2, n, [columns], 1], ["RE", 2, [0, 2, 4, 1, 3]]),
        *(["AN", 2, 0, 3], ["AN", 2, 4, 2]),
    ]
    seconds = m * n * 64e-9 * (1 / columns + 0.02 * rows + 0.1 * (rows == 1))
    task = [json.dumps(["matmul_layer", m, 64, n]), "llvm -keys=cpu", [4, 64, 64, 0, 0, 0, 0, 0], "", 0, []]
    return json.dumps({"i": [task, [[], steps]], "r": [[seconds, seconds * 1.01], 0, 1.0, 1.6e9], "v": "v0.6"})


@pytest.mark.slow
def test_every_command_of_the_page_does_what_it_says(tmp_path, monkeypatch, capsys, learnt_briefly):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for m in (16, 32, 64, 128):
        programs = product([16, 48, 96], [1, 2, 4, 16], [1, 2, 4, 16])
        with lzma.open(tmp_path / "logs" / f"{m}.json.xz", "wt") as log:
            log.write("\n".join(record(m, *program) for program in programs))
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) > 8
    forms: set[str] = set()
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "tchub"
        # Of commands that differ in numbers alone, the first.
        if (form := re.sub(r"\d+", "N", command)) in forms:
            continue
        forms.add(form)
        assert main(arguments) == 0, (command, *capsys.readouterr())
    card = (tmp_path / "tilenet-board" / "checkpoint" / "README.md").read_text()
    assert "CC-BY-4.0" in card

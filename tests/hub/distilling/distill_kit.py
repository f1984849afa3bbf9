"""Tiny corpora, a knowledge base of two of them, and `tchub distill` on them in one pass of each phase."""

from __future__ import annotations

import json
from pathlib import Path

from device_corpora import RECIPE, make_corpus
from tchub.hub.cli import main


def distill(capsys, *args) -> dict:
    code = main(["distill", *map(str, args), "--epochs", "1", "--json"])
    return json.loads(capsys.readouterr().out) | {"exit_code": code}


def make_corpora(root: Path) -> dict[str, Path]:
    """Ten tasks each, from the number given; each tests on its first one, which another may have measured too."""
    first = {"epyc": 0, "xeon": 5, "graviton": 15, "ryzen-3700x": 8, "t4": 0}
    made = {device: make_corpus(root / f"on-{device}", device, start) for device, start in first.items()}
    made["tiny"] = make_corpus(root / "tiny", "epyc", 30, count=1)
    (root / "recipe.yaml").write_text(f"{RECIPE}groups_per_batch: 4\n")
    return made | {"recipe": root / "recipe.yaml"}


def make_base(corpora: dict[str, Path], out: Path) -> Path:
    """A knowledge base of epyc and xeon."""
    given = ["distill", "new:tcl", "--corpus", corpora["epyc"], "--corpus", corpora["xeon"], "--out", out]
    given += ["--recipe", corpora["recipe"], "--epochs", 1, "--weights-licence", "Apache-2.0", "--quiet"]
    assert main([str(part) for part in given]) == 0
    return out


def changed(base: Path, folder: Path, **fields) -> Path:
    """A copy of the base's files with another config."""
    folder.mkdir()
    for name in ("model.safetensors", "metrics.json", "README.md"):
        (folder / name).write_bytes((base / name).read_bytes())
    config = json.loads((base / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder

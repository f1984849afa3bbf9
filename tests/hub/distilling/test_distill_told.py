"""What `tchub distill` tells of a device beside its scores: that the base knew it better before."""

from __future__ import annotations

import json
from dataclasses import replace

from distill_kit import changed, distill
from tchub.hub.cli import main
from tchub.zoo.adapt.continual import Change
from tchub.zoo.adapt.knowledge_base import grow, learnt_devices
from tchub.zoo.models import Checkpoint


def test_a_device_that_the_base_knew_better_before_is_learnt_with_a_warning(
    capsys, tmp_path, base, corpora, monkeypatch
):
    change = Change(0.8, 0.625, (-0.25, -0.1))
    real = grow.add_device
    monkeypatch.setattr(grow, "add_device", lambda *args: replace(real(*args), change=change))
    words = ["distill", base, "--corpus", corpora["graviton"], "--out", tmp_path / "more", "--epochs", 1]
    assert main([str(word) for word in words]) == 0
    said = capsys.readouterr().out
    assert "warning: on-graviton: the base ranks its validation tasks worse" in said
    assert "0.800 before it and 0.625 after it" in said
    learnt = learnt_devices(Checkpoint.load(tmp_path / "more").config)
    assert [bool(device.warning) for device in learnt] == [False, False, True]
    assert main([*map(str, words), "--resume"]) == 0
    assert "warning: on-graviton" in capsys.readouterr().out, "a run that goes on says it too"


def test_a_base_without_a_licence_is_told_how_to_get_one(capsys, tmp_path, corpora):
    words = ["distill", "new:tcl", "--corpus", corpora["epyc"], "--out", tmp_path / "kb", "--epochs", 1]
    words = [str(word) for word in (*words, "--recipe", corpora["recipe"])]
    assert main(words) == 0
    assert "warning: the card names no licence" in capsys.readouterr().err
    assert main([*words, "--resume", "--weights-licence", "Apache-2.0"]) == 0
    assert "no licence" not in capsys.readouterr().err
    assert "license: apache-2.0" in (tmp_path / "kb" / "README.md").read_text()
    assert json.loads((tmp_path / "kb" / "metrics.json").read_text())["corpus"] == "the mean over 1 corpus"


def test_the_first_device_of_a_new_base_is_learnt_with_the_passes_of_both_phases(capsys, tmp_path, corpora):
    words = ["distill", "new:tcl", "--corpus", corpora["epyc"], "--out", tmp_path / "kb", "--epochs", 1]
    assert main([str(word) for word in (*words, "--recipe", corpora["recipe"])]) == 0
    assert capsys.readouterr().err.count("first device, epoch") == 2
    assert main(["distill", "--help"]) == 0
    assert "passes of both" in " ".join(capsys.readouterr().out.split())


def test_a_fall_within_its_uncertainty_is_no_warning(capsys, tmp_path, base, corpora, monkeypatch):
    change = Change(0.8, 0.7, (-0.25, 0.05))
    real = grow.add_device
    monkeypatch.setattr(grow, "add_device", lambda *args: replace(real(*args), change=change))
    done = distill(capsys, base, "--corpus", corpora["graviton"], "--out", tmp_path / "more")
    assert done["added"][0]["warning"] is None


def test_a_base_of_a_release_that_knew_no_warnings_is_read(base, tmp_path):
    config = json.loads((base / "config.json").read_text())
    for device in config["lineage"]["devices"]:
        del device["warning"]
    older = changed(base, tmp_path / "older", lineage=config["lineage"])
    assert [device.gate is None for device in learnt_devices(Checkpoint.load(older).config)] == [True, False]

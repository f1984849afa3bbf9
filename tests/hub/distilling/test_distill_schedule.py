"""`tchub distill --schedule paper`: the phases have the epochs, rates and batches of TCL, section 7.1.3."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from distill_kit import distill, make_base
from tchub.zoo.adapt.continual import PAPER, ContinualConfig
from tchub.zoo.adapt.knowledge_base import Beginning, DistillSettings, grow_base
from tchub.zoo.adapt.knowledge_base.record import Title
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint
from tchub.zoo.training import loop
from tchub.zoo.training.errors import TrainConfigError


def test_both_phases_really_have_the_papers_epochs_rates_and_batches(tmp_path, corpora, monkeypatch):
    """100 epochs over two devices: of a new base the first has both shares at once, the second one a phase."""
    rates, batches = defaultdict(list), set()
    real = loop.epoch_batches

    def noted(data, groups, programs, rng):
        batches.add((groups, programs))
        return real(data, groups, programs, rng)

    def hear(corpus, phase, entry):
        if phase != "done":
            rates[corpus, phase].append(entry["learning_rate"])

    monkeypatch.setattr(loop, "epoch_batches", noted)
    opened = [Corpus.open(corpora[name]) for name in ("epyc", "xeon")]
    settings = DistillSettings(recipe=str(corpora["recipe"]), schedule="paper")
    grow_base(Beginning.new("tcl"), opened, tmp_path, Title("tcl-kb-cpu", "1.0.0"), settings, on_event=hear)
    assert {key: len(told) for key, told in rates.items()} == {
        ("on-epyc", "train"): 50, ("on-xeon", "learn"): 25, ("on-xeon", "distill"): 25,
    }  # fmt: skip
    for phase in (rates["on-epyc", "train"], rates["on-xeon", "learn"]):
        assert phase[0] == phase[10] == phase[20] == 7e-4, "a cosine of ten epochs"
        assert phase[0] > phase[5] > phase[9]
    steps = [rates["on-xeon", "distill"][epoch] for epoch in (0, 4, 5, 9, 10)]
    assert steps == pytest.approx([7e-4, 7e-4, 7e-5, 7e-5, 7e-6]), "a tenth, every five epochs"
    assert batches == {(8, 128)}
    told = json.loads((tmp_path / "devices" / "02-on-xeon" / "device.json").read_text())["config"]
    assert told == PAPER.divided(100, 2).as_dict()


def test_the_command_takes_the_schedule_and_tells_it(capsys, tmp_path, corpora):
    base = make_base(corpora, tmp_path / "kb")
    capsys.readouterr()
    done = distill(capsys, base, "--corpus", corpora["graviton"], "--schedule", "paper", "--out", tmp_path / "more")
    assert done["exit_code"] == 0
    training = Checkpoint.load(tmp_path / "more").config.training
    assert "--schedule paper" in training["command"]
    assert training["settings"]["schedule"] == "paper"
    told = json.loads((tmp_path / "more" / "devices" / "01-on-graviton" / "device.json").read_text())["config"]
    assert (told["loss"], told["learn_rate"], told["groups_per_batch"]) == ("lambda_rank", 7e-4, 8)
    assert (told["learn_epochs"], told["distill_epochs"]) == (1, 1), "--epochs says otherwise"
    assert "schedule" not in Checkpoint.load(base).config.training["settings"]


def test_the_epochs_are_divided_over_the_devices_of_the_run_and_their_phases():
    paper = DistillSettings(schedule="paper")
    for devices, epochs in ((1, 50), (2, 25), (5, 10), (100, 1)):
        phases = paper.phases("tilenet", devices=devices)
        assert (phases.learn_epochs, phases.distill_epochs) == (epochs, epochs)
        assert paper.first("tilenet", devices).epochs == 2 * epochs
    first = paper.first("tilenet", 2)
    assert (first.arch, first.loss, first.optimizer, first.average) == ("tilenet", "lambda_rank", "adam", 0)
    assert (paper.phases("tcl").strength, DistillSettings(schedule="paper", ewc=False).phases("tcl").strength) == (
        1e4,
        0,
    )


def test_without_a_word_the_schedule_is_tchubs():
    assert DistillSettings().phases("tilenet", devices=5) == ContinualConfig()
    with pytest.raises(TrainConfigError, match="papre"):
        DistillSettings(schedule="papre")

"""`tchub train` over several corpora, from a checkpoint, and in two processes of either launcher."""

import csv
import json
import re
import sys

import pytest
from accelerate.commands.launch import launch_command, launch_command_parser
from device_corpora import RECIPE, make_corpus
from tchub.cards.render import render_card
from tchub.hub.cli import main
from tchub.zoo.models import Checkpoint
from torch.distributed import run as torchrun
from torch.distributed.run import config_from_args


@pytest.fixture
def epyc(tmp_path):
    return make_corpus(tmp_path / "on-epyc", "epyc", 0)


@pytest.fixture
def xeon(tmp_path):
    return make_corpus(tmp_path / "on-xeon", "xeon", 5)


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"{RECIPE}finetune: {{epochs: 1, learning_rate: 0.001}}\n")
    return tmp_path / "recipe.yaml"


def test_the_target_judges_and_the_other_corpus_is_learnt_from_too(run, tmp_path, epyc, xeon, recipe):
    out = tmp_path / "run"
    _, done = run.json("train", recipe, "--corpus", epyc, "--corpus", xeon, "--per-task", 4, "--out", out)
    assert (done["name"], done["corpus"], done["split"]) == ("tcl-epyc", "on-epyc", "test")
    assert [c["name"] for c in done["trained_on"]] == ["on-epyc", "on-xeon"]
    assert all(c["programs"] == 4 * c["tasks"] > 0 for c in done["trained_on"])
    training = Checkpoint.load(out).config.training
    assert "--corpus on-epyc --corpus on-xeon --per-task 4" in training["command"]
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["results"] == done["results"]
    assert done["untrusted"] == ["metaschedule/matmul"], "its latencies have nothing to do with the schedules"
    card = render_card(json.loads((out / "config.json").read_text()), metrics)
    assert re.search(r"^\| metaschedule \| matmul \|.*\| \*\*no\*\* \|$", card, re.MULTILINE)


def test_a_metric_of_no_comparable_pair_is_null(run, tmp_path, recipe):
    """Programs of one latency have no order: their pairwise accuracy is unknown, and JSON has no NaN."""
    alike = make_corpus(tmp_path / "alike", "epyc", 0, seconds_of=lambda i, j: 1e-3)
    assert run.json("train", recipe, "--corpus", alike, "--out", tmp_path / "run")[0] == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert metrics["results"]["model"]["pairwise"] is None
    assert metrics["results"]["model"]["top1"] == 1.0
    assert Checkpoint.load(tmp_path / "run").config.training["best_epoch"] == 1, "the last, as without a validation set"


def test_from_a_checkpoint(run, tmp_path, epyc, xeon, recipe):
    run.json("train", recipe, "--corpus", xeon, "--out", tmp_path / "base")
    more = ["--checkpoint", tmp_path / "base", "--out", tmp_path / "tuned"]
    assert run.json("train", recipe, "--corpus", epyc, *more)[1]["epochs"] == 1
    config = Checkpoint.load(tmp_path / "tuned").config
    assert (config.name, config.training["init"]) == ("tcl-epyc", "tcl-xeon@0.1.0")


def curve(folder) -> list[tuple[float, float]]:
    """Loss and validation score of every epoch."""
    with (folder / "curve.csv").open() as file:
        return [(float(row["loss"]), float(row["val_pairwise"])) for row in csv.DictReader(file)]


@pytest.mark.usefixtures("own_signals")
def test_two_processes_write_the_checkpoint_of_one(tmp_path, epyc, recipe, capfd, monkeypatch):
    """By accelerate, whose processes are forks: PyTorch takes seconds to import.

    What torchrun starts, tests/zoo/training/test_distributed.py has.
    """

    def forked(arguments):
        config, _, command = config_from_args(arguments)
        start = command.index("train")
        assert command[start - 2 : start] == ["-m", "tchub.hub.cli"]
        config.start_method = "fork"
        return config, lambda *own: sys.exit(main([*own])), command[start:]

    monkeypatch.setattr(torchrun, "config_from_args", forked)
    args = [str(recipe), "--corpus", str(epyc), "--json"]
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    options += ["--mixed_precision", "no", "--dynamo_backend", "no", "-m", "tchub.hub.cli", "train", *args]
    launch_command(launch_command_parser().parse_args([*options, "--out", str(tmp_path / "two")]))
    two = json.loads(capfd.readouterr().out)  # of the first process alone
    assert main(["train", *args, "--out", str(tmp_path / "one")]) == 0
    one = json.loads(capfd.readouterr().out)
    assert two["results"]["model"]["pairwise"] == pytest.approx(one["results"]["model"]["pairwise"], abs=0.05)
    for (loss, score), (loss_alone, score_alone) in zip(curve(tmp_path / "two"), curve(tmp_path / "one"), strict=True):
        assert loss == pytest.approx(loss_alone, rel=1e-4)
        assert score == pytest.approx(score_alone, abs=0.01)

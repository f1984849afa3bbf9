"""From a machine to a checkpoint: all nine steps with a fake measurer, stopped anywhere, gone on, changed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from contribute_kit import (
    FACTS,
    Contribution,
    FakeMeasurer,
    contents,
    fake_machine,
    forget_from,
    outcomes,
    small_config,
)
from registry_kit import refused
from tchub.hub.publishing.check import check
from tchub.hub.publishing.contribute import STATE_FILE, STEPS, ContributionSteps, contribute
from tchub.hub.publishing.contribute_facts import corpus_content, recipe_of
from tchub.zoo.corpus import Corpus, CorpusError
from tchub.zoo.files import LockError, locked_folder
from tchub.zoo.models import Checkpoint, Ensemble
from tchub.zoo.training import TrainingError

NAMES = list(STEPS)


def test_a_contribution_is_a_checkpoint_that_passes_every_check(finished: Contribution) -> None:
    assert [step.name for step in finished.steps] == NAMES
    assert {step.outcome for step in finished.steps} == {"done"}
    files = {path.name for path in finished.checkpoint.iterdir()}
    assert files == {"config.json", "model.safetensors", "metrics.json", "README.md", "plots"}
    report = check(finished.checkpoint, corpora=[finished.corpus])
    assert report.ok, report.failed


def test_the_card_has_the_facts_and_the_baselines(finished: Contribution) -> None:
    lineage = Checkpoint.load(finished.checkpoint).config.lineage
    assert (lineage["authors"], lineage["weights_licence"]) == ("Ada Lovelace", "Apache-2.0")
    assert Corpus.open(finished.corpus).meta["licence"] == "CC-BY-4.0"
    card = (finished.checkpoint / "README.md").read_text()
    assert "CC-BY-4.0" in card
    assert "A toy." in card
    results = json.loads((finished.checkpoint / "metrics.json").read_text())["results"]
    assert set(results) == {"model", "random", "xgboost", "ten_percent"}
    notes = "\n".join(finished.notes)
    # Measured here: a toy may rank all of its few programs rightly.
    assert re.search(r"this checkpoint: top-1 [01]\.\d", notes)
    assert "random choice: top-1 0." in notes


def test_the_same_command_does_nothing_twice(mine: Path, quick: FakeMeasurer) -> None:
    files = contents(mine)
    assert set(outcomes(contribute(small_config(mine))).values()) == {"kept"}
    assert quick.paid == 0
    assert files == contents(mine)


@pytest.mark.usefixtures("quick")
def test_a_start_from_another_checkpoint_is_named_and_is_a_baseline(mine: Path, finished: Contribution) -> None:
    steps = outcomes(contribute(small_config(mine, checkpoint=str(finished.checkpoint), recipe=None)))
    config = Checkpoint.load(mine / "checkpoint").config
    version = Checkpoint.load(finished.checkpoint).config.version
    assert config.lineage["base"] == config.training["init"] == f"tcl-epyc@{version}"
    assert {"base", "random"} <= set(json.loads((mine / "checkpoint" / "metrics.json").read_text())["results"])
    assert [name for name, outcome in steps.items() if outcome == "kept"] == ["preflight", "device", "facts", "collect"]


# Stopped and gone on


class Stopped(Exception):
    """Stands for a kill."""


METHODS = {"preflight": "check_ready", "device": "find_device", "facts": "gather_facts", "card": "write_card"}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", NAMES)
def test_stopped_in_a_step_it_goes_on_with_that_step(mine: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(mine)[Path("model.safetensors")]
    method = METHODS.get(name, name)
    forget_from(mine, name)
    run = getattr(ContributionSteps, method)

    def stop(*args: Any) -> Any:
        run(*args)
        raise Stopped  # all is written but the state, as a kill at the worst moment leaves it

    with monkeypatch.context() as patch:
        patch.setattr(ContributionSteps, method, stop)
        with pytest.raises(Stopped):
            contribute(small_config(mine))
    steps = outcomes(contribute(small_config(mine)))
    number = NAMES.index(name)
    assert [steps[earlier] for earlier in NAMES[:number]] == ["kept"] * number
    assert steps[name] == "done"
    if number > NAMES.index("collect"):  # a collection that ran out of new programs looks for some again
        assert contents(mine)[Path("model.safetensors")] == before
    assert set(outcomes(contribute(small_config(mine))).values()) == {"kept"}


def test_a_collection_that_is_stopped_pays_for_no_program_twice(tmp_path: Path, monkeypatch: Any) -> None:
    def stop_at_four(count: int) -> None:
        if count == 4:
            raise Stopped

    small = small_config(tmp_path / "mine", workload=("dense-small", "dense-row"), programs=16)
    first, second = FakeMeasurer(stop_at_four), FakeMeasurer()
    fake_machine(monkeypatch, first)
    with pytest.raises(Stopped):
        contribute(small)
    fake_machine(monkeypatch, second)
    monkeypatch.setattr(ContributionSteps, "train", lambda *_: (_ for _ in ()).throw(Stopped))
    with pytest.raises(Stopped):
        contribute(small)
    state = json.loads((tmp_path / "mine" / STATE_FILE).read_text())["steps"]
    assert first.paid + second.paid == state["collect"]["facts"]["programs"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("change", "first"), [("limits", "facts"), ("seed", "collect"), ("recipe", "train")])
def test_what_depends_on_a_changed_input_is_done_again(mine: Path, change: str, first: str) -> None:
    other = mine.parent / "other.toml"
    changes: dict[str, Any] = {
        "limits": {"facts": msgspec.structs.replace(FACTS, limits=("Another.",))},
        "seed": {"seed": 1},
        "recipe": {"recipe": str(other)},
    }
    config = small_config(mine, **changes[change])
    other.write_text(Path(str(small_config(mine).recipe)).read_text().replace("epochs = 2", "epochs = 3"))
    notes: list[str] = []
    steps = outcomes(contribute(config, note=notes.append))
    assert next(name for name in NAMES if steps[name] == "done") == first
    assert steps["check"] == "done"
    assert any(f"{first}:" in note and "again" in note for note in notes), notes
    if change == "limits":
        assert steps["train"] == "kept", "a limit changes the card, not the weights"


@pytest.mark.usefixtures("quick")
def test_a_file_that_was_touched_is_made_again(mine: Path) -> None:
    card = mine / "checkpoint" / "README.md"
    before = card.read_text()
    card.write_text(before.replace("Ada", "Eve"))
    steps = outcomes(contribute(small_config(mine)))
    assert (steps["evaluate"], steps["card"]) == ("kept", "done")
    assert card.read_text() == before


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99, "steps": {}}', '{"format": 1, "steps": {"train": 7}}'])
def test_a_damaged_or_newer_state_is_refused_and_nothing_is_touched(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    with refused("state"):
        contribute(small_config(tmp_path))
    assert (tmp_path / STATE_FILE).read_text() == text


def test_two_processes_do_not_work_in_one_folder(tmp_path: Path) -> None:
    with locked_folder(tmp_path), pytest.raises(LockError, match="another process"):
        contribute(small_config(tmp_path))


HANGING = """
import sys, time
from pathlib import Path
from tchub.hub.publishing.contribute import ContributionSteps, contribute
from tchub.hub.publishing.contribute_facts import ContributionConfig

def hang(self):
    (self.config.out / "begun").write_text("")
    time.sleep(60)

ContributionSteps.check_ready = lambda self: {"warnings": []}
ContributionSteps.find_device = hang
contribute(ContributionConfig(Path(sys.argv[1])))
"""


def test_a_killed_process_leaves_what_was_finished(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGING, str(tmp_path)]) as process:
        end = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert list(json.loads((tmp_path / STATE_FILE).read_text())["steps"]) == ["preflight"]
    with locked_folder(tmp_path):
        pass


# Corpora


def test_it_goes_on_from_another_directory_with_the_same_corpora(
    finished: Contribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: FakeMeasurer
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    corpus = shutil.copytree(finished.corpus, here / finished.corpus.name)
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    contribute(small_config(Path("mine"), corpora=(Path(corpus.name),)))
    assert Checkpoint.load(Path("mine/checkpoint")).config.training["corpus"]["licence"] == "CC-BY-4.0"
    monkeypatch.chdir(elsewhere)
    steps = contribute(small_config(Path("../here/mine"), corpora=(Path("../here", corpus.name),)))
    assert set(outcomes(steps).values()) == {"kept"}
    assert quick.paid == 0


def test_a_corpus_is_known_by_its_content_and_not_by_its_place(finished: Contribution, tmp_path: Path) -> None:
    def change_fact(name: str, value: object) -> None:
        file = corpus / "corpus.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))

    before, corpus = corpus_content(finished.corpus), shutil.copytree(finished.corpus, tmp_path / finished.corpus.name)
    change_fact("created", "2030-01-01T00:00:00Z")
    assert corpus_content(corpus) == before
    change_fact("licence", "MIT")
    assert corpus_content(corpus) != before
    change_fact("files", {})  # the sizes, which tell a file that was cut short
    before, path = corpus_content(corpus), corpus / "tasks.parquet"
    tasks = pq.read_table(path)
    names = ["another", *tasks["name"].to_pylist()[1:]]
    pq.write_table(tasks.set_column(tasks.schema.get_field_index("name"), "name", [names]), path)
    assert corpus_content(corpus) != before


@pytest.mark.parametrize("name", ["corpus.json", "tasks.parquet", "programs.parquet"])
def test_a_corpus_that_lost_a_file_is_an_error_with_a_remedy(finished: Contribution, tmp_path: Path, name: str) -> None:
    corpus = shutil.copytree(finished.corpus, tmp_path / finished.corpus.name)
    (corpus / name).unlink()
    with pytest.raises(CorpusError, match=name) as caught:
        corpus_content(corpus)
    assert caught.value.remedy


def test_a_start_that_no_recipe_trains_is_refused(finished: Contribution, tmp_path: Path) -> None:
    plain = Checkpoint.load(finished.checkpoint)
    model = Ensemble.around([plain.model, plain.model], (1, 1))
    config = replace(plain.config, name="tcl-epyc+local", arch=model.arch, model=model.config.as_dict())
    replace(plain, config=config, model=model).save(tmp_path / "ensemble")
    with pytest.raises(TrainingError, match="which no recipe trains") as caught:
        recipe_of(small_config(tmp_path, checkpoint=str(tmp_path / "ensemble"), recipe=None))
    assert "plain tcl" in str(caught.value.remedy)

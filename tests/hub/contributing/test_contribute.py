"""From a machine to a checkpoint: all nine steps, with stand-ins for the measuring alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from contribute_kit import Answers, FakeMeasurer, Finished, fake_machine, settings
from hub_client import use_client
from hub_protocol import running
from huggingface_hub import snapshot_download
from tchub.hub.cli import main
from tchub.hub.cli.publish import contribute_command
from tchub.hub.contributing.errors import NotAgreedError
from tchub.hub.contributing.training import recipe_of
from tchub.hub.contributing.walk import NAMES, contribute
from tchub.hub.publishing.check import check
from tchub.hub.publishing.errors import PublishError
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint, Ensemble
from tchub.zoo.training import TrainingError


def test_a_contribution_is_a_checkpoint_that_passes_every_check(finished: Finished) -> None:
    assert [step.name for step in finished.passed] == list(NAMES)
    assert {step.outcome for step in finished.passed} == {"done"}
    files = {path.name for path in finished.checkpoint.iterdir()}
    assert files == {"config.json", "model.safetensors", "metrics.json", "README.md", "plots"}
    report = check(finished.checkpoint, corpora=[finished.corpus])
    assert report.ok, report.failed


def test_the_card_tells_who_and_under_which_licences(finished: Finished) -> None:
    lineage = Checkpoint.load(finished.checkpoint).config.lineage
    assert lineage["authors"] == "Ada Lovelace"
    assert lineage["weights_licence"] == "Apache-2.0"
    assert Corpus.open(finished.corpus).meta["licence"] == "CC-BY-4.0"
    card = (finished.checkpoint / "README.md").read_text()
    assert "CC-BY-4.0" in card
    assert "A toy." in card


def test_its_scores_stand_beside_the_baselines(finished: Finished) -> None:
    results = json.loads((finished.checkpoint / "metrics.json").read_text())["results"]
    assert set(results) == {"model", "random", "xgboost", "ten_percent"}
    said = "\n".join(finished.notes)
    assert "this checkpoint: top-1 0." in said
    assert "random choice: top-1 0." in said


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (folder / "checkpoint").rglob("*") if path.is_file()}


def test_the_same_command_does_nothing_twice(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measurer = FakeMeasurer()
    fake_machine(monkeypatch, measurer)
    files = contents(mine)
    again = contribute(settings(mine))
    assert {step.outcome for step in again} == {"kept"}
    assert measurer.paid == 0
    assert files == contents(mine)


def test_a_start_from_another_checkpoint_is_told_and_is_a_baseline(
    mine: Path, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_machine(monkeypatch, FakeMeasurer())
    monkeypatch.setattr("tchub.hub.publishing.evaluate.BASELINES", ("random",))
    passed = contribute(settings(mine, base=str(finished.checkpoint), recipe=None))
    config = Checkpoint.load(mine / "checkpoint").config
    assert config.lineage["base"] == config.training["init"] == "tcl-epyc@" + _version(finished)
    assert {"base", "random"} <= set(json.loads((mine / "checkpoint" / "metrics.json").read_text())["results"])
    assert [step.name for step in passed if step.outcome == "kept"] == ["preflight", "device", "facts", "collect"]


def test_a_start_that_no_recipe_trains_is_refused(finished: Finished, tmp_path: Path) -> None:
    plain = Checkpoint.load(finished.checkpoint)
    made = Ensemble.around([plain.model, plain.model], (1, 1))
    config = replace(plain.config, name="tcl-epyc+local", arch=made.arch, model=made.config.as_dict())
    replace(plain, config=config, model=made).save(tmp_path / "ensemble")
    with pytest.raises(TrainingError, match="trains the ensemble") as caught:
        recipe_of(settings(tmp_path, base=str(tmp_path / "ensemble"), recipe=None))
    assert "plain tcl" in caught.value.remedy


def _version(finished: Finished) -> str:
    return Checkpoint.load(finished.checkpoint).config.version


def test_given_corpora_are_not_measured_again(finished: Finished, tmp_path: Path, monkeypatch: Any) -> None:
    measurer = FakeMeasurer()
    fake_machine(monkeypatch, measurer)
    monkeypatch.setattr("tchub.hub.publishing.evaluate.BASELINES", ("random",))
    contribute(settings(tmp_path / "other", corpora=(finished.corpus,)))
    assert measurer.paid == 0
    assert Checkpoint.load(tmp_path / "other" / "checkpoint").config.training["corpus"]["licence"] == "CC-BY-4.0"


class Hub:
    """Where a publication would go."""

    def __init__(self) -> None:
        self.calls: list[tuple[Path, str]] = []
        self.index: str | None = None

    def __call__(self, path: Path, repo: str, *, index_repo: str | None, **_: Any) -> Any:
        self.calls.append((path, repo))
        self.index = index_repo
        return type("Done", (), {"url": f"https://hub/{repo}", "as_dict": lambda self: {"repo": repo}})()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setattr("tchub.hub.publishing.publish.publish", found)
    monkeypatch.setattr("tchub.hub.publishing.repository.Repository.require_login", lambda self: None)
    fake_machine(monkeypatch, FakeMeasurer())
    return found


def test_the_whole_way_ends_on_the_hub_with_every_byte(mine: Path, tmp_path: Path, monkeypatch: Any) -> None:
    fake_machine(monkeypatch, FakeMeasurer())
    with running() as server:
        use_client(monkeypatch, tmp_path / "client", server.url)
        monkeypatch.setenv("HF_TOKEN", server.login("hf_ada", "ada", "write"))
        passed = contribute(settings(mine, publish=True, repo="ada/tcl-epyc", confirmed=True))
        tag = passed[-1].facts["published"]["tag"]
        fetched = Path(snapshot_download("ada/tcl-epyc", revision=tag, cache_dir=tmp_path / "elsewhere"))
    ours = {path.relative_to(mine / "checkpoint"): data for path, data in contents(mine).items()}
    theirs = {path.relative_to(fetched): path.read_bytes() for path in fetched.rglob("*") if path.is_file()}
    theirs.pop(Path(".gitattributes"), None)
    assert theirs == ours


def test_it_is_published_when_the_person_agrees(mine: Path, hub: Hub) -> None:
    person = Answers({})
    passed = contribute(settings(mine, publish=True, repo="ada/tcl-epyc"), ask=person)
    assert hub.calls == [(mine / "checkpoint", "ada/tcl-epyc")]
    assert passed[-1].facts == {"published": {"repo": "ada/tcl-epyc"}}
    assert person.asked == [f"Publish {mine / 'checkpoint'} in the Hub repository ada/tcl-epyc?"]
    contribute(settings(mine, publish=True, repo="ada/tcl-epyc"), ask=person)
    assert len(hub.calls) == 1, "what is published is not published again"


def test_without_a_yes_nothing_leaves_the_machine(mine: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotAgreedError, match="ready in"):
        contribute(settings(mine, publish=True, repo="ada/tcl-epyc"), ask=Answers({}, agrees=False))
    assert hub.calls == []


def command(folder: Path, *options: str) -> list[str]:
    """The command line that went on with this contribution before."""
    asked = settings(folder)
    words = ["contribute", "--output", folder, "--networks", ",".join(asked.networks), "--programs", asked.programs]
    words += ["--recipe", asked.recipe, "--authors", "Ada Lovelace", "--weights-licence", "Apache-2.0"]
    words += ["--data-licence", "CC-BY-4.0", "--limit", "A toy.", *options]
    return [str(word) for word in words]


def test_the_command_reports_every_step(mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    fake_machine(monkeypatch, FakeMeasurer())
    assert main(command(mine, "--no-publish", "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in said["steps"]] == list(NAMES)


@pytest.mark.parametrize(
    ("options", "variable", "asked"),
    [
        ([], "", "tchub/index"),
        ([], "lab/index", "lab/index"),
        (["--index-repo", "ada/index"], "lab/index", "ada/index"),
        (["--no-index"], "lab/index", None),
    ],
)
def test_the_command_asks_an_index_to_list_it(
    mine: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, options: list[str], variable: str, asked: str | None
) -> None:
    monkeypatch.setenv("TCHUB_INDEX_REPO", variable)
    assert main(command(mine, "--repo", "ada/tcl-epyc", "--yes", *options)) == 0
    assert hub.calls == [(mine / "checkpoint", "ada/tcl-epyc")]
    assert hub.index == asked


def test_what_is_agreed_to_includes_the_index(mine: Path, hub: Hub) -> None:
    person = Answers({}, agrees=False)
    with pytest.raises(NotAgreedError):
        contribute(settings(mine, publish=True, repo="ada/tcl-epyc", index_repo="tchub/index"), ask=person)
    assert person.asked[0].endswith("in the Hub repository ada/tcl-epyc, and ask the index tchub/index to list it?")


def test_an_index_that_is_no_repository_is_told_before_anything_is_measured(tmp_path: Path, hub: Hub) -> None:
    wanted = settings(tmp_path / "new", publish=True, repo="ada/tcl-epyc", index_repo="no index", confirmed=True)
    with pytest.raises(PublishError, match="'no index' is no repository"):
        contribute(wanted)
    assert not (tmp_path / "new" / "corpora").exists()


def test_the_next_command_publishes_what_is_ready(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_machine(monkeypatch, FakeMeasurer())
    assert main(command(mine, "--repo", "ada/tcl-epyc", "--no-publish", "--no-index")) == 0
    corpus = next((mine / "corpora").iterdir())
    wanted = f"next: tchub publish {mine / 'checkpoint'} --corpus {corpus} --repo ada/tcl-epyc --no-index"
    assert capsys.readouterr().err.splitlines()[-1] == wanted


def test_the_command_knows_the_steps_without_loading_them() -> None:
    (option,) = (option for option in contribute_command.params if option.name == "again_from")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == NAMES


def test_a_licence_of_the_data_belongs_to_what_is_measured(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["contribute", "--output", tmp_path, "--corpus", finished.corpus, "--data-licence", "MIT"]
    assert main([str(word) for word in command]) == 2
    assert "a --corpus says its own" in capsys.readouterr().err

"""A contribution on its way to the Hub: published once, when the person agrees; and the command itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contribute_kit import Answers, Contribution, FakeMeasurer, contents, forget_from, small_config
from hub_client import use_client
from hub_protocol import running
from huggingface_hub import snapshot_download
from registry_kit import refused
from tchub.hub.cli import main
from tchub.hub.publishing.contribute import STEPS, contribute
from tchub.hub.publishing.publish import PublishResult

NAMES = list(STEPS)


class FakeHub:
    """Records publications."""

    def __init__(self) -> None:
        self.calls: list[tuple[Path, str, str | None]] = []

    def __call__(self, path: Path, repo: str, *, config: Any, **_: Any) -> Any:
        self.calls.append((path, repo, config.index_repo))
        return PublishResult("tcl-epyc", "1.0.0", repo, "published", {}, f"https://hub/{repo}")


@pytest.fixture
def hub_calls(monkeypatch: pytest.MonkeyPatch, quick: FakeMeasurer) -> list[tuple[Path, str, str | None]]:
    """Publications, none of which happens."""
    fake = FakeHub()
    monkeypatch.setattr("tchub.hub.publishing.publish.publish", fake)
    monkeypatch.setattr("tchub.hub.publishing.repository.Repository.require_login", lambda self: None)
    return fake.calls


@pytest.mark.usefixtures("quick")
def test_the_whole_way_ends_on_the_hub_with_every_byte(mine: Path, tmp_path: Path, monkeypatch: Any) -> None:
    with running() as server:
        use_client(monkeypatch, tmp_path / "client", server.url)
        monkeypatch.setenv("HF_TOKEN", server.login("hf_ada", "ada", "write"))
        steps = contribute(small_config(mine, publish=True, repo="ada/tcl-epyc", yes=True))
        tag = steps[-1].facts["published"]["tag"]
        fetched = Path(snapshot_download("ada/tcl-epyc", revision=tag, cache_dir=tmp_path / "elsewhere"))
    theirs = {path.relative_to(fetched): path.read_bytes() for path in fetched.rglob("*") if path.is_file()}
    theirs.pop(Path(".gitattributes"), None)
    assert theirs == contents(mine)


def test_it_is_published_once_when_the_person_agrees(mine: Path, hub_calls: list[Any]) -> None:
    person = Answers({})
    config = small_config(mine, publish=True, repo="ada/tcl-epyc", index_repo="tchub/index")
    steps = contribute(config, ask=person)
    assert hub_calls == [(mine / "checkpoint", "ada/tcl-epyc", "tchub/index")]
    assert steps[-1].facts["published"]["repo"] == "ada/tcl-epyc"
    question = f"Publish {mine / 'checkpoint'} in the Hub repository ada/tcl-epyc"
    assert person.asked == [f"{question}, and ask the index tchub/index to list it?"]
    contribute(config, ask=person)
    assert len(hub_calls) == 1


def test_without_a_yes_nothing_leaves_the_machine(mine: Path, hub_calls: list[Any]) -> None:
    with refused("consent", "ready in"):
        contribute(small_config(mine, publish=True, repo="ada/tcl-epyc"), ask=Answers({}, agrees=False))
    assert hub_calls == []


def test_a_failing_check_stops_it_before_anything_is_published(
    mine: Path, hub_calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tchub.cards.render.MISSING", "Ada")  # the author's name is now a gap
    monkeypatch.setattr("tchub.hub.publishing.check_files.MISSING", "Ada")
    config = small_config(mine, publish=True, repo="ada/tcl-epyc", yes=True)
    forget_from(mine, "check")
    with refused("check", match="card: ") as caught:
        contribute(config)
    assert any(finding["outcome"] == "failed" for finding in caught.value.fields["findings"])
    assert hub_calls == []


def test_an_index_that_is_no_repository_is_refused_before_anything_is_measured(
    tmp_path: Path, hub_calls: list[Any]
) -> None:
    config = small_config(tmp_path / "new", publish=True, repo="ada/tcl-epyc", index_repo="no index", yes=True)
    with refused("form", "'no index' is no repository"):
        contribute(config)
    assert not (tmp_path / "new" / "corpora").exists()
    assert hub_calls == []


# The command


def command(folder: Path, *options: str) -> list[str]:
    """Return the command line of the finished contribution."""
    config = small_config(folder)
    parts = ["contribute", "--out", folder, "--workload", ",".join(config.workload), "--programs", config.programs]
    parts += ["--recipe", config.recipe, "--authors", "Ada Lovelace", "--weights-licence", "Apache-2.0"]
    parts += ["--data-licence", "CC-BY-4.0", "--limit", "A toy.", *options]
    return [str(word) for word in parts]


def test_the_command_reports_every_step_and_how_to_publish(
    mine: Path, quick: FakeMeasurer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(mine, "--no-publish", "--json")) == 0
    assert [step["name"] for step in json.loads(capsys.readouterr().out)["steps"]] == NAMES
    assert main(command(mine, "--repo", "ada/tcl-epyc", "--no-publish", "--no-index")) == 0
    corpus = next((mine / "corpora").iterdir())
    wanted = f"next: tchub publish {mine / 'checkpoint'} --corpus {corpus} --repo ada/tcl-epyc --no-index"
    assert capsys.readouterr().err.splitlines()[-1] == wanted


def test_a_licence_of_the_data_belongs_to_what_is_measured(
    finished: Contribution, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["contribute", "--out", tmp_path, "--corpus", finished.corpus, "--data-licence", "MIT"]
    assert main([str(word) for word in parts]) == 2
    assert "a --corpus says its own" in capsys.readouterr().err

"""From a machine to a published checkpoint, with a fake measurer: stopped anywhere, gone on, changed."""

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contribute_kit import FACTS, RECIPE, Answers, FakeMeasurer, contents, small_config
from hub_client import use_client
from hub_protocol import running
from huggingface_hub import snapshot_download
from registry_kit import refused
from tchub.hub.cli import main
from tchub.hub.publishing.check import check
from tchub.hub.publishing.contribute import STEPS, ContributionConfig, contribute
from tchub.hub.publishing.contribute_facts import CardFacts
from tchub.hub.publishing.publish import PublishResult
from tchub.zoo.corpus import Corpus, CorpusError
from tchub.zoo.files import LockError, locked_folder
from tchub.zoo.models import Checkpoint

MODULE = "tchub.hub.publishing.contribute"


def test_a_contribution_is_a_checkpoint_that_passes_every_check(finished):
    assert [note.split()[1] for note in finished.notes if note.startswith("[")] == [f"{name}:" for name in STEPS]
    files = {path.name for path in finished.checkpoint.iterdir()}
    assert files == {"config.json", "model.safetensors", "schedules.json", "metrics.json", "README.md", "plots"}
    report = check(finished.checkpoint, corpora=[finished.corpus])
    assert report.ok, report.failed


def test_the_card_has_the_facts_and_the_baselines(finished):
    lineage = Checkpoint.load(finished.checkpoint).config.lineage
    assert (lineage["authors"], lineage["weights_licence"]) == ("Ada Lovelace", "Apache-2.0")
    assert Corpus.open(finished.corpus).meta["licence"] == "CC-BY-4.0"
    card = (finished.checkpoint / "README.md").read_text()
    assert "CC-BY-4.0" in card
    assert "A toy." in card
    results = json.loads((finished.checkpoint / "metrics.json").read_text())["results"]
    assert set(results) == set(finished.result.results) == {"model", "random", "xgboost", "ten_percent"}


def slow_calls(patch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls that take hours, and let them happen."""
    called: list[str] = []

    def record(function: str) -> None:
        module, name = function.rsplit(".", 1)
        own: Callable[..., Any] = getattr(sys.modules[module], name)
        patch.setattr(function, lambda *args, **how: (called.append(name), own(*args, **how))[1])

    record("tchub.hub.tuning.collect.collect")
    record(f"{MODULE}.train_checkpoint")
    record("tchub.hub.publishing.evaluate.evaluate")
    return called


def test_the_same_command_does_nothing_twice(mine, quick, monkeypatch):
    files, called = contents(mine), slow_calls(monkeypatch)
    contribute(small_config(mine))
    assert called == ["evaluate"], "by the check alone"
    assert quick.paid == 0
    assert files == contents(mine)


@pytest.mark.usefixtures("quick")
def test_a_start_from_another_checkpoint_is_named_and_is_a_baseline(mine, finished, monkeypatch):
    called = slow_calls(monkeypatch)
    contribute(small_config(mine, checkpoint=str(finished.checkpoint), recipe=None))
    config = Checkpoint.load(mine / "checkpoint").config
    start = Checkpoint.load(finished.checkpoint).config
    assert config.lineage["base"] == config.training["init"] == f"{start.name}@{start.version}"
    assert {"base", "random"} <= set(json.loads((mine / "checkpoint" / "metrics.json").read_text())["results"])
    assert called[0] == "train_checkpoint", "nothing is collected again"


# Stopped and gone on


class Stopped(Exception):
    """Stands for a kill."""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("tchub.hub.tuning.collect.collect", ["train_checkpoint", "evaluate", "evaluate"]),
        (f"{MODULE}.train_checkpoint", ["evaluate", "evaluate"]),
        ("tchub.hub.publishing.evaluate.evaluate", ["evaluate", "evaluate"]),
        (f"{MODULE}.draw", ["evaluate"]),
    ],
    ids=lambda value: value.rpartition(".")[2] if isinstance(value, str) else "",
)
def test_stopped_in_a_step_it_goes_on_with_that_step(finished, tmp_path, step, left, monkeypatch):
    """All that a step writes is there, and what comes after it is not, as a kill leaves it."""
    mine = tmp_path / "mine"
    shutil.copytree(finished.corpus, mine / "corpora" / finished.corpus.name)
    module, name = step.rsplit(".", 1)
    run = getattr(sys.modules[module], name)

    def stop(*args: Any, **how: Any) -> Any:
        run(*args, **how)
        raise Stopped

    config = small_config(mine, programs=59 if name == "collect" else 60)
    with monkeypatch.context() as patch:
        patch.setattr(step, stop)
        with pytest.raises(Stopped):
            contribute(config)
    called = slow_calls(monkeypatch)
    contribute(config)
    assert called == left
    if name != "collect":
        weights = Path("model.safetensors")
        assert contents(mine)[weights] == contents(finished.folder)[weights]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"facts": msgspec.structs.replace(FACTS, limits=("Another.",))}, "evaluate"),
        ({"seed": 1}, "collect"),
        ({"recipe": "other.toml"}, "train_checkpoint"),
    ],
    ids=["limits", "seed", "recipe"],
)
def test_what_depends_on_a_changed_input_is_done_again(mine, change, first, monkeypatch):
    monkeypatch.chdir(mine.parent)
    Path("other.toml").write_text(RECIPE.replace("epochs = 2", "epochs = 3"))
    called = slow_calls(monkeypatch)
    contribute(small_config(mine, **change))
    assert called[0] == first
    assert "facts" not in change or "Another." in (mine / "checkpoint" / "README.md").read_text()


@pytest.mark.usefixtures("quick")
def test_a_file_that_was_touched_is_made_again(mine):
    card = mine / "checkpoint" / "README.md"
    before = card.read_text()
    card.write_text(before.replace("Ada", "Eve"))
    contribute(small_config(mine))
    assert card.read_text() == before


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    with locked_folder(tmp_path), pytest.raises(LockError, match="another process"):
        contribute(small_config(tmp_path))


def test_a_killed_process_leaves_what_was_finished(tmp_path, monkeypatch, forked):
    def hang(*_: Any) -> None:
        (tmp_path / "begun").write_text("")
        time.sleep(60)

    monkeypatch.setattr(f"{MODULE}.check_ready", lambda *_: None)
    monkeypatch.setattr(f"{MODULE}._measure", hang)
    process = forked(contribute, ContributionConfig(tmp_path, facts=CardFacts("Ada", "MIT", "MIT")))
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.join()
    assert json.loads((tmp_path / "facts.json").read_text())["authors"] == "Ada"
    with locked_folder(tmp_path):
        pass


# Corpora


def test_it_goes_on_from_another_directory_with_the_same_corpora(finished, tmp_path, monkeypatch, quick):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    corpus = shutil.copytree(finished.corpus, here / finished.corpus.name)
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    contribute(small_config(Path("mine"), corpora=(Path(corpus.name),)))
    assert Checkpoint.load(Path("mine/checkpoint")).config.training["corpus"]["licence"] == "CC-BY-4.0"
    monkeypatch.chdir(elsewhere)
    called = slow_calls(monkeypatch)
    contribute(small_config(Path("../here/mine"), corpora=(Path("../here", corpus.name),)))
    assert called == ["evaluate"]
    assert quick.paid == 0


@pytest.mark.parametrize("name", ["corpus.json", "tasks.parquet", "programs.parquet"])
def test_a_corpus_that_lost_a_file_is_an_error_with_a_remedy(finished, tmp_path, name):
    corpus = shutil.copytree(finished.corpus, tmp_path / finished.corpus.name)
    (corpus / name).unlink()
    with pytest.raises(CorpusError, match=name) as caught:
        contribute(small_config(tmp_path / "mine", corpora=(corpus,)))
    assert caught.value.remedy


# To the Hub


@pytest.fixture
def hub_calls(monkeypatch: pytest.MonkeyPatch, quick: FakeMeasurer) -> list[tuple[Path, str, str | None]]:
    """Publications, none of which happens."""
    calls: list[tuple[Path, str, str | None]] = []

    def publish(path: Path, repo: str, *, config: Any, **_: Any) -> PublishResult:
        calls.append((path, repo, config.index_repo))
        return PublishResult("tcl-epyc", "1.0.0", repo, "published", {}, f"https://hub/{repo}")

    monkeypatch.setattr(f"{MODULE}.publish", publish)
    monkeypatch.setattr("tchub.hub.publishing.repository.Repository.require_login", lambda self: None)
    return calls


@pytest.mark.usefixtures("quick")
def test_the_whole_way_ends_on_the_hub_with_every_byte_and_only_once(mine, tmp_path, monkeypatch):
    with running() as server:
        use_client(monkeypatch, tmp_path / "client", server.url)
        monkeypatch.setenv("HF_TOKEN", server.login("hf_ada", "ada", "write"))
        config = small_config(mine, publish=True, repo="ada/tcl-epyc", yes=True)
        first, again = (contribute(config).published for _ in range(2))
        assert (again.outcome, again.commit) == ("already-published", first.commit)
        fetched = Path(snapshot_download("ada/tcl-epyc", revision=first.tag, cache_dir=tmp_path / "elsewhere"))
    theirs = {path.relative_to(fetched): path.read_bytes() for path in fetched.rglob("*") if path.is_file()}
    theirs.pop(Path(".gitattributes"), None)
    assert theirs == contents(mine)


def test_it_is_published_when_the_person_agrees(mine, hub_calls):
    person = Answers({})
    config = small_config(mine, publish=True, repo="ada/tcl-epyc", index_repo="tchub/index")
    published = contribute(config, ask=person).published
    assert hub_calls == [(mine / "checkpoint", "ada/tcl-epyc", "tchub/index")]
    assert published is not None
    question = f"Publish {mine / 'checkpoint'} in the Hub repository ada/tcl-epyc"
    assert person.asked == [f"{question}, and ask the index tchub/index to list it?"]


def test_without_a_yes_nothing_leaves_the_machine(mine, hub_calls):
    with refused("consent", "ready in"):
        contribute(small_config(mine, publish=True, repo="ada/tcl-epyc"), ask=Answers({}, agrees=False))
    assert hub_calls == []


def test_a_failing_check_stops_it_before_anything_is_published(mine, hub_calls, monkeypatch):
    monkeypatch.setattr("tchub.cards.render.MISSING", "Ada")  # the author's name is now a gap
    monkeypatch.setattr("tchub.hub.publishing.check_files.MISSING", "Ada")
    with refused("check", match="card: ") as caught:
        contribute(small_config(mine, publish=True, repo="ada/tcl-epyc", yes=True))
    assert any(finding["outcome"] == "failed" for finding in caught.value.fields["findings"])
    assert hub_calls == []


def test_an_index_that_is_no_repository_is_refused_before_anything_is_measured(tmp_path, hub_calls):
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


def test_the_command_tells_what_it_made_and_how_to_publish_it(mine, quick, capsys):
    assert main(command(mine, "--no-publish", "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["folder"], result["published"]) == (str(mine / "checkpoint"), None)
    assert {"scores", "leak"} <= {finding["name"] for finding in result["findings"]}
    assert main(command(mine, "--repo", "ada/tcl-epyc", "--no-publish", "--no-index")) == 0
    corpus = next((mine / "corpora").iterdir())
    wanted = f"next: tchub publish {mine / 'checkpoint'} --corpus {corpus} --repo ada/tcl-epyc --no-index"
    assert capsys.readouterr().err.splitlines()[-1] == wanted


def test_a_licence_of_the_data_belongs_to_what_is_measured(finished, tmp_path, capsys):
    parts = ["contribute", "--out", tmp_path, "--corpus", finished.corpus, "--data-licence", "MIT"]
    assert main([str(word) for word in parts]) == 2
    assert "a --corpus says its own" in capsys.readouterr().err

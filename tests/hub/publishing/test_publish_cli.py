"""The command line of `tchub publish`: what it prints, what it suggests next, what it refuses as wrong usage."""

from __future__ import annotations

import json
import shlex

import pytest
from publish_kit import INDEX, REPO, Person
from tchub.hub.cli import main


@pytest.fixture
def publish(desk, capsys):
    def run(*options: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["publish", str(desk.checkpoint), "--repo", REPO, "--corpus", str(desk.corpus), *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_it_says_what_is_where_and_what_comes_next(hub, publish):
    code, out, said = publish()
    assert code == 0
    assert out.splitlines()[0] == f"published: tcl-epyc@0.1.0 at {hub.url}/{REPO}/tree/v0.1.0"
    assert f"commit: {hub.repos[REPO].head}" in out
    assert f"index: {hub.url}/{INDEX}/discussions/1" in out
    assert said.splitlines()[-1].startswith("next: tchub index refresh && tchub pull tcl-epyc@0.1.0")


def test_the_data_is_on_stdout_alone(publish):
    _, out, _ = publish("--json", "--no-index")
    done = json.loads(out)
    assert set(done) == {"name", "version", "repo", "outcome", "files", "url", "commit", "tag", "index"}
    assert done["index"] is None


def test_quiet_says_nothing_besides(publish):
    code, out, said = publish("--quiet", "--no-index", "--dry-run")
    assert (code, said) == (0, "")
    assert out.startswith("dry-run: tcl-epyc@0.1.0")


def test_quiet_silences_the_progress_of_the_hubs_client_too(hub, trained, tmp_path):
    checkpoint, corpus = trained
    ada = Person(hub, tmp_path / "ada", "hf_ada")
    command = ("publish", checkpoint, "--repo", REPO, "--corpus", corpus, "--no-index", "--quiet")
    out, said = ada.start(*command, HF_HUB_DISABLE_PROGRESS_BARS="0").communicate(timeout=120)
    assert out.startswith("published: ")
    assert said == ""


@pytest.mark.parametrize(
    ("options", "next_step"),
    [
        (("--dry-run",), f"--repo {REPO} --corpus "),
        (("--dry-run", "--version", "0.2.0"), "--version 0.2.0"),
        (("--create-pr",), f"once {{url}}/{REPO}/discussions/1 is merged"),
        (("--no-index",), "--index-repo ORG/NAME"),
        (("--private",), "--index-repo ORG/NAME"),
    ],
)
def test_the_next_step_fits_what_was_done(hub, publish, options, next_step):
    if "--create-pr" in options:
        hub.add(REPO, {"README.md": b"# theirs\n"})
    assert next_step.format(url=hub.url) in publish(*options)[2].splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "dropped", "added"),
    [
        (["--dry-run", "--private", "--no-index", "--threads", "2", "--no-evaluate"], "--dry-run", []),
        (["--dry-run", "--create-pr", "--index-repo", INDEX, "--version", "0.2.0"], "--dry-run", []),
        (["--no-index", "--private", "--threads", "2"], "--no-index", ["--index-repo", "ORG/NAME"]),
    ],
)
def test_the_next_step_keeps_every_option_that_still_matters(desk, publish, options, dropped, added):
    _, command = publish(*options)[2].splitlines()[-1].split(maxsplit=1)
    given = [str(desk.checkpoint), "--repo", REPO, "--corpus", str(desk.corpus), *options]
    kept = [word for word in given if word != dropped]
    assert sorted(shlex.split(command, comments=True)) == sorted(["tchub", "publish", *kept, *added])


def test_a_private_checkpoint_is_not_listed_unless_it_is_asked_for(hub, publish):
    publish("--private")
    assert hub.repos[INDEX].pulls == []
    publish("--private", "--index-repo", INDEX)
    assert len(hub.repos[INDEX].pulls) == 1


def test_a_repository_that_is_private_already_is_not_told_to_the_index_by_default(hub, publish):
    publish("--private")
    code, out, said = publish("--version", "0.2.0")
    assert code == 0
    assert f"{REPO} is private: as with --private, no index is asked" in said
    assert "--index-repo ORG/NAME" in said.splitlines()[-1]
    assert "index:" not in out
    assert hub.repos[INDEX].pulls == []
    publish("--version", "0.2.0", "--index-repo", INDEX)
    assert len(hub.repos[INDEX].pulls) == 1, "who names an index wants it to know"


@pytest.mark.parametrize(("options", "requests"), [((), 1), (("--private",), 0), (("--no-index",), 0)])
def test_the_environment_names_another_index(hub, publish, monkeypatch, options, requests):
    hub.add("lab/index", hub.repos[INDEX].files())
    monkeypatch.setenv("TCHUB_INDEX_REPO", "lab/index")
    assert publish(*options)[0] == 0
    assert [len(hub.repos[name].pulls) for name in ("lab/index", INDEX)] == [requests, 0]


def test_an_index_and_none_exclude_each_other(publish):
    code, _, said = publish("--index-repo", INDEX, "--no-index")
    assert code == 2
    assert "exclude each other" in said


def test_an_error_is_json_with_a_remedy(hub, publish):
    hub.expire("hf_ada")
    code, out, said = publish("--json")
    assert (code, json.loads(out)["error"]) == (1, "TokenError")
    assert "remedy: it may be expired" in said

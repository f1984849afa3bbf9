"""The command line of `tchub publish`: its output, the next command that it suggests, and the index that it asks."""

import json
import shlex
from collections.abc import Callable

import pytest
from hub_protocol import HubServer
from publish_kit import INDEX, REPO, Desk
from tchub.hub.cli import main

Run = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def publish(desk: Desk, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the command: exit code, stdout, lines of stderr."""

    def run(*options: str) -> tuple[int, str, list[str]]:
        capsys.readouterr()
        code = main(["publish", str(desk.checkpoint), "--repo", REPO, "--corpus", str(desk.corpus), *options])
        printed = capsys.readouterr()
        return code, printed.out, printed.err.splitlines()

    return run


def test_it_shows_what_is_where_and_the_next_command(hub: HubServer, publish: Run) -> None:
    code, out, notes = publish()
    assert code == 0
    assert out.splitlines()[0] == f"published: tcl-epyc@0.1.0 at {hub.url}/{REPO}/tree/v0.1.0"
    assert f"commit: {hub.repos[REPO].head}" in out
    assert f"index: {hub.url}/{INDEX}/discussions/1" in out
    assert notes[-1].startswith("next: tchub index refresh && tchub pull tcl-epyc@0.1.0")
    _, out, _ = publish("--json", "--no-index")
    result = json.loads(out)
    assert set(result) == {"name", "version", "repo", "outcome", "files", "url", "commit", "tag", "index"}
    assert result["index"] is None


@pytest.mark.parametrize(
    ("options", "dropped", "added"),
    [
        (["--dry-run", "--private", "--no-index", "--threads", "2", "--no-evaluate"], "--dry-run", []),
        (["--dry-run", "--create-pr", "--index-repo", INDEX, "--version", "0.2.0"], "--dry-run", []),
        (["--no-index", "--private", "--threads", "2"], "--no-index", ["--index-repo", "ORG/NAME"]),
        (["--create-pr"], "--create-pr", []),
    ],
)
def test_the_next_command_keeps_every_option_that_still_matters(
    hub: HubServer, desk: Desk, publish: Run, options: list[str], dropped: str, added: list[str]
) -> None:
    if options == ["--create-pr"]:
        hub.add(REPO, {"README.md": b"# theirs\n"})
    _, command = publish(*options)[2][-1].split(maxsplit=1)
    given = [str(desk.checkpoint), "--repo", REPO, "--corpus", str(desk.corpus), *options]
    kept = [word for word in given if word != dropped]
    assert sorted(shlex.split(command, comments=True)) == sorted(["tchub", "publish", *kept, *added])


def test_an_index_hears_of_no_private_repository_unless_it_is_named(hub: HubServer, publish: Run) -> None:
    publish("--private")
    code, out, notes = publish("--version", "0.2.0")
    assert code == 0
    assert f"{REPO} is private: as with --private, no index is asked" in " ".join(notes)
    assert "--index-repo ORG/NAME" in notes[-1]
    assert "index:" not in out
    assert hub.repos[INDEX].pulls == []
    publish("--version", "0.2.0", "--index-repo", INDEX)
    assert len(hub.repos[INDEX].pulls) == 1


@pytest.mark.parametrize(("options", "requests"), [((), 1), (("--private",), 0), (("--no-index",), 0)])
def test_the_environment_names_another_index(
    hub: HubServer, publish: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], requests: int
) -> None:
    hub.add("lab/index", hub.repos[INDEX].files())
    monkeypatch.setenv("TCHUB_INDEX_REPO", "lab/index")
    assert publish(*options)[0] == 0
    assert [len(hub.repos[name].pulls) for name in ("lab/index", INDEX)] == [requests, 0]


def test_wrong_usage_and_errors_have_their_codes(hub: HubServer, publish: Run) -> None:
    code, _, notes = publish("--index-repo", INDEX, "--no-index")
    assert code == 2
    assert "exclude each other" in notes[-1]
    hub.expire("hf_ada")
    code, out, notes = publish("--json")
    assert (code, json.loads(out)["reason"]) == (1, "token")
    assert "remedy: it may be expired" in " ".join(notes)

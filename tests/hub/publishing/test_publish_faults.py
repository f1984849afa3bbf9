"""What can go wrong while a checkpoint is published: each with its error, and with nothing lost or mixed."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from hub_client import client
from hub_protocol import HubServer
from publish_kit import INDEX, REPO
from registry_kit import refused
from tchub.hub.publishing.check import check
from tchub.hub.publishing.publish import PublishResult
from tchub.hub.publishing.repository import Repository
from tchub.hub.registry.errors import IndexFileError


def titles(hub: HubServer, repo: str = REPO) -> list[str]:
    return [commit.title for commit in hub.repos[repo].history("main")]


# Who may


def test_nobody_is_logged_in(hub, desk, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with refused("login") as caught:
        desk.publish(REPO)
    assert "hf auth login" in caught.value.remedy
    assert hub.requests == []


def test_an_expired_token(hub, desk):
    hub.expire("hf_ada")
    with refused("token", "refused the token") as caught:
        desk.publish(REPO)
    assert "hf auth login" in caught.value.remedy
    assert "hf_ada" not in json.dumps(caught.value.as_dict())
    assert REPO not in hub.repos


def test_a_token_that_only_reads_is_told_before_anything_is_evaluated(hub, desk, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.login("hf_read", "ada", "read", ("lab",)))
    with refused("denied", "only reads"):
        desk.publish(REPO)
    assert hub.requests == ["GET /api/whoami-v2"]


def test_a_repository_of_others(hub, desk):
    hub.add("zoo/tcl", {"README.md": b"# theirs\n"})
    for repo in ("zoo/tcl", "zoo/new"):
        with refused("denied", match=f"may not write to {repo}") as caught:
            desk.publish(repo)
        assert "--create-pr" in caught.value.remedy
    assert titles(hub, "zoo/tcl") == ["files", "initial commit"]


def test_a_gated_repository_of_others(hub, desk):
    hub.add("zoo/tcl", {"README.md": b"# theirs\n"})
    hub.repos["zoo/tcl"].gated = True
    with refused("gated", match="terms"):
        desk.publish("zoo/tcl", create_pr=True)


def test_a_proposal_to_a_repository_that_is_not_there(hub, desk):
    with refused("missing", match="does not exist, or is private"):
        desk.publish("zoo/none", create_pr=True)


def test_an_index_that_is_not_there_is_told_to_be_left_out(hub, desk):
    with refused("missing", "no index lab/none to ask") as caught:
        desk.publish(REPO, index_repo="lab/none")
    assert "--no-index" in caught.value.remedy
    assert desk.publish(REPO, index_repo=None).outcome == "already-published"


def test_a_name_that_is_no_repository(hub, desk):
    for name in ("tcl-epyc", "lab/tcl/epyc", "../x", "lab/"):
        with refused("form", "is no repository"):
            desk.publish(name)


@pytest.mark.parametrize(
    ("config", "held"),
    [
        (b'{"name": "tcl-t4", "feature_schema": "tcl-gpu"}', "tcl-t4"),
        (b'{"name": "tcl-epyc", "model_type": "bert"}', "another model"),
        (b"no JSON", "another model"),
        (b" " * (2 << 20), "another model"),
    ],
)
@pytest.mark.parametrize("proposes", [False, True])
def test_a_repository_that_holds_something_else(hub, desk, config, held, proposes):
    hub.add(REPO, {"config.json": config, "model.safetensors": b"theirs"})
    with refused("occupied", f"holds {held}") as caught:
        desk.publish(REPO, create_pr=proposes)
    assert "--repo lab/tcl-epyc" in caught.value.remedy
    assert titles(hub) == ["files", "initial commit"]
    assert hub.repos[REPO].tags() == {}


@pytest.mark.parametrize("proposes", [False, True])
def test_a_public_repository_is_refused_where_a_private_one_was_asked_for(hub, desk, proposes):
    hub.add(REPO, {"README.md": b"# seen by all\n"})
    with refused("public", "is public, and was to be private") as caught:
        desk.publish(REPO, private=True, create_pr=proposes)
    assert "--private" in caught.value.remedy
    assert titles(hub) == ["files", "initial commit"]
    assert hub.repos[REPO].pulls == []


def test_a_repository_that_became_public_meanwhile_is_refused_too(hub, desk, monkeypatch):
    def check_while_the_owner_changes_it(*args, **options):
        hub.repos[REPO].private = False
        return check(*args, **options)

    desk.publish(REPO, private=True)
    monkeypatch.setattr("tchub.hub.publishing.publish.check", check_while_the_owner_changes_it)
    with refused("public"):
        desk.publish(REPO, private=True, version="0.2.0")
    assert set(hub.repos[REPO].tags()) == {"v0.1.0"}


# The server and the network


@pytest.mark.parametrize("status", [429, 503])
def test_an_upload_is_repeated_while_the_server_is_busy(hub, desk, status):
    for route in ("preupload", "objects/batch", "/upload/"):
        hub.faults.answer(status, route, times=2, retry_after=1)
    assert desk.publish(REPO).outcome == "published"
    assert titles(hub) == ["Publish tcl-epyc@0.1.0", "initial commit"]


@pytest.mark.parametrize(("status", "route"), [(429, "repos/create"), (500, "/commit/"), (503, "/tag/")])
def test_a_server_that_goes_on_failing(hub, desk, status, route):
    hub.faults.answer(status, route)
    with refused("network", match=str(status)) as caught:
        desk.publish(REPO)
    assert "same command again" in caught.value.remedy
    hub.faults.clear()
    assert desk.publish(REPO).outcome == "published"
    assert titles(hub) == ["Publish tcl-epyc@0.1.0", "initial commit"]


@pytest.mark.parametrize("variable", ["TCHUB_OFFLINE", "HF_HUB_OFFLINE"])
def test_the_network_is_ruled_out(hub, desk, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with refused("offline", "ruled out") as caught:
        desk.publish(REPO)
    assert variable in caught.value.remedy
    assert hub.requests == []


@pytest.mark.parametrize(
    ("route", "question"),
    [
        ("GET /api/models/lab/x$", lambda repository, path: repository.head()),
        ("/refs", lambda repository, path: repository.tagged("v1.0.0")),
        ("/revision/", lambda repository, path: repository.files("main")),
        ("/discussions", lambda repository, path: repository.propose({}, (), "title", "text", "0" * 40)),
        ("/tag/", lambda repository, path: repository.set_tag("v1.0.0", "0" * 40, "text")),
        ("/commit/", lambda repository, path: repository.propose({"a.txt": path}, (), "title", "text", "0" * 40)),
    ],
)
def test_a_server_that_hangs_is_not_waited_for_for_ever(hub, desk, route, question, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    hub.add("lab/x", {"README.md": b"# x\n"})
    stall = hub.faults.stall(route, lost=True)
    with refused("network", "Timeout"):
        question(Repository("lab/x", seconds=0.2), tmp_path / "a.txt")
    assert stall.reached.is_set()


def test_an_upload_that_breaks_is_finished_by_the_same_command(hub, desk):
    hub.faults.hang_up("PUT /upload/")
    with refused("network"):
        desk.publish(REPO)
    assert titles(hub) == ["initial commit"]
    hub.faults.clear()
    assert desk.publish(REPO).outcome == "published"


def test_a_card_that_the_hub_refuses_is_told_in_its_words(hub, desk):
    path = desk.checkpoint / "config.json"
    config = json.loads(path.read_text())
    config["lineage"]["base"] = "no repository/of the Hub"
    path.write_text(json.dumps(config))
    with refused("refused", "base_model"):
        desk.publish(REPO)
    assert titles(hub) == ["initial commit"]


# Interrupted


def test_killed_between_the_commit_and_the_tag_it_is_finished_without_a_second_commit(hub, desk, forked):
    stall = hub.faults.stall("/tag/", lost=True)
    process = forked(desk.publish, REPO)
    assert stall.reached.wait(120)
    process.kill()
    process.join()
    assert (titles(hub), hub.repos[REPO].tags()) == (["Publish tcl-epyc@0.1.0", "initial commit"], {})
    hub.faults.clear()
    done = desk.publish(REPO)
    assert titles(hub) == ["Publish tcl-epyc@0.1.0", "initial commit"]
    assert hub.repos[REPO].tags() == {"v0.1.0": done.commit}


@pytest.mark.parametrize("route", ["/commit/", "/tag/", "repos/create"])
def test_an_answer_that_was_lost_after_the_deed(hub, desk, route):
    hub.faults.hang_up(route, when="after", times=1)
    with refused("network"):
        desk.publish(REPO)
    desk.publish(REPO)
    assert titles(hub) == ["Publish tcl-epyc@0.1.0", "initial commit"]
    assert set(hub.repos[REPO].tags()) == {"v0.1.0"}


# Versions never change


@pytest.mark.parametrize("proposes", [False, True])
def test_the_same_version_with_other_bytes_is_refused(hub, desk, proposes):
    first = desk.publish(REPO)
    desk.change(seed=1)
    with refused("taken", r"another metrics\.json.*never change") as caught:
        desk.publish(REPO, create_pr=proposes)
    assert "--version 0.2.0" in caught.value.remedy
    assert hub.repos[REPO].tags() == {"v0.1.0": first.commit}


def test_an_index_that_lists_the_version_with_other_files(hub, desk):
    desk.publish(REPO)
    asked = [desk.publish(REPO, index_repo=INDEX).index.url for _ in range(2)]
    assert asked == [f"{hub.url}/{INDEX}/discussions/1"] * 2, "also after an interruption, and once"
    client(hub, hub.login("hf_owner", "tchub", "write")).merge_pull_request(INDEX, 1)
    assert desk.publish(REPO, index_repo=INDEX).index.url is None, "listed already"
    desk.change(seed=1)
    with refused("taken", r"tchub/index lists tcl-epyc@0\.1\.0 with another"):
        desk.publish("lab/a-second-repository", index_repo=INDEX)
    assert len(hub.repos[INDEX].pulls) == 1


def test_an_index_that_cannot_be_read(hub, desk):
    hub.add(INDEX, {"index.json": b"{"})
    with pytest.raises(IndexFileError, match="tchub/index"):
        desk.publish(REPO, index_repo=INDEX)
    assert set(hub.repos[REPO].tags()) == {"v0.1.0"}, "what was published stays"


def test_a_request_of_the_same_title_with_another_content_is_not_taken_for_ours(hub, desk, tmp_path):
    (tmp_path / "index.json").write_text("{")
    mallory = client(hub, hub.login("hf_mallory", "mallory", "write"))
    mallory.upload_file(
        path_or_fileobj=tmp_path / "index.json", path_in_repo="index.json", repo_id=INDEX, create_pr=True,
        commit_message="Add tcl-epyc@0.1.0",
    )  # fmt: skip
    assert desk.publish(REPO, index_repo=INDEX).index.url == f"{hub.url}/{INDEX}/discussions/2"


# Several at once


def in_a_thread(publish: Callable[[], PublishResult]) -> Future[PublishResult]:
    return ThreadPoolExecutor(1).submit(publish)


def test_a_push_that_came_between_is_an_error_and_never_a_mix(hub, desk):
    hub.add(REPO, {"notes.txt": b"1"})
    stall = hub.faults.stall("preupload", times=1)
    publishing = in_a_thread(lambda: desk.publish(REPO))
    assert stall.reached.wait(60)
    hub.add(REPO, {"notes.txt": b"2"})
    stall.release.set()
    with refused("changed", "somebody else pushed"):
        publishing.result(60)
    assert titles(hub) == ["files", "files", "initial commit"]
    assert desk.publish(REPO).outcome == "published"


@pytest.mark.parametrize(("route", "loser"), [("preupload", "changed"), ("/tag/", "taken")])
def test_two_publish_other_bytes_under_one_version_and_one_of_them_wins(hub, desk, tmp_path, route, loser):
    other = replace(desk, checkpoint=shutil.copytree(desk.checkpoint, tmp_path / "other"))
    other.change(seed=1)
    stall = hub.faults.stall(route, times=1)
    slower = in_a_thread(lambda: other.publish(REPO))
    assert stall.reached.wait(60)
    winner = desk.publish(REPO)
    stall.release.set()
    with refused(loser):
        slower.result(60)
    assert hub.repos[REPO].tags() == {"v0.1.0": winner.commit}
    assert hub.repos[REPO].files("v0.1.0")["metrics.json"] == (desk.checkpoint / "metrics.json").read_bytes()

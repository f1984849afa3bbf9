"""The tests' own Hub, asked by the real client alone: what it keeps, who may do what, how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_client import client, use_client
from hub_protocol import running
from huggingface_hub import CommitOperationAdd, HfApi, hf_hub_download
from huggingface_hub.errors import (
    HfHubHTTPError,
)

REPO = "zoo/tcl"
WEIGHTS = bytes(range(256)) * 64


@pytest.fixture
def hub(tmp_path, monkeypatch):
    use_client(monkeypatch, tmp_path)
    with running() as server:
        yield server


@pytest.fixture
def api(hub) -> HfApi:
    return client(hub, hub.login("hf_ada", "ada", "write", ("zoo",)))


@pytest.fixture
def stranger(hub) -> HfApi:
    return client(hub, hub.login("hf_bob", "bob", "write"))


@pytest.fixture
def repo(api) -> str:
    api.create_repo(REPO)
    return REPO


def add(**files: bytes) -> list[CommitOperationAdd]:
    return [CommitOperationAdd(name.replace("_", "."), data) for name, data in files.items()]


def status_of(error: pytest.ExceptionInfo) -> int:
    return error.value.response.status_code


def test_a_commit_holds_small_and_large_files_and_each_revision_gives_its_own_bytes(hub, api, repo, tmp_path):
    old = api.create_commit(repo, add(config_json=b"{}", model_safetensors=WEIGHTS), commit_message="one")
    new = api.create_commit(repo, add(config_json=b"[]"), commit_message="two", parent_commit=old.oid)

    def fetch(name: str, revision: str) -> bytes:
        path = hf_hub_download(repo, name, revision=revision, endpoint=hub.url, cache_dir=tmp_path, token=False)
        return Path(path).read_bytes()

    assert [fetch("config.json", one) for one in (old.oid, new.oid, "main")] == [b"{}", b"[]", b"[]"]
    assert fetch("model.safetensors", new.oid) == WEIGHTS
    assert hub.repos[repo].at(new.oid).files["model.safetensors"].large


def test_unchanged_files_make_no_commit(api, repo):
    first = api.create_commit(repo, add(config_json=b"{}", model_safetensors=WEIGHTS), commit_message="one")
    again = api.create_commit(repo, add(config_json=b"{}", model_safetensors=WEIGHTS), commit_message="again")
    assert again.oid == first.oid


def test_a_commit_on_a_state_that_has_passed_is_refused(api, repo):
    first = api.create_commit(repo, add(config_json=b"1"), commit_message="one")
    api.create_commit(repo, add(config_json=b"2"), commit_message="two")
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_commit(repo, add(config_json=b"3"), commit_message="three", parent_commit=first.oid)
    assert status_of(caught) == 412


def test_a_tag_is_given_once(api, repo):
    first = api.create_commit(repo, add(config_json=b"1"), commit_message="one")
    api.create_tag(repo, tag="v1.0.0", revision=first.oid)
    api.create_commit(repo, add(config_json=b"2"), commit_message="two")
    assert api.model_info(repo, revision="v1.0.0").sha == first.oid
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_tag(repo, tag="v1.0.0")
    assert status_of(caught) == 409


def test_a_pull_request_leaves_main_alone_until_it_is_merged(api, stranger, repo):
    asked = stranger.create_commit(repo, add(config_json=b"{}"), commit_message="Add a config", create_pr=True)
    assert asked.pr_revision == "refs/pr/1"
    assert "config.json" not in api.list_repo_files(repo)
    assert "config.json" in api.list_repo_files(repo, revision="refs/pr/1")
    assert [pull.title for pull in api.get_repo_discussions(repo, discussion_status="open")] == ["Add a config"]
    api.merge_pull_request(repo, asked.pr_num)
    assert "config.json" in api.list_repo_files(repo)
    assert api.get_discussion_details(repo, asked.pr_num).merge_commit_oid == api.model_info(repo).sha
    assert [pull.name for pull in api.list_repo_refs(repo, include_pull_requests=True).pull_requests] == ["refs/pr/1"]


def test_the_token_says_who_and_what_may_be_done(hub, api, stranger, repo):
    assert api.whoami()["name"] == "ada"
    reader = client(hub, hub.login("hf_read", "ada", "read", ("zoo",)))
    for who in (reader, stranger):
        with pytest.raises(HfHubHTTPError) as caught:
            who.create_commit(repo, add(config_json=b"{}"), commit_message="one")
        assert status_of(caught) == 403


def test_an_expired_token_is_refused_for_reading_too(hub, api, repo):
    hub.expire("hf_ada")
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as caught:
        api.model_info(repo)
    assert status_of(caught) == 401


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ("license: Apache-2", "license"),
        ("license: other", "license_name"),
        ("license: mit\ndatasets: [not a name]", "datasets"),
        ("model-index:\n- name: a\n  results:\n  - task: {type: t}\n    metrics: [{type: m}]", "dataset.type"),
        ("tags: {a: b}", "tags"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_card_that_the_hub_refuses_stops_the_commit(hub, api, repo, metadata, told):
    with pytest.raises(ValueError, match=told):
        api.create_commit(repo, add(README_md=f"---\n{metadata}\n---\n# x\n".encode()), commit_message="one")
    assert len(hub.repos[repo].commits) == 1


def test_a_commit_whose_answer_was_lost_is_there(hub, api, repo):
    hub.faults.hang_up("/commit/", when="after", times=1)
    with pytest.raises(Exception, match="disconnected"):
        api.create_commit(repo, add(config_json=b"{}"), commit_message="one")
    assert "config.json" in api.list_repo_files(repo)


def test_a_download_that_broke_goes_on_where_it_stopped(hub, api, repo, tmp_path):
    api.create_commit(repo, add(model_safetensors=WEIGHTS), commit_message="one")
    hub.faults.truncate(1000, "GET /cdn/", times=1)
    path = api.hf_hub_download(repo, "model.safetensors", cache_dir=tmp_path)
    assert Path(path).read_bytes() == WEIGHTS
    assert sum(line.startswith("GET /cdn/") for line in hub.requests) == 2

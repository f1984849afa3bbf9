"""A checkpoint trained here goes out by `tchub publish` and comes back by `tchub pull` on another machine."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
from hub_client import client
from hub_protocol import HubServer
from publish_kit import INDEX, REPO, Person
from registry_kit import Publisher, refused
from tchub.hub.publishing.publish import publish

NAME = "tcl-epyc@0.1.0"


def sign_and_merge(hub: HubServer, number: int, folder: Path) -> Path:
    """Sign a request as the index's owner and merge it; return the root metadata that others shall trust."""
    owner, ref = client(hub, hub.login("hf_owner", "tchub", "write")), f"refs/pr/{number}"
    publisher = Publisher(folder / "index")
    publisher.root.mkdir()
    (publisher.root / "index.json").write_bytes(hub.repos[INDEX].files(ref)["index.json"])
    root = Path(publisher.sign().root)
    for file in sorted(root.parent.iterdir()):
        path = f"metadata/{file.name}"
        owner.upload_file(path_or_fileobj=file, path_in_repo=path, repo_id=INDEX, revision=ref)
    owner.merge_pull_request(INDEX, number)
    return root


def test_out_by_one_person_and_back_by_another_with_every_byte_the_same(hub, trained, tmp_path):
    checkpoint, corpus = trained
    ada = Person(hub, tmp_path / "ada", "hf_ada")
    code, done, notes = ada.run("publish", checkpoint, "--repo", REPO, "--corpus", corpus)
    assert code == 0, notes
    assert (done["outcome"], done["tag"]) == ("published", "v0.1.0")
    assert done["url"] == f"{hub.url}/{REPO}/tree/v0.1.0"
    assert hub.repos[REPO].tags() == {"v0.1.0": done["commit"]}
    assert "hf_ada" not in notes + json.dumps(done), "the token is never notes"

    bob, trust = Person(hub, tmp_path / "bob"), {"TCHUB_TRUSTED_KEYS": str(sign_and_merge(hub, 1, tmp_path))}
    assert bob.run("index", "refresh", **trust)[1]["serial"] == 7
    code, pulled, notes = bob.run("pull", NAME, **trust)
    assert code == 0, notes
    assert (pulled["source"], pulled["verified"]) == (f"hf://{REPO}", "ok")
    published = hub.repos[REPO].files("v0.1.0")
    for name in ("config.json", "model.safetensors", "metrics.json"):
        assert (Path(pulled["path"]) / name).read_bytes() == published[name] == (checkpoint / name).read_bytes()
    assert (Path(pulled["path"]) / "README.md").read_bytes() == published["README.md"]
    assert pulled["files"] == {name: done["files"][name] for name in pulled["files"]}
    assert bob.run("pull", "--verify", NAME, **trust)[1]["outcome"] == "ok"


def test_the_request_to_the_index_says_what_it_adds(hub, desk):
    done = desk.publish(REPO, index_repo=INDEX)
    history = hub.repos[REPO].history("main")
    assert [(commit.id, commit.title) for commit in history[:-1]] == [(done.commit, f"Publish {NAME}")]
    assert set(history[0].files) == {".gitattributes", *done.files}, "all in one commit"
    request = hub.repos[INDEX].pulls[0]
    assert asdict(done.index) == {"repo": INDEX, "url": f"{hub.url}/{INDEX}/discussions/1", "serial": 7}
    assert request.title == f"Add {NAME}"
    assert done.files["model.safetensors"] in request.description
    listed = json.loads(hub.repos[INDEX].files(request.ref)["index.json"])
    assert (listed["serial"], [entry["revision"] for entry in listed["checkpoints"]]) == (7, [done.commit])
    assert json.loads(hub.repos[INDEX].files()["index.json"])["checkpoints"] == []


def test_a_dry_run_checks_and_asks_the_hub_nothing(hub, desk, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    done = desk.publish(REPO, dry_run=True)
    assert (done.outcome, done.commit) == ("dry-run", None)
    assert {"config.json", "model.safetensors", "metrics.json", "README.md"} <= set(done.files)
    assert hub.requests == []


def test_what_does_not_pass_the_check_never_leaves_the_machine(hub, desk):
    with refused("check", match="needs the corpus on-epyc"):
        publish(desk.checkpoint, REPO)
    desk.change(results={})
    with refused("check", match=r"results\.random"):
        desk.publish(REPO)
    assert REPO not in hub.repos


def test_each_version_stays_where_its_tag_is_and_the_folder_as_it_was(hub, desk):
    before = {path.name: path.read_bytes() for path in desk.checkpoint.iterdir()}
    done = [desk.publish(REPO, version=version) for version in (None, "0.2.0")]
    assert hub.repos[REPO].tags() == {"v0.1.0": done[0].commit, "v0.2.0": done[1].commit}
    for version in ("0.1.0", "0.2.0"):
        assert json.loads(hub.repos[REPO].files(f"v{version}")["config.json"])["version"] == version
    assert {path.name: path.read_bytes() for path in desk.checkpoint.iterdir()} == before


def test_a_version_drops_the_files_of_an_older_one_and_leaves_the_owners_alone(hub, desk):
    hub.add(REPO, {"plots/old.svg": b"<svg/>", "notes.txt": b"the owner's own"})
    desk.publish(REPO)
    files = hub.repos[REPO].files()
    assert "notes.txt" in files
    assert "plots/old.svg" not in files


def test_a_proposal_changes_nothing_until_it_is_merged_and_then_the_owner_tags_it(hub, desk, monkeypatch):
    hub.add("zoo/tcl", {"README.md": b"# ours\n"})
    done = desk.publish("zoo/tcl", create_pr=True, index_repo=INDEX)
    assert (done.outcome, done.tag, done.index) == ("proposed", None, None)
    assert done.url == f"{hub.url}/zoo/tcl/discussions/1"
    assert "model.safetensors" not in hub.repos["zoo/tcl"].files()
    assert desk.publish("zoo/tcl", create_pr=True).url == done.url, "asked again, it is the same request"

    monkeypatch.setenv("HF_TOKEN", hub.login("hf_zoe", "zoe", "write", ("zoo",)))
    client(hub, "hf_zoe").merge_pull_request("zoo/tcl", 1)
    merged = hub.repos["zoo/tcl"].head
    tagged = desk.publish("zoo/tcl", index_repo=INDEX)
    assert (tagged.tag, tagged.commit, hub.repos["zoo/tcl"].head) == ("v0.1.0", merged, merged)
    assert desk.publish("zoo/tcl", create_pr=True).outcome == "already-published"


# The command


@pytest.fixture
def command(desk, run):
    """A function that runs the command: exit code, stdout, lines of stderr."""

    def publish_with(*options: str) -> tuple[int, str, list[str]]:
        code, out, err = run("publish", desk.checkpoint, "--repo", REPO, "--corpus", desk.corpus, *options)
        return code, out, err.splitlines()

    return publish_with


def test_it_shows_what_is_where_and_the_next_command(hub, command):
    code, out, notes = command()
    assert code == 0
    assert out.splitlines()[0] == f"published: tcl-epyc@0.1.0 at {hub.url}/{REPO}/tree/v0.1.0"
    assert f"commit: {hub.repos[REPO].head}" in out
    assert f"index: {hub.url}/{INDEX}/discussions/1" in out
    assert notes[-1].startswith("next: tchub index refresh && tchub pull tcl-epyc@0.1.0")


@pytest.mark.parametrize(
    ("options", "dropped", "added"),
    [
        (["--dry-run", "--private", "--no-index", "--threads", "2", "--no-evaluate"], "--dry-run", []),
        (["--dry-run", "--create-pr", "--index-repo", INDEX, "--version", "0.2.0"], "--dry-run", []),
        (["--no-index", "--private", "--threads", "2"], "--no-index", ["--index-repo", "ORG/NAME"]),
        (["--create-pr"], "--create-pr", []),
    ],
)
def test_the_next_command_keeps_every_option_that_still_matters(hub, desk, command, options, dropped, added):
    if options == ["--create-pr"]:
        hub.add(REPO, {"README.md": b"# theirs\n"})
    _, following = command(*options)[2][-1].split(maxsplit=1)
    given = [str(desk.checkpoint), "--repo", REPO, "--corpus", str(desk.corpus), *options]
    kept = [word for word in given if word != dropped]
    assert sorted(shlex.split(following, comments=True)) == sorted(["tchub", "publish", *kept, *added])


def test_an_index_hears_of_no_private_repository_unless_it_is_named(hub, command):
    command("--private")
    code, out, notes = command("--version", "0.2.0")
    assert code == 0
    assert f"{REPO} is private: as with --private, no index is asked" in " ".join(notes)
    assert "--index-repo ORG/NAME" in notes[-1]
    assert "index:" not in out
    assert hub.repos[INDEX].pulls == []
    command("--version", "0.2.0", "--index-repo", INDEX)
    assert len(hub.repos[INDEX].pulls) == 1


@pytest.mark.parametrize(("options", "requests"), [((), 1), (("--private",), 0), (("--no-index",), 0)])
def test_the_environment_names_another_index(hub, command, monkeypatch, options, requests):
    hub.add("lab/index", hub.repos[INDEX].files())
    monkeypatch.setenv("TCHUB_INDEX_REPO", "lab/index")
    assert command(*options)[0] == 0
    assert [len(hub.repos[name].pulls) for name in ("lab/index", INDEX)] == [requests, 0]


def test_wrong_usage_and_errors_have_their_codes(hub, command):
    code, _, notes = command("--index-repo", INDEX, "--no-index")
    assert (code, "exclude each other" in notes[-1]) == (2, True)
    hub.expire("hf_ada")
    code, out, notes = command("--json")
    assert (code, json.loads(out)["reason"]) == (1, "token")
    assert "remedy: it may be expired" in " ".join(notes)

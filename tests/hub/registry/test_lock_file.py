"""The lock file: pins that are followed, written whole, and refused where they are none."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from registry_kit import newer, release
from tchub.hub.api import pull_and_pin, pull_pinned
from tchub.hub.cli import main
from tchub.hub.registry import Index
from tchub.hub.registry.errors import IndexFileError, UnknownCheckpointError
from tchub.hub.registry.files import FileRecord, records_of
from tchub.hub.registry.lock_file import LockFile, pin
from tchub.zoo.files import StorageError
from toy_checkpoints import publish


def pins(project: Path) -> dict[str, str]:
    """Name -> version, as the file has it."""
    body = json.loads((project / "tchub.lock").read_text())
    assert body["format"] == 1
    return {name: pinned["version"] for name, pinned in body["checkpoints"].items()}


def test_pull_lock_pins_and_pull_frozen_follows_whatever_is_newer_until_all_pins_are_renewed(project, run, capsys):
    from tchub import hub
    from tchub.hub.api import locate

    assert main(["pull", "tcl-epyc", "--lock"]) == 0
    assert pins(project) == {"tcl-epyc": "1.0.0"}
    newer(project)
    capsys.readouterr()
    assert run.json("pull", "tcl-epyc", "--frozen")[1]["version"] == "1.0.0"
    assert run.json("pull", "tcl-epyc")[1]["version"] == "1.1.0"
    assert locate("tcl-epyc", lock="tchub.lock").entry.version == "1.0.0"
    assert hub.pull(lock="tchub.lock").entry.version == "1.0.0", "the only pin needs no name"
    pull_and_pin(["tcl-t4"])
    pull_and_pin()
    assert pins(project) == {"tcl-epyc": "1.1.0", "tcl-t4": "1.0.0"}


def test_lock_without_names_or_pins_pins_what_fits_this_machine(project, monkeypatch):
    from tchub.zoo.devices import get_device

    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    pull_and_pin()
    assert pins(project) == {"tcl-epyc": "1.0.0"}


def test_the_lock_file_is_enough_without_the_index(project):
    (pulled,) = pull_and_pin(["tcl-epyc"])
    before = {path.name: path.read_bytes() for path in pulled.path.iterdir() if path.name != "entry.json"}
    release(project)
    subprocess.run(["rm", "-r", pulled.path], check=True)
    (again,) = pull_pinned()
    assert {name: (again.path / name).read_bytes() for name in before} == before


def test_a_source_that_was_named_is_asked_for_what_is_here_already_before_it_is_pinned(project, capsys):
    elsewhere = project.parent / "elsewhere"
    publish(elsewhere, "tcl-epyc")
    assert main(["pull", "tcl-epyc"]) == 0
    pull_and_pin(["tcl-epyc"], source=elsewhere.as_uri())
    assert LockFile.read(project / "tchub.lock").pins["tcl-epyc"].sources[0] == elsewhere.as_uri()
    before = (project / "tchub.lock").read_bytes()
    (elsewhere / "tcl-epyc/1.0.0/model.safetensors").write_bytes(b"others")
    for source, says in (("file:///no/such", "does not hold tcl-epyc@1.0.0"), (elsewhere.as_uri(), "wrong size")):
        assert main(["pull", "tcl-epyc", "--source", source, "--lock"]) == 1
        assert says in capsys.readouterr().err
    assert (project / "tchub.lock").read_bytes() == before


def test_verify_checks_against_the_pins(project, run):
    (epyc, _) = pull_and_pin(["tcl-epyc", "tcl-t4"])
    newer(project)
    code, rows = run.json("pull", "--verify", "--frozen")
    assert (code, [(row["version"], row["outcome"]) for row in rows]) == (0, [("1.0.0", "ok")] * 2)
    (epyc.path / "README.md").write_text("changed")
    assert run.json("pull", "--verify", "tcl-epyc", "--frozen")[1]["outcome"] == "size-mismatch"
    assert main(["pull", "--verify", "--frozen"]) == 1


@pytest.mark.parametrize("folder", ["", "."])
def test_a_folder_is_refused_as_the_file(project, folder):
    with pytest.raises(IndexFileError, match="is a folder"):
        pull_and_pin(["tcl-epyc"], lock=folder)


def test_further_names_are_added_and_equal_pins_are_equal_bytes_in_whatever_order_they_came(project, tmp_path):
    pull_and_pin(["tcl-epyc"])
    pull_and_pin(["tcl-t4"])
    pull_and_pin(["tcl-t4", "tcl-epyc"], lock=tmp_path / "b.lock")
    assert (tmp_path / "b.lock").read_bytes() == (project / "tchub.lock").read_bytes()
    assert pins(project) == {"tcl-epyc": "1.0.0", "tcl-t4": "1.0.0"}


def test_a_folder_that_cannot_be_written_keeps_the_lock_file(project, full_disk):
    pull_and_pin(["tcl-epyc"])
    before = (project / "tchub.lock").read_bytes()

    full_disk("os.replace")
    with pytest.raises(StorageError, match="No space left"):
        pull_and_pin(["tcl-t4"])
    assert sorted(path.name for path in project.iterdir()) == [".tchub.lock.writing", "tchub.lock"]
    assert (project / "tchub.lock").read_bytes() == before


def pin_all(entries):
    for entry in entries:
        pin(Path("tchub.lock"), [entry])


def test_processes_that_pin_at_once_lose_no_entry(project, tmp_path, forked):
    entries = [publish(tmp_path / "many", f"tcl-d{number}") for number in range(32)]
    writers = [forked(pin_all, entries[number::4]) for number in range(4)]
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0, 0]
    assert set(LockFile.read(project / "tchub.lock").pins) == {entry.name for entry in entries}


def test_a_name_that_is_not_pinned(project):
    pull_and_pin(["tcl-epyc"])
    with pytest.raises(IndexFileError, match="does not pin tcl-t4") as caught:
        pull_pinned(["tcl-t4"])
    assert caught.value.remedy == "pin it: tchub pull tcl-t4 --lock"


def test_an_index_with_other_files_for_the_pinned_version(project):
    pull_and_pin(["tcl-epyc"])
    (listed, *others) = Index.read(project.parent / "index.json").entries
    files = dict(listed.files) | {"model.safetensors": FileRecord(7, "0" * 64)}
    release(project, replace(listed, files=files), *others)
    with pytest.raises(IndexFileError, match=r"other files for tcl-epyc@1\.0\.0 .* model\.safetensors differ"):
        pull_pinned()


def test_a_card_that_was_corrected_since_is_taken_from_the_index(project):
    pull_and_pin(["tcl-epyc"])
    (listed, *others) = Index.read(project.parent / "index.json").entries
    card = project.parent / "zoo" / "tcl-epyc" / "1.0.0" / "README.md"
    card.write_text("corrected")
    files = dict(listed.files) | records_of(card.parent, ("README.md",))
    release(project, replace(listed, files=files), *others)
    assert (pull_pinned()[0].path / "README.md").read_text() == "corrected"
    pull_and_pin(["tcl-epyc"])
    assert LockFile.read(project / "tchub.lock").pins["tcl-epyc"].files == files


def test_a_pin_that_this_tchub_cannot_load(project):
    pull_and_pin(["tcl-epyc"])
    body = json.loads((project / "tchub.lock").read_text())
    body["checkpoints"]["tcl-epyc"]["feature_schema"] = "tcl-npu"
    (project / "tchub.lock").write_text(json.dumps(body))
    release(project)
    with pytest.raises(UnknownCheckpointError):
        pull_pinned()


def test_an_adapted_checkpoint_cannot_be_pinned(project, tmp_path):
    local = publish(tmp_path / "x", "tcl-epyc+local")
    with pytest.raises(IndexFileError, match="adapted on this machine"):
        pin(project / "tchub.lock", [local])
    assert not (project / "tchub.lock").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format": 1, "checkpoints": {', "not JSON"),
        ("[]", "not a JSON object"),
        ('{"format": 1, "checkpoints": []}', "no object of"),
        ('{"checkpoints": {}}', "no format number"),
        ('{"format": 1, "checkpoints": {}, "checkpoints": {}}', "twice"),
    ],
)
def test_a_lock_file_that_is_none(project, text, says):
    (project / "tchub.lock").write_text(text)
    for use in (pull_pinned, lambda: pull_and_pin(["tcl-epyc"])):
        with pytest.raises(IndexFileError, match=says) as caught:
            use()
        assert "restore it" in caught.value.remedy
    assert (project / "tchub.lock").read_text() == text


def test_a_lock_file_that_is_missing_huge_or_of_a_newer_format(project):
    path = project / "tchub.lock"
    with pytest.raises(IndexFileError, match="there is no lock file"):
        pull_pinned()
    path.write_text('{"format": 2, "checkpoints": {}}')
    with pytest.raises(IndexFileError, match="format 2") as caught:
        pull_pinned()
    assert "upgrade tchub" in caught.value.remedy
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(IndexFileError, match="larger than"):
        pull_pinned()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../up.json": {"size": 1, "sha256": "0" * 64}}},
        {"version": "../1.0.0"},
        {"feature_schema": None},
        *({"name": name} for name in ("../../etc/passwd", "tcl-epyc@1.0.0", "tcl-epyc+local", "", "x" * 9999)),
    ],
)
def test_a_hostile_pin_is_refused(project, change):
    pull_and_pin(["tcl-epyc"])
    body = json.loads((project / "tchub.lock").read_text())
    pinned = body["checkpoints"].pop("tcl-epyc")
    name, files = change.pop("name", "tcl-epyc"), pinned["files"] | change.pop("files", {})
    body["checkpoints"][name] = pinned | {"files": files} | change
    (project / "tchub.lock").write_text(json.dumps(body))
    with pytest.raises(IndexFileError, match="cannot be used"):
        pull_pinned()

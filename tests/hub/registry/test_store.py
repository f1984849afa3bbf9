"""The store: a version appears whole or not at all, never changes, and a bad disk is named."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tchub.hub.registry import Store
from tchub.hub.registry.entry import LASTING_FILES
from tchub.hub.registry.errors import IntegrityError
from tchub.hub.registry.files import FileRecord, Outcome, records_of
from tchub.zoo.files import LockError, StorageError
from toy_checkpoints import publish, write_toy


@pytest.fixture
def entry(tmp_path):
    return publish(tmp_path / "origin", "tcl-epyc")


def fill(folder: Path) -> None:
    """Write the toy's files, as a source would."""
    write_toy(folder, "tcl-epyc")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def leftovers(store: Store) -> list[str]:
    """What lies in the store besides checkpoints and locks."""
    return [str(p) for p in store.root.rglob("*") if ".partial-" in p.name]


def test_a_version_is_stored_with_the_entry_it_was_checked_against(store, entry):
    path = store.add(entry, fill)
    assert path == store.root / "tcl-epyc" / "1.0.0"
    assert sorted(p.name for p in path.iterdir()) == [
        "README.md", "config.json", "entry.json", "metrics.json", "model.safetensors"
    ]  # fmt: skip
    assert store.entries() == [entry]
    assert store.require(entry) == path
    assert leftovers(store) == []


def test_what_does_not_match_the_entry_is_never_stored(store, entry):
    def wrong(folder: Path) -> None:
        fill(folder)
        (folder / "model.safetensors").write_bytes(b"x")

    with pytest.raises(IntegrityError):
        store.add(entry, wrong)
    assert store.entries() == []
    assert leftovers(store) == []


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize(
    ("damage", "outcome"),
    [
        (Path.unlink, Outcome.MISSING_FILE),
        (_truncate, Outcome.SIZE_MISMATCH),
        (_flip, Outcome.HASH_MISMATCH),
        (_link, Outcome.NOT_A_FILE),
    ],
)
def test_each_damage_has_its_own_outcome_and_a_remedy(store, entry, damage, outcome):
    path = store.add(entry, fill)
    damage(path / "model.safetensors")
    assert store.verify(entry).outcome is outcome
    with pytest.raises(IntegrityError) as caught:
        store.require(entry)
    assert caught.value.fields["outcome"] == outcome.value
    assert caught.value.remedy == "run: tchub pull tcl-epyc@1.0.0"


def test_a_rename_that_fails_keeps_what_was_there(store, entry, full_disk):
    path = store.add(entry, fill)
    (path / "README.md").write_text("damaged")

    full_disk("os.replace")
    with pytest.raises(StorageError, match="No space left"):
        store.add(entry, fill)
    assert (path / "README.md").read_text() == "damaged"
    assert leftovers(store) == []


def test_a_store_that_stays_locked_is_an_error_in_bounded_time(store):
    with (
        store.locked("tcl-epyc"),
        pytest.raises(LockError, match=r"another process has held .*tcl-epyc\.lock for 0\.1 s") as caught,
        store.locked("tcl-epyc", seconds=0.1),
    ):
        pytest.fail("held twice")
    assert "frees itself" in caught.value.remedy


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"format": 1e999}', "\0" * 100])
def test_a_hostile_record_is_no_checkpoint(store, entry, text):
    path = store.add(entry, fill)
    (path / "entry.json").write_text(text)
    assert store.entries() == []


def test_a_version_is_for_all_to_read_whom_the_umask_lets(store, entry):
    before = os.umask(0o022)
    try:
        path = store.add(entry, fill)
    finally:
        os.umask(before)
    assert {one.stat().st_mode & 0o777 for one in (path.parent, path)} == {0o755}
    assert {one.stat().st_mode & 0o777 for one in path.iterdir()} == {0o644}


def test_a_version_whose_content_changed_in_the_index_is_refused(store, entry):
    path = store.add(entry, fill)
    for name in LASTING_FILES:
        moved = replace(entry, files=dict(entry.files) | {name: FileRecord(3, "0" * 64)})
        with pytest.raises(StorageError, match="other files"):
            store.add(moved, lambda folder: pytest.fail("fetched"))
    assert store.require(entry) == path


def fill_corrected(folder: Path) -> None:
    """Write the toy's files with another card and other scores."""
    fill(folder)
    for name in ("README.md", "metrics.json"):
        (folder / name).write_text("corrected")


@pytest.fixture
def corrected(entry, tmp_path):
    """The entry with another card and other scores."""
    fill_corrected(tmp_path / "corrected")
    records = records_of(tmp_path / "corrected", ("README.md", "metrics.json"))
    return replace(entry, files=dict(entry.files) | records)


def test_a_version_whose_card_was_corrected_still_serves_and_the_next_pull_brings_the_card(store, entry, corrected):
    path = store.add(entry, fill)
    assert store.require(corrected) == path
    assert store.add(corrected, fill_corrected) == path
    assert (path / "README.md").read_text() == "corrected"
    assert store.require(entry) == path, "an older index serves as well"


def test_whoever_looks_while_a_version_is_replaced_sees_a_whole_one(store, entry, corrected, monkeypatch):
    path = store.add(entry, fill)
    moves = []

    def move(source, target, replace=os.replace):
        replace(source, target)
        moves.append(Path(target).name)
        assert store.verify(corrected).ok, "a process that is killed here loses nothing"

    monkeypatch.setattr(os, "replace", move)
    store.add(corrected, fill_corrected)
    assert (len(moves), moves[-1]) == (5, "entry.json")
    assert store.require(corrected) == path

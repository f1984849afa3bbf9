"""Files are replaced whole, or not at all."""

import os

import pytest
from tchub.zoo.files import LockError, StorageError, locked_folder, write_atomically


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_is_for_those_to_read_whom_the_umask_lets(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")

    def refuse(*_):
        raise OSError("no")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no"):
        write_atomically(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    with locked_folder(tmp_path), pytest.raises(LockError, match="another process works in"), locked_folder(tmp_path):
        pass
    with locked_folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"), locked_folder(tmp_path / "file" / "out"):
        pass

"""Files are replaced whole, or not at all."""

from __future__ import annotations

import errno
import os
import resource

import pytest
from tchub.zoo.files import LockError, StorageError, append, drop_torn_line, locked_folder, write_atomically


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


@pytest.mark.parametrize(
    ("text", "whole"), [('[1]\n[2, "x"]', '[1]\n[2, "x"]\n'), ("[1]\n[2, ", "[1]\n"), ("[1]\n", "[1]\n"), ("[", "")]
)
def test_a_torn_last_line_is_cut_and_one_without_its_line_feed_completed(tmp_path, text, whole):
    path = tmp_path / "records.json"
    path.write_text(text)
    assert drop_torn_line(path) is (text != whole)
    assert path.read_text() == whole
    assert not drop_torn_line(path)


def test_lines_that_do_not_fit_leave_the_file_as_it_was(tmp_path):
    path, before = tmp_path / "lines", resource.getrlimit(resource.RLIMIT_FSIZE)
    append(path, "one\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(StorageError, match=os.strerror(errno.EFBIG)) as caught:
            append(path, "a line that is too long\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "same command" in str(caught.value.remedy)
    assert path.read_text() == "one\n"


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    with locked_folder(tmp_path), pytest.raises(LockError, match="another process works in"), locked_folder(tmp_path):
        pass
    with locked_folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"), locked_folder(tmp_path / "file" / "out"):
        pass

"""The cache of kernels: kept by content, bounded, shared by processes, and never a reason to fail."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tchub.hub.device.kernel_cache import ENVIRONMENT, KernelCache, cache_folder, default_folder, kernel_key, open_cache
from tchub.hub.device.measure import MeasureConfig, Measurer


def library(folder: Path, name: str, size: int = 10) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    return path


def test_the_key_follows_from_module_target_and_version() -> None:
    base = kernel_key("{}", {"kind": "llvm", "num-cores": 1}, "0.27")
    assert base == kernel_key("{}", {"num-cores": 1, "kind": "llvm"}, "0.27")
    others = [
        kernel_key("[]", {"kind": "llvm", "num-cores": 1}, "0.27"),
        kernel_key("{}", {"kind": "llvm", "num-cores": 2}, "0.27"),
        kernel_key("{}", {"kind": "llvm", "num-cores": 1}, "0.28"),
    ]
    assert len({base, *others}) == 4


def test_a_kept_library_outlives_its_source(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    source, copy = library(tmp_path, "a.so"), tmp_path / "b.so"
    assert not cache.fetch("ab12", copy)
    assert cache.store("ab12", source)
    source.unlink()
    assert cache.fetch("ab12", copy)
    assert copy.read_bytes() == b"x" * 10
    assert (cache.hits, cache.misses) == (1, 1)
    assert not list((tmp_path / "cache").glob(".partial*"))


def test_beyond_the_size_the_least_recently_used_go(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache", max_bytes=25)
    for age, key in enumerate(["aa1", "bb2", "cc3"]):
        cache.store(key, library(tmp_path, f"{key}.so"))
        os.utime(cache.folder / key[:2] / f"{key}.so", (1000 + age, 1000 + age))
    assert cache.fetch("aa1", tmp_path / "used.so")  # the oldest, used just now
    assert cache.sweep() == 1
    kept = [cache.fetch(key, tmp_path / f"again-{key}.so") for key in ("aa1", "bb2", "cc3")]
    assert kept == [True, False, True]


def test_several_writers_of_one_key_leave_one_whole_library(tmp_path: Path) -> None:
    sources = [library(tmp_path, f"{i}.so", 1000) for i in range(8)]
    caches = [KernelCache(tmp_path / "cache") for _ in sources]
    threads = [threading.Thread(target=c.store, args=("ff0", s)) for c, s in zip(caches, sources, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caches[0].fetch("ff0", tmp_path / "out.so")
    assert (tmp_path / "out.so").stat().st_size == 1000


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache = KernelCache(tmp_path / "cache")
    assert not cache.store("ab", library(tmp_path, "a.so"))
    assert not cache.fetch("ab", tmp_path / "b.so")


@pytest.mark.parametrize(
    ("setting", "text", "folder"),
    [
        (None, "", None),
        (None, "off", None),
        (None, "on", default_folder()),
        (None, "/somewhere", Path("/somewhere")),
        (False, "on", None),
        (True, "", default_folder()),
        (Path("/here"), "off", Path("/here")),
    ],
)
def test_it_is_off_unless_asked_for(
    setting: Any, text: str, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, text)
    assert cache_folder(setting) == folder
    assert (open_cache(setting) is None) == (folder is None)


def test_measuring_again_builds_nothing(
    target_dict: dict[str, Any], small_candidates: list[Any], tmp_path: Path
) -> None:
    config = MeasureConfig(kernel_cache=tmp_path)
    with Measurer(target_dict, config) as measurer:
        first = [m for _, m in measurer.measure(small_candidates[:2])]
        again = [m for _, m in measurer.measure(small_candidates[:2])]
        assert measurer.watched["cached"] == 2
    assert all(m.error is None for m in (*first, *again))
    assert all(m.build_seconds > 0 for m in first)
    assert [m.build_seconds for m in again] == [0.0, 0.0]

"""Compiled programs on disk: nothing is compiled twice, and nothing is taken that its user has not written so."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tvm
from tchub.hub.device import cuda_compile
from tchub.hub.device.cubin_cache import CubinCache
from tchub.hub.device.cuda_compile import compile_cuda, compile_facts
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.devices import get_device

TARGET = get_device("t4").target
PLAN = {"workspaces": [], "launches": [{"kernel": "main_kernel", "params": [["float32", 0.1]]}]}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CubinCache:
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    cache = CubinCache.here()
    assert cache is not None
    return cache


@pytest.fixture
def nvcc(tmp_path: Path) -> Path:
    """A compiler that writes a line to `calls` and the name of the architecture as the cubin."""
    path = tmp_path / "nvcc"
    path.write_text(
        f'#!/bin/sh\necho "$2" >> {tmp_path}/calls\nwhile [ "$1" != -o ]; do shift; done\necho cubin > "$2"'
    )
    path.chmod(0o755)
    return path


def entry_of(cache: CubinCache, name: str) -> Path:
    return cache.folder / name[:2] / name


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data[:16], lambda data: data + b"\0", lambda data: b"",
     lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: data.replace(b"0.1", b"0.2")],
)  # fmt: skip
def test_an_entry_that_was_changed_is_not_taken(cache: CubinCache, change: Any) -> None:
    cache.save(name := cache.name({"module": 1}), PLAN, b"image")
    assert cache.load(name) == (PLAN, b"image")
    path = entry_of(cache, name)
    path.write_bytes(change(path.read_bytes()))
    assert cache.load(name) is None


def test_an_entry_of_another_program_a_link_or_a_giant_is_not_taken(cache: CubinCache) -> None:
    one, other = cache.name({"module": 1}), cache.name({"module": 2})
    cache.save(one, PLAN, b"image")
    entry_of(cache, other).parent.mkdir(exist_ok=True)
    entry_of(cache, other).write_bytes(entry_of(cache, one).read_bytes())
    assert cache.load(other) is None
    entry_of(cache, other).unlink()
    os.mkfifo(entry_of(cache, other))
    assert cache.load(other) is None, "nor waited for"
    os.truncate(entry_of(cache, one), 1 << 40)
    assert cache.load(one) is None


def test_the_key_is_its_owners_alone_and_another_user_has_other_entries(
    cache: CubinCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "home" / "cubins.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert str(cache.key) not in repr(cache)
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "another"))
    with ThreadPoolExecutor(8) as threads:
        caches = list(threads.map(lambda _: CubinCache.here(), range(8)))
    assert len({one.key for one in caches if one}) == 1, "all processes have the key of the first"
    other = caches[0]
    assert other is not None
    assert (other.folder, other.key == cache.key) == (cache.folder, False)
    name = cache.name({"module": 1})
    cache.save(name, PLAN, b"image")
    assert (other.name({"module": 1}) == name, other.load(name)) == (False, None)


def test_without_a_home_or_a_cache_that_can_be_written_there_is_none(
    cache: CubinCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    blocked = CubinCache(tmp_path / "file" / "cubins", cache.key)
    blocked.save(name := cache.name({}), PLAN, b"image")
    assert blocked.load(name) is None
    (tmp_path / "home" / "cubins.key").write_bytes(b"short")
    assert CubinCache.here() is None
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "file" / "home"))
    assert CubinCache.here() is None


def test_the_least_recently_used_leave_when_a_folder_is_full(cache: CubinCache) -> None:
    small = CubinCache(cache.folder, cache.key, 256 * 1000)
    names = [f"00{number:062d}" for number in range(4)]
    for number, name in enumerate(names[:3]):
        small.save(name, {}, bytes(250))
        os.utime(entry_of(small, name), (number, number))
    (small.folder / "00" / ".left-by-a-kill").write_bytes(bytes(250))
    os.utime(small.folder / "00" / ".left-by-a-kill", (0, 0))
    assert small.load(names[0]) is not None, "which makes it the newest"
    small.save(names[3], {}, bytes(250))
    assert [name for name in names if small.load(name)] == [names[0], *names[2:]]
    assert len(list((small.folder / "00").iterdir())) == 3
    small.save(names[1], {}, bytes(2000))
    assert small.load(names[1]) is None, "larger than the share of a folder"


def test_a_program_is_compiled_once_for_each_target_code_and_compiler(
    cache: CubinCache, nvcc: Path, tmp_path: Path, small_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = random_candidates(small_task, tvm.target.Target(TARGET), 2, seed=0)

    def compiled(mod: Any, expected: int, code: str = "cubin", **target: Any) -> dict[str, Any]:
        """Compile, and check how many programs the compiler was given until now."""
        plan = compile_cuda(mod, TARGET | target, tmp_path / "out", code, str(nvcc), cache)
        assert (tmp_path / "out").read_bytes() == b"cubin\n"
        assert len((tmp_path / "calls").read_text().splitlines()) == expected
        return plan

    plan = compiled(one.mod, 1)
    copy = tvm.ir.load_json(str(tvm.ir.save_json(one.mod)))
    assert (compiled(copy, 1), plan["launches"][0]["kernel"]) == (plan, "main_kernel")
    compiled(other.mod, 2)
    compiled(one.mod, 3, arch="sm_80")
    compiled(one.mod, 4, "ptx")
    entry = max(cache.folder.glob("*/*"), key=lambda path: path.stat().st_mtime_ns)
    entry.write_bytes(entry.read_bytes().replace(b"main_kernel", b"evil_kernel"))
    assert compiled(one.mod, 5, "ptx") == compiled(one.mod, 5, "ptx") == plan, "rebuilt, and then taken"
    os.utime(nvcc, (1, 1))
    cuda_compile._compiler_facts.cache_clear()
    compiled(one.mod, 6)
    monkeypatch.setattr(cuda_compile.metadata, "version", lambda _: "9.9")
    cuda_compile._compiler_facts.cache_clear()
    compiled(one.mod, 7)


def test_what_does_not_compile_is_not_kept(cache: CubinCache, nvcc: Path, tmp_path: Path, small_task: Any) -> None:
    (one,) = random_candidates(small_task, tvm.target.Target(TARGET), 1, seed=0)
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="nvcc failed"):
            compile_cuda(one.mod, TARGET, tmp_path / "out", "cubin", str(nvcc), cache)
    assert cache.load(cache.name(compile_facts(one.mod, TARGET, "cubin", str(nvcc)))) is None
    assert not cache.folder.exists()

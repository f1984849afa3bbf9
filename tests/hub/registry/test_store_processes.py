"""The store under many processes at once, and under processes that are killed: one whole version, or none."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mirror_server import MirrorServer, silent
from tchub.hub.api import locate
from tchub.hub.registry import Entry, Registry, Store, resolve
from tchub.hub.registry.files import records_of
from toy_checkpoints import publish, write_index

ID = "tcl-epyc@0.9.0"  # no version that ships

# Forked, so that fifty processes cost no more than one import.
_FIFTY = f"""
import os, sys
from tchub.hub.registry import Registry
import requests, urllib3

def child(start):
    os.close(start[1])
    os.read(start[0], 1)  # all begin together
    os._exit(0 if Registry.default().pull("{ID}").path.is_dir() else 1)

start = os.pipe()
children = [pid for _ in range(50) if (pid := os.fork()) or child(start)]
os.close(start[1])
codes = [os.waitpid(pid, 0)[1] for pid in children]
assert not any(name.split(".")[0] in ("torch", "tvm") for name in sys.modules)
sys.exit(len(children) != 50 or any(codes))
"""


def pull() -> None:
    Registry.default().pull(ID)


def pull_and_die(renamed: bool) -> None:
    """Pull, and die at the rename that makes a version count, or its card: before it, or after it."""

    def dying(rename: Callable[..., None]) -> Callable[..., None]:
        def die(source: Any, target: Any) -> None:
            last = str(target).endswith(("0.9.0", "0.9.0/README.md"))
            if renamed or not last:
                rename(source, target)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

        return die

    os.rename, os.replace = dying(os.rename), dying(os.replace)
    pull()


@pytest.fixture
def entry(tmp_path, server, monkeypatch) -> Entry:
    """A checkpoint that a mirror holds, and an environment in which processes find it there."""
    entry = publish(tmp_path / "zoo", "tcl-epyc", "0.9.0", entry={"sources": [server.url]})
    server.add(tmp_path / "zoo")
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "index.json", entry)))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    return entry


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "cache" / "checkpoints")


@pytest.fixture
def run(forked: Callable[..., Any]) -> Callable[..., int | None]:
    """A function that runs another in a process of its own, and returns how that ended."""

    def until_it_ends(function: Callable[..., None], *arguments: Any) -> int | None:
        process = forked(function, *arguments)
        process.join(60)
        return process.exitcode

    return until_it_ends


def partial(store: Store) -> list[Path]:
    return [path for path in store.root.rglob("*") if ".partial-" in path.name]


def fetched(server: MirrorServer, entry: Entry) -> bool:
    """Whether each file was asked for once."""
    return sorted(server.paths) == sorted(f"/tcl-epyc/0.9.0/{name}" for name in entry.files)


def test_fifty_processes_pulling_at_once_store_one_whole_version(entry, store, server):
    assert subprocess.run([sys.executable, "-c", _FIFTY], timeout=120, check=False).returncode == 0
    assert store.verify(entry).ok
    assert fetched(server, entry), "one of them fetched, the others waited and found it"
    assert partial(store) == []


def test_a_pull_killed_while_it_downloads_leaves_nothing_that_counts_and_the_next_cleans_up(
    entry, store, server, forked, run
):
    server.answers = [silent(60)]
    process = forked(pull)
    while not server.seen:
        assert process.is_alive()
        time.sleep(0.01)
    assert partial(store)
    process.kill()
    process.join()
    assert store.entries() == []
    assert partial(store)
    server.seen.clear()
    assert run(pull) == 0
    assert fetched(server, entry)
    assert store.verify(entry).ok
    assert partial(store) == []


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_pull_killed_at_the_rename_leaves_a_whole_version_or_none(entry, store, run, renamed, damaged):
    if damaged:
        assert run(pull) == 0
        (store.path(entry) / "README.md").unlink()
    assert run(pull_and_die, renamed) == -signal.SIGKILL
    assert store.verify(entry).ok == renamed
    assert run(pull) == 0
    assert store.verify(entry).ok
    assert resolve(store.entries(), ID).entry == entry


@pytest.mark.parametrize("renamed", [False, True])
def test_a_replacement_that_is_killed_loses_nothing(entry, store, server, tmp_path, run, renamed):
    assert run(pull) == 0
    corrected = publish(tmp_path / "corrected", "tcl-epyc", "0.9.0", entry={"sources": [server.url]})
    card = tmp_path / "corrected" / "tcl-epyc" / "0.9.0" / "README.md"
    card.write_text("corrected")
    corrected = replace(corrected, files=dict(corrected.files) | records_of(card.parent, ("README.md",)))
    server.add(tmp_path / "corrected")
    write_index(tmp_path / "index.json", corrected)
    assert run(pull_and_die, renamed) == -signal.SIGKILL
    server.seen.clear()
    assert locate(ID, offline=True).path == store.path(entry)
    assert server.seen == [], "a machine without a network has its checkpoint"
    assert run(pull) == 0
    assert (store.path(entry) / "README.md").read_text() == "corrected"

"""Toy checkpoints and registries for the tests: real files with tiny tensors, made without torch."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from tchub.hub.registry import Entry, Index, Registry, Store, describe


def write_toy(folder: Path, name: str, version: str = "1.0.0", **config: Any) -> Path:
    """A checkpoint's four files; `config` overrides fields of config.json."""
    arch, _, family = name.partition("+")[0].partition("-")
    body = {
        "format": 1,
        "name": name,
        "version": version,
        "arch": arch,
        "model": {},
        "feature_schema": "tcl-cpu",
        "family": family,
        "lineage": {"weights_licence": "Apache-2.0", "base": None},
        "training": {"corpus": {"name": "toy", "device": family, "programs": 1200, "tasks": 10, "licence": "CC0-1.0"}},
        "tvm": "0.27.0",
    }
    scores = {"top1": 0.91, "top5": 0.97, "pairwise": 0.86}
    metrics = {
        "format": 1,
        "corpus": "toy",
        "split": "test",
        "results": {"model": scores, "random": {"top1": 0.35, "top5": 0.6, "pairwise": 0.5}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(body | config))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "README.md").write_text(f"# {name}\n\nA toy.\n")
    weights = np.full(8, float(len(version) + int(version[-1])), dtype=np.float32)
    (folder / "model.safetensors").write_bytes(save({"w": weights}))
    return folder


def publish(
    root: Path, name: str, version: str = "1.0.0", *, entry: dict[str, Any] | None = None, **config: Any
) -> Entry:
    """Write a toy into `<root>/<name>/<version>` and describe it for an index."""
    folder = write_toy(root / name / version, name, version, **config)
    return describe(folder, name, version, **(entry or {}))


def make_registry(tmp: Path, *entries: Entry, wheel: Path | None = None) -> Registry:
    """A registry whose stores are empty folders of `tmp`, and whose wheel holds nothing unless given."""
    return Registry(
        Index(entries),
        Store(tmp / "cache"),
        Store(tmp / "home", "TCHUB_HOME"),
        wheel or tmp / "empty-wheel",
    )


def with_entry(registry: Registry, **changes: Any) -> Registry:
    """The registry with fields of its first entry changed."""
    first, *others = registry.index.entries
    return replace(registry, index=Index((replace(first, **changes), *others)))


def write_index(path: Path, *entries: Entry) -> Path:
    """An index file."""
    path.write_text(Index(entries).to_json())
    return path


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the disk is full for what is fetched: its files are opened on a device that takes no byte."""
    open_file = Path.open

    def open_full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        partial = "w" in mode and any(part.startswith(".partial-") for part in path.parts)
        return open_file(Path("/dev/full") if partial else path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_full)


def forbid_reading(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on a folder is there, and nobody may look into it."""

    def denying(call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(path: Any, *args: Any, **kwargs: Any) -> Any:
            inside = folder in Path(str(path)).parents
            if inside or (call is not os_stat and Path(str(path)) == folder):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *args, **kwargs)

        return ask

    os_stat = os.stat
    for name in ("stat", "lstat", "listdir", "scandir", "open"):
        monkeypatch.setattr(os, name, denying(getattr(os, name)))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: folder not in (path, *path.parents) and access(path, mode))


def forbid_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every disk is read-only."""

    def refuse(path: Path | str, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    for method in ("mkdir", "write_bytes", "write_text", "touch", "rename", "unlink"):
        monkeypatch.setattr(Path, method, refuse)
    monkeypatch.setattr("filelock.FileLock.acquire", lambda lock: refuse(lock.lock_file))

"""What the fuzzer feeds, and what with: every reader of a file that somebody else wrote.

A target's `run` takes the bytes of one file. It returns nothing when the file is taken, the kind of a record that is
counted as broken, or ends in a TchubError; anything else is a bug.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from scripts.fuzz import seeds as real


def _as_it_is(_rng: Random, data: bytes) -> bytes:
    return data


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        form: how its files are built, see `fuzz_mutate.mutate`.
        seeds: real files, small ones.
        run: reads one.
        mend: makes sums in a mutated file right again, so that what is behind them is reached too.
        seconds: that one input may take.
    """

    name: str
    form: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], str | None]
    mend: Callable[[Random, bytes], bytes] = _as_it_is
    seconds: float = 5.0


@cache
def scratch() -> Path:
    """A folder in memory where there is one, else on the disk; left to the system."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="tchub-fuzz-", dir=memory if memory.is_dir() else None))


def _file(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


def read_index(data: bytes) -> None:
    from tchub.hub.registry import Index

    index = Index.parse(data)
    Index.parse(index.to_json())


def read_lock(data: bytes) -> None:
    from tchub.hub.registry.lock_file import LockFile

    lock = LockFile.read(_file("tchub.lock", data))
    lock.to_json()


def read_metadata(file: str) -> Callable[[bytes], None]:
    """Refreshes the index from a folder in which one file of the signed metadata is the input."""

    @cache
    def folder() -> Path:
        path = scratch() / "mirror" / file
        for name, data in real.signed_index().items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return path

    def run(data: bytes) -> None:
        from tchub.hub.registry import FolderSource, Index
        from tchub.hub.registry.trust import TrustedIndexes

        (folder() / "metadata" / file).write_bytes(data)
        root = real.signed_index()["metadata/1.root.json"]
        state = folder() / "state"
        shutil.rmtree(state, ignore_errors=True)
        TrustedIndexes(root, state).refresh(FolderSource(folder()), Index())

    return run


def read_checkpoint(file: str, arch: str) -> Callable[[bytes], None]:
    """Loads a checkpoint of which one file is the input, and scores with it, as its user would."""

    @cache
    def folder() -> Path:
        path = scratch() / arch / file
        for name, data in real.checkpoint(arch).items():
            path.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return path

    def run(data: bytes) -> None:
        import numpy as np
        from tchub.zoo.models import Checkpoint

        (folder() / file).write_bytes(data)
        checkpoint = Checkpoint.load(folder())
        checkpoint.model.score(np.ones((2, 1, checkpoint.model.config.width), np.float32))

    return run


def read_card(data: bytes) -> str | None:
    """A card made of a config and metrics that somebody wrote; its head must be YAML and nothing but data."""
    import yaml
    from tchub.cards import render_card

    try:
        files = json.loads(data)
        config, metrics = files["config"], files["metrics"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return "not the fuzzer's pair of files"
    if not isinstance(config, dict) or not isinstance(metrics, dict):
        return "not the fuzzer's pair of files"
    _, head, _ = render_card(config, metrics).split("---\n", 2)
    assert isinstance(yaml.load(head, yaml.CSafeLoader), dict)
    return None


def read_metrics(data: bytes) -> None:
    from tchub.hub.registry.entry import scores_of
    from tchub.hub.registry.files import read_json

    scores_of(read_json(_file("metrics.json", data)))


def read_log(framework: str) -> Callable[[bytes], str | None]:
    """Imports a log of another framework; broken lines are counted, not fatal."""

    def run(data: bytes) -> str | None:
        from tchub.zoo.corpus.importers.records import Broken, ImportContext
        from tchub.zoo.corpus.importers.run import read_entries

        broken = None
        for entry in read_entries(_file(f"{framework}.json", data), framework, ImportContext("v100")):
            if isinstance(entry, Broken):
                broken = entry.kind
        return broken

    return run


def read_database(file: str) -> Callable[[bytes], str | None]:
    """Imports a MetaSchedule database of which one file is the input."""

    @cache
    def folder() -> Path:
        path = scratch() / "database" / file
        path.mkdir(parents=True)
        for name, data in real.database().items():
            (path / name).write_bytes(data)
        return path

    def run(data: bytes) -> str | None:
        from tchub.zoo.corpus.importers.records import Broken, ImportContext
        from tchub.zoo.corpus.importers.run import read_entries

        (folder() / file).write_bytes(data)
        broken = None
        for entry in read_entries(folder(), "metaschedule", ImportContext("epyc-turin")):
            if isinstance(entry, Broken):
                broken = entry.kind
        return broken

    return run


def read_trace(data: bytes) -> None:
    from tchub.zoo.primitives import from_trace_json

    from_trace_json(data)


def read_results(data: bytes) -> None:
    from tchub.hub.bundle.ingest import judged_programs

    judged_programs(_file("results.jsonl", data), real.bundle(), "epyc-turin")


FILES = {"config": "config.json", "safetensors": "model.safetensors"}
RECORDS = "database_tuning_record.json"


def _all() -> dict[str, Target]:
    def weights(kind: str, form: str, *archs: str) -> Target:
        file, name = FILES[kind], archs[0]
        return Target(kind, form, lambda: [real.checkpoint(arch)[file] for arch in archs], read_checkpoint(file, name))

    found = [
        weights("config", "json", *["tilenet"] * 6, "tilenet-kb", "tilenet-ensemble"),
        weights("safetensors", "tensors", "tilenet"),
        Target("ansor", "lines", real.ansor, read_log("ansor")),
        Target("autotvm", "lines", real.autotvm, read_log("autotvm")),
        Target("metaschedule", "lines", lambda: [real.database()[RECORDS]], read_database(RECORDS)),
        Target("trace", "json", real.traces, read_trace),
        Target("results", "lines", real.results, read_results),
        Target("index", "json", real.indexes, read_index),
        Target("lock", "json", real.locks, read_lock),
        Target(
            "signature",
            "json",
            lambda: [real.signed_index()["metadata/timestamp.json"]],
            read_metadata("timestamp.json"),
        ),
        Target("keys", "json", lambda: [real.signed_index()["metadata/2.root.json"]], read_metadata("2.root.json")),
        Target("metrics", "json", real.metrics, read_metrics),
        Target("card", "json", real.cards, read_card),
    ]
    return {target.name: target for target in found}


TARGETS = _all()

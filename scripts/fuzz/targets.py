"""What the fuzzer feeds, and what with: every reader of a file that somebody else wrote.

A target's `run` takes the bytes of one file. It returns nothing when the file is taken, the kind of a record that is
counted as broken, or ends in a TchubError; anything else is a bug.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from scripts.fuzz import seeds as real


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        form: how its files are built, see `mutate.mutate`.
        seeds: real files, small ones.
        run: reads one.
        seconds: that one input may take.
    """

    name: str
    form: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], str | None]
    seconds: float = 5.0


@cache
def scratch() -> Path:
    """A folder in memory where there is one, else on the disk; left to the system."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="tchub-fuzz-", dir=memory if memory.is_dir() else None))


def _file(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def planted(name: str, files: Callable[[], Mapping[str, bytes]], file: str) -> Callable[[bytes], Path]:
    """Return what puts an input in the place of one file of a folder, and returns the folder."""

    @cache
    def folder() -> Path:
        for other, data in files().items():
            _file(f"{name}/{file}/{other}", data)
        return scratch() / name / file

    def put(data: bytes) -> Path:
        (folder() / file).write_bytes(data)
        return folder()

    return put


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
    put = planted("mirror", real.signed_index, file)

    def run(data: bytes) -> None:
        from tchub.hub.registry import FolderSource, Index
        from tchub.hub.registry.trust import TrustedIndexes

        folder = put(data)
        shutil.rmtree(folder / "state", ignore_errors=True)
        trusted = TrustedIndexes(real.signed_index()["metadata/1.root.json"], folder / "state")
        trusted.refresh(FolderSource(folder), Index())

    return run


def read_checkpoint(file: str, arch: str) -> Callable[[bytes], None]:
    """Loads a checkpoint of which one file is the input, and scores with it, as its user would."""
    put = planted(arch, lambda: real.checkpoint(arch), file)

    def run(data: bytes) -> None:
        import numpy as np
        from tchub.zoo.models import Checkpoint

        checkpoint = Checkpoint.load(put(data))
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


def read_log(framework: str, device: str, put: Callable[[bytes], Path]) -> Callable[[bytes], str | None]:
    """Imports a log of a framework, or a database, which `put` writes; broken lines are counted, not fatal."""

    def run(data: bytes) -> str | None:
        from tchub.zoo.corpus.importers.records import Broken, ImportContext
        from tchub.zoo.corpus.importers.run import read_entries

        broken = None
        for entry in read_entries(put(data), framework, ImportContext(device)):
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

    def log(framework: str, seeds: Any, device: str, put: Callable[[bytes], Path]) -> Target:
        return Target(framework, "lines", seeds, read_log(framework, device, put))

    timestamp, root = "metadata/timestamp.json", "metadata/2.root.json"
    database = planted("database", real.database, RECORDS)
    targets = [
        weights("config", "json", *["tilenet"] * 6, "tilenet-kb", "tilenet-ensemble"),
        weights("safetensors", "tensors", "tilenet"),
        log("ansor", partial(real.files, "ansor"), "v100", partial(_file, "ansor.json")),
        log("autotvm", partial(real.files, "autotvm"), "v100", partial(_file, "autotvm.json")),
        log("metaschedule", lambda: [real.database()[RECORDS]], "epyc-turin", database),
        Target("trace", "json", real.traces, read_trace),
        Target("results", "lines", partial(real.files, "results"), read_results),
        Target("index", "json", real.indexes, read_index),
        Target("lock", "json", real.locks, read_lock),
        Target("signature", "json", lambda: [real.signed_index()[timestamp]], read_metadata(timestamp)),
        Target("keys", "json", lambda: [real.signed_index()[root]], read_metadata(root)),
        Target("metrics", "json", real.metrics, read_metrics),
        Target("card", "json", real.cards, read_card),
    ]
    return {target.name: target for target in targets}


TARGETS = _all()

"""What the fuzzer feeds, and what with: every reader of a file that somebody else wrote.

A target's `run` takes the bytes of one file. It returns nothing when the file is taken, the kind of a record that is
counted as broken, or ends in a TchubError; anything else is a bug.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    from tchub.hub.registry.files import read_json
    from tchub.hub.registry.listing import metrics_of

    metrics_of(read_json(_file("metrics.json", data)))


def read_log(framework: str, device: str, put: Callable[[bytes], Path]) -> Callable[[bytes], str | None]:
    """Imports a log of a framework, or a database, which `put` writes; broken lines are counted, not fatal."""

    def run(data: bytes) -> str | None:
        from tchub.zoo.corpus.importers.records import BadLine, ImportContext
        from tchub.zoo.corpus.importers.run import read_entries

        broken = None
        for entry in read_entries(put(data), framework, ImportContext(device)):
            if isinstance(entry, BadLine):
                broken = entry.kind
        return broken

    return run


def read_trace(data: bytes) -> None:
    from tchub.zoo.primitives import from_trace_json

    from_trace_json(data)


def read_results(data: bytes) -> None:
    from tchub.hub.bundle.ingest import judged_programs

    judged_programs(_file("results.jsonl", data), real.measured_bundle(), "epyc-turin")


def read_archive(data: bytes) -> None:
    """Checks an exported program as is done before PyTorch reads it."""
    from tchub.hub.networks.frontend.exported_archive import check_archive

    check_archive(_file("net.pt2", data))


def read_network(data: bytes) -> None:
    """Opens a configuration of transformers as `tune` does, and makes its inputs."""
    from tchub.hub.networks.sources import open_network

    open_network(_file("network/config.json", data)).inputs()


def read_bundle(data: bytes) -> None:
    """Takes results of a bundle back, of a machine that measured whatever it says."""
    from tchub.hub.bundle.archive import Bundle
    from tchub.hub.bundle.ingest import judged_programs

    bundle = Bundle(_file("bundle.zip", data))
    lines: list[Any] = [{"kind": "machine", "bundle": bundle.identity, "cpu_model": "AMD EPYC"}]
    for program in bundle.manifest["programs"]:
        named = {name: program[name] for name in ("id", "task_id", "sha256")}
        times = {"latencies": [0.001, 0.002], "error": None, "message": None, "measured_at": 1.7e9, "seconds": 0.5}
        lines += [{"kind": "program", **named, **times, "fingerprint": [[1.0, 2.0]]}] if program["file"] else []
    results = _file("results.jsonl", b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    judged_programs(results, bundle, "a100" if bundle.manifest["device_kind"] == "cuda" else "epyc-turin")


def _table(rows: list[dict[str, Any]], schema: Any) -> Any:
    """Rows as a table: of the schema's columns those that are there, of its types where the values have them."""
    import pyarrow as pa

    columns = {}
    for field in schema:
        if any(field.name in row for row in rows):
            values = [row.get(field.name) for row in rows]
            try:
                columns[field.name] = pa.array(values, field.type)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                columns[field.name] = pa.array(values)
    return pa.table(columns)


def read_rows(data: bytes) -> str | None:
    """Reads a corpus of rows that somebody wrote; sizes and hashes are those of its files."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tchub.zoo.corpus import Corpus
    from tchub.zoo.corpus.corpus import sequence_of
    from tchub.zoo.corpus.schema import PROGRAMS_SCHEMA, TASKS_SCHEMA
    from tchub.zoo.corpus.splits import split_tasks
    from tchub.zoo.primitives import TraceFormatError

    folder, schemas = scratch() / "rows", {"tasks": TASKS_SCHEMA, "programs": PROGRAMS_SCHEMA}
    folder.mkdir(exist_ok=True)
    try:
        given = json.loads(data)
        tables = {f"{name}.parquet": _table(given[name], schema) for name, schema in schemas.items()}
        given["meta"]["files"] = {}
        for name, table in tables.items():
            pq.write_table(table, folder / name, compression="none", use_dictionary=False)
            content = (folder / name).read_bytes()
            facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            given["meta"]["files"][name] = facts
        (folder / "corpus.json").write_text(json.dumps(given["meta"]))
    except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return "no rows of Parquet"
    corpus = Corpus.open(folder)
    split_tasks(corpus)
    for program in corpus.iter_programs():
        with suppress(TraceFormatError):  # which is a finding of `check_corpus`
            sequence_of(program)
    return None


def read_store(data: bytes) -> None:
    """Goes on with a run as `tune` does."""
    from tchub.hub.records.store import RunStore

    path = _file("store/records.sqlite", data)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    with RunStore(path, real.scope()) as store:
        store.claim(real.STORE_FACTS)
        store.noted("phases", dict[str, float])
        store.modules()
        for program in [*store.programs(), *store.known("t")]:
            assert program.latency > 0
            assert program.passing <= (program.failure is not None)
        assert len(store.ranking("t")) <= len(store)


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
        Target("trace", "json", partial(real.files, "trace"), read_trace),
        Target("results", "lines", partial(real.files, "results"), read_results),
        Target("index", "json", real.indexes, read_index),
        Target("lock", "json", real.locks, read_lock),
        Target("signature", "json", lambda: [real.signed_index()[timestamp]], read_metadata(timestamp)),
        Target("keys", "json", lambda: [real.signed_index()[root]], read_metadata(root)),
        Target("metrics", "json", real.metrics, read_metrics),
        Target("card", "json", real.cards, read_card),
        Target("pt2", "zip", partial(real.files, "pt2"), read_archive),
        Target("network-config", "json", partial(real.files, "network-config"), read_network),
        Target("rows", "json", real.corpus_rows, read_rows),
        Target("bundle", "zip", real.bundles, read_bundle),
        Target("store", "sqlite", real.stores, read_store),
    ]
    return {target.name: target for target in targets}


TARGETS = _all()

"""Real files for the fuzzer to start from: made here or cut from the zoo, small ones, so that many are tried."""

import json
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scripts.benchmarks.common import ROOT

ZOO = ROOT / "zoo" / "checkpoints"
# Of each architecture the smallest that is one.
_SMALL: dict[str, dict[str, Any]] = {
    "tilenet": {"hidden": 4, "layers": 1, "embedding": 2},
    "tilenet-kb": {"hidden": 4, "layers": 1, "embedding": 2, "lateral": 2},
    "tilenet-ensemble": {"hidden": 4, "layers": 1, "embedding": 2, "members": 2},
}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


@cache
def _entries() -> list[dict[str, Any]]:
    return json.loads((ROOT / "hub/registry/index.json").read_text())["checkpoints"]


@cache
def indexes() -> list[bytes]:
    """Indexes of one and two checkpoints, and one that uses every field."""
    one, two = _entries()[0], _entries()[-1]
    full = one | {
        "sources": ["https://mirror.test/zoo", "hf://org/name"], "revision": "0" * 40, "tvm_range": ">=0.27,<0.28",
        "transfer": {"epyc-turin": {"pairwise": 0.7, "top1": 0.5, "tasks": 90}}, "deprecated": "replaced",
    }  # fmt: skip
    extra = {"serial": 7}
    return [
        _json({"format": 1, "checkpoints": listed, **more})
        for listed, more in (([one], {}), ([one, two], extra), ([full], extra), ([], {}))
    ]


@cache
def locks() -> list[bytes]:
    """Lock files of one and two pins."""
    from tchub.hub.registry.entry import Entry
    from tchub.hub.registry.lock_file import LockFile

    first, last = (Entry.from_dict(_entries()[at]) for at in (0, -1))
    return [LockFile(Path("tchub.lock")).with_pins(pins).to_json().encode() for pins in ([first], [first, last])]


@cache
def signed_index() -> dict[str, bytes]:
    """A publisher's folder after a key was added: path -> bytes."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import CryptoSigner
    from tchub.hub.registry.signing import sign_index

    first, second = (CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes([n] * 32))) for n in (1, 2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "index.json").write_bytes(indexes()[0])
        sign_index(folder, [first])
        sign_index(folder, [first], trust=[second.public_key])
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@cache
def checkpoint(arch: str) -> dict[str, bytes]:
    """The files of a small checkpoint of an architecture, which would not score well."""
    import torch
    from tchub.zoo.devices import get_device
    from tchub.zoo.features import get_schema
    from tchub.zoo.models import Checkpoint, CheckpointConfig, create

    torch.manual_seed(0)
    schema = get_schema("nest-cpu" if arch.startswith("tilenet") else "tlp-cpu")
    model = create(arch, **_SMALL[arch], width=schema.width, hardware=schema.hardware).eval()
    config = CheckpointConfig(
        f"{arch}-epyc", "1.0.0", arch, model.config.as_dict(), schema.name, "epyc", feature_version=schema.version
    )
    with tempfile.TemporaryDirectory() as folder:
        Checkpoint(config, model, get_device("epyc")).save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _published(name: str) -> tuple[Any, Any]:
    (folder,) = (ZOO / name).iterdir()
    return tuple(_short(json.loads((folder / file).read_text())) for file in ("config.json", "metrics.json"))


def _short(value: Any) -> Any:
    """The value with its lists cut: the curves of a plot are as good with three points."""
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return [_short(inner) for inner in value[:3]] if isinstance(value, list) else value


@cache
def metrics() -> list[bytes]:
    """metrics.json of a checkpoint."""
    return [_json(_published("tcl-epyc")[1])]


@cache
def cards() -> list[bytes]:
    """What a card is made of: of a checkpoint of one family, of one from another device, of a knowledge base."""
    names = ("tcl-epyc", "tilenet-graviton", "tcl-kb-cpu")
    return [_json({"config": config, "metrics": own}) for config, own in map(_published, names)]


@cache
def files(name: str) -> list[bytes]:
    """The files of a folder beside this module, by their names: small ones of other tools, in any form they write."""
    return [path.read_bytes() for path in sorted(_folder(name).iterdir())]


def _folder(name: str) -> Path:
    return Path(__file__).parent / "files" / name


@cache
def database() -> dict[str, bytes]:
    """A MetaSchedule database of one task; its module is one that no TVM of today loads."""
    return {path.name: path.read_bytes() for path in _folder("database").iterdir()}


@cache
def measured_bundle() -> Any:
    """What of a bundle its results are compared with."""
    return SimpleNamespace(path="bundle.zip", **json.loads(files("bundle")[0]))


@cache
def bundles() -> list[bytes]:
    """A bundle for a CPU, and one for a GPU; their programs are no code."""
    from tchub.hub.bundle.archive import BundleProgram, write_parts

    known = measured_bundle().manifest
    (task,) = known["tasks"]
    shapes = [[[16, 16], "float32"]] * 2
    tasks = {"t": {"manifest": task | {"args": shapes}, "origin": measured_bundle().origin["t"]}}
    facts = {name: fact for name, fact in known.items() if name not in ("tasks", "programs")}
    facts |= {"workload": "bert", "tchub_version": "0", "ffi_version": "0", "timing": {"spread": 0.01}}
    gpu = {"target": {"kind": "cuda", "arch": "sm_80"}, "device": "a100", "device_kind": "cuda", "arch": "sm_80"}
    plan = {"launches": [{"kernel": "main", "grid": [1, 1, 1], "block": [32, 1, 1]}], "buffers": []}
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name), []
        for code, more in (("library", {}), ("cubin", gpu)):
            (folder / "code").write_bytes(b"\x7fELF" + bytes(60))
            programs = [
                BundleProgram("t", f"{at:016x}", "random", f"[[], [{at}]]", folder / "code", plan if more else None)
                for at in range(2)
            ]
            failed = BundleProgram("t", "f" * 16, "evolutionary", "[[], []]", None, None, "build", "no compiler")
            (path,) = write_parts(folder / f"{code}.zip", facts | more | {"code": code}, tasks, [*programs, failed])
            made.append(path.read_bytes())
        return made


@cache
def corpus_rows() -> list[bytes]:
    """A corpus of one task and three programs, as rows of JSON."""
    import pyarrow.parquet as pq
    from tchub.zoo.corpus import Corpus, write_corpus
    from tchub.zoo.plain_json import plain

    whole = Corpus.open(ROOT / "corpora/epyc-turin")
    task = replace(next(iter(whole.tasks.values())), workload="{}")
    programs = sorted(whole.programs(task.task_id), key=lambda program: len(program.trace))[:3]
    meta = {name: fact for name, fact in whole.meta.items() if name not in ("files", "device_sheet")}
    with tempfile.TemporaryDirectory() as name:
        made = write_corpus(Path(name), meta, [task], programs)
        tables = {kind: pq.read_table(Path(name, f"{kind}.parquet")).to_pylist() for kind in ("tasks", "programs")}
    return [_json(plain({"meta": made.meta, **tables}))]


STORE_FACTS = {"network": "bert", "target": "llvm", "model": "tcl-epyc", "tasks": ["t"], "device": "epyc-turin"}


@cache
def scope() -> Any:
    """The scope of the store."""
    from tchub.hub.records.scope import MeasurementScope

    return MeasurementScope("epyc-turin", "AMD EPYC", '{"kind":"llvm"}', 1, "0.27.0")


@cache
def stores() -> list[bytes]:
    """A run's store: programs that ran, one that failed, notes and a module."""
    from tchub.hub.device.candidate import Candidate
    from tchub.hub.device.measure import Measurement
    from tchub.hub.records.store import RunStore

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "records.sqlite"
        with RunStore(path, scope()) as store:
            store.claim(STORE_FACTS)
            for at, strategy in enumerate(("untuned", "tune", "random", "reused")):
                args: Any = (((2, 3), "float32"), ((3,), "int64"))
                candidate = Candidate("t", f"{at:016x}", f"[[], [{at}]]", strategy, None, args)  # type: ignore[arg-type]
                error = ("run_timeout", "too slow") if at == 2 else (None, None)
                measured = Measurement(() if at == 2 else (0.001, 0.002), *error, 0.5, 0.1, 1.7e9)
                store.put(candidate, measured, predicted=0.5 if at else None, clock=float(at))
            store.note("phases", {"search": 1.5, "model": 0.5})
            store.put_module("t", "{}")
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode=DELETE")
        return [path.read_bytes()]

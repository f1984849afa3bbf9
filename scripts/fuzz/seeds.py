"""Real files for the fuzzer to start from: made here or cut from the zoo, small ones, so that many are tried."""

from __future__ import annotations

import base64
import json
import tempfile
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


def files(name: str) -> list[bytes]:
    """The files of a folder beside this module, by their names: logs and results of a few programs."""
    return [path.read_bytes() for path in sorted((Path(__file__).parent / "files" / name).iterdir())]


@cache
def traces() -> list[bytes]:
    """Traces of MetaSchedule, of programs that were measured."""
    import pyarrow.parquet as pq

    column = pq.read_table(ROOT / "corpora/epyc-turin/programs.parquet", columns=["trace"])["trace"]
    return [column[at].as_py().encode() for at in (0, 900, 2000, 3000, 4000)]


@cache
def database() -> dict[str, bytes]:
    """A MetaSchedule database of one task; its module is one that no TVM of today loads."""
    arguments = [["TENSOR", "float32", [1, 16, 14, 14]], ["TENSOR", "float32", [32, 16, 3, 3]]]
    target = {"kind": "llvm", "mcpu": "znver5", "num-cores": 1}
    records = [[0, [json.loads(traces()[2]), [0.002], target, arguments]]]
    old = base64.b64encode(bytes(8) + b'{"root": 1}').decode()
    return {
        "database_workload.json": _json(["123", old]) + b"\n",
        "database_tuning_record.json": b"".join(_json(record) + b"\n" for record in records),
        "tasks.json": _json([{"workload": 0, "task_name": "conv", "op": "conv2d", "flops": 1e6}]),
    }


@cache
def bundle() -> Any:
    """What of a bundle its results are compared with."""
    return SimpleNamespace(path="bundle.zip", **json.loads(files("bundle")[0]))

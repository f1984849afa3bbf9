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
    extra = {"serial": 7, "aliases": {"tcl-old": one["name"]}}
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
def ansor() -> list[bytes]:
    """Logs of the steps that Ansor knows, in the oldest and the newest form."""
    hardware = [-1, 16, 64, 49152, 2147483647, 1024, 8, 32]
    cuda = "cuda -keys=cuda,gpu -max_num_threads=1024 -thread_warp_size=32"
    steps = [
        ["SP", 2, 0, 64, [2, 1, 16, 1], 1], ["SP", 2, 5, 64, [1, 8, 1, 2], 1], ["SP", 2, 10, 128, [4, 2], 1],
        ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]], ["FSP", 3, 0, 0, 3], ["FSP", 3, 4, 1, 3],
        ["CA", 2, 3, 5], ["CHR", 1, "shared", [2]], ["CHW", 2, "local"], ["CI", 0], ["CP", 1, "local"],
        ["RF", 2, 3, 4], ["FU", 3, [0, 1]], ["AN", 3, 0, 5], ["AN", 3, 1, 6], ["PR", 2, 0, "auto_unroll_max_step$64"],
        ["SA", 2, 3, 4, 12],
    ]  # fmt: skip
    relu = [[json.dumps(["relu_layer", 64, 64]), cuda], [[], [["FU", 1, [0, 1]]]]]
    oldest = {"i": relu, "r": [[0.1], 0, 1, 2], "v": "v0.2"}
    key = json.dumps(["conv2d_layer", [1, 16, 14, 14], [32, 16, 3, 3], 1, 1])
    program = [[key, cuda, hardware, "", 0, []], [[], steps]]
    newest = {"i": program, "r": [[0.002, 0.001], 0, 2.5, 1600000000], "v": "v0.6"}
    failed = oldest | {"r": [[1e10], 6, 1, 2]}
    return [b"".join(_json(record) + b"\n" for record in records) for records in ([oldest], [newest], [failed, newest])]


@cache
def autotvm() -> list[bytes]:
    """Logs of a convolution on a GPU and a dense layer on a CPU."""
    conv = [
        ["TENSOR", [2, 16, 14, 14], "float32"], ["TENSOR", [32, 16, 3, 3], "float32"],
        [2, 2], [1, 1, 1, 1], [1, 1], "float32",
    ]  # fmt: skip
    knobs = [
        ["tile_f", "sp", [-1, 2, 4, 2]], ["tile_y", "sp", [-1, 1, 7, 1]], ["tile_x", "sp", [-1, 1, 1, 7]],
        ["tile_rc", "sp", [-1, 4]], ["tile_ry", "sp", [-1, 3]], ["tile_rx", "sp", [-1, 1]],
        ["auto_unroll_max_step", "ot", 512], ["unroll_explicit", "ot", 1],
    ]  # fmt: skip
    dense = [["TENSOR", [64, 128], "float32"], ["TENSOR", [96, 128], "float32"], None, "float32"]
    tiles = [["tile_y", "sp", [-1, 8]], ["tile_x", "sp", [-1, 8]], ["tile_k", "sp", [-1, 4]]]
    records = (("cuda", "conv2d_nchw.cuda", conv, knobs), ("llvm", "dense_nopack.x86", dense, tiles))
    return [
        _json({
            "input": [target, template, args, {}], "config": {"index": 7, "code_hash": None, "entity": entity},
            "result": [[2e-3], 0, 1.5, 1600000000.0], "version": 0.2, "tvm_version": "0.10.0",
        }) + b"\n"
        for target, template, args, entity in records
    ]  # fmt: skip


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
    program = {"key": "k", "trace": "[]", "strategy": "random", "error": None, "message": None, "build_seconds": 0.1}
    programs = [program | {"id": number, "task_id": "t", "sha256": f"{number}" * 64} for number in range(3)]
    task = {"task_id": "t", "name": "dense", "op": "matmul", "flops": 1e6, "networks": {"bert": 2}}
    manifest = {"programs": programs, "tasks": [task], "target": {"kind": "llvm"}, "tvm_version": "0.27", "threads": 1}
    manifest |= {"command": "", "timing": {}, "device": None, "device_kind": "cpu", "arch": "x86_64", "code": "so"}
    origin = {"t": {"workload": "w", "computation": "c"}}
    return SimpleNamespace(path="bundle.zip", identity="b" * 64, manifest=manifest, origin=origin)


@cache
def results() -> list[bytes]:
    """Results of that bundle."""
    machine = {"kind": "machine", "bundle": "b" * 64, "cpu_model": "AMD EPYC", "gpu": None, "libraries": []}
    ran = {"latencies": [0.001, 0.002], "error": None, "fingerprint": [[1.0, 2.0], [3.0, 4.0]]}
    failed = {"latencies": [], "error": "run", "fingerprint": None}
    common = {"kind": "program", "task_id": "t", "message": None, "seconds": 0.5, "measured_at": 1.7e9}
    lines = [
        common | {"id": number, "sha256": f"{number}" * 64} | outcome
        for number, outcome in enumerate((ran, ran, failed))
    ]
    return [b"".join(_json(line) + b"\n" for line in (machine, *lines))]

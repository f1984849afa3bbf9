"""Ansor and TenSet records of every form that was ever written, and what their workload keys compute."""

import copy
import gzip
import json
import lzma
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tchub.zoo.corpus import computation
from tchub.zoo.corpus.importers.ansor import read_workload
from tchub.zoo.corpus.importers.records import BadLine, ImportContext, LogEntry
from tchub.zoo.corpus.importers.run import read_entries
from tchub.zoo.primitives import PrimitiveSequence, from_ansor_steps

CUDA = "cuda -keys=cuda,gpu -max_num_threads=1024 -thread_warp_size=32"
HARDWARE = [-1, 16, 64, 49152, 2147483647, 1024, 8, 32]
STEPS = [["FU", 1, [0, 1]], ["SP", 1, 0, 4096, [64], 1], ["AN", 1, 0, 5], ["AN", 1, 1, 6]]
OK = [[0.002, 0.001, 0.004], 0, 2.5, 1600000000]
CONTEXT = ImportContext("v100", licence="MIT", source="somewhere")


def record(
    key: Any = ("relu_layer", 64, 64), target: str = CUDA, steps: Any = STEPS, result: Any = OK, version: str = "v0.6"
) -> dict[str, Any]:
    """A record as the log version writes it: later ones say more of the task."""
    more = {"v0.2": [], "v0.3": [HARDWARE], "v0.5": [HARDWARE, "", 0], "v0.6": [HARDWARE, "", 0, []]}[version]
    return copy.deepcopy({"i": [[json.dumps(key), target, *more], [[], steps]], "r": result, "v": version})


def write(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)
    pack = {".xz": lzma.compress, ".gz": gzip.compress, ".zst": pa.Codec("zstd").compress}.get(path.suffix, bytes)
    path.write_bytes(pack(text.encode()))
    return path


def entry(tmp_path: Path, context: ImportContext = CONTEXT, **values: Any) -> LogEntry:
    (found,) = read_entries(write(tmp_path / "log.json", record(**values)), "ansor", context)
    return found


def test_a_record_becomes_a_task_and_a_program(tmp_path: Path) -> None:
    found = entry(tmp_path)
    task, program = found.task, found.program
    assert (task.op, task.flops, task.computation) == ("elementwise", 4096, "elementwise-64x64")
    assert json.loads(task.workload) == ["relu_layer", 64, 64]
    assert program.task_id == task.task_id
    assert (program.framework, program.strategy, program.device) == ("ansor", "tuned", "v100")
    assert (program.licence, program.source) == ("MIT", "somewhere")
    assert (program.latency, program.latencies) == (0.002, (0.002, 0.001, 0.004))
    assert (program.measured_at, program.cost_seconds) == (1600000000, 2.5)
    assert json.loads(program.target) == CUDA
    assert json.loads(program.trace) == STEPS
    assert program.primitives
    assert PrimitiveSequence.from_json(program.primitives) == from_ansor_steps(STEPS)
    assert program.valid


@pytest.mark.parametrize("version", ["v0.2", "v0.3", "v0.5", "v0.6"])
def test_every_version_is_read(tmp_path: Path, version: str) -> None:
    assert entry(tmp_path, version=version).program == entry(tmp_path).program


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.log", "a.json.xz", "a.json.gz", "a.log.zst"])
def test_every_kind_of_file_is_read(tmp_path: Path, name: str) -> None:
    assert len(list(read_entries(write(tmp_path / name, record(), record()), "ansor", CONTEXT))) == 2


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ([[1e10], 1, 1.0, 2], "invalid"),
        ([[1e10], 2, 1.0, 2], "build"),
        ([[1e10], 4, 1.0, 2], "run"),
        ([[1e10], 6, 1.0, 2], "build_timeout"),
        ([[1e10], 7, 1.0, 2], "run_timeout"),
        ([[1e10], 8, 1.0, 2], "crash"),
        ([[1e10], 0, 1.0, 2], "crash"),
    ],
)
def test_failed_programs_say_why(tmp_path: Path, result: list[Any], error: str) -> None:
    program = entry(tmp_path, result=result).program
    assert (program.error, program.latencies, program.valid) == (error, (), False)
    assert math.isnan(program.latency)
    assert program.error_message


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("{", "not-json"),
        ("[" * 100_000, "wrong-shape"),
        ({"i": [], "r": OK}, "wrong-shape"),
        (record(steps=[["ZZ", 0]]), "unknown-step"),
        (record(steps=[["SP", 0]]), "bad-steps"),
        (record(result=[[], 0, 1, 2]), "bad-result"),
        (record(result=[[-1.0], 0, 1, 2]), "bad-result"),
        (record(result=[[0.1], 99, 1, 2]), "bad-result"),
        (record(steps=[["PR", 1, 0, "\ud800"]]), "not-json"),
    ],
)
def test_a_broken_line_is_named_and_the_rest_is_read(tmp_path: Path, line: Any, kind: str) -> None:
    path = write(tmp_path / "log.json", record(), "", line, record())
    first, damaged, last = read_entries(path, "ansor", CONTEXT)
    assert isinstance(first, LogEntry)
    assert isinstance(last, LogEntry)
    assert isinstance(damaged, BadLine)
    assert (damaged.kind, damaged.where) == (kind, "log.json:3")
    assert damaged.message


HASH = "0123456789abcdef0123456789abcdef"


def conv2d(*sizes: int, stride: tuple[int, int] = (1, 1), kernel: tuple[int, int] = (3, 3)) -> str:
    return computation.conv2d(*sizes, kernel=kernel, stride=stride)


def windowed(name: str, images: int, kernel: int, stride: int) -> str:
    return computation.windowed(name, images, 16, 8, 8, (kernel, kernel), (stride, stride))


SAME_CONV = conv2d(1, 16, 8, 8, 32)
RESIDUAL_FIRST = [[1, 24, 56, 56], [1, 144, 56, 56], [24, 144, 1, 1], [1, 24, 1, 1], [1, 24, 56, 56]]


@pytest.mark.parametrize(
    ("key", "op", "flops", "text"),
    [
        # By the name of a function.
        (["conv2d_layer", 2, 16, 8, 8, 32, 3, 3, 2, "SAME"], "conv2d", 294912, conv2d(2, 16, 8, 8, 32, stride=(2, 2))),
        (["conv2d", 1, 8, 8, 32, 16, 3, 3, [1, 1], [0, 0]], "conv2d", 331776, conv2d(1, 16, 8, 8, 32)),
        (["depthwise_conv2d_layer", 2, 16, 8, 8, 3, 3, 1, "VALID"], "depthwise", 20736, windowed("depthwise", 2, 3, 1)),
        (["pool_layer", "max", 2, 16, 8, 8, 2, 2, 2, 0], "pool", 2048, windowed("maxpool", 2, 2, 2)),
        (["matmul_layer", 8, 64, 16], "matmul", 16384, computation.matmul(8, 16, 64)),
        (["reduction_layer", [8, 4, 4], [1, 2], False], "reduce", 128, computation.reduction([8, 4, 4], [1, 2])),
        (["relu_layer", 8, 4], "elementwise", 32, computation.elementwise([8, 4])),
        # By the shapes of a graph that fit, nested or in one list.
        ([HASH, [1, 8, 8, 16], [3, 3, 16, 32], [1, 1, 1, 32], [1, 8, 8, 32]], "conv2d", 589824, SAME_CONV),
        ([HASH, 1, 8, 8, 16, 3, 3, 16, 32, 1, 1, 1, 32, 1, 8, 8, 32], "conv2d", 589824, SAME_CONV),
        ([HASH, [1, 16, 8, 8], [4, 16, 3, 3, 8], [1, 32, 8, 8]], "conv2d", 589824, SAME_CONV),
        ([HASH, *RESIDUAL_FIRST], "conv2d", 21676032, conv2d(1, 144, 56, 56, 24, kernel=(1, 1))),
        ([HASH, [1, 16, 8, 8], [16, 1, 3, 3], [1, 16, 8, 8]], "depthwise", 18432, windowed("depthwise", 1, 3, 1)),
        ([HASH, [8, 64], [16, 64], [8, 16], [8, 16]], "matmul", 16384, computation.matmul(8, 16, 64)),
        ([HASH, 8, 64, 16, 64, 8, 16, 8, 16], "matmul", 16384, computation.matmul(8, 16, 64)),
        ([HASH, [2, 8, 64], [2, 16, 64], [2, 8, 16]], "batch_matmul", 32768, computation.matmul(8, 16, 64, 2)),
    ],
)
def test_what_a_workload_computes_is_known(key: list[Any], op: str, flops: float, text: str) -> None:
    found = read_workload(key)
    assert (found.op, found.flops, found.text) == (op, flops, text)


@pytest.mark.parametrize(
    "key", [[HASH], [HASH, [1, 1000], [1, 1000]], [HASH, 1, 1000, 1, 1000], ["my_op", 3], ["conv2d_layer", "SAME"]]
)
def test_what_is_not_known_is_other_and_keeps_its_name(key: list[Any]) -> None:
    found = read_workload(key)
    assert found.op == "other"
    assert math.isnan(found.flops)
    assert str(key[0]) in found.text

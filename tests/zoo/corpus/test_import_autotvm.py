"""AutoTVM logs read as corpus entries."""

import json
from pathlib import Path
from typing import Any

import pytest
from autotvm_samples import GPU_CONV, SAMPLES, record
from tchub.zoo.corpus.importers.records import BadLine, ImportContext, LogEntry, TaskFacts, canonical
from tchub.zoo.corpus.importers.run import read_entries
from tchub.zoo.primitives import from_autotvm

CONV = "conv2d_nchw.cuda"


def read(path: Path, *lines: str, **context: Any) -> list[LogEntry | BadLine]:
    file = path / "log.json"
    file.write_text("\n".join(lines) + "\n")
    return list(read_entries(file, "autotvm", ImportContext("box", **context)))


def entries(path: Path, *lines: str, **context: Any) -> list[LogEntry]:
    items = read(path, *lines, **context)
    assert not [item for item in items if isinstance(item, BadLine)]
    return [item for item in items if isinstance(item, LogEntry)]


def broken(path: Path, *lines: str, **context: Any) -> list[str]:
    return [item.kind for item in read(path, *lines, **context) if isinstance(item, BadLine)]


def test_a_record_becomes_a_program_of_its_task(tmp_path: Path) -> None:
    args, entity = SAMPLES[CONV]
    (entry,) = entries(tmp_path, record(), licence="MIT", source="somewhere")
    task, program = entry.task, entry.program
    assert task.name == "conv2d_nchw.cuda/conv2d-n2c16h14w14-o32k3x3-s2x2-p1.1.1.1-d1x1-float32"
    assert (task.op, task.flops) == ("conv2d", 2.0 * 2 * 32 * 7 * 7 * 16 * 9)
    assert task.computation == "conv2d-n2c16h14w14-k32r3x3-s2x2"
    assert json.loads(task.workload) == [CONV, args]
    assert program.task_id == task.task_id
    assert len(task.task_id) == len(program.key) == 16
    assert json.loads(program.trace) == entity
    assert program.primitives == from_autotvm(CONV, args, entity).to_json()
    assert program.latencies == (2e-3, 1e-3, 3e-3)
    assert (program.latency, program.valid, program.error) == (2e-3, True, None)
    assert (program.framework, program.strategy, program.device) == ("autotvm", "tuned", "box")
    assert (program.licence, program.source, program.tvm_version) == ("MIT", "somewhere", "0.10.0")
    assert (program.cost_seconds, program.measured_at) == (1.5, 1.6e9)
    assert json.loads(program.target).startswith("cuda ")


def test_padding_strides_and_dilation_in_any_spelling_are_one_task(tmp_path: Path) -> None:
    def spelled(stride: Any, padding: Any, dilation: Any) -> str:
        return record(args=[*GPU_CONV[:2], stride, padding, dilation, "float32"])

    spellings = [([2, 2], [1, 1, 1, 1], [1, 1]), (2, 1, 1), (2, [1, 1], 1), (2, "SAME", [1, 1])]
    tasks = [entry.task for entry in entries(tmp_path, *(spelled(*spelling) for spelling in spellings))]
    assert {task.task_id for task in tasks} == {tasks[0].task_id}


def test_facts_complete_the_task(tmp_path: Path) -> None:
    facts = {canonical([CONV, GPU_CONV]): TaskFacts("first", "other", networks=(("net", 3),))}
    task = entries(tmp_path, record(), facts=facts)[0].task
    assert (task.name, task.op, task.networks) == ("first", "other", (("net", 3),))
    odd = {canonical([CONV, GPU_CONV]): TaskFacts(op="dense", flops=7.0)}  # not one of the operators
    task = entries(tmp_path, record(), facts=odd)[0].task
    assert (task.op, task.flops) == ("conv2d", 7.0)


def test_the_sentinel_is_no_latency_and_a_message_no_damage(tmp_path: Path) -> None:
    sentinel, message = entries(tmp_path, record(costs=[1e9]), record(costs=["Traceback ..."], error=4))
    assert sentinel.program.error == "crash"
    assert message.program.error == "run"


def conv_without_padding(tile_y: list[Any]) -> str:
    """Says SAME (14 x 14 outputs) although 12 x 12 were computed."""
    args = [["TENSOR", [1, 16, 14, 14], "float32"], *GPU_CONV[1:2], 1, "SAME", 1, "float32"]
    tiles = {"tile_y": tile_y, "tile_x": [-1, 1, 2, 1]}
    entity = [[name, kind, tiles.get(name, value)] for name, kind, value in SAMPLES[CONV][1]]
    return record(args=args, entity=entity)


def test_knobs_win_over_the_padding_told_also_for_the_records_before_the_proof(tmp_path: Path) -> None:
    silent, proof = [-1, 1, 2, 1], [-1, 1, 4, 1]  # 2 divides 14 and 12, 4 only 12
    first, second = entries(tmp_path, conv_without_padding(silent), conv_without_padding(proof))
    assert first.task.task_id == second.task.task_id
    assert "-p0.0.0.0-" in first.task.name
    assert first.task.flops == 2.0 * 32 * 12 * 12 * 16 * 9
    assert '"SAME"' in first.task.workload  # as the log has it
    (alone,) = entries(tmp_path, conv_without_padding(silent))
    assert "-p1.1.1.1-" in alone.task.name


def test_knobs_that_fit_neither_padding_are_broken(tmp_path: Path) -> None:
    assert broken(tmp_path, conv_without_padding([-1, 1, 4, 1]), conv_without_padding([-1, 1, 7, 1])) == ["bad-knobs"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [('["SAME",' + "[" * 100_000, "wrong-shape"), (conv_without_padding([-1, "x"]), "bad-knobs")],
    ids=["deep", "a text in the knobs"],
)
def test_a_line_of_another_form_proves_nothing_about_paddings(tmp_path: Path, line: str, kind: str) -> None:
    assert broken(tmp_path, line, conv_without_padding([-1, 1, 2, 1])) == [kind]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("{half a rec", "not-json"),
        ("[" * 100_000, "wrong-shape"),
        ('{"input": []}', "wrong-shape"),
        (record(entity=[["tile_f", "sp", [-1, 5, 1, 1]]]), "bad-knobs"),
        (record(costs=[-1.0]), "bad-result"),
        (record(costs=[float("nan")]), "not-json"),
        (record().replace("0.10.0", "\\ud800"), "not-json"),
    ],
)
def test_a_broken_line_is_counted_and_the_next_one_read(tmp_path: Path, line: str, kind: str) -> None:
    first, second = read(tmp_path, line, record())
    assert isinstance(first, BadLine)
    assert (first.kind, first.where) == (kind, "log.json:1")
    assert isinstance(second, LogEntry)

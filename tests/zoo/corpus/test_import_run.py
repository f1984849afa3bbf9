"""Foreign logs become corpora: everything is counted, one device a corpus, splits by the log's own protocol."""

import base64
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
import tvm
from autotvm_samples import record as autotvm_record
from tchub.zoo.corpus import Corpus, CorpusError, check_corpus, sequence_of, split_tasks
from tchub.zoo.corpus.importers import ImportContext, import_corpus, read_facts, read_protocol
from tchub.zoo.corpus.importers.records import TaskFacts, sniff_framework
from tchub.zoo.devices import get_device
from tchub.zoo.training.programs import corpus_device
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_hash

CONTEXT = ImportContext("toy-gpu", "MIT", "a repository")


def ansor_line(n: int, vthread: int = 2, cost: float = 1e-3, target: str = "cuda -keys=cuda,gpu") -> str:
    """A matrix product n x 64 x 64 whose first loop is split by `vthread`."""
    task = [json.dumps(["matmul_nkkm", n, 64, 64]), target, [-1, 16, 64, 49152, 2**31 - 1, 1024, 8, 32], "", 0, []]
    result = [[cost], 0, 0.5, 1_600_000_000] if cost < 1e9 else [[1e10], 4, 0.5, 1_600_000_000]
    return json.dumps({"i": [task, [[], [["SP", 2, 0, n, [vthread], 1]]]], "r": result, "v": "v0.6"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    lines = [ansor_line(n, v, 1e-3 * v) for v in (1, 2, 4, 8) for n in (64, 128, 256)]
    lines += [ansor_line(64, 16, 1e10), ansor_line(64, 2), "{broken", '{"i": 3, "r": 4}']
    file = tmp_path / "log.json.xz"
    with lzma.open(file, "wt") as stream:
        stream.write("\n".join(lines))
    return file


def test_every_line_is_counted_once(log: Path, tmp_path: Path):
    report = import_corpus(log, tmp_path / "c", CONTEXT)
    corpus = Corpus.open(tmp_path / "c")
    assert report.framework == corpus.meta["framework"] == "ansor"
    found = report.as_dict()
    assert (found["tasks"], found["valid_programs"], found["failed_programs"], found["duplicates"]) == (3, 12, 1, 1)
    assert found["broken"] == {"not-json": 1, "wrong-shape": 1}
    assert "log.json.xz:15" in found["examples"]["not-json"][0]
    programs = list(corpus.iter_programs())
    facts = {(p.device, p.licence, p.source, p.framework) for p in programs}
    assert facts == {("toy-gpu", "MIT", "a repository", "ansor")}
    assert [p.kind for p in sequence_of(programs[0])] == ["Split"]


def test_the_counts_of_a_summary_add_up(log: Path, tmp_path: Path):
    with pytest.raises(CorpusError, match="3 tasks too small"):
        import_corpus(log, tmp_path / "c", CONTEXT, min_programs=5)
    with lzma.open(log, "at") as stream:
        stream.write("\n" + ansor_line(64, 32))
    found = import_corpus(log, tmp_path / "c", CONTEXT, min_programs=5).as_dict()
    assert (found["records"], found["programs"], found["duplicates"], found["left_out"]) == (17, 6, 1, 8)
    assert found["failed_programs"] == sum(found["errors"].values()) == 1
    assert found["records"] == sum(found[name] for name in ("programs", "duplicates", "left_out")) + 2


@pytest.mark.parametrize(
    ("device", "target", "word"),
    [
        ("k80", "llvm -mcpu=znver3", "kind"),
        ("epyc-turin", "cuda -keys=cuda,gpu", "kind"),
        ("k80", "cuda -model=v100", "model"),
        ("k80", "cuda -arch=sm_70", "arch"),
        ("k80", "cuda -model=tesla-k80 -arch=sm_37", None),
        ("t4", "cuda -model=unknown", None),
        ("toy-gpu", "llvm", None),
    ],
)
def test_a_target_that_contradicts_the_device_is_refused(tmp_path: Path, device: str, target: str, word: str | None):
    (tmp_path / "log.json").write_text(ansor_line(64, target=target))
    if word is None:
        import_corpus(tmp_path / "log.json", tmp_path / "c", ImportContext(device))
        return
    with pytest.raises(CorpusError, match=f"not of {device}.*another {word}") as caught:
        import_corpus(tmp_path / "log.json", tmp_path / "c", ImportContext(device))
    assert "--device" in caught.value.remedy
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("target", "simd_bytes"),
    [("llvm -mcpu=x86-64-v3", 32), ("llvm -mcpu=x86-64", 16), ("llvm -mcpu=znver4", 64)],
)
def test_programs_for_a_level_have_a_sheet_with_its_vectors(tmp_path: Path, target: str, simd_bytes: int):
    (tmp_path / "log.json").write_text(ansor_line(64, target=target))
    import_corpus(tmp_path / "log.json", tmp_path / "c", ImportContext("epyc-genoa", "MIT"))
    device = corpus_device(Corpus.open(tmp_path / "c"))
    assert device.spec.values() == get_device("epyc-genoa").spec.values() | {"simd_bytes": simd_bytes}


def test_a_log_of_nobody_is_an_error(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"some": "thing"}\n')
    with pytest.raises(CorpusError, match="no tuning log"):
        sniff_framework(tmp_path / "x.json")
    with pytest.raises(CorpusError, match="no ansor record"):
        import_corpus(tmp_path / "x.json", tmp_path / "c", CONTEXT, framework="ansor")
    with pytest.raises(CorpusError, match="there is no"):
        sniff_framework(tmp_path / "missing.json")


@pytest.mark.parametrize("split", [["matmul-128", "matmul-512"], {"test": ["matmul-128", "matmul-512"]}])
def test_a_list_of_test_tasks_leaves_the_others_to_training(log: Path, tmp_path: Path, split: Any):
    names = {f"matmul-{n}": {"workload_key": json.dumps(["matmul_nkkm", n, 64, 64]), "flops": n} for n in (64, 128)}
    (tmp_path / "tasks.json").write_text(json.dumps({"toy-gpu": names}))
    (tmp_path / "splits.json").write_text(json.dumps(split))
    context = ImportContext("toy-gpu", facts=read_facts(tmp_path / "tasks.json", "toy-gpu"))
    report = import_corpus(log, tmp_path / "c", context, split=read_protocol(tmp_path / "splits.json", "any"))
    assert report.without_task == ["matmul-512"]
    corpus = Corpus.open(tmp_path / "c")
    parts = split_tasks(corpus)
    assert [corpus.tasks[t].name for t in parts.test] == ["matmul-128"]
    assert len(parts.train) == 2


@pytest.mark.parametrize("row", [5, None, {"networks": 5}, {"networks": [["resnet-18"]]}, {"networks": {"a": "x"}}])
def test_a_task_file_that_cannot_be_read_names_the_task(tmp_path: Path, row: Any) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps({"toy-gpu": {"matmul-64": row}}))
    with pytest.raises(CorpusError, match="matmul-64"):
        read_facts(tmp_path / "tasks.json", "toy-gpu")


def test_half_a_character_is_refused_in_every_file_beside_a_log(database: Path, tmp_path: Path) -> None:
    """JSON can spell one (`"\\ud800"`), Parquet cannot hold it."""
    (tmp_path / "facts.json").write_text(json.dumps({"toy-gpu": {"\ud800": {"workload_key": "[1]"}}}))
    with pytest.raises(CorpusError, match=r"facts\.json cannot be read"):
        read_facts(tmp_path / "facts.json", "toy-gpu")
    (database / "tasks.json").write_text(json.dumps([{"workload": 0, "task_name": "\ud800"}]))
    with pytest.raises(CorpusError, match=r"tasks\.json cannot be read"):
        import_corpus(database, tmp_path / "c", CONTEXT)


def test_a_second_spelling_of_a_task_keeps_its_part(tmp_path: Path):
    """The log spells the padding as four numbers first, the protocol names the task by the other spelling."""
    data, weight = (["TENSOR", shape, "float32"] for shape in ([1, 16, 14, 14], [32, 16, 3, 3]))
    spelled = [[data, weight, 1, padding, 1, "float32"] for padding in ([1, 1, 1, 1], "SAME")]
    other = [data, ["TENSOR", [64, 16, 3, 3], "float32"], *spelled[0][2:]]
    log = tmp_path / "log.json"
    log.write_text("\n".join(autotvm_record(args=args) for args in [*spelled, other]))
    named = zip(("conv", "conv~2", "wide"), [*spelled, other], strict=True)
    rows = {name: {"template": "conv2d_nchw.cuda", "args": args} for name, args in named}
    (tmp_path / "tasks.json").write_text(json.dumps({"toy-gpu": rows}))
    context = ImportContext("toy-gpu", facts=read_facts(tmp_path / "tasks.json", "toy-gpu"))
    for test in (["conv~2"], ["conv"], ["conv", "conv~2"]):
        report = import_corpus(log, tmp_path / "c", context, split={"train": ["wide"], "test": test})
        corpus = Corpus.open(tmp_path / "c")
        assert [corpus.tasks[t].name for t in split_tasks(corpus).test] == ["conv"]
        assert report.without_task == []
    with pytest.raises(CorpusError, match="in two parts"):
        import_corpus(log, tmp_path / "c", context, split={"train": ["conv"], "test": ["conv~2"]})


OLD_TRACE = [
    [
        ["GetBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["SamplePerfectTile", ["l1"], [2, 64], ["v4", "v5"]],
        ["Split", ["l1", "v4", "v5"], [1], ["l6", "l7"]],
        ["EnterPostproc", [], [], []],
        ["Unroll", ["l7"], [], []],
    ],
    [[2, [16, 4]]],
]
SCRIPT = """@T.prim_func(s_tir=True)
def main(A: T.Buffer((64, 32), "float32"), B: T.Buffer((32, 64), "float32"), C: T.Buffer((64, 64), "float32")):
    for i, j, k in T.grid(64, 64, 32):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
ARGUMENTS = [["TENSOR", "float32", shape] for shape in ([64, 32], [32, 64], [64, 64])]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database as TVM 0.16 wrote it: its module is a graph that today's TVM cannot load."""
    folder = tmp_path / "database"
    folder.mkdir()
    graph = base64.b64encode(bytes(8) + b'{"root": 1, "nodes": []}').decode()
    (folder / "database_workload.json").write_text(json.dumps(["123", graph]) + "\n")
    target = {"kind": "cuda", "arch": "sm_80"}
    records = [[0, [OLD_TRACE, seconds, target, ARGUMENTS]] for seconds in ([1e-3, 3e-3, 2e-3], [1e10])]
    records[1][1][0] = [OLD_TRACE[0], [[2, [8, 8]]]]
    records += [[7, [OLD_TRACE, [1e-3], target, ARGUMENTS]], [0, [[[["Teleport", [], [], []]], []], [1], target, []]]]
    (folder / "database_tuning_record.json").write_text("\n".join(map(json.dumps, records)))
    return folder


def test_an_old_database_is_read_by_the_script_beside_it(database: Path, tmp_path: Path):
    (database / "workload_tvmscript.json").write_text(json.dumps([SCRIPT]))
    report = import_corpus(database, tmp_path / "c", CONTEXT)
    assert dict(report.broken) == {"unknown-workload": 1, "unknown-instruction": 1}
    corpus = Corpus.open(tmp_path / "c")
    (task,) = corpus.tasks.values()
    assert (task.op, task.computation, task.flops) == ("matmul", "matmul-b1m64n64k32", 2 * 64 * 64 * 32)
    programs = {p.valid: p for p in corpus.programs(task.task_id)}
    assert programs[True].latency == 2e-3
    assert (programs[False].error, programs[False].latencies) == ("invalid", ())
    schedule = tvm.s_tir.Schedule(tvm.ir.load_json(task.workload))
    tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(programs[True].trace), schedule)
    assert "range" in schedule.mod.script() or "grid" in schedule.mod.script()


def test_an_old_database_alone_is_known_by_its_arguments(database: Path, tmp_path: Path):
    import_corpus(database, tmp_path / "c", CONTEXT)
    (task,) = Corpus.open(tmp_path / "c").tasks.values()
    assert task.computation.startswith("other-")
    (database / "tasks.json").write_text(json.dumps([{"workload": 0, "task_name": "mine", "op": "matmul", "flops": 5}]))
    import_corpus(database, tmp_path / "c", CONTEXT)
    (named,) = Corpus.open(tmp_path / "c").tasks.values()
    assert (named.name, named.op, named.computation, named.flops) == ("mine", "matmul", task.computation, 5)


def test_databases_without_workloads_have_tasks_of_their_own_named_by_their_hash(database: Path, tmp_path: Path):
    (database / "database_workload.json").unlink()
    for name in ("a", "b"):
        shutil.copytree(database, tmp_path / "many" / name)
    report = import_corpus(tmp_path / "many", tmp_path / "c", CONTEXT)
    assert (report.framework, report.broken.total()) == ("metaschedule", 2)
    corpus = Corpus.open(tmp_path / "c")
    assert len(corpus.tasks) == 4, "nothing says that workload 0 of both is one task"
    assert [task.name for task in corpus.tasks.values()] == list(corpus.tasks)
    assert len({task.computation for task in corpus.tasks.values()}) == 1, "but it may be: no part of a split apart"
    assert [finding for finding in check_corpus(corpus)[1] if not finding.ok] == []


def traced(tiles: list[int], latency: Any, block: str = "C", **more: Any) -> dict[str, Any]:
    trace = json.loads(json.dumps(OLD_TRACE))
    trace[0][0][2][0], trace[1] = block, [[2, tiles]]
    return {"trace": trace, "target": {"kind": "cuda"}, "latency": latency, **more}


def test_lines_of_trace_target_and_latency_are_programs_of_the_task_that_the_trace_shows(tmp_path: Path):
    rows = [traced([16, 4], 1e-3), traced([4, 16], [3e-3, 2e-3]), traced([8, 8], None), traced([8, 4], 1e-3)]
    rows += [traced([16, 4], 1e-3, "D"), traced([2, 32], 1e-3, task="mine"), traced([2, 32], -1.0)]
    rows += [traced([["9"], 10**9], 1e-3), {"trace": 3, "target": "cuda", "latency": 1.0}]
    context = ImportContext("toy-gpu", facts={"mine": TaskFacts("ours", "matmul")})
    for name, lines in (("objects", rows), ("lists", [list(row.values())[:3] for row in rows])):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
        report = import_corpus(tmp_path / name, tmp_path / "c", context)
        assert report.framework == "metaschedule"
        assert dict(report.broken) == {"bad-result": 1, "bad-trace": 1, "wrong-shape": 1}
        corpus = Corpus.open(tmp_path / "c")
        sizes = sorted(len(corpus.programs(task_id)) for task_id in corpus.tasks)
        assert sizes == ([1, 1, 1, 3] if name == "objects" else [1, 1, 4])
        named = [task.op for task in corpus.tasks.values() if task.name == "ours"]
        assert named == (["matmul"] if name == "objects" else [])
        assert sorted(p.latency for p in corpus.iter_programs() if p.valid)[-1] == 2.5e-3


def test_todays_database_gives_the_ids_of_todays_tasks(tmp_path: Path):
    mod = tvm.IRModule({"main": tvm.script.from_source(SCRIPT)})
    files = [tmp_path / "db" / f"database_{name}.json" for name in ("workload", "tuning_record")]
    files[0].parent.mkdir()
    database = ms.database.JSONDatabase(*map(str, files))
    schedule = tvm.s_tir.Schedule(mod)
    schedule.split(schedule.get_loops(schedule.get_sblock("C"))[0], [None, 4])
    args = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
    workload, target = database.commit_workload(mod), tvm.target.Target("llvm")
    database.commit_tuning_record(ms.database.TuningRecord(schedule.trace, workload, [1e-3], target, args))
    import_corpus(tmp_path / "db", tmp_path / "c", CONTEXT)
    (task,) = Corpus.open(tmp_path / "c").tasks.values()
    assert task.task_id == f"{structural_hash(mod) & (2**64 - 1):016x}"

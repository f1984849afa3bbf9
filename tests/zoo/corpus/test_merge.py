"""Corpora are written program by program in bounded memory, and those of one device become one without a loss."""

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from corpus_kit import META, make_program, make_task
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.zoo.corpus import (
    Corpus,
    CorpusError,
    CorpusWriter,
    Program,
    Task,
    merge_corpora,
    merge_corpus,
    write_corpus,
    writer,
)
from tchub.zoo.corpus.canonical import trace_key
from tchub.zoo.primitives import from_trace_json
from tvm import te

NETWORKS = ("resnet-18", "bert-tiny")


def program(number: int, key: str, latency: float | None = 1e-3, at: float = 1.7e9) -> Program:
    return make_program(key, f"{number:016x}", latency, measured_at=at)


def write(folder: Path, programs: list[Program], network: str = NETWORKS[0], **meta: object) -> Path:
    numbers = sorted({int(p.task_id, 16) for p in programs})
    return write_corpus(
        folder, META | meta, [make_task(f"{n:016x}", networks=((network, 2),)) for n in numbers], programs
    ).path


def content(folder: Path) -> tuple[str, list[str]]:
    """Tasks and programs, as texts: a failed program's latency is NaN, which equals nothing."""
    corpus = Corpus.open(folder)
    return repr(corpus.tasks), [repr(p) for p in corpus.iter_programs()]


LATENCIES = st.none() | st.floats(1e-6, 1.0)
PROGRAM = st.builds(program, st.integers(0, 3), st.sampled_from("abcde"), LATENCIES, st.integers(1, 9).map(float))
PROGRAMS = st.lists(PROGRAM, min_size=1, max_size=12, unique_by=lambda p: (p.task_id, p.key))


@settings(max_examples=8)
@given(st.lists(PROGRAMS, min_size=2, max_size=3), st.data())
def test_neither_order_nor_repetition_matters(parts: list[list[Program]], data: st.DataObject) -> None:
    """The inputs overlap: measurements of one program in several corpora differ, and some failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = [write(folder / f"{i}", part, NETWORKS[i % 2], command=f"collect {i}") for i, part in enumerate(parts)]
        merged = folder / "merged"
        assert merge_corpora(merged, inputs).changed
        files = {file.name: file.read_bytes() for file in merged.iterdir()}
        again = data.draw(st.lists(st.sampled_from([*inputs, merged]), min_size=1, max_size=4))
        assert not merge_corpora(merged, again).changed
        assert {file.name: file.read_bytes() for file in merged.iterdir()} == files
        step_by_step = folder / "steps"
        for corpus in reversed(inputs):
            merge_corpora(step_by_step, [corpus])
        assert content(step_by_step) == content(merged)


def test_a_success_replaces_a_failure_and_the_earlier_of_two_stays(tmp_path: Path) -> None:
    one = write(tmp_path / "one", [program(0, "a", None, at=1.0), program(0, "b", 2e-3, at=5.0)])
    two = write(tmp_path / "two", [program(0, "a", 3e-3, at=9.0), program(0, "b", 1e-3, at=4.0)], NETWORKS[1])
    merged = merge_corpora(tmp_path / "both", [one, two])
    assert (merged.given, merged.corpus.meta["programs"]) == (4, 2)
    assert {p.key: p.latency for p in merged.corpus.iter_programs()} == {"a": 3e-3, "b": 1e-3}
    assert merged.corpus.networks == tuple(sorted(NETWORKS))


def named_corpus(folder: Path, block: str, parts: list[int]) -> Path:
    """A corpus of one matrix product whose block has this name, and a program for each split of its first loop."""
    a, b = (te.placeholder((8, 8), name=f"{block}_{name}") for name in "AB")
    k = te.reduce_axis((0, 8), name="k")
    product = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=block)
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, product])})
    programs = []
    for part in parts:
        getters = [["GetSBlock", [], [block, "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]]]
        trace = [[*getters, ["Split", ["l1", "None", part], [1, 0], ["l4", "l5"]]], []]
        steps = from_trace_json(trace).to_json()
        programs.append(replace(program(8, trace_key(trace), part * 1e-3), trace=json.dumps(trace), primitives=steps))
    held = Task(f"{8:016x}", block, "matmul", 1e3, str(tvm.ir.save_json(mod)), networks=((NETWORKS[0], 1),))
    return write_corpus(folder, META, [held], programs).path


@pytest.mark.parametrize("grow", [True, False])
def test_one_task_under_two_names_becomes_one_whose_programs_all_apply(tmp_path: Path, grow: bool) -> None:
    one, two = named_corpus(tmp_path / "one", "matmul", [2, 4]), named_corpus(tmp_path / "two", "lv3", [4, 8])
    if grow:
        other = Corpus.open(two)
        corpus = merge_corpus(one, META, other.tasks.values(), other.iter_programs())
    else:
        corpus = merge_corpora(tmp_path / "both", [one, two]).corpus
    (held,) = corpus.tasks.values()
    assert sorted(p.latency for p in corpus.iter_programs()) == [2e-3, 4e-3, 8e-3], "one program is in both"
    for each in corpus.iter_programs():
        schedule = tvm.s_tir.Schedule(tvm.ir.load_json(held.workload))
        tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(each.trace), schedule)
        assert each.key == trace_key(json.loads(each.trace))
        assert each.primitives == from_trace_json(each.trace).to_json()


@pytest.mark.parametrize(
    "other",
    [
        {"device": "another"},
        {"cpu_model": "Another CPU"},
        {"target": {"kind": "llvm", "num-cores": 2}},
        {"tvm_version": "0.26.0"},
        {"framework": "ansor"},
        {"licence": "MIT"},
        {"split": {"train": [f"{0:016x}"]}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_does_not_mix_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    one, two = write(tmp_path / "one", [program(0, "a")]), write(tmp_path / "two", [program(0, "b")], **other)
    with pytest.raises(CorpusError) as caught:
        merge_corpora(tmp_path / "both", [one, two])
    assert caught.value.remedy
    assert caught.value.fields["field"] == next(iter(other))
    assert not (tmp_path / "both").exists()


def test_a_newer_format_and_a_damaged_input_are_errors_and_leave_the_whole_alone(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", [program(0, "a")]), write(tmp_path / "two", [program(0, "b")])
    whole = merge_corpora(tmp_path / "both", [one]).corpus.path
    files = {file.name: file.read_bytes() for file in whole.iterdir()}
    for text in (json.dumps(Corpus.open(two).meta | {"format": 99}), "{"):
        (two / "corpus.json").write_text(text)
        with pytest.raises(CorpusError):
            merge_corpora(whole, [one, two])
    assert {file.name: file.read_bytes() for file in whole.iterdir()} == files


def program_of(letter: str, number: int, latency: float = 1e-3) -> Program:
    return make_program(f"{number:04d}", letter * 16, latency, framework="ansor", primitives="{}", licence="MIT")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_the_first_measurement_stays_and_a_failure_only_where_there_is_none(tmp_path_factory, log):
    folder, expected = tmp_path_factory.mktemp("corpus"), {}
    with pytest.MonkeyPatch.context() as patch, CorpusWriter(folder, META) as written:
        patch.setattr(writer, "GROUP_ROWS", 3)
        for letter in "ab":
            written.add_task(make_task(letter * 16))
        for count, (letter, number, failed) in enumerate(log, 1):
            program = program_of(letter, number, 1e-3 * count)
            if failed:
                program = replace(program, latencies=(), latency=math.nan, error="run")
            written.add(program)
            kept = expected.setdefault((letter * 16, program.key), program)
            if not kept.valid and program.valid:
                expected[letter * 16, program.key] = program
    found = Corpus.open(folder)
    programs = list(found.iter_programs())
    assert found.meta["programs"] == len(programs) == len(expected)
    for program in programs:
        kept = expected[program.task_id, program.key]
        assert (program.latencies, program.error) == (kept.latencies, kept.error)


@pytest.mark.parametrize("killed", [False, True], ids=["an error", "a kill"])
def test_a_writer_that_did_not_finish_leaves_nothing_that_opens(tmp_path: Path, killed: bool):
    written = CorpusWriter(tmp_path / "c", META)
    written.add_task(make_task("a" * 16))
    written.add(program_of("a", 0))
    if not killed:
        written.__exit__(RuntimeError, RuntimeError("the log ends here"), None)
    assert (tmp_path / "c").exists() == killed
    with pytest.raises(CorpusError, match="not a corpus"):
        Corpus.open(tmp_path / "c")

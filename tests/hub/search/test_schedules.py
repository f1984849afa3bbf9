"""Schedules carried over from similar tasks: tiles that suit the new extents, and the first programs of a search."""

import json
import shutil
from functools import cache
from math import inf, prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tvm
from device_corpora import make_corpus
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.api import choose_checkpoint, locate
from tchub.hub.device.candidate import trace_json
from tchub.hub.networks.tasks import make_task
from tchub.hub.networks.workloads import operator_module
from tchub.hub.search.cost_model import choose_model
from tchub.hub.search.design_slots import rescale
from tchub.hub.search.design_space import extents
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.schedules import (
    LEAST_SIMILARITY,
    MAX_BYTES,
    ScheduleDatabase,
    TaskSchedule,
    brought,
    distance,
    learnt_schedules,
    read_schedules,
    schedules_json,
    similarity,
)
from tchub.zoo.corpus import Corpus, split_tasks
from tchub.zoo.corpus.workloads import OperatorSpec
from tchub.zoo.devices import get_device
from tchub.zoo.models.errors import CorruptCheckpointError
from test_decision_search import opened, results
from tvm import te

from scripts.zoo import publish
from scripts.zoo.plan import jobs, read_plan


def dense(m: int, n: int, k: int) -> Any:
    """The matrix product of m x k and k x n."""
    return make_task(operator_module(OperatorSpec("other", "dense", {"m": m, "n": n, "k": k})), "other")


def cpu(mcpu: str) -> Any:
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})


def program(task: Any, candidate: Any, latency: float) -> tuple[str, str, float]:
    return task.task_id, json.dumps(trace_json(candidate.sch.trace)), latency


TILES = st.lists(st.sampled_from([1, 2, 3, 4, 8, 16, 64]), min_size=1, max_size=5)


@given(TILES, st.integers(1, 4096), st.sampled_from([0, 16, 64]))
def test_a_rescaled_tile_has_the_new_extent(tile: list[int], extent: int, innermost: int) -> None:
    new = rescale(tile, extent, innermost if len(tile) > 1 else 0)
    assert prod(new) == extent
    assert len(new) == len(tile)
    assert rescale(new, extent, 0) == new, "what fits already stays"
    assert not innermost or len(tile) == 1 or new[-1] <= innermost


@pytest.mark.parametrize(
    ("tile", "extent", "new"),
    [
        ((4, 2, 8), 256, (16, 2, 8)),  # the outermost factor takes what is left
        ((2, 16), 24, (2, 12)),
        ((8, 32), 144, (9, 16)),  # 36 is nearer, but no power of two
        ((1, 7, 4), 49, (1, 7, 7)),
        ((2, 2, 3), 8, (1, 2, 4)),
    ],
)
def test_inner_factors_stay_as_far_as_they_divide(tile: Any, extent: int, new: Any) -> None:
    assert rescale(tile, extent) == new


def test_extents_in_another_order_are_another_task() -> None:
    assert similarity((56, 56, 64), (28, 28, 128)) == pytest.approx(1.0)
    assert similarity((56, 64, 128), (128, 64, 56)) < LEAST_SIMILARITY
    assert similarity((4, 4), (8, 16)) == 1.0
    assert distance((56, 64), (28, 128)) == 2.0


def test_a_search_begins_with_the_schedule_of_the_most_similar_task(small_task: Any, target: Any) -> None:
    """Of a product twice as large in one dimension, whose fastest program is at hand; slower ones do not count."""
    near, far = dense(64, 24, 16), dense(512, 384, 256)
    programs = []
    for number, task in enumerate((near, far)):
        fast, slow, failed = opened(task, target, number).candidates(3, StopFlag())
        programs += [program(task, slow, 2e-3), program(task, fast, 1e-3), program(task, failed, inf)]
    schedules = ScheduleDatabase(programs)
    assert len(schedules) == 2
    search = opened(small_task, target)
    search.suggest(schedules)
    (space,) = {number for number, _ in search.carried[:1]}
    of_space = schedules.similar(search.spaces[space].kernel, search.spaces[space].extents)
    assert of_space[0][1].task_id == near.task_id
    assert of_space[0][1].latency == 1e-3
    expected = {search._replay(key, search._scheduled(key), 0.0, True).key for key in search.carried}  # type: ignore[union-attr]
    search = opened(small_task, target)
    search.suggest(schedules)
    (first,) = search.candidates(1, StopFlag())
    assert search._key(first) in expected
    search.notify([first], results([1e-3]))
    assert len(search.candidates(4, StopFlag())) == 4, "then the model chooses"


def test_a_schedule_of_another_design_is_left_out(small_task: Any, target: Any) -> None:
    search = opened(small_task, target)
    instructions = [["SamplePerfectTile", ["l0"], [2, 64], ["v0", "v1"]]]
    search.suggest(ScheduleDatabase([("t", json.dumps([instructions, [[0, [4, 8]]]]), 1e-3)]))
    assert search.carried == []


def test_the_schedules_in_the_wheel_are_those_of_the_corpora_and_of_no_network_that_is_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish, "open_corpus", cache(publish.open_corpus))
    families = {"epyc": {"znver4": (32, 16), "x86-64-v3": (16, 8)}, "xeon": {"cascadelake": (32, 16)}}
    for family, cpus in families.items():
        (job,) = jobs(read_plan(), (family,), ("tilenet",))
        corpora, path = publish.with_schedules(job), publish.WHEEL / job.name / job.version / "schedules.json"
        measured = {task for corpus in corpora for task in split_tasks(corpus).test}
        learnt = learnt_schedules(corpora)
        assert set(learnt) == set(cpus.values())
        for mcpu, registers in cpus.items():
            shipped = {schedule.task_id: schedule for _, schedule in ScheduleDatabase.pretuned(cpu(mcpu), path)}
            assert shipped == {schedule.task_id: schedule for _, schedule in learnt[registers]}
            assert not shipped.keys() & measured
        short = ScheduleDatabase.pretuned(cpu("x86-64-v2"), path)
        assert len(short) == len(learnt[min(cpus.values())]), "shorter vectors yet: the nearest ones"
    assert len(ScheduleDatabase.pretuned(tvm.target.Target(get_device("t4").target))) == 0


TILED = "[('SamplePerfectTile', [2, 64]), ('SampleCategorical', [[0, 16], [0.5, 0.5]]), ('SampleComputeLocation', [])]"


def file_of(rows: Any, kernels: Any = (TILED,), **changed: Any) -> bytes:
    return json.dumps({"format": 1, "kernels": list(kernels), "schedules": {"16x8": rows}} | changed).encode()


def test_a_checkpoint_brings_schedules_in_a_file_and_the_nearest_vectors_serve(tmp_path: Path) -> None:
    path = tmp_path / "schedules.json"
    path.write_bytes(file_of([[0, "a", [[4, 8], 1, -1], 1e-3]]))
    (own,) = ScheduleDatabase.pretuned(cpu("znver4"), path)
    assert own == (TILED, TaskSchedule("a", ((4, 8), 1, -1), 1e-3))
    read = read_schedules(path)
    path.write_bytes(schedules_json(read | {(32, 16): ScheduleDatabase()}))
    assert [*read_schedules(path)[16, 8]] == [own]
    assert len(ScheduleDatabase.pretuned(cpu("znver4"), path)) == 0, "its own vectors before others"
    assert [*ScheduleDatabase.pretuned(cpu("x86-64-v3"), path)] == [own]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        file_of([], format=2),
        file_of([], schedules={"wide": []}),
        file_of([], kernels=["(" * 1900]),
        file_of([], kernels=["[1, 2]"]),
        file_of([], kernels=["[" + "1," * 5000 + "]"]),
        file_of([[0, "a", [0], 1e-3]], kernels=["[('SampleCategorical', [3])]"]),
        file_of([[0, "a", [0], 1e-3]], kernels=["[('SampleCategorical', [])]"]),
        file_of([[1, "a", [[4, 8], 1, -1], 1e-3]]),  # of an unknown class
        file_of([[0, "a", [[4, 8], 1], 1e-3]]),
        file_of([[0, "a", [[4, 2, 4], 1, -1], 1e-3]]),
        file_of([[0, "a", [32, 1, -1], 1e-3]]),
        file_of([[0, "a", [[0, 8], 1, -1], 1e-3]]),
        file_of([[0, "a", [[4, 2**40], 1, -1], 1e-3]]),
        file_of([[0, "a", [[4, 8], 2, -1], 1e-3]]),  # one of two choices
        file_of([[0, "a", [[4, 8], 1, -1], -1.0]]),
        file_of([[0, "a" * MAX_BYTES, [[4, 8], 1, -1], 1e-3]]),
        file_of([[0, "a", [[4, 8], 1, -1], 1e-3]] * 6000),
        b"[" * 100_000,
    ],
)
def test_a_file_of_schedules_that_cannot_be_used_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "schedules.json"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError) as refused:
        read_schedules(path)
    assert str(path) in refused.value.message
    assert "again" in str(refused.value.remedy)


@pytest.mark.parametrize(
    "target",
    ["llvm -mcpu=core-avx2", None, {"kind": "cuda", "arch": "sm_75"}, {"kind": "llvm", "no-such-option": 1}],
)
def test_corpora_of_gpus_of_other_releases_and_of_other_frameworks_bring_none(target: Any, tmp_path: Path) -> None:
    path = make_corpus(tmp_path / "on-epyc", "epyc", 0)
    meta = json.loads((path / "corpus.json").read_text()) | {"target": target}
    (path / "corpus.json").write_text(json.dumps({key: value for key, value in meta.items() if value is not None}))
    assert learnt_schedules([Corpus.open(path)]) == {}
    (path / "corpus.json").write_text(json.dumps(meta | {"target": {"kind": "llvm", "mcpu": "znver4"}}))
    assert brought([Corpus.open(path)]) == ({}, {}), "its programs are Ansor's"


def test_a_checkpoint_brings_its_own_schedules_and_a_damaged_file_of_them_stops_a_choice(tmp_path: Path) -> None:
    assert choose_model("tcl-epyc").schedules is None
    assert choose_model("tilenet-epyc").schedules is not None
    folder = shutil.copytree(locate("tilenet-epyc").path, tmp_path / "checkpoint")
    assert choose_checkpoint(str(folder)).schedules == folder / "schedules.json"
    (folder / "schedules.json").write_text("{}")
    with pytest.raises(CorruptCheckpointError, match=r"schedules\.json"):
        choose_checkpoint(str(folder))


def test_programs_of_this_machine_take_the_place_of_the_wheels() -> None:
    shipped = ScheduleDatabase.pretuned(cpu("znver4"))
    (kernel, one), *_ = shipped
    own = ScheduleDatabase([(one.task_id, "[[],[]]", 1e-6)], shipped)
    assert len(own) == len(shipped)
    assert [schedule.latency for _, schedule in own if schedule.task_id == one.task_id] == [1e-6]
    assert one not in [schedule for name, schedule in own if name == kernel]


@pytest.mark.parametrize(("mcpu", "tile"), [("znver4", (14, 16)), ("x86-64-v3", (4, 16)), ("x86-64-v2", (2, 16))])
def test_a_tile_that_exceeds_the_registers_shrinks_to_one_that_fits(mcpu: str, tile: tuple[int, int]) -> None:
    """14 rows of 16 columns are 14 accumulators with AVX-512, and 28 of 16 registers with AVX2."""
    search = opened(dense(196, 64, 32), cpu(mcpu))
    for space in search.spaces:
        rows, columns = space._spatial
        asked = list(space.random(Random(0), 1)[0])
        asked[rows], asked[columns] = (7, 1, 2, 14), (2, 1, 2, 16)
        carried = space.carry_over(tuple(asked))
        assert space.fits(carried)
        assert (carried[rows][-1], carried[columns][-1]) == tile  # type: ignore[index]
        assert carried[rows][-2] * tile[0] == 28, "the block that the caches hold stays"  # type: ignore[index,operator]
        assert extents(carried) == space.extents
        assert space.carry_over(carried) == carried


def test_products_of_a_batch_share_no_columns_so_that_their_number_does_not_grow() -> None:
    a, b = (te.placeholder(shape, name=name) for name, shape in (("a", (36, 49, 32)), ("b", (36, 32, 64))))
    k = te.reduce_axis((0, 32), name="k")
    out = te.compute((36, 49, 64), lambda n, i, j: te.sum(a[n, i, k] * b[n, k, j], axis=k), name="out")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, out]).with_attr("global_symbol", "main")})
    for space in opened(make_task(mod, "batch"), cpu("x86-64-v3")).spaces:
        batch, rows, columns = space._spatial
        asked = list(space.random(Random(0), 1)[0])
        asked[batch], asked[rows], asked[columns] = (36, 1, 1, 1), (7, 1, 1, 7), (2, 1, 1, 32)
        carried = space.carry_over(tuple(asked))
        assert [carried[number][-1] for number in (batch, rows, columns)] == [1, 7, 8]  # type: ignore[index]


def test_a_block_of_too_many_threads_of_a_card_is_left_out(small_task: Any) -> None:
    search = opened(small_task, tvm.target.Target(get_device("t4").target))
    for space in search.spaces:
        drawn = space.random(Random(0), 1)[0]
        wide = tuple((*(1 for _ in d[1:]), prod(d)) if isinstance(d, tuple) else d for d in drawn)
        assert extents(space.carry_over(wide)) == space.extents

"""Adapting, with a synthetic machine: a latency function stands for compiling and running programs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tchub.hub.cli import main
from tchub.hub.device.detect import LocalDevice
from tchub.hub.device.errors import MeasurementFailureRateError, UnknownDeviceChoiceError
from tchub.hub.device.measure import Measurement
from tchub.hub.registry import Entry, Registry, describe
from tchub.hub.registry.errors import StoreError
from tchub.hub.registry.index import FileRecord
from tchub.hub.tuning import adapt as adapt_module
from tchub.hub.tuning import adapt_tools
from tchub.hub.tuning.adapt import AdaptArgumentError, AdaptBusyError, adapt
from tchub.hub.tuning.adapt_pool import EmptyPoolError, PoolEntry
from tchub.hub.tuning.adapt_session import AdaptProgress
from tchub.hub.tuning.adapt_tools import Base, Tools, detect, extract_tasks, rebuild
from tchub.hub.tuning.candidates import Candidate
from tchub.hub.tuning.errors import InterruptedRunError, NoCandidateError
from tchub.hub.tuning.tasks import TuningTask
from tchub.zoo.adapt import BudgetError, LabelError, NotTrainableError, UnknownSamplerError
from tchub.zoo.adapt.fine_tune import FineTuneConfig
from tchub.zoo.corpus import Corpus
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import Checkpoint, CheckpointConfig, create
from tchub.zoo.primitives import from_trace_json

EPYC = get_device("epyc")
SMALL = {"hidden": 16, "d_model": 16, "head": 8, "d_state": 4, "dt_rank": 2}
OPS = ("conv2d", "conv2d", "matmul", "matmul", "softmax", "conv2d")
QUICK = FineTuneConfig(epochs=6, patience=3, learning_rate=1e-3, head_learning_rate=2e-3, refit=False)


def make_trace(tile: tuple[int, ...], unroll: int) -> str:
    """A loop split in four, reordered, unrolled."""
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [4, 64], ["v3", "v4", "v5", "v6"]],
        ["Split", ["l1", "v3", "v4", "v5", "v6"], [1, 1], ["l7", "l8", "l9", "l10"]],
        ["Reorder", ["l7", "l8", "l2", "l9", "l10"], [], []],
        ["SampleCategorical", [], [[0, 16, 64, 512], [0.25, 0.25, 0.25, 0.25]], ["v11"]],
        ["Annotate", ["b0", "v11"], ["meta_schedule.unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
    ]
    return json.dumps([instructions, [[2, list(tile)], [5, unroll]]])


def tiles(extent: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(extent,)]
    return [(f, *rest) for f in range(1, extent + 1) if extent % f == 0 for rest in tiles(extent // f, parts - 1)]


def latency_of(candidate: Candidate) -> float:
    """Small inner tiles and much unrolling are slow; every task has a scale of its own."""
    (_, tile), (_, unroll) = json.loads(candidate.trace)[1]
    cost = 0.5 * np.log2(tile[0]) - np.log2(tile[3]) + 0.3 * unroll
    return float(1e-3 * (1 + int(candidate.task_id, 16)) * np.exp(cost / 3))


class Lab:
    """A machine that measures by `latency_of`, and counts what it was asked to measure."""

    def __init__(self, fails=lambda candidate: False, latency=latency_of, stop_after: int | None = None) -> None:
        self.fails, self.latency, self.stop_after = fails, latency, stop_after
        self.measured: list[tuple[str, str]] = []
        self.opened = 0

    @contextmanager
    def open(self, _target: dict[str, Any], _cores: int):
        self.opened += 1
        yield self

    def know(self, task_id: str, latency: float) -> None:
        assert latency > 0

    def measure(self, candidates):
        for candidate in candidates:
            self.measured.append((candidate.task_id, candidate.key))
            if self.fails(candidate):
                yield candidate, Measurement((), "build", "no such loop", 0.5, 0.0, 1.7e9)
            else:
                seconds = self.latency(candidate)
                yield candidate, Measurement((seconds, seconds), None, None, 0.5, 0.5, 1.7e9)
            if len(self.measured) == self.stop_after:
                os.kill(os.getpid(), signal.SIGINT)


def make_task(number: int) -> TuningTask:
    return TuningTask(f"{number:016x}", f"fused_{OPS[number]}_{number}", OPS[number], 1 + number, None, 1e6, {"toy": 1})


def make_candidates(task: TuningTask, _target: dict[str, Any], count: int, seed: int) -> list[Candidate]:
    rng = np.random.default_rng([seed, int(task.task_id, 16)])
    every = [(tile, unroll) for tile in tiles(64, 4) for unroll in range(4)]
    picks = [every[i] for i in rng.permutation(len(every))[:count]]
    return [Candidate(task.task_id, f"{t}-{u}", make_trace(t, u), "random", None) for t, u in picks]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TCHUB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """An untrained model: whatever it learns, it learns from this machine."""
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(3)
    config = CheckpointConfig(
        "tcl-epyc", "1.0.0", "tcl", create("tcl", **SMALL).config.as_dict(), "tcl-cpu", "epyc", tvm="0.27.0"
    )
    Checkpoint(config, create("tcl", **config.model), EPYC).save(folder)
    entry = describe(folder, "tcl-epyc", "1.0.0", weights_licence="Apache-2.0", data_licence="CC0-1.0")
    return Base(Checkpoint.load(folder), entry)


def toolbox(base: Base, lab: Lab, tasks: int = len(OPS), **more: Any) -> Tools:
    target = {"kind": "llvm", "mcpu": "znver4", "num-cores": 1}
    local = LocalDevice(EPYC, "epyc", "Test CPU", ("avx2",), 1, "znver4", target, True, ())
    ours = Tools(
        find_base=lambda name: base,
        detect=lambda device, cores: local,
        extract_tasks=lambda workload, target: [make_task(i) for i in range(tasks)],
        make_candidates=make_candidates,
        rebuild=lambda task, e: Candidate(task.task_id, e.key, e.trace, e.strategy, None),
        workload_text=lambda task: f'"{task.task_id}"',
        computation=lambda task: f"{task.op}-{task.task_id}",
        open_measurer=lab.open,
        tvm_version=lambda: "0.27.0",
    )
    return replace(ours, **more)


def run(base: Base, lab: Lab, work: Path, tools: Tools | None = None, **options: Any):
    settings = {"budget": "25%", "programs_per_task": 60, "fine_tune": QUICK, "workload": "toy", "rounds": 1} | options
    return adapt("tcl-epyc", work_dir=work, tools=tools or toolbox(base, lab), **settings)


@pytest.fixture(scope="session")
def adapted(base: Base, tmp_path_factory: pytest.TempPathFactory):
    """One run that several tests look at: result, lab and folder."""
    work = tmp_path_factory.mktemp("work")
    lab = Lab(fails=lambda c: c.key.startswith("(64,"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCHUB_HOME", str(work / "home"))
        patch.setenv("TCHUB_CACHE", str(work / "cache"))
        result = run(base, lab, work, rounds=3)
        entry = Registry.default().resolve("tcl-epyc+local").entry
    return result, lab, work, entry


def test_a_model_that_ranks_better_is_stored_with_its_lineage(adapted):
    result, _, _, entry = adapted
    assert result.guard.decision == "adapted"
    assert result.after["pairwise"] == pytest.approx(result.guard.adapted)
    assert result.after["pairwise"] > result.before["pairwise"]
    assert (result.name, result.version, result.base) == ("tcl-epyc+local", "1.0.0", "tcl-epyc@1.0.0")
    stored = Checkpoint.load(result.path)
    assert stored.config.lineage["base"] == "tcl-epyc@1.0.0"
    assert stored.config.lineage["gain"] == pytest.approx(result.guard.gain)
    assert stored.config.lineage["measurements"]["programs"] == 90
    assert entry.weights_licence == "Apache-2.0"
    assert "Adapted on this machine" in (result.path / "README.md").read_text()
    assert json.loads((result.path / "metrics.json").read_text())["results"]["base"] == result.before


def other_base(arch: str, schema: str, **sizes: Any) -> Base:
    """An untrained model of another architecture, never saved."""
    torch.manual_seed(0)
    columns = get_schema(schema)
    model = create(arch, width=columns.width, hardware=columns.hardware, **sizes)
    name = f"{arch}-epyc"
    facts = {"arch": arch, "family": "epyc", "feature_schema": schema, "format": 1}
    licences = {"weights_licence": "Apache-2.0", "data_licence": "CC0-1.0"}
    files = dict.fromkeys(("config.json", "model.safetensors"), FileRecord(1, "0" * 64))
    entry = Entry(name=name, version="1.0.0", files=files, **facts, **licences)
    return Base(
        Checkpoint(CheckpointConfig(name, "1.0.0", arch, model.config.as_dict(), schema, "epyc"), model, EPYC), entry
    )


@pytest.mark.parametrize(
    ("arch", "schema", "sizes"),
    [("tilenet", "nest-cpu", {"hidden": 32, "embedding": 8}), ("tlp", "tlp-cpu", {"hidden": 32})],
)
def test_other_networks_learn_too_and_are_stored_with_their_size(arch, schema, sizes, tmp_path: Path):
    result = run(other_base(arch, schema, **sizes), Lab(), tmp_path, rounds=1)
    assert result.after["pairwise"] > result.before["pairwise"]
    assert result.name == f"{arch}-epyc+local"
    stored = Checkpoint.load(result.path)
    assert stored.config.training["parameters"] == stored.model.parameter_count()
    assert Registry.default().resolve(result.name).entry.parameters == stored.model.parameter_count()


def test_trees_are_refused_before_anything_is_measured(tmp_path: Path):
    lab = Lab()
    with pytest.raises(NotTrainableError, match="trees"):
        run(other_base("lightgbm", "statements-cpu"), lab, tmp_path)
    assert lab.opened == 0


def test_the_budget_is_spent_and_every_pick_has_its_reason(adapted):
    result, lab, _, _ = adapted
    assert result.pool_size == 360
    assert result.measured == len(lab.measured) == len(set(lab.measured)) == 90
    parts = Counter(pick.part for pick in result.picks)
    assert parts == {"hold-out": 18, "learn": 72}
    assert Counter(pick.round for pick in result.picks if pick.part == "learn") == {0: 18, 1: 18, 2: 18, 3: 18}
    for pick in result.picks:
        assert (pick.total is not None) == (pick.part == "learn" and pick.round > 0)
        assert (pick.latency is None) == (pick.error == "build")
    assert result.failed == sum(pick.error is not None for pick in result.picks) > 0
    assert sum(task.learn + task.hold_out for task in result.tasks) == 90
    by_op = Counter(pick.op for pick in result.picks if pick.part == "learn")
    assert by_op == {"conv2d": 36, "matmul": 24, "softmax": 12}, "as the tasks are: 3, 2, 1"
    assert {"measure", "fine-tune", "candidates"} <= set(result.seconds)
    json.dumps(result.as_dict())


def test_what_was_measured_is_a_corpus(adapted):
    result, _, _, _ = adapted
    corpus = Corpus.open(result.corpus)
    assert corpus.meta["programs"] == 90
    found = {(p.task_id, p.key): p for p in corpus.iter_programs()}
    for pick in result.picks:
        program = found[pick.task_id, pick.key]
        assert program.valid == (pick.error is None)
        assert pick.latency is None or program.latency == pick.latency
    assert {t.computation for t in corpus.tasks.values()} == {f"{op}-{i:016x}" for i, op in enumerate(OPS)}


def test_a_second_run_measures_nothing_again(adapted, base: Base):
    first, _, work, _ = adapted
    lab = Lab()
    second = run(base, lab, work, rounds=3)
    assert lab.measured == []
    assert lab.opened == 0, "no worker is started"
    assert second.reused == 90
    assert [p.key for p in second.picks] == [p.key for p in first.picks]
    assert second.guard == first.guard


def test_a_larger_budget_pays_for_the_difference_only(adapted, base: Base, tmp_path: Path):
    _, _, work, _ = adapted
    lab = Lab()
    result = run(base, lab, work, budget="35%")
    assert result.measured == 126
    assert len(lab.measured) == 126 - result.reused < 126


def test_an_interrupted_run_goes_on_where_it_stopped(base: Base, tmp_path: Path):
    lab = Lab(stop_after=60)
    with pytest.raises(InterruptedRunError, match="60 measured") as caught:
        run(base, lab, tmp_path)
    assert caught.value.exit_code == 130
    rest = Lab()
    resumed = run(base, rest, tmp_path)
    whole = run(base, Lab(), tmp_path / "another")
    assert len(rest.measured) == 90 - 60
    assert resumed.reused == 60
    assert {(p.task_id, p.key) for p in resumed.picks} == {(p.task_id, p.key) for p in whole.picks}
    assert resumed.guard == whole.guard


def test_making_candidates_can_be_interrupted_and_is_not_repeated(base: Base, tmp_path: Path):
    made: list[str] = []

    def counted(task: TuningTask, *rest: Any) -> list[Candidate]:
        made.append(task.task_id)
        if len(made) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return make_candidates(task, *rest)

    tools = toolbox(base, Lab(), make_candidates=counted)
    with pytest.raises(InterruptedRunError, match="making candidates"):
        run(base, Lab(), tmp_path, tools=tools)
    run(base, Lab(), tmp_path, tools=tools)
    assert len(made) == len(OPS)


def test_a_folder_that_cannot_be_written_is_a_clear_error(base: Base, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError) as caught:
        run(base, Lab(), tmp_path / "file")
    assert "TCHUB_HOME" in caught.value.remedy


def test_a_full_disk_while_making_candidates_leaves_no_half_file(base: Base, tmp_path: Path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="no space left"):
        run(base, Lab(), tmp_path)
    assert list((tmp_path / "pool").iterdir()) == []


def test_measurements_of_another_target_are_not_reused(base: Base, tmp_path: Path):
    run(base, Lab(), tmp_path)
    lab = Lab()
    tools = toolbox(base, lab)
    other = replace(tools.detect("local", 1), target={"kind": "llvm", "mcpu": "x86-64-v2", "num-cores": 1})
    result = run(base, lab, tmp_path, tools=replace(tools, detect=lambda device, cores: other))
    assert len(lab.measured) == 90
    assert result.reused == 0
    assert len(list(tmp_path.glob("corpus-*"))) == 2


def test_a_model_that_ranks_worse_is_not_stored(base: Base, tmp_path: Path, home: Path):
    """Labels to learn from that contradict the hold-out: the guard must catch it."""

    def by_the_base(candidate: Candidate) -> float:
        """Exactly as the base predicts on what is measured first, the hold-out; backwards after that."""
        score = float(base.checkpoint.score([from_trace_json(candidate.trace)])[0])
        sign = -1 if len(lab.measured) <= 18 else 1
        return float(np.exp(sign * score * 20) * 1e-3)

    lab = Lab(latency=by_the_base)
    result = run(base, lab, tmp_path, fine_tune=replace(QUICK, val_share=0, blind_epochs=20))
    assert result.guard.base > 0.95
    assert result.guard.decision == "kept"
    assert (result.name, result.version, result.path) == ("tcl-epyc", None, None)
    assert "did not rise" in result.guard.reason
    assert not (home / "checkpoints" / "tcl-epyc+local").exists()


def test_time_as_a_budget(base: Base, tmp_path: Path):
    """Each program costs a second here: 40 s are about 40 programs, 8 of them held out."""
    result = run(base, Lab(), tmp_path, budget="40s", rounds=2)
    assert 36 <= result.measured <= 41
    assert result.measuring_seconds <= 41
    assert Counter(p.part for p in result.picks)["hold-out"] == 8


@pytest.mark.parametrize("sampler", ["random", "stratified"])
def test_other_samplers(base: Base, tmp_path: Path, sampler: str):
    result = run(base, Lab(), tmp_path, sampler=sampler)
    assert result.sampler == sampler
    assert all(pick.total is None for pick in result.picks)
    assert result.measured == 90


def test_progress_is_told_of_every_program(base: Base, tmp_path: Path):
    class Counting(AdaptProgress):
        def __init__(self) -> None:
            self.steps: Counter[str] = Counter()

        def start(self, phase: str, total: int) -> None:
            self.phase = phase
            self.steps[f"{phase} of"] += total

        def advance(self, failed: bool = False) -> None:
            self.steps[self.phase] += 1

    progress = Counting()
    run(base, Lab(), tmp_path, progress=progress)
    for phase in ("candidates", "hold-out", "random start", "round 1 of 1"):
        assert progress.steps[phase] == progress.steps[f"{phase} of"] > 0


def test_tasks_without_a_choice_of_programs_are_skipped_and_named(base: Base, tmp_path: Path):
    def some(task: TuningTask, *rest: Any) -> list[Candidate]:
        if task.op == "softmax":
            raise NoCandidateError("softmax has no valid program on this target")
        return make_candidates(task, *rest)[: 1 if task.task_id == f"{0:016x}" else None]

    result = run(base, Lab(), tmp_path, tools=toolbox(base, Lab(), make_candidates=some))
    assert dict(result.skipped).keys() == {"fused_softmax_4", "fused_conv2d_0"}
    assert "nothing to rank" in dict(result.skipped)["fused_conv2d_0"]
    assert len(result.tasks) == 4


def test_an_empty_pool_is_an_error(base: Base, tmp_path: Path):
    def none(task: TuningTask, *_: Any) -> list[Candidate]:
        raise NoCandidateError(f"{task.name} has no valid program")

    with pytest.raises(EmptyPoolError, match="none of 6 tasks"):
        run(base, Lab(), tmp_path, tools=toolbox(base, Lab(), make_candidates=none))


def test_every_program_failing_stops_early_and_names_the_commonest_error(base: Base, tmp_path: Path):
    lab = Lab(fails=lambda candidate: True)
    with pytest.raises(MeasurementFailureRateError, match="no such loop") as caught:
        run(base, lab, tmp_path)
    assert len(lab.measured) == 16
    assert caught.value.fields["commonest"] == "build: no such loop"
    again = Lab()
    with pytest.raises(MeasurementFailureRateError):
        run(base, again, tmp_path)
    assert again.measured == [], "a second run does not pay for the same failures"


def test_a_tiny_budget_whose_programs_all_fail_says_so_too(base: Base, tmp_path: Path):
    with pytest.raises(MeasurementFailureRateError, match="12 of 12"):
        run(base, Lab(fails=lambda candidate: True), tmp_path, budget=12)


def test_constant_labels_are_an_error(base: Base, tmp_path: Path):
    with pytest.raises(LabelError):
        run(base, Lab(latency=lambda candidate: 1e-3), tmp_path)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"budget": 0}, BudgetError),
        ({"budget": "200%"}, BudgetError),
        ({"budget": "1%"}, BudgetError),
        ({"budget": "3s"}, BudgetError),
        ({"sampler": "psychic"}, UnknownSamplerError),
        ({"method": "telepathy"}, AdaptArgumentError),
        ({"rounds": 0}, AdaptArgumentError),
        ({"programs_per_task": 0}, AdaptArgumentError),
    ],
)
def test_arguments_without_a_meaning_are_refused_with_a_remedy(base: Base, tmp_path: Path, options, error):
    lab = Lab()
    with pytest.raises(error) as caught:
        run(base, lab, tmp_path, **options)
    assert caught.value.remedy
    assert len(lab.measured) <= 8, "at most the probe of a budget of time"


@pytest.mark.parametrize("operator", ["batch-matmul-scores", "softmax-rows"])
def test_a_candidate_made_again_from_its_trace_is_the_same_program(operator: str):
    """The pool keeps traces only; layouts that a schedule rewrites must come back too."""
    from tvm_ffi import structural_equal

    target = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}
    (task,) = extract_tasks(operator, target)
    candidates = adapt_tools.make_candidates(task, target, 4, 0)
    for candidate in candidates:
        again = rebuild(task, PoolEntry(0, candidate.key, candidate.trace, candidate.strategy))
        assert structural_equal(again.mod, candidate.mod)
        assert again.args_info == candidate.args_info
        assert again == candidate


def test_only_this_machine_can_be_measured():
    with pytest.raises(UnknownDeviceChoiceError, match="v100"):
        detect("v100", 1)


def test_two_runs_may_not_measure_at_the_same_time(base: Base, tmp_path: Path):
    with adapt_module._locked(tmp_path), pytest.raises(AdaptBusyError):
        run(base, Lab(), tmp_path)


def test_the_command_line(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    tools = toolbox(base, Lab())
    monkeypatch.setattr(adapt_module, "Tools", lambda: tools)
    args = ["adapt", "tcl-epyc", "--budget", "60", "--pool", "40", "--rounds", "1", "--work-dir", str(tmp_path)]
    assert main([*args, "--workload", "toy", "--json"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert result["measured"] == 60
    assert result["decision"] in ("adapted", "kept")
    assert main([*args, "--workload", "toy"]) == 0
    shown = capsys.readouterr()
    assert "pairwise" in shown.out
    assert f"tchub tune toy --checkpoint {result['name']}" in shown.err
    assert main(["adapt", "--budget", "0"]) == 1
    assert "allows no measurement" in capsys.readouterr().err


def test_the_corpus_commands(adapted, tmp_path: Path, capsys):
    result, _, _, _ = adapted
    folder = shutil.copytree(result.corpus, tmp_path / "corpus")
    meta = Corpus.open(folder).meta
    assert main(["corpus", "stats", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["programs"] == meta["programs"]
    assert main(["corpus", "check", str(folder)]) == 0
    assert "no test task in training" in capsys.readouterr().out
    (folder / "corpus.json").write_text(json.dumps(meta | {"programs": 1, "device": "other"}))
    assert main(["corpus", "check", str(folder), "--json"]) == 1
    failed = json.loads(capsys.readouterr().out)
    assert {f["name"] for f in failed["findings"] if not f["ok"]} == {"counts", "one device"}

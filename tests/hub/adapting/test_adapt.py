"""Adapting, with a synthetic machine: a latency function stands for compiling and running programs."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapt_kit import EPYC, OPS, QUICK, Lab, make_candidates, run, toolbox
from tchub.hub.cli import main
from tchub.hub.registry import Entry, Registry
from tchub.hub.registry.index import FileRecord
from tchub.hub.tuning import adapt as adapt_module
from tchub.hub.tuning import adapt_tools
from tchub.hub.tuning.adapt_pool import PoolEntry
from tchub.hub.tuning.adapt_settings import AdaptProgress
from tchub.hub.tuning.adapt_tools import Base, extract_tasks, rebuild
from tchub.hub.tuning.candidates import Candidate
from tchub.hub.tuning.errors import NoCandidateError
from tchub.hub.tuning.tasks import TuningTask
from tchub.zoo.adapt import NotTrainableError
from tchub.zoo.corpus import Corpus
from tchub.zoo.features import get_schema
from tchub.zoo.models import Checkpoint, CheckpointConfig, create
from tchub.zoo.primitives import from_trace_json


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


def test_other_networks_learn_too_and_are_stored_with_their_size(tmp_path: Path):
    result = run(other_base("tlp", "tlp-cpu", hidden=32), Lab(), tmp_path, rounds=1)
    assert result.after["pairwise"] > result.before["pairwise"]
    assert result.zero_shot is None
    assert result.name == "tlp-epyc+local"
    stored = Checkpoint.load(result.path)
    assert stored.config.training["parameters"] == stored.model.parameter_count()
    assert Registry.default().resolve(result.name).entry.parameters == stored.model.parameter_count()


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


def test_a_budget_that_stops_itself_says_what_it_decided_on(base: Base, tmp_path: Path):
    """A second a program here: a user in a hurry stops after the least rounds."""
    notes: list[str] = []

    class Noting(AdaptProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    hurried = run(base, Lab(), tmp_path, budget="auto", rounds=1, worth=1e-3, progress=Noting())
    assert len(hurried.curve) == len(notes) == 2
    assert hurried.stop is not None
    assert hurried.stop.stop
    assert hurried.stop.worth < hurried.stop.cost
    assert hurried.stop.reason in notes[-1]
    labels = [point.labels for point in hurried.curve]
    assert labels == sorted(labels)
    assert Counter(pick.part for pick in hurried.picks)["hold-out"] == 24, "four of each task"
    patient = run(base, Lab(), tmp_path, budget="auto", rounds=2, worth=1e-3)
    assert patient.measured > hurried.measured
    assert patient.measured <= patient.pool_size / 2
    assert patient.reused == hurried.measured, "the same programs first"
    assert json.loads(json.dumps(patient.as_dict()))["curve"][0] == hurried.as_dict()["curve"][0]


def test_a_model_of_context_is_judged_with_the_programs_learnt_from_and_both_figures_are_told(tmp_path: Path):
    result = run(other_base("tilenet", "nest-cpu", hidden=32, embedding=8), Lab(), tmp_path, rounds=1)
    assert result.zero_shot is not None
    before, after = (result.zero_shot[when]["pairwise"] for when in ("before", "after"))
    assert after > before, "the weights have learnt"
    assert result.guard.base == pytest.approx(result.before["pairwise"])
    assert result.guard.base > before, "context alone tells an untrained model much, and that is not the weights' gain"


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
    for phase in ("candidates", "hold-out", "first batch", "round 1 of 1"):
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


def test_trees_are_refused_before_anything_is_measured(tmp_path: Path):
    lab = Lab()
    with pytest.raises(NotTrainableError, match="trees"):
        run(other_base("lightgbm", "statements-cpu"), lab, tmp_path)
    assert lab.opened == 0

"""Adapting, with a synthetic machine: a latency function stands for compiling and running programs."""

import hashlib
import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapt_kit import LITTLE, OPS, QUICK, Lab, LabDevice, make_candidates, run
from tchub.hub.adaptation.config import AdaptConfig, AdaptProgress
from tchub.hub.adaptation.pool import extract_tasks
from tchub.hub.api import CheckpointChoice
from tchub.hub.device.candidate import Candidate
from tchub.hub.networks.errors import NetworkLoadError
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.records.scope import MeasurementScope
from tchub.hub.records.store import RunStore, home_file
from tchub.hub.registry import Registry
from tchub.hub.search.errors import InterruptedRunError
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.corpus import Corpus
from tchub.zoo.features import DeviceKindError
from tchub.zoo.files import LockError, StorageError, locked_folder
from tchub.zoo.models import Checkpoint
from tchub.zoo.primitives import from_trace_json


def test_a_model_that_ranks_better_is_stored_with_its_lineage(adapted):
    result, _, _, entry = adapted
    judgement = result.judgement
    assert judgement.guard.decision == "adapted"
    assert judgement.after["pairwise"] == pytest.approx(judgement.guard.adapted)
    assert judgement.after["pairwise"] > judgement.before["pairwise"]
    assert (result.name, result.version, result.settings.base) == ("tcl-epyc+local", "1.0.0", "tcl-epyc@1.0.0")
    stored = Checkpoint.load(result.path)
    assert stored.config.lineage["base"] == "tcl-epyc@1.0.0"
    assert stored.config.lineage["gain"] == pytest.approx(judgement.guard.gain)
    assert stored.config.lineage["measurements"]["programs"] == 90
    assert entry.weights_licence == "Apache-2.0"
    card = (result.path / "README.md").read_text()
    assert "| licence of the weights | Apache-2.0 |" in card
    assert "| licence of what others measured and it learnt | CC0-1.0 |" in card
    assert json.loads((result.path / "metrics.json").read_text())["results"]["base"] == judgement.before


def test_an_adapted_checkpoint_brings_the_schedules_of_its_start(base: CheckpointChoice, tmp_path: Path, home: Path):
    path = tmp_path / "schedules.json"
    path.write_text('{"format": 1, "kernels": [], "schedules": {}}')
    start = replace(base, schedules=path, entry=replace(base.entry, lineage={"schedules": 663}))
    result = run(start, Lab(), tmp_path / "work")
    assert result.judgement.guard.decision == "adapted"
    assert (result.path / "schedules.json").read_bytes() == path.read_bytes()
    assert Checkpoint.load(result.path).config.lineage["schedules"] == 663
    assert "schedules.json" in Registry.default().resolve(result.name).entry.files


def test_the_budget_is_spent_and_every_pick_has_its_reason(adapted):
    result, lab, _, _ = adapted
    assert result.measurements.pool_size == 360
    assert result.measurements.measured == len(lab.measured) == len(set(lab.measured)) == 90
    assert Counter(pick.part for pick in result.picks) == {"hold-out": 18, "learn": 72}
    held_out = [(one.task_id, one.key, one.part, one.round) for one in result.picks if one.part == "hold-out"]
    digest = hashlib.sha256(json.dumps(held_out).encode()).hexdigest()
    assert digest.startswith("c24b733070fa"), "those of this seed, in every release"
    assert Counter(pick.round for pick in result.picks if pick.part == "learn") == {0: 18, 1: 18, 2: 18, 3: 18}
    for pick in result.picks:
        assert (pick.total is not None) == (pick.part == "learn" and pick.round > 0)
        assert (pick.latency is None) == (pick.error == "build")
    assert result.measurements.failed == sum(pick.error is not None for pick in result.picks) > 0
    assert sum(task.learn + task.hold_out for task in result.tasks) == 90
    by_op = Counter(pick.op for pick in result.picks if pick.part == "learn")
    assert by_op == {"conv2d": 36, "matmul": 24, "softmax": 12}, "as the tasks are: 3, 2, 1"
    row = json.loads(json.dumps(result.as_dict()))
    assert {"measure", "fine-tune", "candidates"} <= set(row["seconds"])
    assert (row["base"], row["workload"], row["measured"], row["decision"]) == ("tcl-epyc@1.0.0", "toy", 90, "adapted")


def test_what_was_measured_is_a_corpus(adapted):
    result, *_ = adapted
    corpus = Corpus.open(result.measurements.corpus)
    assert corpus.meta["programs"] == 90
    programs = {(p.task_id, p.key): p for p in corpus.iter_programs()}
    for pick in result.picks:
        program = programs[pick.task_id, pick.key]
        assert program.valid == (pick.error is None)
        assert pick.latency is None or program.latency == pick.latency
    assert len({task.computation for task in corpus.tasks.values()}) == len(OPS)


def test_what_was_measured_is_known_to_tuning_runs_of_the_device(adapted, monkeypatch: pytest.MonkeyPatch):
    result, _, work, _ = adapted
    monkeypatch.setenv("TCHUB_HOME", str(work / "home"))
    with RunStore(home_file(), MeasurementScope.of_device(LabDevice().facts)) as store:
        keys = {(task.task_id, program.key) for task in result.tasks for program in store.known(task.task_id)}
    assert keys == {(pick.task_id, pick.key) for pick in result.picks}


def test_a_model_that_ranks_worse_is_not_stored(base: CheckpointChoice, tmp_path: Path, home: Path):
    """Labels to learn from that contradict the hold-out: the guard must catch it."""

    def by_the_base(candidate: Candidate) -> float:
        """Exactly as the base predicts on what is measured first, the hold-out; backwards after that."""
        score = float(base.checkpoint.score([from_trace_json(candidate.trace)])[0])
        sign = -1 if len(lab.measured) <= 18 else 1
        return float(np.exp(sign * score * 20) * 1e-4)

    lab = Lab(latency=by_the_base)
    result = run(base, lab, tmp_path, fine_tune=replace(QUICK, val_share=0, blind_epochs=20))
    assert result.judgement.guard.base > 0.95
    assert result.judgement.guard.decision == "kept"
    assert (result.name, result.version, result.path) == ("tcl-epyc", None, None)
    assert "did not rise" in result.judgement.guard.reason
    assert not (home / "checkpoints" / "tcl-epyc+local").exists()


def test_a_module_at_hand_is_a_workload(base: CheckpointChoice, tmp_path: Path):
    seen: list[TuningTask] = []

    def stop(task: TuningTask, *_recipe: object) -> list[Candidate]:
        seen.append(task)
        raise InterruptedRunError("the tasks are known")

    border = {"random_candidates": stop, "extract_tasks": extract_tasks}
    with pytest.raises(InterruptedRunError):
        run(base, Lab(), tmp_path, border, workload=torch.nn.Linear(8, 8), example_inputs=torch.zeros(4, 8))
    assert [(task.op, set(task.networks)) for task in seen] == [("matmul", {"Linear"})]


def test_ctrl_c_while_learning_stops_at_once_and_loses_nothing(base: CheckpointChoice, tmp_path: Path):
    class Impatient(AdaptProgress):
        def start(self, phase: str, total: int) -> None:
            if phase == "few-shot: learn":
                os.kill(os.getpid(), signal.SIGINT)

    rest = Lab()
    with pytest.raises(InterruptedRunError, match="while learning from 40 measured") as caught:
        run(base, Lab(), tmp_path, progress=Impatient(), **LITTLE)
    assert caught.value.exit_code == 130
    assert run(base, rest, tmp_path, **LITTLE).measurements.reused == 40
    assert not rest.measured


def test_making_candidates_can_be_interrupted_and_is_not_repeated(base: CheckpointChoice, tmp_path: Path):
    begun: list[str] = []

    def counted(task: TuningTask, *rest) -> list[Candidate]:
        begun.append(task.task_id)
        if len(begun) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return make_candidates(task, *rest)

    with pytest.raises(InterruptedRunError, match="making candidates"):
        run(base, Lab(), tmp_path, {"random_candidates": counted}, **LITTLE)
    run(base, Lab(), tmp_path, {"random_candidates": counted}, **LITTLE)
    assert len(begun) == len(OPS)


def test_a_mistyped_workload_is_refused_before_anything_is_opened(base: CheckpointChoice, tmp_path: Path):
    with pytest.raises(NetworkLoadError) as caught:
        run(base, Lab(), tmp_path / "work", {"choose_checkpoint": None}, workload="bert-tinny")
    assert caught.value.fields["nearest"][0] == "bert-tiny"
    assert not (tmp_path / "work").exists()


def test_a_folder_that_is_a_file_or_in_use_is_refused(base: CheckpointChoice, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError) as caught:
        run(base, Lab(), tmp_path / "file" / "work")
    assert "--out or TCHUB_HOME" in str(caught.value.remedy)
    with locked_folder(tmp_path / "work"), pytest.raises(LockError):
        run(base, Lab(), tmp_path / "work")


@pytest.mark.parametrize(
    "options",
    [
        *({"budget": budget} for budget in (0, 5, "200%")), {"sampler": "psychic"}, {"method": "telepathy"},
        {"rounds": 0}, {"worth": 0.0}, {"worth": float("nan")}, {"per_task": 0}, {"seed": -1},
    ],
)  # fmt: skip
def test_settings_without_a_meaning_are_refused_with_a_remedy(options):
    with pytest.raises(AdaptError) as caught:
        AdaptConfig(**options)
    assert caught.value.remedy


@pytest.mark.parametrize(("budget", "making"), [("1%", None), ("3s", make_candidates)], ids=["share", "time"])
def test_a_budget_that_reaches_for_too_little_is_refused_early(
    base: CheckpointChoice, tmp_path: Path, budget: str, making: Any
):
    """A share before a candidate is made."""
    lab = Lab()
    with pytest.raises(AdaptError, match="adapting needs 12"):
        run(base, lab, tmp_path, {"random_candidates": making}, budget=budget)
    assert len(lab.measured) <= 8, "at most the probe of a budget of time"


def test_a_checkpoint_of_gpus_is_refused_where_programs_are_for_a_cpu(base: CheckpointChoice, tmp_path: Path):
    config = replace(base.checkpoint.config, feature_schema="tcl-gpu")
    lab = Lab()
    with pytest.raises(DeviceKindError, match="reads tcl-gpu, but the programs are for") as caught:
        run(replace(base, checkpoint=replace(base.checkpoint, config=config)), lab, tmp_path)
    assert "tchub list --kind cpu" in caught.value.remedy
    assert lab.opened == 0

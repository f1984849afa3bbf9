"""The pool: candidates on disk and made again, and measuring them through the journal."""

import json
from pathlib import Path
from typing import Any

import pytest
from adapt_kit import LITTLE, Lab, latency_of, make_candidates, run
from fake_tuning import programs_in
from paper_card import PaperCard
from tchub.hub.adaptation.pool import PoolEntry, extract_tasks, replay
from tchub.hub.api import CheckpointChoice
from tchub.hub.device.candidate import Candidate
from tchub.hub.device.errors import MeasurementFailureRateError
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.records.store import RunStore
from tchub.hub.search.candidates import random_candidates
from tchub.hub.search.errors import InterruptedRunError, NoCandidateError
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.corpus import Corpus
from tchub.zoo.files import StorageError


def test_tasks_without_a_choice_of_programs_are_skipped_and_named(base: CheckpointChoice, tmp_path: Path):
    def some(task: TuningTask, *rest: Any) -> list[Candidate]:
        if task.op == "softmax":
            raise NoCandidateError("softmax has no valid program on this target")
        return make_candidates(task, *rest)[: 1 if task.task_id == f"{0:016x}" else None]

    result = run(base, Lab(), tmp_path, {"random_candidates": some}, **LITTLE)
    assert dict(result.skipped).keys() == {"fused_softmax_4", "fused_conv2d_0"}
    assert "nothing to rank" in dict(result.skipped)["fused_conv2d_0"]
    assert len(result.tasks) == 4


def test_an_empty_pool_is_an_error(base: CheckpointChoice, tmp_path: Path):
    def none(task: TuningTask, *_: Any) -> list[Candidate]:
        raise NoCandidateError(f"{task.name} has no valid program")

    with pytest.raises(AdaptError, match="none of 6 tasks"):
        run(base, Lab(), tmp_path, {"random_candidates": none})


def test_a_full_disk_while_making_candidates_leaves_no_half_file(base: CheckpointChoice, tmp_path: Path, full_disk):
    full_disk("os.replace")
    with pytest.raises(StorageError, match="No space left"):
        run(base, Lab(), tmp_path)
    assert list((tmp_path / "pool").iterdir()) == []


@pytest.mark.parametrize("operator", ["batch-matmul-scores", "softmax-rows"])
def test_a_candidate_made_again_from_its_trace_is_the_same_program(operator: str, target: Any):
    """The pool keeps traces only; layouts that a schedule rewrites must come back too."""
    from tvm_ffi import structural_equal

    (task,) = extract_tasks(operator, target)
    for candidate in random_candidates(task, target, 4, 0):
        again = replay(task, PoolEntry(0, candidate.key, candidate.trace, candidate.strategy))
        assert structural_equal(again.mod, candidate.mod)
        assert again.args_info == candidate.args_info
        assert again == candidate


def test_every_program_failing_stops_early_and_names_the_commonest_error(base: CheckpointChoice, tmp_path: Path):
    lab = Lab(fails=lambda candidate: True)
    with pytest.raises(MeasurementFailureRateError, match="no such loop") as caught:
        run(base, lab, tmp_path)
    assert len(lab.measured) == 16
    assert caught.value.fields["commonest"] == "build: no such loop"
    assert "tries these programs again" in caught.value.remedy
    mended = Lab()
    measured = run(base, mended, tmp_path).measurements
    assert (measured.failed, measured.reused) == (0, 0), "the machine failed, not the programs"
    assert {lab.measured[0], lab.measured[-1]} <= set(mended.measured)
    with pytest.raises(MeasurementFailureRateError, match="12 of 12"):
        run(base, lab, tmp_path / "tiny", budget=12)


def test_programs_that_fail_among_others_are_not_tried_again(base: CheckpointChoice, tmp_path: Path):
    """Unlike what failed until a run was stopped in which nothing had succeeded."""
    with pytest.raises(InterruptedRunError):
        run(base, Lab(fails=lambda candidate: True, stop_after=9), tmp_path, **LITTLE)
    first = run(base, Lab(fails=lambda candidate: candidate.key.startswith("(64,")), tmp_path, **LITTLE)
    again = Lab()
    assert run(base, again, tmp_path, **LITTLE).measurements.failed == first.measurements.failed > 0
    assert first.measurements.reused == len(again.measured) == 0


def test_labels_that_are_not_numbers_are_failures_and_none_at_all_an_error(base: CheckpointChoice, tmp_path: Path):
    """A clock that gives NaN tells nothing of a program, though it ran."""
    lab = Lab(latency=lambda c: float("nan") if c.key.startswith("(1,") else latency_of(c))
    some = run(base, lab, tmp_path, **LITTLE)
    assert some.measurements.measured == 40
    assert 0 < some.measurements.failed < 40
    assert some.judgement.guard.programs < 8
    with pytest.raises(MeasurementFailureRateError, match="nan"):
        run(base, Lab(latency=lambda candidate: float("nan")), tmp_path / "all")
    assert run(base, Lab(), tmp_path / "all", **LITTLE).measurements.failed == 0, "nor is such a clock believed again"


OPTIONS = ["--device", "cuda", "--budget", "12", "--per-task", "9", "--rounds", "1", "--json"]


def test_a_checkpoint_is_adapted_to_a_card_and_a_lost_card_costs_nothing_measured(
    card: PaperCard, tmp_path: Path, pt2: Path, run: Any, monkeypatch: pytest.MonkeyPatch, learnt_briefly: None
) -> None:
    command = ["adapt", "tcl-t4", "--workload", str(pt2), "--out", str(tmp_path / "adapt"), *OPTIONS]
    for number, fault in enumerate(["illegal access", "too much memory"], start=2):
        card.break_program(number, fault)
    # The card is lost in the middle: the run ends with what was measured, and goes on when it is back.
    put, count = RunStore.put, 0

    def put_until_lost(store: RunStore, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == 7:
            card.becomes("lost")
        return put(store, *args, **kwargs)

    monkeypatch.setattr(RunStore, "put", put_until_lost)
    code, _, err = run(*command)
    assert code == 1
    assert "CUDA_ERROR_UNKNOWN" in err
    assert "what was measured is kept" in err
    kept = len(programs_in(tmp_path / "adapt", "random"))
    (card.folder / "lost").unlink()
    code, out, err = run(*command)
    assert code == 0, err
    result = json.loads(out)
    assert (result["device"], result["target"]["arch"], result["measured"]) == ("t4", "sm_75", 12)
    assert result["reused"] == kept > 0
    assert result["failed"] == 2
    assert {pick["error"] for pick in result["picks"]} == {None, "run"}
    corpus = Corpus.open(Path(result["corpus"]))
    assert (corpus.meta["device"], corpus.meta["cpu_model"], corpus.meta["programs"]) == ("t4", "Tesla T4", 12)
    assert result["base"].startswith("tcl-t4@")


def test_float16_is_refused_where_there_are_no_tensor_cores_and_where_nothing_is_measured(
    run: Any, pt2: Path, tmp_path: Path
) -> None:
    code, _, err = run("adapt", "tcl-epyc", "--device", "cpu", "--workload", str(pt2), "--precision", "float16")
    assert (code, "float16 is for NVIDIA cards with tensor cores" in err) == (1, True)
    code, _, err = run("adapt", "tcl-t4", "--corpus", tmp_path, "--precision", "float16")
    assert (code, "nothing is measured with a corpus, and precision is given" in err) == (1, True)


@pytest.mark.parametrize(
    ("checkpoint", "device", "kind"), [("tcl-epyc", "cuda", "gpu"), ("tcl-t4", "cpu", "cpu")], ids=str
)
def test_a_checkpoint_of_the_other_kind_is_refused(
    card: PaperCard, run: Any, pt2: Path, checkpoint: str, device: str, kind: str
) -> None:
    code, _, err = run("adapt", checkpoint, "--device", device, "--workload", str(pt2))
    assert code == 2, "wrong usage"
    assert f"choose a checkpoint of a {kind} family" in err

"""The plug-in: scores from traces, learning from results, state on disk, and life inside MetaSchedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_tuning import latency_of_key
from hypothesis import given
from hypothesis import strategies as st
from real_checkpoint import make_checkpoint
from tchub import hub
from tchub.hub.device.detect import LocalDevice
from tchub.hub.records.store import RunStateError
from tchub.hub.search.candidate_features import trace_features
from tchub.hub.search.cost_model import CALIBRATION_SIZE, PretrainedScorer, Squash, sheet_to_read
from tchub.hub.search.errors import TuningError
from tchub.hub.search.models import choose_model
from tchub.hub.search.online import OnlineSettings
from tchub.zoo.devices import get_device
from tchub.zoo.features import SCHEMAS
from tchub.zoo.primitives import PrimitiveSequence, read_trace
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

QUICK = OnlineSettings(min_programs=4, epochs=4, patience=4, max_seconds=600.0)


def sequence_of(trace: Any) -> PrimitiveSequence:
    template, decisions = read_trace(trace)
    return template.fill(decisions)


@pytest.fixture(scope="module")
def checkpoint() -> Any:
    return make_checkpoint()


@pytest.fixture(scope="module")
def context(small_task: Any, target: Any) -> Any:
    return ms.TuneContext(mod=small_task.mod, target=target, task_name="small", num_threads=1)


@pytest.fixture(scope="module")
def measure_candidates(small_task: Any, small_candidates: list[Any]) -> list[Any]:
    """The small task's candidates as MetaSchedule hands them to a cost model."""
    found = []
    for candidate in small_candidates:
        schedule = Schedule(small_task.mod)
        Trace.apply_json_to_schedule(_json(candidate), schedule)
        found.append(ms.MeasureCandidate(schedule, ms.arg_info.ArgInfo.from_entry_func(small_task.mod, True)))
    return found


def _json(candidate: Any) -> Any:
    import json

    return json.loads(candidate.trace)


def results_of(small_candidates: list[Any]) -> list[Any]:
    return [ms.runner.RunnerResult([latency_of_key(c.key)], None) for c in small_candidates]


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=2, max_size=40, unique=True))
def test_the_squash_keeps_the_order_and_stays_between_zero_and_one(raw: list[float]) -> None:
    scores = Squash()(np.array(raw))
    order = np.argsort(raw)
    assert np.all(np.diff(scores[order]) >= 0)
    assert np.all((scores > 0) & (scores < 1))


def test_the_squash_of_a_task_is_the_same_from_call_to_call() -> None:
    squash, raw = Squash(), np.linspace(-3, 5, CALIBRATION_SIZE)
    first = squash(raw)
    squash(raw + 100)
    assert np.array_equal(squash(raw), first)


def test_features_of_live_traces_are_those_of_their_sequences(small_task: Any, measure_candidates: list[Any]) -> None:
    """Design spaces mixed, with their post-processing, in any order; for every schema of primitives."""
    traces = [c.sch.trace for c in measure_candidates]
    traces = [*traces, Schedule(small_task.mod).trace, *traces[::-1]]
    programs = [sequence_of(trace) for trace in traces]
    for name, schema in SCHEMAS.items():
        if schema.source != "statements":
            assert np.array_equal(trace_features(schema, None, traces), schema.extract(programs)), name


def test_predict_is_the_models_own_score_of_the_sequences(
    checkpoint: Any, context: Any, measure_candidates: list[Any]
) -> None:
    raw = checkpoint.model.score(checkpoint.features([sequence_of(c.sch.trace) for c in measure_candidates]))
    scores = hub.tvm_cost_model(checkpoint, update="none").predict(context, measure_candidates)
    assert np.array_equal(scores, Squash()(raw))


def test_few_shot_learns_the_order_that_was_measured_and_spares_the_base(
    context: Any, measure_candidates: list[Any]
) -> None:
    base = make_checkpoint()
    weights = {k: v.clone() for k, v in base.model.state_dict().items()}
    model = hub.tvm_cost_model(base, update="few-shot", min_programs=4, epochs=10, patience=10, max_seconds=600.0)
    before = model.predict(context, measure_candidates)
    latency = 1e-3 * np.exp(np.argsort(np.argsort(before)) / 3)  # the machine says the opposite of the base
    model.update(context, measure_candidates, [ms.runner.RunnerResult([float(x)], None) for x in latency])
    assert pairwise(before, latency) == 0.0
    assert pairwise(model.predict(context, measure_candidates), latency) > 0.2
    assert all(torch.equal(weights[k], v) for k, v in base.model.state_dict().items())


def pairwise(scores: np.ndarray, latency: np.ndarray) -> float:
    pairs = [(i, j) for i in range(len(scores)) for j in range(i)]
    return float(np.mean([(scores[i] > scores[j]) == (latency[i] < latency[j]) for i, j in pairs]))


def test_a_fine_tuning_that_takes_too_long_leaves_the_weights(
    checkpoint: Any, context: Any, measure_candidates: list[Any], small_candidates: list[Any]
) -> None:
    model = hub.tvm_cost_model(checkpoint, update="few-shot", min_programs=4, max_seconds=0.0)
    before = model.predict(context, measure_candidates)
    model.update(context, measure_candidates, results_of(small_candidates))
    assert np.array_equal(model.predict(context, measure_candidates), before)


def test_saved_state_gives_the_same_scores(
    tmp_path: Path, checkpoint: Any, context: Any, measure_candidates: list[Any], small_candidates: list[Any]
) -> None:
    model = hub.tvm_cost_model(checkpoint, update="few-shot", **vars(QUICK))
    model.update(context, measure_candidates, results_of(small_candidates))
    model.save(str(tmp_path / "state.safetensors"))
    other = hub.tvm_cost_model(checkpoint, update="few-shot", **vars(QUICK))
    other.load(str(tmp_path / "state.safetensors"))
    ours, theirs = (m.predict(context, measure_candidates) for m in (model, other))
    assert np.array_equal(ours, theirs)
    assert other.scorer.learner.programs == len(small_candidates)


def test_state_of_another_checkpoint_or_half_a_file_is_refused(tmp_path: Path, checkpoint: Any) -> None:
    path = tmp_path / "state.safetensors"
    PretrainedScorer(checkpoint).save(path)
    with pytest.raises(RunStateError, match="not of"):
        PretrainedScorer(make_checkpoint(version="2.0.0")).load(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RunStateError, match="cannot read"):
        PretrainedScorer(checkpoint).load(path)


def test_scores_that_are_no_numbers_are_an_error(measure_candidates: list[Any]) -> None:
    broken = make_checkpoint()
    with torch.no_grad():
        next(broken.model.parameters()).fill_(float("nan"))
    with pytest.raises(TuningError):
        PretrainedScorer(broken).predict("t", broken.features([sequence_of(c.sch.trace) for c in measure_candidates]))


def test_a_model_that_tells_devices_apart_reads_the_one_that_runs_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = replace(get_device("epyc-genoa"), notes="with what was measured here")
    tilenet, tcl = hub.load("tilenet-epyc"), hub.load("tcl-epyc")
    assert tilenet.device.name == "epyc-turin"
    assert sheet_to_read(tilenet, here) == get_device("epyc-genoa")
    assert sheet_to_read(tilenet, replace(get_device("epyc-turin"), notes="measured")) == tilenet.device
    assert sheet_to_read(tilenet, nobodys := replace(here, name="nobodys")) == nobodys, "which the model leaves out"
    assert sheet_to_read(tcl, here) == tcl.device
    short = replace(here, spec=here.spec.with_values({"simd_bytes": 32}, "the target's: x86-64-v3"))
    read = sheet_to_read(tilenet, short).spec.values()
    assert read == get_device("epyc-genoa").spec.values() | {"simd_bytes": 32}, (
        "programs for a target of shorter vectors"
    )
    model = choose_model("tilenet-epyc", update="none", runs_on=here).make()
    assert model.scorer.checkpoint.device == get_device("epyc-genoa")
    local = LocalDevice(here, "AMD EPYC", exact=True, reasons=())
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: local)
    assert hub.tvm_cost_model("tilenet-epyc").scorer.checkpoint.device == get_device("epyc-genoa")
    assert hub.tvm_cost_model(tilenet).scorer.checkpoint.device == tilenet.device, "as it was loaded"
    assert hub.tvm_cost_model("tcl-t4").scorer.checkpoint.device == get_device("t4"), "of the other kind"


def test_an_unknown_way_to_learn_is_refused() -> None:
    with pytest.raises(ValueError, match="few-shot"):
        choose_model("tcl-epyc", update="often")


def test_predict_leaves_the_programs_thread_setting_alone(
    checkpoint: Any, context: Any, measure_candidates: list[Any]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        hub.tvm_cost_model(checkpoint).predict(context, measure_candidates)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

"""The plug-in: scores of every kind of input, learning from results, and life inside MetaSchedule."""

import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_tuning import latency_of_key
from hypothesis import given
from hypothesis import strategies as st
from real_checkpoint import make_checkpoint
from tchub import hub
from tchub.hub.device.candidate import trace_json
from tchub.hub.device.detect import LocalDevice
from tchub.hub.networks.tasks import make_task
from tchub.hub.networks.workloads import operator_module
from tchub.hub.search import candidate_features as inputs
from tchub.hub.search import cost_model
from tchub.hub.search.candidate_features import require_kind, trace_features
from tchub.hub.search.candidates import random_candidates, tune_context
from tchub.hub.search.cost_model import SessionCostModel, choose_model, sheet_to_read
from tchub.hub.search.errors import TuningError
from tchub.hub.search.interrupt import StopFlag
from tchub.hub.search.scorer import CALIBRATION_SIZE, PretrainedScorer, Squash
from tchub.zoo.corpus.tir import operator_class
from tchub.zoo.corpus.workloads import OperatorSpec
from tchub.zoo.devices import get_device
from tchub.zoo.features import SCHEMAS, DeviceKindError, get_schema, statements
from tchub.zoo.machine import one_thread
from tchub.zoo.models import Checkpoint, CheckpointConfig, create
from tchub.zoo.primitives import PrimitiveSequence, read_trace
from tchub.zoo.training.errors import TrainingError
from tchub.zoo.trust import ClassTrust
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm.target import Target


def sequence_of(trace: Any) -> PrimitiveSequence:
    template, decisions = read_trace(trace)
    return template.fill(decisions)


@pytest.fixture(scope="module")
def checkpoint() -> Any:
    return make_checkpoint()


@pytest.fixture(scope="module")
def context(small_task: Any, target: Any) -> Any:
    return ms.TuneContext(mod=small_task.mod, target=target, task_name="small", num_threads=1)


def live(task: Any, candidates: list[Any]) -> list[Any]:
    """Candidates as MetaSchedule hands them to a cost model."""
    schedules = [Schedule(task.mod) for _ in candidates]
    for schedule, candidate in zip(schedules, candidates, strict=True):
        Trace.apply_json_to_schedule(json.loads(candidate.trace), schedule)
    return [ms.MeasureCandidate(one, ms.arg_info.ArgInfo.from_entry_func(task.mod, True)) for one in schedules]


@pytest.fixture(scope="module")
def measure_candidates(small_task: Any, small_candidates: list[Any]) -> list[Any]:
    return live(small_task, small_candidates)


def results_of(latencies: Iterable[float]) -> list[Any]:
    return [ms.runner.RunnerResult([float(one)], None) for one in latencies]


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=2, max_size=40, unique=True))
def test_the_squash_keeps_the_order_and_stays_between_zero_and_one(raw: list[float]) -> None:
    scores = Squash()(np.array(raw))
    assert np.all(np.diff(scores[np.argsort(raw)]) >= 0)
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


def test_a_model_of_three_heads_gives_operations_a_byte(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.random.default_rng(0).standard_normal((5, 25, 22)).astype(np.float32)
    program: Any = SimpleNamespace(features=lambda decisions: features[: len(decisions)])
    monkeypatch.setattr(cost_model, "skeleton", lambda *_: program)
    model = create("fasor", hidden=16, layers=1, seed=0)
    config = replace(checkpoint.config, arch="fasor", model=model.config.as_dict(), feature_schema="tlp-cpu")
    scorer = hub.tvm_cost_model(replace(checkpoint, model=model, config=config), update="none")
    memory, core = model.bounds(features).T
    # A core does two multiply-adds of four bytes' numbers for each byte that it takes from its cache: one operation.
    np.testing.assert_allclose(scorer.intensity(program, [()] * 5), core / memory)
    np.testing.assert_allclose(SessionCostModel(scorer, StopFlag()).intensity(program, [()] * 5), core / memory)
    assert hub.tvm_cost_model(checkpoint, update="none").intensity(program, [()] * 5) is None


def test_a_fine_tuning_that_takes_too_long_leaves_the_weights(
    checkpoint: Any, context: Any, measure_candidates: list[Any], small_candidates: list[Any]
) -> None:
    model = hub.tvm_cost_model(checkpoint, update="few-shot", min_programs=4, max_seconds=0.0)
    before = model.predict(context, measure_candidates)
    model.update(context, measure_candidates, results_of(latency_of_key(c.key) for c in small_candidates))
    assert np.array_equal(model.predict(context, measure_candidates), before)


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
    assert read == get_device("epyc-genoa").spec.values() | {"simd_bytes": 32}, "for a target of shorter vectors"
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
    with one_thread():  # and afterwards as before
        torch.set_num_threads(2)
        hub.tvm_cost_model(checkpoint).predict(context, measure_candidates)
        assert torch.get_num_threads() == 2


TINY = {
    "atformer": ("statements-gpu", {"hidden": 16}),
    "tilenet": ("nest-gpu", {"hidden": 16, "embedding": 8}),
    "tlp": ("tlp-gpu", {"hidden": 16}),
}
SPECS = {
    "matmul": OperatorSpec("matmul", "dense", {"m": 64, "n": 64, "k": 64}),
    "conv2d": OperatorSpec("conv2d", "conv2d", {"channels": 8, "size": 14, "filters": 16, "kernel": 3, "stride": 1}),
}
Candidates = tuple[Any, list[Any]]


def tiny(arch: str) -> Checkpoint:
    """A checkpoint of random weights for the family t4."""
    name, sizes = TINY[arch]
    schema = get_schema(name)
    torch.manual_seed(0)
    model = create(arch, width=schema.width, hardware=schema.hardware, **sizes)
    config = CheckpointConfig(f"{arch}-t4", "1.0.0", arch, model.config.as_dict(), name, "t4")
    return Checkpoint(config, model.eval(), get_device("t4"))


@pytest.fixture(scope="module", params=SPECS)
def on_t4(request: Any) -> Candidates:
    """The context of a task for NVIDIA's T4, and a few of its candidates as MetaSchedule hands them over."""
    target = Target("nvidia/nvidia-t4")
    task = make_task(operator_module(SPECS[request.param]), request.param)
    context = tune_context(task, target, ms.search_strategy.ReplayTrace(), 0, threads=2)
    return context, live(task, random_candidates(task, target, 8))


@pytest.mark.parametrize("arch", TINY)
def test_cuda_candidates_are_scored_without_a_gpu(on_t4: Candidates, arch: str) -> None:
    context, candidates = on_t4
    model = hub.tvm_cost_model(tiny(arch))
    scores = model.predict(context, candidates)
    assert scores.shape == (len(candidates),)
    assert np.all((scores > 0) & (scores < 1))
    assert len(np.unique(scores)) > len(candidates) // 2
    assert model.scorer.unread == 0
    assert np.allclose(model.predict(context, candidates[::-1]), scores[::-1])


def test_a_candidate_that_cannot_be_lowered_is_scored_worst_and_counted(
    on_t4: Candidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, candidates = on_t4
    bad, whole = candidates[3], statements._extractor()

    class Refusing:
        """TVM's extractor, which a program that cannot be lowered fails for the whole batch."""

        def extract_from(self, context: Any, batch: list[Any]) -> Any:
            if any(candidate.same_as(bad) for candidate in batch):
                raise RuntimeError("cannot lower")
            return whole.extract_from(context, batch)

    model, free = hub.tvm_cost_model(tiny("atformer"), update="none"), hub.tvm_cost_model(tiny("atformer"))
    others = [c for c in candidates if not c.same_as(bad)]
    without = free.predict(context, others)
    monkeypatch.setattr(statements, "_extractor", Refusing)
    scores = model.predict(context, candidates)
    assert scores[3] == 0 < np.delete(scores, 3).min()
    assert np.allclose(np.delete(scores, 3), without)
    assert model.scorer.unread == SessionCostModel(model, StopFlag()).unread == 1
    model.update(context, candidates, results_of([1e-3] * len(candidates)))
    assert model.scorer.learner.programs == len(others)
    assert np.all(model.predict(context, [bad]) == 0)


def test_programs_that_are_not_live_are_replayed(on_t4: Candidates) -> None:
    context, candidates = on_t4
    traces = [json.dumps(trace_json(candidate.sch.trace)) for candidate in candidates]
    features, usable = inputs.replayed_features(tiny("atformer"), context.mod, traces, dict(context.target.export()))
    assert usable.all()
    assert np.array_equal(features, inputs.candidate_features(tiny("atformer"), context, candidates)[0])


def pairwise(scores: np.ndarray, latency: np.ndarray) -> float:
    pairs = [(i, j) for i in range(len(scores)) for j in range(i)]
    return float(np.mean([(scores[i] > scores[j]) == (latency[i] < latency[j]) for i, j in pairs]))


def opposite(scores: np.ndarray) -> np.ndarray:
    """Latencies of a machine that finds slow what the scores find fast."""
    return 1e-3 * np.exp(np.argsort(np.argsort(scores)) / 3)


def test_few_shot_learns_the_order_that_was_measured_and_spares_the_base(
    context: Any, measure_candidates: list[Any]
) -> None:
    base = make_checkpoint()
    weights = {k: v.clone() for k, v in base.model.state_dict().items()}
    model = hub.tvm_cost_model(base, update="few-shot", min_programs=4, epochs=10, patience=10, max_seconds=600.0)
    latency = opposite(before := model.predict(context, measure_candidates))
    model.update(context, measure_candidates, results_of(latency))
    assert pairwise(before, latency) == 0.0
    assert pairwise(model.predict(context, measure_candidates), latency) > 0.2
    assert all(torch.equal(weights[k], v) for k, v in base.model.state_dict().items())


@pytest.mark.parametrize("update", ["context", "none"])
def test_tilenet_ranks_by_what_was_measured_without_changing_a_weight(on_t4: Candidates, update: str) -> None:
    context, candidates = on_t4
    base = tiny("tilenet")
    weights = {k: v.clone() for k, v in base.model.state_dict().items()}
    model = hub.tvm_cost_model(base, update=update)
    before = model.predict(context, candidates)
    model.update(context, candidates, results_of(opposite(before)))
    after = model.predict(context, candidates)
    assert np.array_equal(after, before) if update == "none" else np.corrcoef(before, after)[0, 1] < 0
    assert model.scorer.checkpoint is base
    assert all(torch.equal(weights[k], v) for k, v in base.model.state_dict().items())


@pytest.mark.parametrize("call", ["predict", "update"])
def test_a_checkpoint_of_gpus_scores_no_programs_for_a_cpu(on_t4: Candidates, call: str) -> None:
    _, candidates = on_t4
    context = ms.TuneContext(candidates[0].sch.mod, target=Target({"kind": "llvm", "num-cores": 1}), num_threads=1)
    results = [results_of([1e-3] * len(candidates))] if call == "update" else []
    with pytest.raises(RuntimeError, match="reads nest-gpu, but the programs are for the target llvm, a cpu"):
        getattr(hub.tvm_cost_model(tiny("tilenet")), call)(context, candidates, *results)
    with pytest.raises(DeviceKindError) as caught:  # as it is before TVM hands it on
        require_kind(tiny("tilenet"), "the target llvm", "cpu")
    assert "--kind cpu" in str(caught.value.remedy)


def test_what_one_task_measured_is_no_context_of_another() -> None:
    scorer = hub.tvm_cost_model(tiny("tilenet")).scorer
    features = np.random.default_rng(0).random((6, 1, get_schema("nest-gpu").width), np.float32)
    before = scorer.predict("other", features)
    scorer.observe("one", features, np.exp(before))
    assert np.array_equal(scorer.predict("other", features), before)


@pytest.mark.parametrize("arch", ["tilenet", "tlp"])
def test_what_a_checkpoint_does_not_know_is_ranked_by_what_is_measured(on_t4: Candidates, arch: str) -> None:
    """Scores of a class that is not trusted are chance; those of the others are the weights', bit for bit."""
    context, candidates = on_t4
    base, own = tiny(arch), operator_class(context.mod)
    plain = hub.tvm_cost_model(base).predict(context, candidates)
    for known, holds in ((own, True), ("softmax", False)):
        checkpoint = replace(
            base, config=replace(base.config, trust={f"metaschedule/{known}": ClassTrust.of([0.9] * 5)})
        )
        model = hub.tvm_cost_model(checkpoint)
        scores = model.predict(context, candidates)
        assert np.array_equal(scores, plain) if holds else np.all(scores == 0.5)
    features, _ = inputs.candidate_features(base, context, candidates)
    many = np.repeat(features, 4, axis=0)
    model.observe(context.mod, many, np.repeat(np.arange(1.0, 1 + len(features)), 4).tolist())
    ranked = model.predict(context, candidates)
    assert np.corrcoef(ranked, np.arange(len(features)))[0, 1] < -0.5, "the fast ones first"


def test_each_model_learns_in_the_way_that_suits_it() -> None:
    assert [hub.tvm_cost_model(tiny(arch)).scorer.update for arch in ("tilenet", "tlp")] == ["context", "few-shot"]
    with pytest.raises(TrainingError, match="no measured programs"):
        hub.tvm_cost_model(tiny("tlp"), update="context")

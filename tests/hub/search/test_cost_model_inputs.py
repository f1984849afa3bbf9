"""The plug-in with every kind of input: primitives, loop nests and lowered statements, on a GPU that is not here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tchub import hub
from tchub.hub.device.candidate import trace_json
from tchub.hub.networks.tasks import make_task
from tchub.hub.networks.workloads import operator_module
from tchub.hub.search import candidate_features as inputs
from tchub.hub.search.candidate_features import require_target
from tchub.hub.search.candidates import random_candidates, tune_context
from tchub.hub.search.cost_model import SessionCostModel
from tchub.hub.search.interrupt import StopFlag
from tchub.zoo.corpus.tir import operator_class
from tchub.zoo.corpus.workloads import OperatorSpec
from tchub.zoo.devices import get_device
from tchub.zoo.features import DeviceKindError, get_schema
from tchub.zoo.models import Checkpoint, CheckpointConfig, create
from tchub.zoo.training.errors import TrainingError
from tchub.zoo.trust import ClassTrust
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm.target import Target

TINY = {
    "atformer": ("statements-gpu", {"hidden": 16}),
    "tilenet": ("nest-gpu", {"hidden": 16, "embedding": 8}),
    "tlp": ("tlp-gpu", {"hidden": 16}),
}
SPECS = {
    "matmul": OperatorSpec("matmul", "dense", {"m": 64, "n": 64, "k": 64}),
    "conv2d": OperatorSpec("conv2d", "conv2d", {"channels": 8, "size": 14, "filters": 16, "kernel": 3, "stride": 1}),
}
T4 = "nvidia/nvidia-t4"
Made = tuple[Any, list[Any]]


def tiny(arch: str) -> Checkpoint:
    """A checkpoint of random weights for the family t4."""
    name, sizes = TINY[arch]
    schema = get_schema(name)
    torch.manual_seed(0)
    model = create(arch, width=schema.width, hardware=schema.hardware, **sizes)
    config = CheckpointConfig(f"{arch}-t4", "1.0.0", arch, model.config.as_dict(), name, "t4")
    return Checkpoint(config, model.eval(), get_device("t4"))


@pytest.fixture(scope="module", params=SPECS)
def made(request: Any) -> Made:
    """The context of a task for NVIDIA's T4, and a few of its candidates as MetaSchedule hands them over."""
    target = Target(T4)
    task = make_task(operator_module(SPECS[request.param]), request.param)
    candidates = []
    for candidate in random_candidates(task, target, 8):
        schedule = Schedule(task.mod)
        Trace.apply_json_to_schedule(json.loads(candidate.trace), schedule)
        candidates.append(ms.MeasureCandidate(schedule, []))
    return tune_context(task, target, ms.search_strategy.ReplayTrace(), 0, threads=2), candidates


@pytest.mark.parametrize("arch", TINY)
def test_cuda_candidates_are_scored_without_a_gpu(made: Made, arch: str) -> None:
    context, candidates = made
    model = hub.tvm_cost_model(tiny(arch))
    scores = model.predict(context, candidates)
    assert scores.shape == (len(candidates),)
    assert np.all((scores > 0) & (scores < 1))
    assert len(np.unique(scores)) > len(candidates) // 2
    assert model.scorer.unread == 0
    assert np.allclose(model.predict(context, candidates[::-1]), scores[::-1])


def test_a_candidate_that_cannot_be_lowered_is_scored_worst_and_counted(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, candidates = made
    bad, whole = candidates[3], inputs._extractor()

    class Refusing:
        """TVM's extractor, which a program that cannot be lowered fails for the whole batch."""

        def extract_from(self, context: Any, batch: list[Any]) -> Any:
            if any(candidate.same_as(bad) for candidate in batch):
                raise RuntimeError("cannot lower")
            return whole.extract_from(context, batch)

    model, free = hub.tvm_cost_model(tiny("atformer"), update="none"), hub.tvm_cost_model(tiny("atformer"))
    others = [c for c in candidates if not c.same_as(bad)]
    without = free.predict(context, others)
    monkeypatch.setattr(inputs, "_extractor", Refusing)
    scores = model.predict(context, candidates)
    assert scores[3] == 0 < np.delete(scores, 3).min()
    assert np.allclose(np.delete(scores, 3), without)
    assert model.scorer.unread == SessionCostModel(model, StopFlag()).unread == 1
    model.update(context, candidates, [ms.runner.RunnerResult([1e-3], None)] * len(candidates))
    assert model.scorer.learner.programs == len(others)
    assert np.all(model.predict(context, [bad]) == 0)


def test_programs_that_are_not_live_are_replayed(made: Made) -> None:
    context, candidates = made
    traces = [json.dumps(trace_json(candidate.sch.trace)) for candidate in candidates]
    found, usable = inputs.replayed_features(tiny("atformer"), context.mod, traces, dict(context.target.export()))
    assert usable.all()
    assert np.array_equal(found, inputs.candidate_features(tiny("atformer"), context, candidates)[0])


def opposite(scores: np.ndarray) -> list[Any]:
    """Results of a machine that finds slow what the scores find fast."""
    return [ms.runner.RunnerResult([1e-3 * float(np.exp(place))], None) for place in np.argsort(np.argsort(scores))]


def test_tilenet_ranks_by_what_was_measured_without_changing_a_weight(made: Made, tmp_path: Path) -> None:
    context, candidates = made
    base = tiny("tilenet")
    weights = {k: v.clone() for k, v in base.model.state_dict().items()}
    model = hub.tvm_cost_model(base)
    before = model.predict(context, candidates)
    model.update(context, candidates, opposite(before))
    after = model.predict(context, candidates)
    assert np.corrcoef(before, after)[0, 1] < 0
    assert model.scorer.checkpoint is base
    assert all(torch.equal(weights[k], v) for k, v in base.model.state_dict().items())

    model.save(str(tmp_path / "state"))
    resumed = hub.tvm_cost_model(tiny("tilenet"))
    resumed.load(str(tmp_path / "state"))
    assert np.array_equal(resumed.predict(context, candidates), after)

    untouched = hub.tvm_cost_model(base, update="none")
    untouched.update(context, candidates, opposite(before))
    assert np.array_equal(untouched.predict(context, candidates), before)


@pytest.mark.parametrize("call", ["predict", "update"])
def test_a_checkpoint_of_gpus_scores_no_programs_for_a_cpu(made: Made, call: str) -> None:
    _, candidates = made
    context = ms.TuneContext(candidates[0].sch.mod, target=Target({"kind": "llvm", "num-cores": 1}), num_threads=1)
    results = [[ms.runner.RunnerResult([1e-3], None)] * len(candidates)] if call == "update" else []
    with pytest.raises(RuntimeError, match="reads nest-gpu, but the programs are for the target llvm, a cpu"):
        getattr(hub.tvm_cost_model(tiny("tilenet")), call)(context, candidates, *results)
    with pytest.raises(DeviceKindError) as caught:  # as it is before TVM hands it on
        require_target(tiny("tilenet"), context.target)
    assert "--kind cpu" in str(caught.value.remedy)


def test_what_one_task_measured_is_no_context_of_another() -> None:
    scorer = hub.tvm_cost_model(tiny("tilenet")).scorer
    features = np.random.default_rng(0).random((6, 1, get_schema("nest-gpu").width), np.float32)
    before = scorer.predict("other", features)
    scorer.observe("one", features, np.exp(before))
    assert np.array_equal(scorer.predict("other", features), before)


@pytest.mark.parametrize("arch", TINY)
def test_what_a_checkpoint_does_not_know_is_ranked_by_what_is_measured(made: Made, arch: str) -> None:
    """Scores of a class that is not trusted are chance; those of the others are the weights', bit for bit."""
    context, candidates = made
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

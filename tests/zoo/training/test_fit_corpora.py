"""Training on several corpora: what is learnt from, what is held out, and in which order."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from tchub.zoo.corpus import Corpus, CorpusError, Program, Task, split_tasks, write_corpus
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import Checkpoint, create
from tchub.zoo.primitives import Primitive, PrimitiveSequence
from tchub.zoo.training import RankingDataset, TrainConfig, TrainingError, evaluate_model
from tchub.zoo.training.fit import fit as fit_data
from tchub.zoo.training.fit import fit_trees
from tchub.zoo.training.programs import Share, StatementStore, extract
from tchub.zoo.training.training_data import load_training_data

from scripts.zoo.trees import TREES

RECIPE = TrainConfig(
    model={"hidden": 8, "d_model": 16, "head": 4}, epochs=2, learning_rate=0.01, programs_per_group=8, save_every=1
)


def sequence(rng) -> PrimitiveSequence:
    splits = [Primitive("Split", (0, i, 64, *map(int, 2 ** rng.integers(0, 4, 4)))) for i in range(3)]
    return PrimitiveSequence((*splits, Primitive("Unroll", (0, -1, 16), ("explicit",))), "ansor")


def make_corpus(path, device, computations, test=(), programs=12, framework="ansor") -> Corpus:
    """One task a computation; those of `test` are a held-out network's. Only convolutions can be learnt."""
    rng, tasks, measured = np.random.default_rng(len(path.name)), [], []
    for computation in computations:
        task_id = hashlib.sha256(f"{path.name}{computation}".encode()).hexdigest()[:16]
        networks = (("bert-tiny", 1),) if computation in test else ()
        op = "conv2d" if computation.startswith("conv2d") else "matmul"
        tasks.append(Task(task_id, computation, op, 1.0, computation + path.name, computation, networks))
        for i in range(programs):
            steps, seconds = sequence(rng), float(np.exp(rng.standard_normal()) * 1e-3)
            if op == "conv2d":
                seconds = 1e-3 * int(steps.primitives[0].numbers[3])
            facts = (task_id, f"{i:04d}", "[]", "random", (seconds,), seconds, device, "llvm")
            measured.append(Program(*facts, framework=framework, primitives=steps.to_json()))
    family = get_device(device).family
    meta = {"device": device, "family": family, "target": "llvm", "tvm_version": "0.27.0", "licence": "CC0-1.0"}
    return write_corpus(path, meta, tasks, measured)


@pytest.fixture
def target(tmp_path) -> Corpus:
    names = [f"matmul-{i}" for i in range(12)]
    return make_corpus(tmp_path / "target", "epyc-turin", names, test=("matmul-0", "matmul-1"))


@pytest.fixture
def source(tmp_path) -> Corpus:
    """Another device and framework; it too measured `matmul-0` and `matmul-2`, and has a test task of its own."""
    names = ["matmul-0", "matmul-2", "matmul-3", *(f"other-{i}" for i in range(1, 11))]
    return make_corpus(tmp_path / "sources", "xeon", names, test=("other-1",), framework="autotvm")


def computations(corpora, data: RankingDataset) -> set[str]:
    """What the programs of a data set compute."""
    known = {task.task_id: task.computation for corpus in corpora for task in corpus.tasks.values()}
    return {known[data.task_ids[i]] for i in set(data.group.tolist())}


def fit(target, config, sources=(), seed=0, share=None, **more):
    data = load_training_data(target, sources, config.feature_schema, share or Share(seed=seed))
    return fit_data(data, config, seed, **more)


def test_no_training_task_computes_what_a_test_or_validation_task_does(target, source):
    data = load_training_data(target, [source], "tcl")
    learnt = computations([target, source], data.train)
    assert computations([target], data.test) == {"matmul-0", "matmul-1"}
    assert not learnt & computations([target], data.test)
    assert not learnt & computations([target], data.val)
    assert "other-1" not in learnt
    assert {"other-2", "other-3"} <= learnt


def test_the_cap_holds_for_every_task_of_every_corpus(target, source):
    data = load_training_data(target, [source], "tcl", Share(per_task=5)).train
    assert set(np.bincount(data.group)) == {5}
    again = load_training_data(target, [source], "tcl", Share(per_task=5, seed=1)).train
    assert not np.array_equal(data.latency, again.latency)


def test_zero_shot_touches_no_label_of_the_target_but_the_test_tasks(target, source):
    data = load_training_data(target, [source], "tcl", Share(programs=0))
    assert data.own is None
    assert computations([source], data.val)
    assert not computations([source], data.val) & computations([target], data.test)
    assert not computations([source], data.val) & computations([source], data.sources)
    assert len(data.test) == 24


def test_training_measures_which_classes_its_scores_hold_for_and_never_on_a_test_task(tmp_path):
    names = [f"{op}-{i}" for op in ("conv2d", "matmul") for i in range(30)]
    corpus = make_corpus(tmp_path / "two", "epyc-turin", names, test=("matmul-0", "conv2d-0"))
    fitted = fit(corpus, replace(RECIPE, epochs=12))
    fitted.checkpoint.save(tmp_path / "saved")
    config = Checkpoint.load(tmp_path / "saved").config
    assert set(config.trust) == {"metaschedule/conv2d", "*/conv2d", "metaschedule/matmul", "*/matmul", "metaschedule/*"}
    assert config.trusts("metaschedule", "conv2d")
    assert not config.trusts("metaschedule", "matmul"), "latencies at random"
    split, whole = split_tasks(corpus), config.trust["metaschedule/*"]
    assert (whole.judged, whole.tasks) == (len(split.val), len(split.train))
    assert whole.programs == 12 * len(split.train)


def test_two_stages_end_with_the_target(target, source, tmp_path):
    seen = []
    config = replace(RECIPE, finetune={"epochs": 3, "learning_rate": 0.001})
    fitted = fit(target, config, sources=[source], folder=tmp_path / "run", on_epoch=seen.append)
    assert [entry["epoch"] for entry in seen] == [0, 1, 0, 1, 2]
    assert seen[-3]["learning_rate"] == 0.001
    assert (tmp_path / "run" / "pretrain" / "curve.csv").is_file()
    assert fitted.checkpoint.config.training["stages"] == 2


def test_a_checkpoint_is_the_start_of_its_fine_tuning(target, source):
    base = fit(source, RECIPE).checkpoint
    config = replace(RECIPE, finetune={"epochs": 1, "learning_rate": 1e-12, "select": "last"})
    tuned = fit(target, config, init=base).checkpoint
    for name, value in base.model.state_dict().items():
        assert np.allclose(value, tuned.model.state_dict()[name], atol=1e-9)
    assert tuned.config.training["init"] == "tcl-xeon@0.1.0"
    assert tuned.device.name == "epyc-turin"


def test_a_start_is_kept_where_no_epoch_ranks_the_validation_tasks_better(target, source):
    base = fit(target, RECIPE).checkpoint
    before = evaluate_model(base.model, load_training_data(target, [source], "tcl").val)
    timid = replace(RECIPE, finetune={"learning_rate": 1e-12, "epochs": 2})
    worse = fit(target, timid, sources=[source], init=base)
    assert worse.result.best_epoch == worse.checkpoint.config.training["best_epoch"] == -1
    assert (worse.metrics["validation"], worse.checkpoint.config.training["stages"]) == (before, 1)
    for name, value in base.model.state_dict().items():
        assert torch.equal(value, worse.checkpoint.model.state_dict()[name])


def test_a_start_gets_to_know_the_device_that_it_goes_on_with(target, source):
    recipe = TrainConfig(arch="tilenet", feature_schema="nest", model={"hidden": 8, "device_dropout": 0.2}, epochs=1)
    base = fit(source, recipe).checkpoint
    tuned = fit(target, recipe, init=base).checkpoint
    known = [int(one.model.state_dict()["devices"].any(dim=1).sum()) for one in (base, tuned)]
    assert known == [1, 2]


def test_another_architecture_is_no_start(target, source):
    base = fit(source, replace(RECIPE, model=RECIPE.model)).checkpoint
    changed = replace(base, config=replace(base.config, feature_schema="tlp-cpu"))
    with pytest.raises(TrainingError, match="tlp-cpu"):
        fit(target, RECIPE, init=changed)


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_trees_are_cut_to_the_number_that_validates_best(target, name):
    data = load_training_data(target, [], TREES[name][0])
    fitted = fit_trees(TREES[name][1], data)
    best, shorter = (evaluate_model(ranker, data.val)["pairwise"] for ranker in (fitted, fitted.keep(15)))
    assert best >= shorter
    assert not fitted.pool
    assert fit_trees(TREES[name][1], data, 1).seed == 44, "43, that of the first figures, and the seed"


def test_every_corpus_trains_its_own_head_and_the_first_one_scores(target, source):
    config = TrainConfig(arch="mtl-tlp", model={"hidden": 16}, feature_schema="tlp", epochs=1, learning_rate=0.01)
    model = fit(target, config, sources=[source], seed=3).checkpoint.model
    assert model.config.heads == 2
    torch.manual_seed(3)
    start = create("mtl-tlp", **model.config.as_dict())
    for head, old in zip(model.decoder, start.decoder, strict=True):
        assert not all(map(torch.equal, head.parameters(), old.parameters()))
    alone = fit(target, replace(config, model={"hidden": 16, "heads": 2}), seed=3).checkpoint.model
    assert all(map(torch.equal, alone.decoder[1].parameters(), start.decoder[1].parameters()))


def test_a_program_that_cannot_be_replayed_is_left_out_and_counted(target, tmp_path):
    """These programs have no steps, so none of them can."""
    store = StatementStore(tmp_path / "statements")
    with pytest.raises(CorpusError):
        load_training_data(target, [], "statements", store=store)
    programs = target.programs(next(iter(target.tasks)))
    features, usable = extract(target, programs, get_schema("statements-cpu"), get_device("epyc"), store)
    assert features.shape == (0, 10, 174)
    assert not usable.any()

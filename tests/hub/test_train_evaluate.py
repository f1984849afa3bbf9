"""`tchub train` and `tchub evaluate` on a small corpus of real MetaSchedule traces (the latencies are made up)."""

import json

import numpy as np
import pytest
from tchub.hub.cli import main
from tchub.hub.tuning import perstore
from tchub.hub.tuning.candidates import random_candidates
from tchub.hub.tuning.evaluate import EmptySplitError, evaluate
from tchub.hub.tuning.operators import operator_module
from tchub.hub.tuning.perstore import perstore_features
from tchub.hub.tuning.tasks import TuningTask
from tchub.zoo.corpus import Corpus, Program, Task, write_corpus
from tchub.zoo.corpus.workloads import OperatorSpec
from tchub.zoo.models import Checkpoint

TARGET = {"kind": "llvm", "num-cores": 1}
RECIPE = """
arch = "tcl"
epochs = 2
programs_per_group = 8
[model]
hidden = 8
d_model = 16
head = 4
"""
SHAPES = [(32, 32, 32), (32, 64, 32), (64, 32, 32), (48, 32, 64)]


@pytest.fixture(scope="module")
def candidates():
    """(task, candidates) of a few matrix products; the last is of a held-out network."""
    import tvm

    found = []
    for i, (m, n, k) in enumerate(SHAPES):
        spec = OperatorSpec(name=f"dense{i}", op="dense", shape={"m": m, "n": n, "k": k})
        task = TuningTask(f"{i:016x}", spec.name, "matmul", 1, operator_module(spec), 2.0 * m * n * k)
        found.append((task, random_candidates(task, tvm.target.Target(TARGET), 10)))
    return found


@pytest.fixture
def corpus(candidates, tmp_path) -> Corpus:
    import tvm

    rng, tasks, programs = np.random.default_rng(0), [], []
    for i, (task, found) in enumerate(candidates):
        network = "bert-tiny" if i == len(candidates) - 1 else "mlp"
        workload = tvm.ir.save_json(task.mod)
        tasks.append(Task(task.task_id, task.name, task.op, task.flops, workload, networks=((network, 1 + i),)))
        for candidate in found:
            seconds = float(np.exp(rng.standard_normal()) * 1e-3)
            programs.append(
                Program(
                    *(task.task_id, candidate.key, candidate.trace, "random", (seconds,), seconds, "epyc-turin"),
                    target=json.dumps(TARGET),
                )
            )
    meta = {"device": "epyc-turin", "family": "epyc", "target": TARGET, "tvm_version": "0.27.0", "licence": "CC0-1.0"}
    return write_corpus(tmp_path / "toy", meta, tasks, programs)


@pytest.fixture
def recipe(tmp_path) -> str:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return str(tmp_path / "recipe.toml")


def run(capsys, *args) -> dict:
    code = main([*map(str, args), "--json"])
    text = capsys.readouterr().out
    return json.loads(text) | {"exit_code": code}


def test_train_then_evaluate(capsys, tmp_path, corpus, recipe, monkeypatch):
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "run"
    trained = run(capsys, "train", recipe, "--corpus", corpus.path, "--out", out, "--weights-licence", "Apache-2.0")
    assert trained["exit_code"] == 0
    assert (trained["name"], trained["split"], trained["tasks"]) == ("tcl-epyc", "test", 1)
    checkpoint = Checkpoint.load(out)
    assert checkpoint.device.name == "epyc-turin"
    assert checkpoint.config.lineage["weights_licence"] == "Apache-2.0"
    assert checkpoint.config.training["corpus"]["licence"] == "CC0-1.0"
    assert (out / "curve.csv").is_file()

    judged = run(capsys, "evaluate", out, "--corpus", corpus.path, "--baselines")
    assert list(judged["results"]) == ["model", "random", "xgboost", "ten_percent"]
    assert judged["results"]["model"] == trained["results"]["model"]
    assert judged["results"]["random"]["pairwise"] == 0.5
    for scores in judged["results"].values():
        assert set(scores) == {"top1", "top5", "mean_top1", "mean_top5", "pairwise"}
        assert all(0 <= value <= 1 for value in scores.values())


def test_the_table_for_people(capsys, tmp_path, corpus, recipe):
    assert main(["train", recipe, "--corpus", str(corpus.path), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--corpus", str(corpus.path)]) == 0
    shown = capsys.readouterr().out
    assert "tcl-epyc@0.1.0" in shown
    assert "pairwise" in shown


def test_a_second_run_into_the_same_folder_must_be_a_resumed_one(capsys, tmp_path, corpus, recipe):
    args = ["train", recipe, "--corpus", corpus.path, "--out", tmp_path / "run"]
    first = run(capsys, *args)
    refused = run(capsys, *args)
    assert (refused["exit_code"], refused["error"]) == (1, "FolderInUseError")
    assert "--resume" in refused["remedy"]
    again = run(capsys, *args, "--resume")
    assert again["resumed_from"] == 2
    assert again["results"] == first["results"]


def test_a_tenth_of_the_programs(capsys, tmp_path, corpus, recipe):
    out = tmp_path / "run"
    run(capsys, "train", recipe, "--corpus", corpus.path, "--out", out, "--programs-fraction", "0.2")
    facts = Checkpoint.load(out).config.training
    assert facts["programs_fraction"] == 0.2
    assert facts["corpus"]["programs"] == 2 * facts["corpus"]["tasks"]


def test_an_unknown_recipe_is_an_error_with_a_remedy(capsys, tmp_path, corpus):
    refused = run(capsys, "train", "tlc", "--corpus", corpus.path, "--out", tmp_path / "run")
    assert (refused["exit_code"], refused["error"]) == (1, "TrainConfigError")
    assert "tcl-paper" in refused["remedy"]


def test_a_corpus_without_the_split(capsys, tmp_path, corpus, recipe):
    run(capsys, "train", recipe, "--corpus", corpus.path, "--out", tmp_path / "run")
    tasks = [t for t in corpus.tasks.values() if dict(t.networks).get("bert-tiny") is None]
    programs = [p for t in tasks for p in corpus.programs(t.task_id)]
    # A corpus without a held-out network would have a share of its tasks for testing; a protocol need not.
    split = {"train": [t.task_id for t in tasks]}
    rest = write_corpus(tmp_path / "rest", {**corpus.meta, "split": split}, tasks, programs)
    with pytest.raises(EmptySplitError):
        evaluate(Checkpoint.load(tmp_path / "run"), rest)


def test_a_corpus_of_test_tasks_alone_trains_nothing(capsys, tmp_path, corpus, recipe):
    run(capsys, "train", recipe, "--corpus", corpus.path, "--out", tmp_path / "run")
    tasks = [t for t in corpus.tasks.values() if "bert-tiny" in dict(t.networks)]
    programs = [p for t in tasks for p in corpus.programs(t.task_id)]
    alone = write_corpus(tmp_path / "alone", corpus.meta, tasks, programs)
    refused = run(capsys, "train", recipe, "--corpus", alone.path, "--out", tmp_path / "other")
    assert refused["error"] == "EmptyDatasetError"
    checkpoint = Checkpoint.load(tmp_path / "run")
    assert evaluate(checkpoint, alone)["programs"] == 10
    with pytest.raises(EmptySplitError, match="train"):
        evaluate(checkpoint, alone, baselines=("xgboost",))


def test_statement_features_are_cached(candidates, tmp_path, monkeypatch):
    import tvm

    task, found = candidates[0]
    workload, traces = tvm.ir.save_json(task.mod), [c.trace for c in found]
    fresh = perstore_features(workload, traces, TARGET, tmp_path)
    assert len(fresh) == len(traces)
    assert all(f.dtype == np.float32 and f.ndim == 2 and f.shape[1] == 164 for f in fresh)
    monkeypatch.setattr(perstore, "_extract", lambda *_: pytest.fail("extracted again"))
    again = perstore_features(workload, traces[::-1], TARGET, tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(fresh[::-1], again, strict=True))


def test_a_damaged_cache_is_made_again(candidates, tmp_path):
    import tvm

    task, found = candidates[0]
    args = (tvm.ir.save_json(task.mod), [found[0].trace], json.dumps(TARGET), tmp_path)
    fresh = perstore_features(*args)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    assert np.array_equal(perstore_features(*args)[0], fresh[0])


def test_workload_features_are_added_at_the_end(candidates):
    import tvm

    task, found = candidates[0]
    args = (tvm.ir.save_json(task.mod), [found[0].trace], TARGET)
    stock, more = perstore_features(*args)[0], perstore_features(*args, extract_workload=True)[0]
    assert more.shape[1] == 172
    assert np.array_equal(more[:, :164], stock)

"""`tchub train` and `tchub evaluate` on a small corpus of real MetaSchedule traces (the latencies are made up)."""

import json
from dataclasses import replace

import numpy as np
import pytest
from contribute_kit import RECIPE
from tchub.hub.cli import main
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.networks.workloads import operator_module
from tchub.hub.publishing import evaluate as evaluate_module
from tchub.hub.publishing.evaluate import EvaluationConfig, evaluate
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.corpus import Corpus, CorpusError, Program, Task, write_corpus
from tchub.zoo.corpus.workloads import OperatorSpec
from tchub.zoo.models import Checkpoint, Ensemble, ProgressiveNetwork
from tchub.zoo.primitives import from_trace_json
from tchub.zoo.training.fit import fit
from tchub.zoo.trust import ClassTrust

TARGET = {"kind": "llvm", "num-cores": 1}
SHAPES = [(32, 32, 32), (32, 64, 32), (64, 32, 32), (48, 32, 64)]


@pytest.fixture(scope="module")
def candidates():
    """(task, candidates) of a few matrix products; the last is of a held-out network."""
    import tvm

    groups = []
    for i, (m, n, k) in enumerate(SHAPES):
        spec = OperatorSpec(name=f"dense{i}", op="dense", shape={"m": m, "n": n, "k": k})
        task = TuningTask(f"{i:016x}", spec.name, "matmul", 1, operator_module(spec), 2.0 * m * n * k)
        groups.append((task, random_candidates(task, tvm.target.Target(TARGET), 10)))
    return groups


@pytest.fixture(scope="module")
def corpus(candidates, tmp_path_factory) -> Corpus:
    import tvm

    rng, tasks, programs = np.random.default_rng(0), [], []
    for i, (task, programs_of_task) in enumerate(candidates):
        network = "bert-tiny" if i == len(candidates) - 1 else "mlp"
        workload = tvm.ir.save_json(task.mod)
        tasks.append(Task(task.task_id, task.name, task.op, task.flops, workload, networks=((network, 1 + i),)))
        for candidate in programs_of_task:
            seconds = float(np.exp(rng.standard_normal()) * 1e-3)
            programs.append(
                Program(
                    *(task.task_id, candidate.key, candidate.trace, "random", (seconds,), seconds, "epyc-turin"),
                    target=json.dumps(TARGET),
                )
            )
    meta = {"device": "epyc-turin", "family": "epyc", "target": TARGET, "tvm_version": "0.27.0", "licence": "CC0-1.0"}
    return write_corpus(tmp_path_factory.mktemp("corpus") / "toy", meta, tasks, programs)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture(scope="module")
def two(corpus, recipe, tmp_path_factory) -> list[str]:
    """Folders of two checkpoints that read the same; not to be changed."""
    folders = [str(tmp_path_factory.mktemp("runs") / name) for name in ("one", "other")]
    for seed, folder in enumerate(folders):
        options = ["--out", folder, "--seed", str(seed), "--name", f"tcl-{seed}", "--quiet"]
        assert main(["train", recipe, "--corpus", str(corpus.path), *options]) == 0
    return folders


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
    assert "thread" in checkpoint.config.training["machine"], "what trained it, for the card"
    assert (out / "curve.csv").is_file()

    baselines = "random,xgboost,ten_percent,statements"
    judged = run(capsys, "evaluate", out, "--corpus", corpus.path, "--baselines", baselines)
    assert list(judged["results"]) == ["model", "weights", *baselines.split(",")]
    assert trained["untrusted"] == ["metaschedule/matmul"], "three tasks with latencies at random"
    assert judged["results"]["weights"].items() >= trained["results"]["model"].items()
    assert judged["results"]["model"] == judged["results"]["random"]
    assert judged["results"]["random"]["pairwise"] == 0.5
    for scores in judged["results"].values():
        assert all(0 <= scores[key] <= 1 for key in ("top1", "top5", "mean_top1", "mean_top5", "pairwise"))


def test_several_checkpoints_in_one_table(capsys, corpus, two):
    judged = run(capsys, "evaluate", ",".join(two), "--corpus", corpus.path)["evaluations"]
    assert [result["checkpoint"] for result in judged] == ["tcl-0@0.1.0", "tcl-1@0.1.0"]
    results = judged[0]["results"]
    assert list(results) == ["model", "weights", "random", "xgboost"], "what reads no statements is the default"
    assert results["xgboost"] == judged[1]["results"]["xgboost"]
    assert [row["operator"] for row in judged[0]["classes"]] == ["matmul"]
    assert judged[0]["classes"][0]["pairwise"] == round(results["model"]["pairwise"], 4)
    assert main(["evaluate", ",".join(two), "--corpus", str(corpus.path)]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("tcl-0@0.1.0", "tcl-1@0.1.0", "XGBoost on primitives", "matmul"))
    assert main(["evaluate", two[0], "--corpus", str(corpus.path), "--baselines", "oracle"]) == 2


def test_any_tasks_may_judge(capsys, tmp_path, corpus, two):
    everything = run(capsys, "evaluate", two[0], "--corpus", corpus.path, "--split", "all")
    assert (everything["split"], everything["tasks"], everything["programs"]) == ("all", 4, 40)
    assert list(everything["results"]) == ["model", "weights", "random"], "nothing is left to learn from"
    first, second, *_ = corpus.tasks.values()
    (tmp_path / "plain.json").write_text(json.dumps([first.task_id, second.name]))
    (tmp_path / "parts.json").write_text(json.dumps({"train": [], "test": [first.task_id, second.task_id]}))
    plain, parts = (
        run(capsys, "evaluate", two[0], "--corpus", corpus.path, "--split", tmp_path / f"{name}.json")
        for name in ("plain", "parts")
    )
    assert (plain["tasks"], plain["results"]) == (2, parts["results"])
    assert "xgboost" in plain["results"], "it learns from the two others"


@pytest.mark.parametrize("content", ["{", "[1]", '["nothing"]', '{"test": 3}'])
def test_a_split_that_names_no_task_is_refused(capsys, tmp_path, corpus, two, content):
    (tmp_path / "split.json").write_text(content)
    refused = run(capsys, "evaluate", two[0], "--corpus", corpus.path, "--split", tmp_path / "split.json")
    assert (refused["exit_code"], refused["error"]) == (1, "CorpusError")


def test_a_second_run_into_the_same_folder_must_be_a_resumed_one(capsys, tmp_path, corpus, recipe):
    parts = ["train", recipe, "--corpus", str(corpus.path), "--out", str(tmp_path / "run")]
    assert main(parts) == 0
    assert "warning: the card names no licence of the weights" in capsys.readouterr().err
    first = json.loads((tmp_path / "run" / "metrics.json").read_text())["results"]
    refused = run(capsys, *parts)
    assert (refused["exit_code"], refused["error"]) == (1, "TrainingError")
    assert "--resume" in refused["remedy"]
    again = run(capsys, *parts, "--resume", "--weights-licence", "Apache-2.0")
    assert (again["resumed_from"], again["results"]) == (2, first)
    assert Checkpoint.load(tmp_path / "run").config.lineage["weights_licence"] == "Apache-2.0"


def part_of(corpus: Corpus, folder, *, held_out: bool, **meta) -> Corpus:
    """The tasks of the held-out network alone, or all others."""
    tasks = [t for t in corpus.tasks.values() if ("bert-tiny" in dict(t.networks)) == held_out]
    programs = [p for t in tasks for p in corpus.programs(t.task_id)]
    return write_corpus(folder, {**corpus.meta, **meta}, tasks, programs)


def test_a_corpus_without_the_split(tmp_path, corpus, two):
    # A corpus without a held-out network would have a share of its tasks for testing; a protocol need not.
    train = [task.task_id for task in corpus.tasks.values()][:-1]
    rest = part_of(corpus, tmp_path / "rest", held_out=False, split={"train": train})
    with pytest.raises(CorpusError, match="test split"):
        evaluate(Checkpoint.load(two[0]), rest)


def test_a_corpus_of_test_tasks_alone_trains_nothing(capsys, tmp_path, corpus, recipe, two):
    alone = part_of(corpus, tmp_path / "alone", held_out=True)
    refused = run(capsys, "train", recipe, "--corpus", alone.path, "--out", tmp_path / "other")
    assert refused["error"] == "CorpusError"
    checkpoint = Checkpoint.load(two[0])
    assert evaluate(checkpoint, alone)["programs"] == 10
    with pytest.raises(CorpusError, match="training task"):
        evaluate(checkpoint, alone, EvaluationConfig(baselines=("xgboost",)))


@pytest.mark.parametrize("kind", ["kb", "ensemble"])
def test_what_is_made_of_several_networks_is_compared_with_one_from_little_data(corpus, two, monkeypatch, kind):
    """An adapted checkpoint tells no recipe: that of the networks in it is taken, in their size."""
    plain = Checkpoint.load(two[0])
    model = {"kb": ProgressiveNetwork.around, "ensemble": lambda m: Ensemble.around([m, m], (1, 1))}[kind](plain.model)
    config = replace(plain.config, arch=model.arch, model=model.config.as_dict(), training={})
    asked = []

    def quick(data, config, seed):
        asked.append(config)
        return fit(data, replace(config, epochs=1), seed)

    monkeypatch.setattr(evaluate_module, "fit", quick)
    result = evaluate(replace(plain, config=config, model=model), corpus, EvaluationConfig(baselines=("ten_percent",)))
    assert 0 <= result["results"]["ten_percent"]["pairwise"] <= 1
    assert {one.arch for one in asked} == {"tcl"}
    assert all(one.model == plain.config.model for one in asked)


TINY = {
    "fasor": 'feature_schema = "tlp"\nepochs = 1\n[model]\nhidden = 16\nlayers = 1\n',
    "atformer": 'feature_schema = "statements"\nepochs = 1\n[model]\nhidden = 16\n',
    "tenset-mlp": 'feature_schema = "statements"\nepochs = 1\n[model]\nhidden = 16\n',
    "tilenet": 'feature_schema = "nest"\nepochs = 1\n[model]\nhidden = 16\nembedding = 8\n',
}


@pytest.mark.parametrize("arch", TINY)
def test_every_kind_of_model_is_trained_saved_and_judged(capsys, tmp_path, corpus, arch, monkeypatch):
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.toml").write_text(f'arch = "{arch}"\n{TINY[arch]}')
    trained = run(capsys, "train", tmp_path / "tiny.toml", "--corpus", corpus.path, "--out", tmp_path / "run")
    judged = run(capsys, "evaluate", tmp_path / "run", "--corpus", corpus.path)
    assert judged["results"]["weights"].items() >= trained["results"]["model"].items()
    assert judged["programs"] == 10
    assert judged.get("heads") == trained.get("heads")
    assert set(judged.get("heads", ())) == ({"latency", "memory", "core"} if arch == "fasor" else set())
    if "statements" in TINY[arch]:
        assert (tmp_path / "cache" / "statements").is_dir()

    few = run(capsys, "evaluate", tmp_path / "run", "--corpus", corpus.path, "--labels", "4")
    if arch == "tilenet":
        assert set(few["few_shot"]["4"]) == set(few["results"]["model"])
        assert few["results"] == judged["results"]
    else:
        assert (few["exit_code"], few["error"]) == (1, "TrainingError")
        assert "tchub adapt" in few["remedy"]


def test_only_the_baseline_of_statements_replays_programs(tmp_path, corpus, two, monkeypatch):
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    checkpoint = Checkpoint.load(two[0])
    # The corpus as a framework tells it whose programs cannot be replayed here.
    tasks = [replace(task, workload='["secret_template.x86", []]') for task in corpus.tasks.values()]
    programs = [
        replace(p, framework="autotvm", trace="[]", primitives=from_trace_json(json.loads(p.trace)).to_json())
        for p in corpus.iter_programs()
    ]
    foreign = write_corpus(tmp_path / "foreign", corpus.meta, tasks, programs)
    counts: list[tuple[int, int]] = []
    config = EvaluationConfig(baselines=("xgboost", "statements"), cache=tmp_path)
    own = evaluate(checkpoint, corpus, config, count=lambda _, *numbers: counts.append(numbers))["results"]
    assert counts, "lowering takes minutes: it is counted"
    assert own["statements"]["programs"] == 10
    other = evaluate(checkpoint, foreign, replace(config, baselines=("xgboost",)))["results"]
    assert (own["model"], own["xgboost"]) == (other["model"], other["xgboost"])
    with pytest.raises(CorpusError, match="can be replayed"):
        evaluate(checkpoint, foreign, config)


@pytest.mark.parametrize(
    ("row", "untrusted"),
    [(ClassTrust.of([0.9] * 5), []), (ClassTrust.of([0.3] * 5), ["matmul"])],
    ids=["trusted", "not trusted"],
)
def test_a_class_that_is_not_trusted_is_chance_and_noted(corpus, tmp_path, two, row, untrusted):
    trained, notes = Checkpoint.load(two[0]), []
    plain = replace(trained, config=replace(trained.config, trust={}))
    replace(plain, config=replace(plain.config, trust={"metaschedule/matmul": row})).save(tmp_path / "judged")
    result = evaluate(Checkpoint.load(tmp_path / "judged"), corpus, note=notes.append)
    assert result["untrusted"] == untrusted
    alone = evaluate(plain, corpus)["results"]["model"]
    model = result["results"]["model"]
    assert model["pairwise"] == 0.5 if untrusted else model == alone
    assert result["results"].get("weights", alone)["pairwise"] == alone["pairwise"]
    assert any("not trusted with matmul" in note for note in notes) == bool(untrusted)

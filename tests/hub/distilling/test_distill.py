"""`tchub distill`: devices learnt one after the other, nothing of a test task, a run that goes on, every error."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copyfile, copytree

import pytest
import torch
from device_corpora import RECIPE, make_corpus
from real_checkpoint import rewrite_config
from tchub import hub
from tchub.hub.cli import main
from tchub.hub.registry import Index, describe, resolve
from tchub.hub.registry.sources import bundled_root
from tchub.zoo.adapt.continual import DistillConfig, grow_base, knowledge_base
from tchub.zoo.adapt.continual.curriculum import computation_key, learnt_devices, seen_tasks
from tchub.zoo.adapt.guard import AccuracyChange
from tchub.zoo.corpus import Corpus
from tchub.zoo.devices import get_device
from tchub.zoo.models import Checkpoint
from tchub.zoo.training.fit import CheckpointFacts
from toy_checkpoints import publish, write_index


def distill(capsys, *args) -> dict:
    code = main(["distill", *map(str, args), "--epochs", "1", "--json"])
    return json.loads(capsys.readouterr().out) | {"exit_code": code}


@pytest.fixture(scope="session")
def corpora(tmp_path_factory) -> dict[str, Path]:
    """Ten tasks each, from the number given; each tests on its first one, which another may have measured too."""
    root = tmp_path_factory.mktemp("corpora")
    first = {"epyc": 0, "xeon": 5, "graviton": 15, "ryzen-3700x": 8, "t4": 0}
    paths = {device: make_corpus(root / f"on-{device}", device, start) for device, start in first.items()}
    (root / "recipe.yaml").write_text(f"{RECIPE}groups_per_batch: 4\n")
    return paths | {"tiny": make_corpus(root / "tiny", "epyc", 30, count=1), "recipe": root / "recipe.yaml"}


@pytest.fixture(scope="session")
def base(corpora, tmp_path_factory) -> Path:
    """A knowledge base of epyc and xeon."""
    out = tmp_path_factory.mktemp("base") / "kb"
    given = ["distill", "new:tcl", "--corpus", corpora["epyc"], "--corpus", corpora["xeon"], "--out", out]
    given += ["--recipe", corpora["recipe"], "--epochs", 1, "--weights-licence", "Apache-2.0", "--quiet"]
    assert main([str(part) for part in given]) == 0
    return out


def test_a_new_base_records_its_devices_in_the_order_of_learning(base):
    config = Checkpoint.load(base).config
    assert (config.name, config.version, config.arch, config.family) == ("tcl-kb-cpu", "1.0.0", "tcl-kb", "cpu")
    epyc, xeon = learnt_devices(config)
    assert (epyc.corpus, epyc.gate, epyc.licence) == ("on-epyc", None, "CC0-1.0")
    assert xeon.corpus == "on-xeon"
    assert xeon.gate is not None
    assert 0 <= xeon.gate <= 1
    assert set(xeon.test) == {"column", "base"}
    assert xeon.programs == 6 * xeon.tasks
    assert "tchub distill new:tcl --corpus on-epyc --corpus on-xeon" in config.training["command"]


def test_the_scores_show_what_was_forgotten_on_tasks_that_were_not_learnt(base):
    """Task 5 judges xeon, and epyc measured it too."""
    seen = seen_tasks(Checkpoint.load(base).config)
    assert seen.test == {computation_key("matmul-0"), computation_key("matmul-5")}
    assert not seen.learnt & seen.test
    metrics = json.loads((base / "metrics.json").read_text())
    epyc, xeon = metrics["devices"]
    assert (bool(epyc["learnt"]), epyc["column"]) == (True, None)
    assert xeon["learnt"] == xeon["now"], "nothing came after it"
    mean = (epyc["now"]["top1"] + xeon["now"]["top1"]) / 2
    assert metrics["results"]["model"]["top1"] == pytest.approx(mean)


def test_the_config_says_which_classes_the_base_ranks(capsys, tmp_path, base, corpora):
    """As of `tchub train`: by tasks of every device, the learnt ones and those of the validation."""
    before = Checkpoint.load(base).config
    learnt = before.trust["metaschedule/matmul"]
    devices = learnt_devices(before)
    assert (learnt.tasks, learnt.programs) == (sum(d.tasks for d in devices), sum(d.programs for d in devices))
    assert learnt.judged > 0
    assert learnt == before.trust["*/matmul"] == before.trust["metaschedule/*"]
    distill(capsys, base, "--corpus", corpora["graviton"], "--out", tmp_path / "more")
    after = Checkpoint.load(tmp_path / "more").config.trust["metaschedule/matmul"]
    assert after.least is not None
    assert learnt.least is not None
    assert after.least <= learnt.least, "a device more does not make up for those before"


def test_a_device_is_added_to_a_base_of_constant_size(capsys, tmp_path, base, corpora):
    given = ("--corpus", corpora["graviton"], "--judge", corpora["epyc"], "--out", tmp_path / "more")
    done = distill(capsys, base, *given)
    assert (done["exit_code"], done["name"], done["version"]) == (0, "tcl-kb-cpu", "1.1.0")
    assert done["base"] == "tcl-kb-cpu@1.0.0"
    assert [device["corpus"] for device in done["added"]] == ["on-graviton"]
    assert [bool(row["now"]) for row in done["devices"]] == [True, False, True], "on-xeon is not at hand"
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (base, tmp_path / "more")]
    assert sizes[0] == sizes[1]
    config = Checkpoint.load(tmp_path / "more").config
    assert [device.version for device in learnt_devices(config)] == ["1.0.0", "1.0.0", "1.1.0"]
    assert computation_key("matmul-5") in seen_tasks(config).test
    distill(capsys, base, "--corpus", corpora["graviton"], "--out", tmp_path / "unjudged")
    for name, tensor in Checkpoint.load(tmp_path / "unjudged").model.state_dict().items():
        torch.testing.assert_close(dict(Checkpoint.load(tmp_path / "more").model.state_dict())[name], tensor)
    assert config.lineage["weights_licence"] == "Apache-2.0"


def test_a_test_task_that_another_device_taught_judges_nothing(capsys, tmp_path, base, corpora):
    """Task 8, which the base learnt from epyc and xeon, is the only one that could judge this device."""
    done = distill(capsys, base, "--corpus", corpora["ryzen-3700x"], "--out", tmp_path / "more")
    assert done["added"][0]["test"] == {}
    assert [row["now"] for row in done["devices"]] == [None, None, None]


class KilledError(Exception):
    """What stops a run in these tests."""


@pytest.mark.parametrize(
    ("corpus", "phase"), [("on-epyc", "train"), ("on-epyc", "done"), ("on-xeon", "learn"), ("on-xeon", "distill")]
)
def test_a_run_killed_in_any_phase_goes_on_to_the_same_weights(tmp_path, base, corpora, corpus, phase):
    settings = DistillConfig(epochs=1, recipe=str(corpora["recipe"]))
    opened = [Corpus.open(corpora[name]) for name in ("epyc", "xeon")]
    events = []

    def listen(*event):
        events.append(event[:2])
        if len(events) == events.index((corpus, phase)) + 1 if (corpus, phase) in events else False:
            raise KilledError

    run = ("tcl", opened, tmp_path / "run", CheckpointFacts("tcl-kb-cpu", "1.0.0"), settings)
    with pytest.raises(KilledError):
        grow_base(*run, on_event=listen)
    before = len(events)
    weights = grow_base(*run, on_event=lambda *event: events.append(event[:2])).checkpoint.model.state_dict()
    assert ("on-epyc", "train") not in events[before:] or phase == "train", "what was done is not done again"
    for name, tensor in Checkpoint.load(base).model.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=0)


def test_a_folder_of_a_run_is_taken_up_by_the_same_command_only(capsys, base, corpora):
    again = ["new:tcl", "--corpus", corpora["epyc"], "--corpus", corpora["xeon"], "--out", base]
    assert distill(capsys, *again)["error"] == "TrainingError"
    other = distill(capsys, *again, "--resume", "--seed", 7, "--recipe", corpora["recipe"])
    assert other["error"] == "TrainingError"
    assert "settings" in other["message"]
    assert distill(capsys, *again, "--resume", "--recipe", corpora["recipe"])["exit_code"] == 0


@pytest.mark.parametrize(("kb", "names", "error", "text"), [
    ("KB", ["t4"], "DeviceKindError", "knowledge base of GPUs"),
    ("KB", ["xeon"], "AdaptError", "leave it out"),
    ("KB", ["graviton", "graviton"], "AdaptError", "this run"),
    ("KB", ["tiny"], "CorpusError", "measure more programs"),
    ("tcl-epyc", ["graviton"], "AdaptError", "new:tcl"),
    ("new:tcl-kb", ["graviton"], "AdaptError", "new:tcl"),
    ("new:tlc", ["graviton"], "ModelConfigError", "tcl"),
    ("no-such-kb", ["graviton"], "UnknownCheckpointError", "tchub list"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_learnt(
    capsys, tmp_path, base, corpora, kb, names, error, text
):
    given = [part for name in names for part in ("--corpus", corpora[name])]
    done = distill(capsys, base if kb == "KB" else kb, *given, "--out", tmp_path / "out")
    assert (done["exit_code"] != 0, done["error"]) == (True, error)
    assert text in f"{done['message']} {done['remedy']}"
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_corpus_that_was_never_learnt_cannot_judge(capsys, tmp_path, base, corpora):
    given = ("--corpus", corpora["graviton"], "--judge", corpora["ryzen-3700x"], "--out", tmp_path / "out")
    done = distill(capsys, base, *given)
    assert (done["error"], done["corpus"]) == ("AdaptError", "on-ryzen-3700x")
    assert "leave out its --judge" in done["remedy"]


@pytest.mark.parametrize(("after", "interval", "warned"), [(0.625, (-0.25, -0.1), True), (0.7, (-0.25, 0.05), False)])
def test_a_device_that_the_base_knew_better_before_is_learnt_with_a_warning(
    capsys, tmp_path, base, corpora, monkeypatch, after, interval, warned
):
    change, real = AccuracyChange(0.8, after, interval), knowledge_base.add_device
    monkeypatch.setattr(knowledge_base, "add_device", lambda *args: replace(real(*args), change=change))
    given = ["distill", base, "--corpus", corpora["graviton"], "--out", tmp_path / "more", "--epochs", 1]
    for resume in ((), ("--resume",)):
        assert main([str(part) for part in (*given, *resume)]) == 0
        shown = capsys.readouterr().out
        assert ("warning: on-graviton: the base ranks its validation tasks worse" in shown) == warned
    devices = learnt_devices(Checkpoint.load(tmp_path / "more").config)
    assert [bool(device.warning) for device in devices] == [False, False, warned]


def test_a_base_without_records_is_refused(capsys, tmp_path, base, corpora):
    copytree(base, tmp_path / "silent")
    rewrite_config(tmp_path / "silent", lineage={})
    silent = distill(capsys, tmp_path / "silent", "--corpus", corpora["graviton"], "--out", tmp_path / "out")
    assert (silent["error"], "does not record" in silent["message"]) == ("AdaptError", True)


@pytest.fixture
def published(tmp_path, base, monkeypatch):
    """The base in a folder registry, with an index."""
    target = tmp_path / "registry" / "tcl-kb-cpu" / "1.0.0"
    target.mkdir(parents=True)
    for name in ("model.safetensors", "metrics.json", "README.md", "config.json"):
        copyfile(base / name, target / name)
    entry = describe(target, "tcl-kb-cpu", "1.0.0", sources=[f"file://{tmp_path / 'registry'}"])
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "index.json", entry)))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    return entry


def test_a_published_base_is_listed_pulled_loaded_and_shown(capsys, published, base):
    assert published.is_knowledge_base
    assert (published.data["programs"], published.data_licence) == (
        sum(device.programs for device in learnt_devices(Checkpoint.load(base).config)), "CC0-1.0",
    )  # fmt: skip
    assert main(["list", "--family", "cpu", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["tcl-kb-cpu"]
    assert main(["pull", "tcl-kb-cpu", "--json"]) == 0
    loaded = hub.load("tcl-kb-cpu")
    assert [device.corpus for device in learnt_devices(loaded.config)] == ["on-epyc", "on-xeon"]
    capsys.readouterr()
    assert main(["info", "tcl-kb-cpu"]) == 0
    assert "forgotten" in capsys.readouterr().out


def test_a_family_s_own_checkpoint_is_chosen_before_a_base_that_knows_the_device(tmp_path, published):
    own, far = publish(tmp_path / "toys", "tcl-epyc"), publish(tmp_path / "toys", "tcl-graviton")
    chosen = resolve([published, own, far], device=get_device("epyc"))
    assert [verdict.id for verdict in chosen.verdicts] == [own.id, published.id, far.id]
    assert "a knowledge base of cpus" in chosen.verdicts[1].reason
    assert "a family's own checkpoint goes before it" in chosen.verdicts[1].reason
    gpu = resolve([publish(tmp_path / "toys", "tcl-t4", feature_schema="tcl-gpu"), published], device=get_device("t4"))
    assert [verdict.accepted for verdict in gpu.verdicts] == [True, False]


SHIPPED = [entry for entry in Index.shipped().entries if entry.is_knowledge_base]


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_a_base_in_the_wheel_records_its_devices_and_knows_each(entry):
    assert entry.files["model.safetensors"].size <= 3 << 20
    metrics = json.loads((bundled_root() / entry.name / entry.version / "metrics.json").read_text())
    devices = learnt_devices(hub.load(entry.id).config)
    assert [row["corpus"] for row in metrics["devices"]] == [device.corpus for device in devices]
    assert len(devices) >= 4
    assert all(row["now"]["pairwise"] > row["random"]["pairwise"] for row in metrics["devices"])
    assert {entry.family for entry in SHIPPED} == {"cpu", "gpu"}

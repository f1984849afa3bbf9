"""`tchub check`: published checkpoints pass it, and a checkpoint that is wrong in one way fails one question."""

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contribute_kit import Finished
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save
from tchub.cards import render_card
from tchub.hub.cli import main
from tchub.hub.publishing.check import QUESTIONS, CheckFinding, check
from tchub.hub.registry import Index, describe
from tchub.hub.registry.sources import bundled_root
from tchub.zoo.corpus import Corpus, write_corpus
from toy_checkpoints import write_index

CHECKPOINTS = sorted(path.parent for path in bundled_root().glob("*/*/config.json"))
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda folder: folder.parent.name)
def test_every_checkpoint_of_the_wheel_passes(folder):
    report = check(folder, evaluate=False)
    assert report.ok, report.failed
    assert [finding.name for finding in report.findings] == list(QUESTIONS)
    assert {finding.name for finding in report.not_checked} == {"scores", "leak"}


def test_without_its_corpora_two_questions_stay_open_and_it_does_not_pass(capsys):
    assert main(["check", "tcl-k80", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    open_ones = [finding for finding in result["findings"] if finding["outcome"] == "not-checked"]
    assert [finding["name"] for finding in open_ones] == ["scores", "leak"]
    assert all("--corpus DIR/k80" in finding["remedy"] for finding in open_ones)


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path, capsys):
    assert main(["check", str(tmp_path / "nothing"), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["findings"][0]
    assert (first["name"], first["outcome"]) == ("files", "failed")
    assert "No such file" in first["detail"]


def test_a_published_version_without_its_weights_fails_in_words(tmp_path, capsys):
    folder = shutil.copytree(next(path for path in CHECKPOINTS if path.parent.name == "tcl-k80"), tmp_path / "k80")
    (folder / "model.safetensors").unlink()
    assert main(["check", str(folder), "--no-evaluate"]) == 1
    result = capsys.readouterr().out
    assert re.search(r"FAIL +files +model\.safetensors is missing", result)
    assert re.search(r"FAIL +version +.*model\.safetensors: No such file", result)


def test_the_published_scores_of_a_checkpoint_come_out_again_on_the_repositorys_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path))
    report = check(bundled_root() / "tcl-epyc" / "1.0.0", corpora=[ROOT / "corpora" / "epyc-turin"])
    assert report.ok, report.failed


@pytest.fixture
def folder(finished: Finished, tmp_path: Path) -> Path:
    """A checkpoint without a fault, to break."""
    return Path(shutil.copytree(finished.checkpoint, tmp_path / "checkpoint"))


def merged(body: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The document with some fields changed, at any depth."""
    inner = {key: merged(body[key], value) for key, value in change.items() if isinstance(value, dict)}
    return body | change | inner


def edited(folder: Path, name: str, change: dict[str, Any], *, card: bool = True) -> None:
    """Change fields of a JSON file, and keep the card in step with it."""
    path = folder / name
    path.write_text(json.dumps(merged(json.loads(path.read_text()), change)))
    if card:
        files = (json.loads((folder / file).read_text()) for file in ("config.json", "metrics.json"))
        (folder / "README.md").write_text(render_card(*files))


def failed(folder: Path, **options: Any) -> dict[str, CheckFinding]:
    """The findings that failed, by their question."""
    return {finding.name: finding for finding in check(folder, **options).failed}


def only_wrong(folder: Path, name: str, **options: Any) -> CheckFinding:
    """The one finding that failed."""
    findings = failed(folder, **options)
    assert list(findings) == [name]
    assert findings[name].remedy
    return findings[name]


@pytest.mark.parametrize(
    ("change", "question", "detail"),
    [
        ({"name": "tcl-epyc+local"}, "name", "one machine"),
        ({"name": "tlp-epyc"}, "name", "no name for"),
        ({"name": "TCL"}, "name", "not a"),
        ({"family": "z80", "name": "tcl-z80"}, "device", "no device is called 'z80'"),
        ({"lineage": {"authors": None}}, "facts", "lineage.authors"),
        ({"lineage": {"weights_licence": None}}, "facts", "lineage.weights_licence"),
        ({"lineage": {"weights_licence": "mine"}}, "licences", "weights: mine"),
        ({"training": {"corpus": {"licence": "see website"}}}, "licences", "see website"),
    ],
)
def test_a_wrong_fact_fails_its_question(folder, change, question, detail):
    edited(folder, "config.json", change)
    assert detail in failed(folder, evaluate=False)[question].detail


def test_data_whose_licence_nobody_found_is_no_fault_and_a_score_above_one_is(folder):
    edited(folder, "config.json", {"training": {"corpus": {"licence": "none found"}}})
    assert failed(folder, evaluate=False) == {}
    edited(folder, "metrics.json", {"results": {"model": {"mean_top5": 1.5}}})
    assert "model.mean_top5" in failed(folder, evaluate=False)["metrics"].detail


def test_scores_without_those_of_random_choice_fail(folder):
    metrics = json.loads((folder / "metrics.json").read_text())
    del metrics["results"]["random"]
    (folder / "metrics.json").write_text(json.dumps(metrics))
    assert "random" in failed(folder, evaluate=False)["metrics"].detail


def test_a_file_too_many_weights_that_are_not_finite_and_a_card_written_by_hand(folder):
    (folder / "curve.csv").write_text("epoch,loss\n")
    assert "curve.csv does not belong" in only_wrong(folder, "files", evaluate=False).detail
    (folder / "curve.csv").unlink()
    card = folder / "README.md"
    text = card.read_text()
    card.write_text(text.replace("Ada Lovelace", "Eve"))
    assert "lines differ" in only_wrong(folder, "card", evaluate=False).detail
    card.write_text(text)
    path = folder / "model.safetensors"
    tensors = load(path.read_bytes())
    first = next(iter(tensors))
    path.write_bytes(save(tensors | {first: np.full_like(tensors[first], np.nan)}))
    assert "NaN" in only_wrong(folder, "weights", evaluate=False).detail


def test_a_plot_that_was_drawn_from_other_figures(folder):
    plot = folder / "plots" / "top-k.svg"
    plot.write_text(plot.read_text().replace("</svg>", "<script/></svg>", 1))
    assert "plots/top-k.svg is not drawn from these metrics" in only_wrong(folder, "files", evaluate=False).detail


@pytest.mark.parametrize("name", ["config.json", "metrics.json", "README.md", "model.safetensors"])
def test_a_link_is_no_file_of_a_checkpoint(folder, name, tmp_path):
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert f"{name} is a link" in failed(folder, evaluate=False)["files"].detail


@pytest.mark.parametrize(
    ("data", "what"),
    [(pickle.dumps({"w": 1}), "a pickle"), (b"PK\3\4" + bytes(60), "a zip archive"), (b"\0" * 9, "is no")],
)
def test_a_pickle_or_an_archive_in_disguise(folder, data, what):
    (folder / "model.safetensors").write_bytes(data)
    findings = failed(folder, evaluate=False)
    assert set(findings) >= {"files", "weights"}
    assert what in findings["files"].detail


def test_a_version_that_is_published_with_other_weights(folder):
    config = json.loads((folder / "config.json").read_text())
    published = describe(folder, config["name"], config["version"])
    index = Index((published,))
    assert check(folder, evaluate=False, index=index).ok, "the very same files may be published again"
    edited(folder, "config.json", {"training": {"seconds": 1.0}})
    wrong = only_wrong(folder, "version", evaluate=False, index=index)
    assert "another config.json" in wrong.detail
    assert str(published.semver.next_minor()) in str(wrong.remedy)


def test_the_sheet_of_another_device_needs_a_reason(folder):
    other = {"family": "graviton", "name": "tcl-graviton", "version": "7.0.0", "lineage": {"data": "transferred"}}
    edited(folder, "config.json", other)
    assert "the spec sheet is that of" in only_wrong(folder, "device", evaluate=False).detail
    edited(folder, "config.json", {"lineage": {"stand_in": "It is like one."}})
    assert check(folder, evaluate=False).ok


def test_a_file_named_as_the_split_is_not_read(folder, finished, tmp_path):
    """Whoever made the checkpoint does not choose which tasks judge, nor which files are opened here."""
    edited(folder, "metrics.json", {"split": str(tmp_path / "tasks.json")})
    detail = only_wrong(folder, "scores", corpora=[finished.corpus]).detail
    assert "is none of test, val, train, all" in detail


def test_a_score_that_does_not_come_out_again(folder, finished):
    published = json.loads((folder / "metrics.json").read_text())["results"]["model"]["pairwise"]
    edited(folder, "metrics.json", {"results": {"model": {"pairwise": published - 0.01}}})
    wrong = only_wrong(folder, "scores", corpora=[finished.corpus])
    assert "pairwise" in wrong.detail
    assert "(+0.0100)" in wrong.detail


def split_anew(corpus: Corpus, folder: Path, train: int) -> Corpus:
    """The corpus with so many tasks to train on; all others test."""
    ids = sorted(corpus.tasks)
    split = {"train": ids[:train], "test": ids[train:]}
    return write_corpus(folder, {**corpus.meta, "split": split}, corpus.tasks.values(), corpus.iter_programs())


def test_a_training_that_cannot_have_left_out_the_test_tasks(folder, finished, tmp_path):
    """The corpus now tests on tasks that the checkpoint, by its own count, must have learnt."""
    corpus = Corpus.open(finished.corpus)
    learnt = json.loads((folder / "config.json").read_text())["training"]["corpus"]["tasks"]
    other = split_anew(corpus, tmp_path / corpus.path.name, learnt - 1)
    detail = failed(folder, corpora=[other])["leak"].detail
    assert f"{learnt} tasks of {corpus.path.name} were learnt, {learnt - 1} are no test" in detail


def test_what_its_start_had_learnt_counts_too(folder, finished, tmp_path, monkeypatch):
    """The start learnt tasks that judge now: it was trained before this corpus kept them out."""
    corpus = Corpus.open(finished.corpus)
    strict = split_anew(corpus, tmp_path / "strict", 1)
    started = json.loads((folder / "config.json").read_text())
    start = f"{started['name']}@{started['version']}"
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "index.json", describe(folder, *start.split("@")))))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    shutil.copytree(folder, tmp_path / "cache" / "checkpoints" / start.replace("@", "/"))
    training = {"init": start, "corpus": {"name": "strict", "tasks": 1, "programs": 1}}
    edited(folder, "config.json", {"version": "9.0.0", "training": training}, card=False)
    edited(folder, "metrics.json", {"corpus": "strict"})
    findings = {finding.name: finding for finding in check(folder, corpora=[strict]).findings}
    assert findings["leak"].outcome == "not-checked", "the start's corpus is not at hand"
    assert f"by its start {start}" in failed(folder, corpora=[strict, corpus])["leak"].detail


@pytest.fixture(scope="module")
def odd(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose files are anything."""
    return Path(shutil.copytree(finished.checkpoint, tmp_path_factory.mktemp("odd") / "checkpoint"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["results", "corpus", "devices", "seeds", "curves", "tasks", "transfer", "format"]), json_values)
def test_whatever_the_metrics_hold_the_check_ends_in_findings(odd, finished, key, value):
    metrics = json.loads((finished.checkpoint / "metrics.json").read_text())
    (odd / "metrics.json").write_text(json.dumps(metrics | {key: value}))
    report = check(odd, index=Index())
    assert [finding.name for finding in report.findings] == list(QUESTIONS)


@given(st.binary() | st.text().map(str.encode) | st.text().map(lambda text: f"---\n{text}\n---\n".encode()))
def test_whatever_the_card_says_the_check_ends_in_findings(odd, card):
    (odd / "README.md").write_bytes(card)
    report = check(odd, evaluate=False, index=Index())
    assert "card" in {finding.name for finding in report.failed}

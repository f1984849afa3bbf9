"""Several sources: the best start, corpora of other devices, and what does not fit is refused before it costs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from adapt_kit import LITTLE, SMALL, Lab, corpus_at, make_candidates, make_task, run, stored, toolbox
from tchub.hub.adaptation.settings import AdaptProgress
from tchub.hub.adaptation.sources import SourceFolderError, SourceSchemaError, open_sources, split_names
from tchub.hub.adaptation.tools import Base, find_base
from tchub.hub.registry import Registry
from tchub.hub.registry.errors import UnknownCheckpointError
from tchub.zoo.adapt.continual import Change
from tchub.zoo.adapt.errors import MethodError
from tchub.zoo.corpus import EmptyDatasetError
from tchub.zoo.models import Checkpoint, CheckpointError, Progressive, create
from tchub.zoo.primitives import from_trace_json


def finder(*bases: Base):
    return lambda name: next(base for base in bases if base.entry.name == name)


def test_names_are_split_at_commas_and_empty_ones_left_out():
    assert split_names("a, b,,corpora/c") == ("a", "b", "corpora/c")
    assert split_names(["a", " "]) == ("a",)
    assert split_names("") == ()


def test_the_source_that_ranks_the_first_batch_best_is_adapted(base: Base, tmp_path: Path):
    """The other source was adapted to the very machine, on other programs; the one to beat stays the one named."""
    run(base, Lab(), tmp_path / "first", budget=60, programs_per_task=40)
    found = Registry.default().resolve("tcl-epyc+local").entry
    other = Base(Checkpoint.load(Registry.default().home.path(found)), replace(found, name="tcl-other"))
    tools = toolbox(base, Lab(), find_base=lambda name: base if name == "tcl-epyc" else other)
    notes: list[str] = []
    progress = AdaptProgress()
    progress.note = notes.append
    options = LITTLE | {"seed": 1, "progress": progress}
    result = run(base, Lab(), tmp_path / "second", tools=tools, sources="tcl-other", **options)
    assert result.start.startswith("tcl-other@1.0.0")
    assert "start: tcl-other@1.0.0" in notes, "the reason is told once, by the result"
    assert result.base == "tcl-epyc@1.0.0"
    assert result.sources == ("tcl-other@1.0.0",)
    if result.adapted:
        lineage = Checkpoint.load(result.path).config.lineage
        assert (lineage["start"], lineage["sources"]) == ("tcl-other@1.0.0", ["tcl-other@1.0.0"])
        assert lineage["compared"] == ["tcl-epyc@1.0.0", "tcl-other@1.0.0"]
        assert "chosen among `tcl-epyc@1.0.0`, `tcl-other@1.0.0`" in (result.path / "README.md").read_text()


@pytest.mark.usefixtures("quick_distilling")
def test_corpora_are_learnt_by_continual_and_its_result_is_a_knowledge_base(base: Base, tmp_path: Path):
    corpus = corpus_at(tmp_path / "xeon-corpus")
    result = run(base, Lab(), tmp_path / "work", sources=str(corpus), method="continual", sampler="rdu", **LITTLE)
    assert result.learning["method"] == "continual"
    assert result.learning["training"]["sources"] == ["xeon-corpus"]
    assert result.adapted, "the base is untrained"
    model = Checkpoint.load(result.path)
    assert isinstance(model.model, Progressive)
    assert model.config.arch == "tcl-kb"
    assert model.config.model["column"], "the column answers"
    known, programs = model.model.known_devices(), make_candidates(make_task(0), {}, 1, 0)
    own = base.checkpoint.features([from_trace_json(programs[0].trace)])[0, -1]
    assert known is not None
    assert len(known) == 2, "the corpus's, and the base's own, which was rehearsed meanwhile"
    np.testing.assert_allclose(known[1].numpy(), own, rtol=1e-6)
    assert model.config.lineage["sources"] == ["xeon-corpus"]
    assert model.config.lineage["source_licences"] == {"xeon-corpus": "CC0-1.0"}
    assert result.name == "tcl-epyc+local"
    assert Registry.default().resolve(result.name).entry.arch == "tcl-kb"
    assert "learnt too: `xeon-corpus`" in (result.path / "README.md").read_text()


@pytest.mark.usefixtures("quick_distilling")
def test_a_corpus_that_the_method_left_out_is_in_no_lineage(base: Base, tmp_path: Path, monkeypatch):
    from tchub.zoo.adapt import continual_method

    monkeypatch.setattr(continual_method, "measure_change", lambda *args: Change(0.9, 0.5, (-0.5, -0.3)))
    corpus = corpus_at(tmp_path / "xeon-corpus")
    result = run(base, Lab(), tmp_path / "work", sources=str(corpus), method="continual", sampler="rdu", **LITTLE)
    assert result.adapted, "the base is untrained"
    lineage = Checkpoint.load(result.path).config.lineage
    assert (lineage["sources"], lineage["source_licences"]) == ([], {})
    assert "xeon-corpus" not in (result.path / "README.md").read_text()


def test_a_source_of_other_features_is_refused_before_anything_is_measured(base: Base, tmp_path: Path):
    torch.manual_seed(0)
    other = stored(tmp_path / "tlp", "tlp-epyc", create("tlp", hidden=16), "tlp-cpu")
    lab = Lab()
    tools = toolbox(base, lab, find_base=finder(base, other))
    with pytest.raises(SourceSchemaError, match="reads tlp-cpu") as caught:
        run(base, lab, tmp_path / "work", tools=tools, sources="tlp-epyc")
    assert "tcl-cpu" in caught.value.remedy
    assert lab.opened == 0


def test_a_corpus_of_another_kind_of_device_is_refused(base: Base, tmp_path: Path):
    corpus = corpus_at(tmp_path / "gpu", device="v100", family="v100")
    with pytest.raises(SourceSchemaError, match="v100"):
        open_sources("tcl-epyc", [str(corpus)], finder(base))


@pytest.mark.parametrize(
    ("name", "what"),
    [("my-corpus", "holds neither a corpus.json"), ("./my-corpus", "holds neither"), ("corpora/x", "no such folder")],
)
def test_a_folder_that_is_neither_a_corpus_nor_a_checkpoint_is_told_so(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
):
    (tmp_path / "my-corpus").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceFolderError, match=what) as caught:
        open_sources("tcl-epyc", [name], lambda one: base if one == "tcl-epyc" else find_base(one))
    assert caught.value.message.startswith(f"{name} is neither a corpus nor a checkpoint")


def test_a_corpus_with_nothing_to_compare_is_refused_before_anything_is_measured(base: Base, tmp_path: Path):
    lab, few = Lab(), corpus_at(tmp_path / "few", each=3)
    with pytest.raises(EmptyDatasetError, match="no task with programs to compare"):
        run(base, lab, tmp_path / "work", method="continual", sources=[str(few)])
    assert lab.opened == 0


def test_two_corpora_of_one_name_are_refused_for_a_result_tells_them_by_it(base: Base, tmp_path: Path):
    corpora = [str(corpus_at(tmp_path / place / "mine")) for place in ("a", "b")]
    with pytest.raises(SourceFolderError, match="two corpora of --from are called mine"):
        open_sources("tcl-epyc", corpora, finder(base))


def test_a_name_that_no_checkpoint_has_is_the_registrys_to_tell_of(base: Base):
    with pytest.raises(UnknownCheckpointError, match="no checkpoint is called tcl-nowhere"):
        open_sources("tcl-epyc", ["tcl-nowhere"], lambda one: base if one == "tcl-epyc" else find_base(one))


def test_multi_task_without_a_corpus_is_refused_before_anything_is_measured(base: Base, tmp_path: Path):
    lab = Lab()
    with pytest.raises(MethodError, match="--from"):
        run(base, lab, tmp_path, method="multi-task")
    assert lab.opened == 0


def test_a_corpus_of_which_few_shot_would_learn_nothing_is_refused_before_anything_is_measured(
    base: Base, tmp_path: Path
):
    lab, corpus = Lab(), corpus_at(tmp_path / "xeon-corpus")
    with pytest.raises(MethodError, match="few-shot learns nothing from corpora") as caught:
        run(base, lab, tmp_path / "work", sources=str(corpus))
    assert "--method continual, multi-task or auto" in caught.value.remedy
    assert lab.opened == 0


def test_a_method_that_one_of_the_starts_cannot_learn_by_is_refused_before_anything_is_measured(
    base: Base, tmp_path: Path
):
    """Which start is taken is known when the first batch has been paid for."""
    known = replace(base.checkpoint, model=Progressive.around(base.checkpoint.model))
    other = Base(known, replace(base.entry, name="tcl-kb-cpu"))
    lab, corpus = Lab(), corpus_at(tmp_path / "xeon-corpus")
    tools = toolbox(base, lab, find_base=finder(base, other))
    with pytest.raises(MethodError, match="one after another"):
        run(base, lab, tmp_path / "work", tools=tools, sources=f"tcl-kb-cpu,{corpus}", method="multi-task")
    assert lab.opened == 0


def test_a_knowledge_base_of_a_newer_format_is_refused(base: Base, tmp_path: Path):
    torch.manual_seed(0)
    stored(tmp_path / "kb", "tcl-kb-cpu", Progressive.around(create("tcl", **SMALL)))
    config = tmp_path / "kb" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"format": 99}))
    lab = Lab()
    with pytest.raises(CheckpointError, match="format 99") as caught:
        run(base, lab, tmp_path / "work", tools=toolbox(base, lab, find_base=lambda _: find_base(str(tmp_path / "kb"))))
    assert "upgrade" in caught.value.remedy
    assert lab.opened == 0


def test_an_adapted_checkpoint_can_be_the_base_by_its_folder(adapted, tmp_path: Path):
    """Its files tell the licences; of a folder of an older release the store's record does."""
    result, _, _, entry = adapted
    found = find_base(str(result.path))
    assert (found.entry.id, found.entry.weights_licence) == ("tcl-epyc+local@1.0.0", "Apache-2.0")
    assert found.entry.data_licence == entry.data_licence == "CC0-1.0"
    bare = shutil.copytree(result.path, tmp_path / "bare")
    (bare / "entry.json").unlink()
    assert find_base(str(bare)).entry.data_licence == "CC0-1.0"
    old = shutil.copytree(result.path, tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    del config["training"]["corpus"]["licence"]
    (old / "config.json").write_text(json.dumps(config))
    assert find_base(str(old)).entry.data_licence == "CC0-1.0"
    tools = toolbox(found, Lab(), find_base=lambda _: find_base(str(bare)))
    again = run(found, Lab(), tmp_path / "work", tools=tools, **LITTLE)
    assert again.base == "tcl-epyc+local@1.0.0"

"""Sources: the best start, corpora of other devices, what does not fit, and what must not judge or be learnt."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapt_kit import LITTLE, LONGER, Lab, Noting, corpus_at, make_candidates, make_task, run, stored
from real_checkpoint import make_checkpoint
from tchub.hub.adaptation import learner as learner_module
from tchub.hub.adaptation.pool import CandidatePool, PoolEntry
from tchub.hub.adaptation.sources import (
    AdaptationSources,
    choose_start,
    learnt_by,
    learnt_digests,
    open_sources,
    read_sources,
)
from tchub.hub.api import CheckpointChoice, choose_checkpoint
from tchub.hub.registry import Registry, describe
from tchub.hub.registry.errors import IndexFileError, UnknownCheckpointError
from tchub.zoo.adapt.continual import device as continual_method
from tchub.zoo.adapt.errors import AdaptError
from tchub.zoo.adapt.guard import AccuracyChange
from tchub.zoo.corpus import Corpus, CorpusError
from tchub.zoo.features import DeviceKindError, get_schema
from tchub.zoo.models import Checkpoint, ProgressiveNetwork, create
from tchub.zoo.primitives import from_trace_json
from tchub.zoo.training import RankingDataset
from tchub.zoo.training.programs import StatementStore, read_programs
from tchub.zoo.trust import ClassTrust


def finder(*bases: CheckpointChoice) -> dict[str, Any]:
    return {"choose_checkpoint": lambda name: next(base for base in bases if base.entry.name == name)}


def test_the_source_that_ranks_the_first_batch_best_is_adapted(base: CheckpointChoice, tmp_path: Path):
    """The other source was adapted to the very machine, on other programs; the one to beat stays the one named."""
    run(base, Lab(), tmp_path / "first", budget=60, per_task=40)
    entry = Registry.default().resolve("tcl-epyc+local").entry
    there, untrusted = Checkpoint.load(Registry.default().home.path(entry)), {"ansor/pool": ClassTrust()}
    there = replace(there, config=replace(there.config, trust=untrusted))
    other = CheckpointChoice(there, replace(entry, name="tcl-other"))
    progress = Noting()
    options = LITTLE | {"seed": 1, "budget": 60, "progress": progress}
    result = run(base, Lab(), tmp_path / "second", finder(base, other), sources="tcl-other", **options)
    assert result.settings.start.startswith("tcl-other@1.0.0")
    assert "start: tcl-other@1.0.0" in progress.notes, "the reason is told once, by the result"
    assert (result.settings.base, result.settings.sources) == ("tcl-epyc@1.0.0", ("tcl-other@1.0.0",))
    stored_config = Checkpoint.load(result.path).config
    lineage = stored_config.lineage
    assert (lineage["start"], lineage["sources"]) == ("tcl-other@1.0.0", ["tcl-other@1.0.0"])
    assert lineage["compared"] == ["tcl-epyc@1.0.0", "tcl-other@1.0.0"]
    assert stored_config.trust.items() >= untrusted.items(), "the base to beat trusts every class"
    assert "tcl-other@1.0.0 ranks the first" in (result.path / "README.md").read_text()


@pytest.mark.usefixtures("quick_distilling")
@pytest.mark.parametrize("harms", [False, True])
def test_corpora_are_learnt_by_continual_but_for_one_that_harms(
    base: CheckpointChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harms: bool
):
    if harms:
        fall = AccuracyChange(0.9, 0.5, (-0.5, -0.3))
        monkeypatch.setattr(continual_method, "measure_change", lambda *args: fall)
    corpus = corpus_at(tmp_path / "xeon-corpus")
    options = LITTLE | {"method": "continual", "sampler": "rdu", "seed": 8, "fine_tune": LONGER}
    result = run(base, Lab(), tmp_path / "work", sources=str(corpus), **options)
    assert result.adapted, "the base is untrained"
    lineage, card = Checkpoint.load(result.path).config.lineage, (result.path / "README.md").read_text()
    learnt = [] if harms else ["xeon-corpus"]
    assert result.learning["training"]["sources"] == lineage["sources"] == learnt
    assert lineage["source_licences"] == dict.fromkeys(learnt, "CC0-1.0")
    assert ("learnt xeon-corpus" in card) is not harms
    if harms:
        return
    model = Checkpoint.load(result.path)
    assert isinstance(model.model, ProgressiveNetwork)
    assert (model.config.arch, Registry.default().resolve(result.name).entry.arch) == ("tcl-kb", "tcl-kb")
    assert model.config.model["column"], "the column answers"
    known, programs = model.model.known_devices(), make_candidates(make_task(0), {}, 1, 0)
    own = base.checkpoint.features([from_trace_json(programs[0].trace)])[0, -1]
    assert known is not None
    assert len(known) == 2, "the corpus's, and the base's own, which was rehearsed meanwhile"
    np.testing.assert_allclose(known[1].numpy(), own, rtol=1e-6)


def test_a_source_of_other_features_is_refused(base: CheckpointChoice, tmp_path: Path):
    other = stored(tmp_path / "tlp", "tlp-epyc", create("tlp", hidden=16), "tlp-cpu")
    lab = Lab()
    with pytest.raises(AdaptError, match="reads tlp-cpu") as caught:
        run(base, lab, tmp_path / "work", finder(base, other), sources="tlp-epyc")
    assert "tcl-cpu" in caught.value.remedy
    assert lab.opened == 0


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("my-corpus", AdaptError, "^my-corpus is neither a corpus nor a checkpoint: .* holds neither a corpus.json"),
        ("./my-corpus", AdaptError, "holds neither"),
        ("corpora/x", AdaptError, "no such folder"),
        ("tcl-nowhere", UnknownCheckpointError, "no checkpoint is called tcl-nowhere"),
    ],
)
def test_a_source_that_is_neither_a_corpus_nor_a_checkpoint_is_refused(
    base: CheckpointChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Any, match: str
):
    (tmp_path / "my-corpus").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=match):
        open_sources("tcl-epyc", [name], lambda one: base if one == "tcl-epyc" else choose_checkpoint(one))


@pytest.mark.parametrize(
    ("corpora", "options", "error", "match"),
    [
        ([("gpu", {"device": "v100", "family": "v100"})], {"method": "continual"}, DeviceKindError, "v100"),
        ([("few", {"each": 3})], {"method": "continual"}, CorpusError, "no task with programs to compare"),
        ([("a/mine", {}), ("b/mine", {})], {"method": "auto"}, AdaptError, "two corpora of --sources are called mine"),
        ([], {"method": "multi-task"}, AdaptError, "--sources"),
        ([("xeon", {})], {}, AdaptError, "few-shot learns nothing from corpora"),
    ],
)
def test_corpora_that_do_not_fit_are_refused(
    base: CheckpointChoice, tmp_path: Path, corpora, options, error: type[Exception], match: str
):
    lab, folders = Lab(), [str(corpus_at(tmp_path / name, **facts)) for name, facts in corpora]
    with pytest.raises(error, match=match):
        run(base, lab, tmp_path / "work", sources=folders, **options)
    assert lab.opened == 0


def test_a_method_that_one_of_the_starts_cannot_learn_by_is_refused(base: CheckpointChoice, tmp_path: Path):
    """Which start is taken is known when the first batch has been paid for."""
    known = replace(base.checkpoint, model=ProgressiveNetwork.around(base.checkpoint.model))
    other = CheckpointChoice(known, replace(base.entry, name="tcl-kb-cpu"))
    lab, corpus = Lab(), corpus_at(tmp_path / "xeon-corpus")
    with pytest.raises(AdaptError, match="one after another"):
        run(base, lab, tmp_path, finder(base, other), sources=f"tcl-kb-cpu,{corpus}", method="multi-task")
    assert lab.opened == 0


def test_a_checkpoint_whose_licence_nobody_gave_can_be_used_here(tmp_path: Path):
    folder = tmp_path / "mine"
    make_checkpoint(lineage={}).save(folder)
    assert "weights_licence" not in (folder / "config.json").read_text()
    assert choose_checkpoint(str(folder)).entry.weights_licence == "not given"
    with pytest.raises(IndexFileError, match="weights_licence"):
        describe(folder, "tcl-epyc", "1.0.0")


@pytest.fixture(scope="module")
def measured(adapted) -> tuple[CheckpointChoice, RankingDataset]:
    """A checkpoint that ranks this machine's programs, and what was measured here."""
    result, _, _, entry = adapted
    corpus = Corpus.open(result.measurements.corpus)
    data, _ = read_programs(corpus, sorted(corpus.tasks), get_schema("tcl-cpu"), StatementStore(result.path / "none"))
    assert data is not None
    return CheckpointChoice(Checkpoint.load(result.path), entry), data


def moved(base: CheckpointChoice, name: str, way: float) -> CheckpointChoice:
    """The checkpoint with every weight moved in one fixed random direction."""
    model, rng = copy.deepcopy(base.checkpoint.model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(way * weight.std(correction=0) * torch.randn(weight.shape, generator=rng))
    return CheckpointChoice(replace(base.checkpoint, model=model), replace(base.entry, name=name))


def test_the_start_is_what_ranks_best_and_the_named_one_is_to_be_beaten(measured):
    good, data = measured
    far = moved(good, "tcl-far", 3.0)
    start = choose_start(AdaptationSources((far, good), named=True, corpora=()), data)
    assert (start.chosen, start.base) == (good, far)
    assert f"{good.entry.id} ranks the first {len(data)} programs" in start.reason
    assert choose_start(AdaptationSources((far, good), named=False, corpora=()), data).base is good


@pytest.mark.parametrize(("programs", "named"), [(0, True), (1, True), (4, True), (4, False)])
def test_labels_too_few_to_compare_by_keep_the_first_source(measured, programs: int, named: bool):
    """None, when all of the first batch failed; one, and four of a task, of which chance makes the better source."""
    good, data = measured
    far = moved(good, "tcl-far", 3.0)
    sources = AdaptationSources((far, good), named=named, corpora=())
    start = choose_start(sources, data.take(data.members[0][:programs]))
    assert (start.chosen, start.base, start.compared) == (far, far, ())
    why = "was named" if named else "is the first"
    assert f"tcl-far@1.0.0, which {why}: too few labels that no source has learnt" in start.reason


def pool_of(result, tasks: int = 6) -> CandidatePool:
    """The pool that `run` makes, in its order."""
    every = [make_task(number) for number in range(tasks)]
    entries = [
        PoolEntry(number, c.key, c.trace, c.strategy)
        for number, task in enumerate(every)
        for c in make_candidates(task, {}, result.measurements.pool_size // tasks, 0)
    ]
    return CandidatePool(tuple(every), tuple(entries), result.settings.device)


def names(picks, part: str) -> set[tuple[str, str]]:
    return {(pick.task_id, pick.key) for pick in picks if pick.part == part}


def new_labels(picks, before) -> set[float]:
    """Latencies to learn from, of programs that an earlier run did not learn."""
    known = names(before, "learn")
    return {p.latency for p in picks if p.part == "learn" and p.error is None and (p.task_id, p.key) not in known}


def watched(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    """What the learner calls a function with."""
    calls, real = list[tuple[Any, ...]](), getattr(learner_module, name)
    monkeypatch.setattr(learner_module, name, lambda *args: calls.append(args) or real(*args))
    return calls


@pytest.mark.usefixtures("quick_distilling")
def test_a_corpus_of_an_earlier_run_teaches_nothing_that_is_measured_here(
    adapted, base: CheckpointChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same pool and seed: the corpus has programs that this run holds out or cross-validates, with latencies."""
    calls = watched(monkeypatch, "read_sources")
    result = run(base, Lab(), tmp_path, sources=str(adapted[0].measurements.corpus), method="continual", rounds=1)
    ((_, (corpus,), _, _, keys),) = calls
    without = keys(corpus)
    programs = {(task, p.key): p for task in corpus.tasks for p in corpus.programs(task)}
    for part in ("hold-out", "learn"):
        assert names(result.picks, part) & programs.keys(), "there is something to leave out"
        assert without >= names(result.picks, part) & programs.keys()
    (data,) = read_sources(base, (corpus,), tmp_path / "s", 0, lambda _: without)
    assert len(data.data) == sum(p.valid and name not in without for name, p in programs.items())


@pytest.mark.usefixtures("quick_distilling")
def test_a_corpus_of_which_all_was_measured_here_is_told_of_and_not_needed(base: CheckpointChoice, tmp_path: Path):
    """The same command again, with the corpus that it left as a source: it has the labels already."""
    corpus = run(base, Lab(), tmp_path, **LITTLE).measurements.corpus
    options = LITTLE | {"sources": str(corpus), "progress": (progress := Noting())}
    result = run(base, Lab(), tmp_path, method="continual", **options)
    assert result.learning["training"]["sources"] == []
    assert any(f"{corpus.name} teaches nothing" in note for note in progress.notes)
    with pytest.raises(AdaptError, match="it learns beside programs of other devices"):
        run(base, Lab(), tmp_path, method="multi-task", **options)


def test_what_a_lineage_learnt_judges_nothing(adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second run on the checkpoint of the first, on the same pool: its programs can be learnt, not judged by."""
    first = adapted[0]
    choice, pool = choose_checkpoint(str(first.path)), pool_of(first)
    entry = choice.entry
    assert (entry.id, entry.weights_licence, entry.data_licence) == ("tcl-epyc+local@1.0.0", "Apache-2.0", "CC0-1.0")
    digests = learnt_digests(choice.checkpoint.config)
    assert len(digests) == len(names(first.picks, "learn"))
    calls = watched(monkeypatch, "adapt_model")
    second = run(choice, Lab(), tmp_path, rounds=1, seed=0)
    assert not names(second.picks, "hold-out") & names(first.picks, "learn")
    ((_, training_set, _),) = calls
    assert 0 < (~training_set.unseen).sum() < len(training_set.data), "cross-validation judges by the others"
    assert set(training_set.data.latency[training_set.unseen]) == new_labels(second.picks, first.picks)
    assert {pool.name(int(index)) for index in learnt_by([choice], pool)} == names(first.picks, "learn")
    elsewhere = replace(pool, device="another device")
    assert len(learnt_by([choice], elsewhere)) == 0, "the same program elsewhere is another measurement"
    assert (second.adapted, second.settings.base) == (True, "tcl-epyc+local@1.0.0")
    assert learnt_digests(Checkpoint.load(second.path).config) > digests, "what the first learnt is passed on"


def test_a_checkpoint_that_knows_the_first_batch_by_heart_is_compared_on_the_rest_of_it(
    adapted, base: CheckpointChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A source that an earlier run on the same pool made of the base."""
    first, local = adapted[0], choose_checkpoint(str(adapted[0].path))
    border = {"choose_checkpoint": lambda name: base if name == "tcl-epyc" else local}
    calls = watched(monkeypatch, "choose_start")
    result = run(base, Lab(), tmp_path, border, sources=str(first.path))
    ((_, data),) = calls
    batch = [pick for pick in result.picks if pick.round == 0]
    assert names(batch, "learn") & names(first.picks, "learn"), "there is something to leave out"
    assert set(data.latency) == new_labels(batch, first.picks)
    assert f"the first {len(data)} programs that no source has learnt" in result.settings.start

"""What judges, hold-out and cross-validation, is known to no corpus of `--from` and was learnt by no checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapt_kit import LITTLE, Lab, make_candidates, make_task, run, toolbox
from tchub.hub.adaptation import learn as adapt_learn
from tchub.hub.adaptation.kept import kept_decisions
from tchub.hub.adaptation.pool import CandidatePool, PoolEntry
from tchub.hub.adaptation.seen import LEARNT, PoolPrograms, corpus_marks, learnt_marks
from tchub.hub.adaptation.settings import AdaptProgress
from tchub.hub.adaptation.sources import read_sources
from tchub.hub.adaptation.tools import Base, find_base
from tchub.zoo.adapt.errors import MethodError, SamplingError
from tchub.zoo.adapt.stopping import StopDecision
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint


def pool_of(result, tasks: int = 6) -> PoolPrograms:
    """The pool that `run` makes, in its order."""
    made = [make_task(number) for number in range(tasks)]
    entries = [
        PoolEntry(number, c.key, c.trace, c.strategy)
        for number, task in enumerate(made)
        for c in make_candidates(task, {}, result.pool_size // tasks, 0)
    ]
    tools = toolbox(None, Lab())  # pyright: ignore[reportArgumentType]
    return PoolPrograms(CandidatePool(tuple(made), tuple(entries)), result.device, tools.computation)


def names(result, part: str) -> set[tuple[str, str]]:
    return {(pick.task_id, pick.key) for pick in result.picks if pick.part == part}


def new_labels(result, before) -> set[float]:
    """Latencies to learn from, of programs that an earlier run did not learn."""
    known = names(before, "learn")
    return {
        pick.latency
        for pick in result.picks
        if pick.part == "learn" and pick.error is None and (pick.task_id, pick.key) not in known
    }


def watched(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    """What the learner calls a function with."""
    calls: list[tuple[Any, ...]] = []
    real = getattr(adapt_learn, name)

    def call(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(adapt_learn, name, call)
    return calls


@pytest.mark.usefixtures("quick_distilling")
def test_a_corpus_of_an_earlier_run_teaches_nothing_that_is_measured_here(
    adapted, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same pool and seed: the corpus has programs that this run holds out or cross-validates, with latencies."""
    earlier = adapted[0]
    calls = watched(monkeypatch, "read_sources")
    result = run(base, Lab(), tmp_path, sources=str(earlier.corpus), method="continual", rounds=1)
    ((_, (corpus,), _, _, keys),) = calls
    without = keys(corpus)
    there = {(task, p.key) for task in corpus.tasks for p in corpus.programs(task)}
    for part in ("hold-out", "learn"):
        assert names(result, part) & there, "there is something to leave out"
        assert without >= names(result, part) & there
    (whole,), (data,) = (
        read_sources(base, (corpus,), tmp_path / "s", 0, lambda _, left=left: left) for left in (frozenset(), without)
    )
    assert len(data.data) == len(whole.data) - sum(
        p.valid and (task, p.key) in without for task in corpus.tasks for p in corpus.programs(task)
    )


@pytest.mark.usefixtures("quick_distilling")
def test_a_corpus_of_which_all_was_measured_here_is_told_of_and_not_needed(base: Base, tmp_path: Path):
    """The same command again, `--from` what it left: it has the labels already."""

    class Notes(AdaptProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    notes: list[str] = []
    corpus = run(base, Lab(), tmp_path, **LITTLE).corpus
    options = LITTLE | {"sources": str(corpus), "progress": Notes()}
    result = run(base, Lab(), tmp_path, method="continual", **options)
    assert result.learning["training"]["sources"] == []
    assert any(f"{corpus.name} teaches nothing" in note for note in notes)
    with pytest.raises(MethodError, match="it learns beside programs of other devices"):
        run(base, Lab(), tmp_path, method="multi-task", **options)


def test_a_corpus_of_another_device_teaches_what_is_learnt_here_but_not_what_judges(adapted):
    """The same programs have other latencies there: what they are here remains to be learnt."""
    programs, corpus = pool_of(adapted[0]), Corpus.open(adapted[0].corpus)
    elsewhere = PoolPrograms(programs.pool, "another device", programs.computation)
    places = range(len(programs.pool))
    assert programs.withheld(corpus, [], places) == programs.keys_in(corpus, places) != frozenset()
    assert elsewhere.withheld(corpus, [], places) == frozenset()
    assert elsewhere.withheld(corpus, places, []) == programs.keys_in(corpus, places)


def test_programs_are_known_by_what_their_task_computes_whatever_its_name(adapted):
    corpus, programs = Corpus.open(adapted[0].corpus), pool_of(adapted[0])
    renamed = replace_names(corpus)
    found = programs.keys_in(renamed, range(len(programs.pool)))
    assert {key for _, key in found} >= {p.key for task in renamed.tasks for p in corpus.programs(task[1:])}
    assert all(task.startswith("x") for task, _ in found)


def replace_names(corpus: Corpus):
    """A stand-in whose tasks have other names."""

    class Renamed:
        tasks = {f"x{name}": task for name, task in corpus.tasks.items()}  # noqa: RUF012

    return Renamed()


def test_what_a_lineage_learnt_judges_nothing(adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second run on the checkpoint of the first, on the same pool: its programs can be learnt, not judged by."""
    first = adapted[0]
    checkpoint = find_base(str(first.path))
    marks = learnt_marks(checkpoint.checkpoint.config)
    assert len(marks) == len(names(first, "learn"))
    calls = watched(monkeypatch, "adapt_model")
    second = run(checkpoint, Lab(), tmp_path, rounds=1, seed=0)
    assert not names(second, "hold-out") & names(first, "learn")
    ((_, lesson, _),) = calls
    assert 0 < (~lesson.fresh).sum() < len(lesson.data), "cross-validation judges by the others"
    assert set(lesson.data.latency[lesson.fresh]) == new_labels(second, first)
    programs = pool_of(first)
    places = programs.learnt_by([checkpoint])
    entries = programs.pool.entries
    assert {(programs.pool.tasks[entries[i].task].task_id, entries[i].key) for i in places} == names(first, "learn")
    other = PoolPrograms(programs.pool, "another device", programs.computation)
    assert len(other.learnt_by([checkpoint])) == 0, "the same program elsewhere is another measurement"
    if second.adapted:
        assert learnt_marks(Checkpoint.load(second.path).config) > marks, "what the first learnt is passed on"


def test_a_checkpoint_that_knows_the_first_batch_by_heart_is_compared_on_the_rest_of_it(
    adapted, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`--from` what an earlier run on the same pool made of the base."""
    first = adapted[0]
    local = find_base(str(first.path))
    tools = toolbox(base, Lab(), find_base=lambda name: base if name == "tcl-epyc" else local)
    calls = watched(monkeypatch, "choose_start")
    result = run(base, Lab(), tmp_path, tools=tools, sources=str(first.path))
    ((_, data, _),) = calls
    batch = replace(result, picks=tuple(pick for pick in result.picks if pick.round == 0))
    assert names(batch, "learn") & names(first, "learn"), "there is something to leave out"
    assert set(data.latency) == new_labels(batch, first)
    assert f"the first {len(data)} programs that no source has learnt" in result.start


def test_a_pool_that_was_learnt_before_is_what_the_error_tells_of(adapted, tmp_path: Path):
    """A checkpoint that learnt all but a few of these candidates: no budget would help."""
    first = adapted[0]
    checkpoint, programs = find_base(str(first.path)), pool_of(first)
    learnt = sorted(programs.marks(range(len(programs.pool) - 5)))
    config = replace(checkpoint.checkpoint.config, training={LEARNT: learnt})
    lab = Lab()
    with pytest.raises(SamplingError, match="355 of 360 candidates were learnt before") as caught:
        run(replace(checkpoint, checkpoint=replace(checkpoint.checkpoint, config=config)), lab, tmp_path)
    assert "--pool" in caught.value.remedy
    assert not lab.measured


def test_a_corpus_of_this_device_counts_as_learnt(adapted):
    """`--from` a corpus of this device: its marks are those of the pool's programs."""
    result = adapted[0]
    programs = pool_of(result)
    marks = corpus_marks(Corpus.open(result.corpus))
    measured = names(result, "learn") | names(result, "hold-out")
    entries, tasks = programs.pool.entries, programs.pool.tasks
    places = [i for i, entry in enumerate(entries) if (tasks[entry.task].task_id, entry.key) in measured]
    assert len(places) == result.measured
    assert marks >= programs.marks(places)


def test_a_decision_is_kept_with_its_seconds_and_a_torn_line_is_decided_again(tmp_path: Path):
    kept = kept_decisions(tmp_path / "new")
    decision = StopDecision(True, 32, 0.01, 12.5, 60.0, "it is not worth it")
    assert kept.get(("a",)) is None
    kept.put(("a",), decision.as_dict())
    kept.put(("b",), replace(decision, stop=False, gain=None).as_dict())
    assert kept_decisions(tmp_path / "new").get(("a",)) == decision
    assert kept.get(("c",)) is None
    file = tmp_path / "new" / "decisions.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    assert (kept.get(("a",)), kept.get(("b",))) == (decision, None)
    kept.put(("c",), decision.as_dict())
    assert kept.get(("c",)) == decision, "what follows a torn line is whole"


def test_a_run_that_goes_on_stops_where_the_first_one_did_whatever_its_clock_says(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Learning takes an hour in the second run: by its own clock no round would be worth its time."""
    from tchub.hub.adaptation import session as adapt_session

    options = LITTLE | {"budget": "auto", "rounds": 1, "worth": 10.0}
    first = run(base, Lab(), tmp_path, **options)
    ticks = iter(np.arange(0, 1e9, 3600.0))
    monkeypatch.setattr(adapt_session.time, "perf_counter", lambda: next(ticks))
    lab = Lab()
    again = run(base, lab, tmp_path, **options)
    assert again.stop == first.stop
    assert [point.labels for point in again.curve] == [point.labels for point in first.curve]
    assert not lab.measured

"""Collecting on many machines: who measures what, and one corpus in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.cli import main
from tchub.hub.device import measure
from tchub.hub.device.measure import Measurement
from tchub.hub.records.history import history_file
from tchub.hub.tuning import collect as collecting
from tchub.hub.tuning.collect import collect
from tchub.hub.tuning.shards import Shard, ShardError
from tchub.zoo.corpus import Corpus, merge_corpora, workloads

IDS = st.lists(st.text("0123456789abcdef", min_size=16, max_size=16), min_size=1, max_size=40, unique=True)


def tasks_of(ids: list[str]) -> list[Any]:
    return [SimpleNamespace(task_id=task_id) for task_id in ids]


@given(IDS, st.data())
def test_every_task_is_in_one_shard_and_the_order_of_extraction_does_not_matter(
    ids: list[str], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(ids)))
    hands = [[t.task_id for t in Shard(i + 1, count).of(tasks_of(ids))] for i in range(count)]
    assert sorted(t for hand in hands for t in hand) == sorted(ids)
    assert max(map(len, hands)) - min(map(len, hands)) <= 1
    shuffled = data.draw(st.permutations(ids))
    assert {t.task_id for t in Shard(1, count).of(tasks_of(shuffled))} == set(hands[0])


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "-1/4", "1/4/2"])
def test_what_names_no_shard_is_refused(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["collect", "--shard", text, "--out", str(tmp_path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["error"] == "ShardError"
    assert "3/8" in said["remedy"]


def test_more_shards_than_tasks_is_an_error_before_anything_is_measured() -> None:
    with pytest.raises(ShardError, match="3 shards of 2 tasks") as caught:
        Shard(1, 3).of(tasks_of(["a", "b"]))
    assert "2 shards at most" in str(caught.value.remedy)


class _Clock:
    """Stands for the workers: a program's latency follows from its name."""

    overlaps = True

    def __init__(self, *_: object) -> None:
        self.outcomes = {"ok": 0}

    def __enter__(self) -> _Clock:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def know(self, task_id: str, latency: float) -> None:
        pass

    def measure(self, candidates: Any) -> Iterator[tuple[Any, Measurement]]:
        for candidate in candidates:
            latency = 1e-6 * (1 + int(candidate.key[:4], 16))
            self.outcomes["ok"] += 1
            yield candidate, Measurement((latency,), None, None, 0.1, 0.1, 1.7e9)


def test_shards_merge_to_what_one_machine_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "Measurer", _Clock)
    # What evolves depends on the threads of the search as well; what is drawn at random, on the seed alone.
    monkeypatch.setattr(collecting._Collector, "_evolved", lambda *_: iter(()))
    monkeypatch.setattr(workloads, "SUITES", {"tiny": ("batch-matmul-scores", "dense-tall")})
    collect("tiny", 16, tmp_path / "whole", seed=3)
    shared = history_file().read_bytes()
    told = [collect("tiny", 16, tmp_path / "cut", seed=3, shard=Shard(number, 2)) for number in (1, 2)]
    assert [Path(result.path).name for result in told] == ["shard-1-of-2", "shard-2-of-2"]
    assert history_file().read_bytes() == shared, "no two shards write to one file"
    merged = merge_corpora(tmp_path / "cut", [result.path for result in told]).corpus
    whole = Corpus.open(tmp_path / "whole")
    assert repr(merged.tasks) == repr(whole.tasks)
    assert list(map(repr, merged.iter_programs())) == list(map(repr, whole.iter_programs()))
    assert len(merged.meta["commands"]) == 2
    assert "--shard 1/2" in merged.meta["commands"][0]

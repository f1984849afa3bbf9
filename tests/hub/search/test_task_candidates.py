"""Tasks and candidates: identity, classes, programs that differ, and work that is done ahead of the results."""

import json
import threading
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.networks.alternatives import extract
from tchub.hub.networks.errors import NetworkLoadError
from tchub.hub.networks.tasks import merge, task_id
from tchub.hub.networks.workloads import load_network, operator_module, tasks_of
from tchub.hub.search import candidates
from tchub.hub.search.candidates import evolved_candidates, has_choice, map_ahead, random_candidates, trace_key
from tchub.zoo.corpus.workloads import OPERATORS


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_tasks_of_their_class(name: str, target: Any) -> None:
    (task,) = tasks_of(name, target)
    assert task.op == {"dense": "matmul"}.get(OPERATORS[name].op, OPERATORS[name].op)
    assert task.flops > 0
    assert has_choice(task, target)


def test_the_same_computation_has_the_same_id(small_task: Any) -> None:
    spec = OPERATORS["dense-square"]
    assert task_id(operator_module(spec)) == task_id(operator_module(spec))
    assert task_id(operator_module(spec)) != small_task.task_id


def test_merging_adds_weights_and_keeps_networks(small_task: Any) -> None:
    a, b = replace(small_task, networks={"a": 2}, weight=2), replace(small_task, networks={"b": 3}, weight=3)
    (merged,) = merge([a, b])
    assert (merged.weight, merged.networks) == (5, {"a": 2, "b": 3})


def test_random_candidates_are_distinct_and_seeded(small_task: Any, target: Any, small_candidates: list[Any]) -> None:
    keys = [c.key for c in small_candidates]
    assert len(set(keys)) == len(keys) == 12
    again = random_candidates(small_task, target, 12, seed=0)
    assert [c.key for c in again] == keys
    assert not set(keys) & {c.key for c in random_candidates(small_task, target, 4, seed=1, known=keys)}


def test_a_program_that_tvm_cannot_make_costs_an_attempt_alone(
    small_task: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, attempts = candidates._generate, count()

    def generate(*args: Any) -> Any:
        if next(attempts) == 0:
            raise RuntimeError("Literal value 3221225472 exceeds range of int32")
        yield from plain(*args)

    monkeypatch.setattr(candidates, "_generate", generate)
    assert len(random_candidates(small_task, target, 2)) == 2


def test_a_key_ignores_the_post_processing(small_candidates: list[Any]) -> None:
    insts, decisions = json.loads(small_candidates[0].trace)
    end = next(i for i, inst in enumerate(insts) if inst[0] == "EnterPostproc")
    assert trace_key([insts[:end], decisions]) == small_candidates[0].key


def test_evolved_candidates_are_new(small_task: Any, target: Any, small_candidates: list[Any]) -> None:
    measured = [(c.trace, 1e-3 * (i + 1)) for i, c in enumerate(small_candidates)]
    evolved = evolved_candidates(small_task, target, 6, measured, seed=0)
    assert evolved
    assert all(c.strategy == "evolutionary" for c in evolved)
    assert not {c.key for c in evolved} & {c.key for c in small_candidates}


def test_an_unknown_network_names_the_nearest() -> None:
    with pytest.raises(NetworkLoadError, match="bert-tny") as caught:
        load_network("bert-tny")
    assert "bert-tiny" in str(caught.value.remedy)


def test_a_real_network_gives_weighted_tasks(target: Any) -> None:
    tasks = extract(load_network("bert-tiny"), target)
    assert {"matmul", "batch_matmul", "softmax"} <= {task.op for task in tasks}
    assert max(task.weight for task in tasks) > 1
    assert len({task.task_id for task in tasks}) == len(tasks)


@given(st.lists(st.integers()), st.integers(0, 5))
def test_the_same_results_in_the_same_order(items: list[int], ahead: int) -> None:
    assert list(map_ahead(lambda item: item + 1, items, lambda: ahead)) == [(item, item + 1) for item in items]


@pytest.mark.parametrize("ahead", [0, 4])
def test_an_exception_arrives_in_its_items_place(ahead: int) -> None:
    stream = map_ahead(lambda item: 1 // item, [1, 0], lambda: ahead)
    assert next(stream) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(stream)


def test_results_are_made_side_by_side_ahead_of_being_asked_for_and_no_more_than_is_still_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "usable_cpus", lambda: 2)
    both = threading.Barrier(2, timeout=30)
    asked: list[int] = []
    wanted = [4]
    for _ in map_ahead(lambda item: asked.append(item) or both.wait(), count(), lambda: wanted[0]):
        wanted[0] -= 1
        if wanted[0] == 0:
            break
    assert sorted(asked) == [0, 1, 2, 3]


def test_closing_early_ends_the_threads() -> None:
    stream = map_ahead(str, count(), lambda: 2)
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("tchub-ahead")]

"""The transfer benchmark and the leaderboard: who may learn from which task, and what is compared with what."""

from operator import sub, truediv
from pathlib import Path
from typing import Any

import pytest
import torch
from tchub.zoo.corpus import Corpus, Task
from tchub.zoo.models import create

from scripts.benchmarks.transfer import figures
from scripts.benchmarks.transfer.data import divide
from scripts.benchmarks.transfer.methods import fisher_average


def answer(method: str, value: float, seed: int = 0, **where: Any) -> dict[str, Any]:
    """An answer of which every score is the same."""
    asked = {"target": "k80", "seen": False, "protocol": "cross-task", "labels": 0}
    asked |= {"sources": ("v100",), "taught": ()} | where
    scores = dict.fromkeys(("pairwise", "mean_top1", "mean_top5", "top1", "top5"), value)
    facts = {"drawn": asked["labels"]}
    return facts | asked | {"method": method, "seed": seed, "scores": scores}


def tasks(name: str, train: str, val: str = "", test: str = "") -> Any:
    """A corpus whose tasks compute what the letters say; a task's id names its corpus too."""
    split = {
        part: [f"{name}-{letter}" for letter in own] for part, own in {"train": train, "val": val, "test": test}.items()
    }
    known = {task: Task(task, task, "matmul", 1.0, task, task[-1]) for part in split.values() for task in part}
    return Corpus(Path(name), {"split": split}, known)


def test_what_a_model_depends_on_decides_an_average() -> None:
    a, b = (create("tenset-mlp", seed=seed, width=6, hidden=16) for seed in (0, 1))
    ones = {name: torch.ones_like(p) for name, p in a.named_parameters()}
    for name, p in fisher_average([a, b], [ones, ones]).named_parameters():
        torch.testing.assert_close(p, (a.get_parameter(name) + b.get_parameter(name)) / 2)
    needed = ones | {"decoder.weight": torch.full_like(a.get_parameter("decoder.weight"), 1e9)}
    average = fisher_average([a, b], [needed, ones]).get_parameter("encoder.0.weight")
    torch.testing.assert_close(average, b.get_parameter("encoder.0.weight"), rtol=0.1, atol=0.1)


def test_unseen_hides_every_test_task_of_any_device_by_what_it_computes() -> None:
    target = tasks("new", train="abx", val="c", test="yz")
    source = tasks("old", train="adyz", val="e", test="x")
    own, given, judged = divide(target, [source], "test", seen=False)
    assert own == ["new-a", "new-b", "new-c"], "x is a test task of the source"
    assert given == [["old-a", "old-d", "old-e"]]
    assert judged == ["new-y", "new-z"]


def test_seen_leaves_the_judging_tasks_to_the_sources_and_judges_only_those() -> None:
    target = tasks("new", train="ab", test="yz")
    source = tasks("old", train="ay", test="x")
    own, given, judged = divide(target, [source], "test", seen=True)
    assert given == [["old-a", "old-y"]], "x stays hidden: it is a test task, and not the target's"
    assert judged == ["new-y"], "no source knows z"
    assert own == ["new-a", "new-b"]


@pytest.mark.parametrize("seen", [False, True])
def test_choices_never_look_at_a_test_task(seen: bool) -> None:
    target = tasks("new", train="ab", val="cy", test="z")
    source = tasks("old", train="acz", val="b", test="y")
    own, (given,), judged = divide(target, [source], "val", seen)
    assert not {task[-1] for task in (*own, *judged, *given)} & set("yz")
    assert judged == ["new-c"]
    assert ("old-c" in given) is seen
    assert "new-c" not in own


SCRATCH = [(0, 0.5), (4, 0.6), (16, 0.7), (32, 0.8)]


@pytest.mark.parametrize(
    ("scratch", "ours", "ratio"),
    [
        (SCRATCH, [(0, 0.7), (4, 0.8), (16, 0.82), (32, 0.85)], 8),  # four labels do what scratch does with thirty-two
        (SCRATCH, [(0, 0.9), (32, 0.95)], 32),  # no label counts as one
        (SCRATCH, [(0, 0.6), (32, 0.7)], 16 / 32),  # it never gets there
        ([(0, 0.5), (32, 0.8)], [(0, 0.5), (4, 0.8), (8, 0.6), (16, 0.7), (32, 0.8)], 1),  # a lucky point is none
        (SCRATCH, [(0, 0.6), (8, 0.9)], None),  # curves that end elsewhere are not compared
        ([], SCRATCH, None),
    ],
)
def test_a_ratio_is_of_the_labels_that_both_need(scratch: Any, ours: Any, ratio: float | None) -> None:
    assert figures.label_ratio(scratch, ours) == (ratio if ratio is None else pytest.approx(ratio))


def test_only_seeds_that_both_methods_have_are_compared() -> None:
    """Seed 1 is a hard one, which only the other method met."""
    rows = figures.mean_rows([
        answer("ours", 0.9, 0), answer("ours", 0.8, 2),
        answer("fine-tune", 0.8, 0), answer("fine-tune", 0.1, 1), answer("fine-tune", 0.6, 2),
        answer("continual", 0.9, 3),
    ])  # fmt: skip
    assert figures.compared(rows, "ours", "fine-tune", "pairwise", sub) == pytest.approx(0.15)
    assert figures.compared(rows, "ours", "fine-tune", "pairwise", truediv) == pytest.approx(0.85 / 0.7)
    assert figures.compared(rows, "ours", "continual", "pairwise", sub) is None, "no seed in common"
    (row,) = figures.difference_rows(rows)
    assert (row["difference"], row["target"], row["seeds"]) == ("ours less fine-tune", "k80", 2)
    assert row["pairwise"]["stdev"] == pytest.approx(0.0707, abs=1e-4)


def test_a_curve_starts_with_what_the_method_itself_has_without_labels_and_scratchs_with_a_coin() -> None:
    more = {"protocol": "in-task"}
    rows = figures.mean_rows([
        answer("zero-shot", 0.7),
        *(answer(name, v, labels=n, **more) for name, n, v in (("ours", 8, 0.9), ("scratch", 8, 0.6))),
    ])  # fmt: skip
    assert figures.curve(rows, "k80", False, "ours") == [(8, 0.9)], "zero-shot is another model"
    assert figures.curve(rows, "k80", False, "scratch") == [(0, 0.5), (8, 0.6)]
    rows += figures.mean_rows([answer("ours", 0.65, labels=0, **more)])
    assert figures.curve(rows, "k80", False, "ours") == [(0, 0.65), (8, 0.9)]


def test_both_curves_of_a_label_ratio_are_of_the_same_seeds() -> None:
    more = {"protocol": "in-task"}
    rows = figures.mean_rows([
        answer("ours", 0.6, labels=4, **more), answer("ours", 0.8, labels=32, **more),
        answer("ours", 1.0, 1, labels=4, **more), answer("ours", 1.0, 1, labels=32, **more),
        answer("scratch", 0.8, labels=32, **more),
    ])  # fmt: skip
    (row,) = figures.ratio_rows(rows)
    assert (row["versus"], row["seeds"]) == ("scratch", 1)
    assert row["ratio"] == pytest.approx(1.0), "seed 1 would have needed four labels"
    assert not row["at_least"]


def test_of_tasks_that_are_too_small_the_labels_that_were_drawn_count() -> None:
    """Of 32 labels 20 are half of such a task: ours has with 4 what scratch has with 20, a fifth and no eighth."""
    more = {"protocol": "in-task"}
    rows = figures.mean_rows([
        answer("scratch", 0.8, labels=32, drawn=20.0, **more),
        answer("ours", 0.8, labels=4, drawn=4.0, **more), answer("ours", 0.9, labels=32, drawn=20.0, **more),
    ])  # fmt: skip
    (row,) = figures.ratio_rows(rows)
    assert row["ratio"] == pytest.approx(5.0)


def test_the_summary_tells_seen_from_unseen_and_leaves_out_what_was_not_measured() -> None:
    def curves(seen: bool, need: int) -> list[dict[str, Any]]:
        more = {"protocol": "in-task", "seen": seen}
        reached = [answer("ours", 0.6 if n < need else 0.8, labels=n, **more) for n in (4, 8, 32)]
        return [*reached, answer("scratch", 0.8, labels=32, **more)]

    rows = figures.mean_rows([*curves(False, 8), *curves(True, 4)])
    summary = figures.summary(rows, {"pairwise": 0.01})
    assert summary["label_ratio_vs_scratch"] == pytest.approx(4.0)
    assert summary["label_ratio_vs_scratch_seen"] == pytest.approx(8.0)
    assert [row["at_least"] for row in figures.ratio_rows(rows)] == [False, True], "four are the fewest that were asked"
    assert summary["forgetting_pairwise"] == 0.01
    assert "continual_over_full" not in summary
    assert "label_ratio_vs_trees" not in summary

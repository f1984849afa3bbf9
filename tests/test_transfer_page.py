"""What the transfer benchmark's document says of what is missing, and what the page shows of what is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from script_kit import scripts_fixture
from transfer_kit import answer

tools = scripts_fixture(
    figures="benchmarks.transfer.figures", kept="benchmarks.transfer.kept", page="benchmarks.report.adaptation"
)


@pytest.fixture(scope="module")
def figures(tools: Any) -> Any:
    return tools["figures"]


# What is missing


def question(method: str, seed: int, **where: Any) -> Any:
    return SimpleNamespace(**answer(method, 0.0, seed, **where))


def test_what_lacks_as_many_seeds_is_told_together(tools: Any) -> None:
    answers = [answer("ours", 0.9, seed, target=target) for seed in range(3) for target in ("k80", "mi50")]
    answers += [answer("full", 0.9, seed, target=target) for seed in range(3) for target in ("k80", "mi50")]
    answers += [answer("scratch", 0.9, seed) for seed in range(5)]
    kept = tools["kept"].Kept([*answers, answer("random", 0.5)], [question("trees", 0, protocol="in-task", labels=4)])
    assert tools["kept"].shortfalls(kept, fixed=["random"], targets=["mi50", "k80"]) == [
        "2 of 5 seeds of ours and full (cross-task; every target)",
        "5 of 5 seeds of trees (in-task; k80)",
    ]


def test_of_several_numbers_of_labels_the_poorest_counts(tools: Any) -> None:
    more = {"protocol": "in-task"}
    answers = [answer("ours", 0.9, seed, labels=4, **more) for seed in range(5)]
    kept = tools["kept"].Kept([*answers, answer("ours", 0.9, 0, labels=8, **more)])
    assert tools["kept"].shortfalls(kept) == ["4 of 5 seeds of ours (in-task; k80)"]
    kept = tools["kept"].Kept(answers, [question("ours", 0, labels=4, seen=True, **more)])
    assert tools["kept"].shortfalls(kept) == ["5 of 5 seeds of ours (in-task, seen; k80)"]


def test_a_run_that_has_no_more_time_tells_what_it_has_from_what_it_lacks(tools: Any) -> None:
    """One answer is there, one is not, and one question has no meaning for its target."""

    class Runs:
        left = 0

        def answer(self, asked: Any) -> Any:
            self.left += asked.seed == 1
            return answer(asked.method, 0.9) if asked.seed == 0 else None

    found = tools["kept"].collect(Runs(), [question("ours", seed) for seed in (0, 1, 2)])
    assert tools["kept"].used_seeds(found.answers) == [0]
    assert [asked.seed for asked in found.missing] == [1]


# The page


def test_the_page_tells_protocols_apart_and_has_no_table_of_what_was_not_run(tools: Any, figures: Any) -> None:
    rows = figures.mean_rows([
        answer("zero-shot", 0.6), answer("ours", 0.8),
        *(answer(name, 0.9, protocol="in-task", labels=n, seen=True) for name in ("ours", "scratch") for n in (4, 8)),
        answer("scratch", 0.7, protocol="in-task", labels=8, seen=True, target="t4"),
    ])  # fmt: skip
    titles = {"zero-shot": "nothing measured", "scratch": "from scratch", "ours": "ours"}
    ratios = [{"target": "k80", "seen": True, "versus scratch": 4.0}]
    job = {"details": {"rows": rows, "methods": titles, "label_ratios": ratios, "forgetting": []}}
    found = tools["page"].transfer(job)
    assert found["Cross-task, unseen: pairwise accuracy"] == [
        {"target": "k80", "nothing measured": "0.600 (1)", "ours": "0.800 (1)"}
    ]
    assert [row["labels a task"] for row in found["In-task, seen: top-1"]] == [4, 8, 8]
    mean_of_both = {"method": "from scratch", "targets": 2, "8 labels": "0.800 (1)"}
    assert found["In-task, seen: pairwise accuracy, mean over targets"] == [mean_of_both]  # ours has one of them
    assert list(found.values())[-1] == ratios
    assert not any("forget" in title or title.startswith("Both") for title in found)


def test_a_mean_over_targets_is_of_the_seeds_that_all_of_them_have(tools: Any, figures: Any) -> None:
    rows = figures.mean_rows([
        answer("ours", 0.8, 0), answer("ours", 0.9, 1), answer("ours", 0.1, 2),
        answer("ours", 0.6, 0, target="t4"), answer("ours", 0.7, 1, target="t4"),
    ])  # fmt: skip
    found = tools["page"].over_targets(rows, "pairwise")
    assert (found["mean"], found["seeds"]) == (pytest.approx(0.75), 2)
    assert tools["page"].figure(found) == "0.750 ± 0.071 (2)"


def test_a_page_of_a_run_that_has_next_to_nothing_has_no_table(tools: Any, figures: Any) -> None:
    assert tools["page"].transfer({"details": {}}) == {}
    assert tools["page"].sampling({"details": {"table": [], "pool": []}}) == {}
    unknown = figures.mean_rows([answer("gone", 0.5, protocol="in-task", labels=4)])
    assert tools["page"].transfer({"details": {"rows": unknown, "methods": {"ours": "ours"}}}) == {}


def test_rows_of_plain_tables_have_their_seeds_in_the_cell(tools: Any, figures: Any) -> None:
    lost = {"EWC": {"pairwise": figures.spread([0.02, 0.04])}}
    shown = tools["page"].transfer({"details": {"lost": lost, "papers": [{"method": "TLP", "k80": {"mean": 0.8}}]}})
    assert shown["Score lost on earlier devices"] == [{"of": "EWC", "pairwise": "0.030 ± 0.014 (2)"}]
    assert shown["The papers' own networks"] == [{"method": "TLP", "k80": {"mean": 0.8}}]


def test_where_a_method_without_sources_is_ahead_is_told(tools: Any, figures: Any) -> None:
    scores = {"ours": (0.8, 0.9), "scratch": (0.7, 0.8), "trees": (0.85, 0.82), "fine-tune": (0.6, 0.75)}
    rows = figures.mean_rows([
        answer(name, value, protocol="in-task", labels=labels)
        for name, values in scores.items() for labels, value in zip((8, 16), values, strict=True)
    ])  # fmt: skip
    titles = {"ours": "ours", "scratch": "from scratch", "trees": "trees", "fine-tune": "fine-tuned"}
    told = list(tools["page"].lost_transfer({"details": {"rows": rows, "methods": titles}}))
    assert told[:2] == [
        "k80, unseen, pairwise accuracy, ours: 0.800 with 8 labels a task, trees 0.850.",
        "k80, unseen, pairwise accuracy, fine-tuned: 0.600 with 8 labels a task, trees 0.850; "
        "0.750 with 16 labels a task, trees 0.820.",
    ]
    assert len(told) == 4, "and of top-1 alike"


def test_differences_have_a_row_each_and_a_column_for_each_target(tools: Any) -> None:
    def row(difference: str, target: str, gap: float) -> dict[str, Any]:
        spread = {"mean": gap, "stdev": None, "seeds": 1}
        return {"difference": difference, "target": target, "pairwise": spread, "mean_top1": spread}

    rows = [row("a less b", "k80", 0.1), row("a less b", "mi50", 0.2), row("c less b", "mi50", -0.1)]
    shown = tools["page"].transfer({"details": {"differences": rows}})
    assert shown["Differences cross-task, seed by seed: pairwise accuracy"] == [
        {"difference": "a less b", "k80": "0.100 (1)", "mi50": "0.200 (1)"},
        {"difference": "c less b", "mi50": "-0.100 (1)"},
    ]

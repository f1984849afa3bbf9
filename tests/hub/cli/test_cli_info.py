"""`tchub list` and `tchub info`: search, kinds, orders and comparison, with the catalogue's own facts."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.cli import main
from tchub.hub.cli.zoo import list_command
from tchub.hub.registry import Index, Registry, describe
from tchub.hub.registry.files import records_of
from tchub.hub.registry.listing import SORT_KEYS, in_list_order, kind_of, matching, published
from tchub.zoo.features import SCHEMAS, get_schema
from toy_checkpoints import publish, write_index, write_toy

SHIPPED = Index.shipped().entries


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints of two families, none of which ships; the better one of `epyc` comes second by name."""
    root = tmp_path / "zoo"
    source = {"sources": [root.as_uri()]}
    low = {"metrics": {"top1": 0.5, "top5": 0.9, "pairwise": 0.99}}
    entries = [
        publish(root, "lstm-epyc", entry=source | low),
        publish(root, "tlp-epyc", entry=source, feature_schema="nest-cpu"),
        publish(root, "lstm-a100", entry=source, feature_schema="tcl-gpu"),
    ]
    monkeypatch.setenv("TCHUB_INDEX", str(write_index(tmp_path / "index.json", *entries)))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return root


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    told = capsys.readouterr()
    return code, told.out, told.err


def names(capsys: Any, *arguments: str) -> list[str]:
    return [row["name"] for row in json.loads(run(capsys, "list", *arguments, "--json")[1])]


def test_by_default_families_stay_together_and_the_best_of_each_comes_first(zoo: Path, capsys: Any) -> None:
    assert names(capsys) == ["tlp-epyc", "lstm-epyc", "lstm-a100"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--sort", "name"], ["lstm-a100", "lstm-epyc", "tlp-epyc"]),
        (["--sort", "pairwise"], ["lstm-epyc", "lstm-a100", "tlp-epyc"]),
        (["--kind", "gpu"], ["lstm-a100"]),
        (["--search", "AMD lstm"], ["lstm-epyc"]),
        (["--search", "nvidia"], ["lstm-a100"]),
        (["--search", "nest", "--kind", "gpu"], []),
    ],
)
def test_list_searches_filters_and_sorts(zoo: Path, capsys: Any, arguments: list[str], wanted: list[str]) -> None:
    assert names(capsys, *arguments) == wanted


def test_scores_sorted_across_families_come_with_a_caution(zoo: Path, capsys: Any) -> None:
    caution = "scores of different families do not compare"
    assert caution in run(capsys, "list", "--sort", "top1")[2]
    assert caution not in run(capsys, "list", "--sort", "top1", "--family", "epyc")[2]
    assert caution not in run(capsys, "list")[2]


def test_lines_that_are_read_by_a_program_are_whole(zoo: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run(capsys, "list", "--quiet")[1].splitlines()
    assert len(lines) == 4
    assert all("Apache-2.0, data CC0-1.0" in line for line in lines[1:])


@pytest.mark.parametrize(("width", "left_out"), [(120, "data"), (80, "arch"), (60, "version"), (40, "top-5")])
def test_a_narrow_terminal_loses_columns_and_no_digit_of_a_score(
    zoo: Path, capsys: Any, monkeypatch: Any, width: int, left_out: str
) -> None:
    monkeypatch.delenv("TCHUB_INDEX")  # the zoo that ships, whose names are long
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    head, *lines = unstyle(run(capsys, "list", "--quiet")[1]).splitlines()
    assert left_out not in head
    scores = [title for title in ("top-1", "top-5", "pairwise") if title != left_out]
    assert head.split()[-len(scores) :] == scores
    assert len(lines) == len(SHIPPED)
    for line in lines:
        assert len(line) <= width
        assert all(re.fullmatch(r"\d\.\d{3}", score) for score in line.split()[-len(scores) :]), line


def test_an_order_that_there_is_not_is_wrong_usage(zoo: Path, capsys: Any) -> None:
    assert run(capsys, "list", "--sort", "beauty")[0] == 2


# Comparison


def test_info_of_several_sets_them_side_by_side(zoo: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "info", "lstm-epyc", "tlp-epyc", "lstm-a100")
    assert code == 0
    (head,) = [line.split() for line in out.splitlines() if "1.0.0" in line and "lstm-epyc" in line]
    assert head == ["lstm-epyc", "1.0.0", "tlp-epyc", "1.0.0", "lstm-a100", "1.0.0"]
    (top1,) = [line.split() for line in out.splitlines() if line.startswith("top-1")]
    assert top1 == ["top-1", "0.500", "0.910", "0.910"]
    assert "scores cannot be held against each other" in err
    assert "lstm-a100@1.0.0 is not on this machine" in err


def test_a_deviation_over_seeds_stands_beside_the_mean_that_it_belongs_to(zoo: Path, capsys: Any) -> None:
    seeds = {"count": 3, "top1": {"mean": 0.8, "stdev": 0.125}, "top5": {"stdev": 0.25}}
    list_with_metrics(zoo, results={"model": {"top1": 0.9, "top5": 0.9}}, seeds=seeds)
    run(capsys, "pull", "tcl-epyc")
    out = run(capsys, "info", "tcl-epyc", "tcl-epyc")[1]
    (top1,) = [line for line in out.splitlines() if line.startswith("top-1")]
    assert top1.count("(3 seeds: 0.800 ± 0.125)") == 2
    assert "0.250" not in out, "without its mean a deviation says nothing"


def test_checkpoints_judged_on_the_same_programs_compare_without_a_caution(zoo: Path, capsys: Any) -> None:
    for name in ("lstm-epyc", "tlp-epyc"):
        run(capsys, "pull", name)
    err = run(capsys, "info", "lstm-epyc", "tlp-epyc")[2]
    assert "held against each other" not in err


def test_compared_as_json_is_what_the_catalogue_holds(zoo: Path, capsys: Any) -> None:
    told = json.loads(run(capsys, "info", "lstm-epyc", "lstm-a100", "--json")[1])
    listed = {one.entry.name: one.as_dict() for one in published(Registry.default())}
    for one in told:
        assert one.items() <= listed[one["name"]].items()


def test_every_fact_of_a_list_is_in_the_catalogue(zoo: Path, capsys: Any) -> None:
    listed = {one.entry.name: one.as_dict() for one in published(Registry.default())}
    for row in json.loads(run(capsys, "list", "--json")[1]):
        assert row.items() <= listed[row["name"]].items()


@pytest.mark.parametrize("arguments", [["a-b"] * 5, ["lstm-epyc", "lstm-a100", "--card"], []])
def test_more_than_four_or_several_cards_are_wrong_usage(zoo: Path, capsys: Any, arguments: list[str]) -> None:
    assert run(capsys, "info", *arguments)[0] == 2


# What search and order promise


@pytest.mark.parametrize("card", [b"\x1b]0;mine\x07\x1b[2J", "\u202e\x9b2J".encode(), b"\xff\xfe", b"\r"])
def test_a_card_puts_nothing_but_text_onto_a_terminal(zoo: Path, capsys: Any, card: bytes) -> None:
    folder = write_toy(zoo / "tcl-epyc" / "1.0.0", "tcl-epyc")
    (folder / "README.md").write_bytes(b"# A card\n\tof " + card)
    write_index(zoo.parent / "index.json", describe(folder, "tcl-epyc", "1.0.0", sources=[zoo.as_uri()]))
    assert main(["pull", "tcl-epyc"]) == 0
    capsys.readouterr()
    assert main(["info", "tcl-epyc", "--card", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# A card\n")
    assert all(letter.isprintable() or letter in "\n\t" for letter in shown)


def list_with_metrics(zoo: Path, **metrics: Any) -> None:
    """Let the index list one checkpoint, `tcl-epyc`, with this metrics.json."""
    folder = write_toy(zoo / "tcl-epyc" / "1.0.0", "tcl-epyc")
    entry = describe(folder, "tcl-epyc", "1.0.0", sources=[zoo.as_uri()])
    (folder / "metrics.json").write_text(json.dumps({"format": 1} | metrics))
    records = records_of(folder, ("metrics.json",))
    write_index(zoo.parent / "index.json", replace(entry, files={**entry.files, **records}))


def test_scores_with_control_characters_are_refused(zoo: Path, capsys: Any) -> None:
    list_with_metrics(zoo, results={"\x1b[2J": {"top1": 0.5}})
    main(["pull", "tcl-epyc"])
    capsys.readouterr()
    assert main(["info", "tcl-epyc"]) == 1
    assert "control characters" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[/b] x", "[red]x[/red]", "[link=http://x]y[/link]", ":smile:", "[", r"\[b]"])
def test_what_a_checkpoints_files_say_in_brackets_is_shown_as_it_is(zoo: Path, capsys: Any, text: str) -> None:
    score = {"pairwise": 0.7}
    devices = [{"corpus": f"c{text}", "column": score, "learnt": score, "now": score}]
    results = {"model": score | {"label": f"m{text}"}, f"k{text}": score}
    list_with_metrics(zoo, split=f"s{text}", results=results, devices=devices)
    code, told, _ = run(capsys, "pull", "tcl-epyc")
    assert code == 0
    for shown in (f"s{text} split", f"m{text}", f"k{text}"):
        assert shown in told
    code, told, _ = run(capsys, "info", "tcl-epyc")
    assert code == 0
    for shown in (f"s{text} split", f"m{text}", f"k{text}", f"c{text}"):
        assert shown in told


@pytest.mark.parametrize(
    "devices",
    [["a"], {"a": 1}, "a", 7, [None, []], [{"column": 1, "learnt": {"pairwise": "high"}, "now": {"pairwise": 0.5}}]],
)
def test_devices_of_another_shape_stop_nothing(zoo: Path, capsys: Any, devices: Any) -> None:
    list_with_metrics(zoo, split=["test"], results=[], devices=devices)
    for command in ("pull", "info"):
        code, told, _ = run(capsys, command, "tcl-epyc")
        assert code == 0
        assert "this checkpoint" in told


@pytest.mark.parametrize("arguments", [["--card"], ["tcl-epyc"]])
def test_a_terminal_that_knows_fewer_letters_gets_their_numbers(zoo: Path, monkeypatch: Any, arguments: Any) -> None:
    folder = write_toy(zoo / "tcl-epyc" / "1.0.0", "tcl-epyc")
    (folder / "README.md").write_text("0.9 ± 0.1")
    seeds = {"count": 3, "top1": {"mean": 0.8, "stdev": 0.1}}
    (folder / "metrics.json").write_text(json.dumps({"format": 1, "results": {"model": {"top1": 0.9}}, "seeds": seeds}))
    write_index(zoo.parent / "index.json", describe(folder, "tcl-epyc", "1.0.0", sources=[zoo.as_uri()]))
    assert main(["pull", "tcl-epyc", "--quiet"]) == 0
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="ascii", write_through=True))
    assert main(["info", "tcl-epyc", *arguments, "--quiet"]) == 0
    assert rb"\xb1 0.1" in written.getvalue()


def test_the_kind_of_every_feature_schema_is_told_by_its_name() -> None:
    for name in SCHEMAS:
        assert kind_of(replace(SHIPPED[0], feature_schema=name)) == get_schema(name).kind


@given(st.permutations(SHIPPED), st.sampled_from(SORT_KEYS))
def test_an_order_does_not_depend_on_the_order_before_and_loses_nothing(entries: list[Any], key: str) -> None:
    assert in_list_order(entries, key) == in_list_order(SHIPPED, key)
    assert {e.id for e in in_list_order(entries, key)} == {e.id for e in SHIPPED}


@given(st.lists(st.sampled_from(["tcl", "KB", "epyc", "Apache", "nvidia", "gpu", "none", "0"])), st.text(max_size=3))
def test_a_further_word_never_finds_more(words: list[str], more: str) -> None:
    few = matching(SHIPPED, " ".join([*words, more]))
    assert [e for e in matching(SHIPPED, " ".join(words)) if e in few] == few


def test_words_may_stand_in_any_order_and_case() -> None:
    assert [e.name for e in matching(SHIPPED, "TURING base TILENET")] == ["tilenet-kb-gpu"]
    assert matching(SHIPPED, " ") == list(SHIPPED)


def test_in_the_order_by_family_knowledge_bases_come_after_the_families_of_their_kind() -> None:
    families = list(dict.fromkeys(e.family for e in in_list_order(SHIPPED)))
    assert families.index("cpu") < families.index("a100") < families.index("gpu") == len(families) - 1
    scores = [e.metrics["top1"] for e in in_list_order(SHIPPED) if e.family == "t4"]
    assert scores == sorted(scores, reverse=True)


def test_the_command_offers_the_orders_that_there_are() -> None:
    (option,) = [parameter for parameter in list_command.params if parameter.name == "sort"]
    assert option.type.to_info_dict()["choices"] == SORT_KEYS

"""`tchub info`: one checkpoint in full, several side by side, and files that hold anything but what they should."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_kit import use_zoo
from tchub.hub.registry import Registry, describe
from tchub.hub.registry.files import records_of
from tchub.hub.registry.listing import published
from toy_checkpoints import publish, write_index, write_toy


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of two families."""
    root = tmp_path / "zoo"
    source = {"sources": [root.as_uri()]}
    low = {"metrics": {"top1": 0.5, "top5": 0.9, "pairwise": 0.99}}
    entries = [
        publish(root, "lstm-epyc", entry=source | low),
        publish(root, "tlp-epyc", entry=source, feature_schema="nest-cpu"),
        publish(root, "lstm-a100", entry=source, feature_schema="tcl-gpu"),
    ]
    use_zoo(monkeypatch, tmp_path, write_index(tmp_path / "index.json", *entries))
    return root


def test_info_before_and_after_the_pull(zoo, run):
    code, _, err = run("info", "tlp-epyc")
    assert code == 0
    assert "not on this machine" in err
    assert "next: tchub pull tlp-epyc" in err
    run("pull", "tlp-epyc")
    _, out, err = run("info", "tlp-epyc")
    assert all(text in out for text in ("random choice", "model.safetensors", "weights licence  Apache-2.0"))
    assert "not on this machine" not in err
    _, result = run.json("info", "tlp-epyc")
    assert result["results"]["random"]["top1"] == 0.35
    assert len(result["files"]["model.safetensors"]["sha256"]) == 64
    assert result["lineage"] == {"weights_licence": "Apache-2.0", "base": None}
    assert "# tlp-epyc" in run("info", "tlp-epyc", "--card")[1]


def test_info_of_several_sets_them_side_by_side(zoo, run):
    code, out, err = run("info", "lstm-epyc", "tlp-epyc", "lstm-a100")
    assert code == 0
    (top1,) = [line.split() for line in out.splitlines() if line.startswith("top-1")]
    assert top1 == ["top-1", "0.500", "0.910", "0.910"]
    assert "scores cannot be held against each other" in err
    assert "lstm-a100@1.0.0 is not on this machine" in err
    listed = {one.entry.name: one.as_dict() for one in published(Registry.default())}
    assert all(one.items() <= listed[one["name"]].items() for one in run.json("info", "lstm-epyc", "lstm-a100")[1])
    run("pull", "lstm-epyc", "tlp-epyc")
    assert "held against each other" not in run("info", "lstm-epyc", "tlp-epyc")[2], "judged on the same programs"


@pytest.mark.parametrize("arguments", [["a-b"] * 5, ["lstm-epyc", "lstm-a100", "--card"], []])
def test_more_than_four_or_several_cards_are_wrong_usage(zoo, run, arguments):
    assert run("info", *arguments)[0] == 2


def list_with(zoo: Path, card: bytes | None = None, **metrics: Any) -> None:
    """Let the index list one checkpoint, `tcl-epyc`, with this card or this metrics.json."""
    folder = write_toy(zoo / "tcl-epyc" / "1.0.0", "tcl-epyc")
    entry = describe(folder, "tcl-epyc", "1.0.0", sources=[zoo.as_uri()])
    if card is not None:
        (folder / "README.md").write_bytes(card)
    if metrics:
        (folder / "metrics.json").write_text(json.dumps({"format": 1} | metrics))
    records = records_of(folder, ("metrics.json", "README.md"))
    write_index(zoo.parent / "index.json", replace(entry, files={**entry.files, **records}))


@pytest.mark.parametrize("card", [b"\x1b]0;mine\x07\x1b[2J", "\u202e\x9b2J".encode(), b"\xff\xfe", b"\r"])
def test_a_card_puts_nothing_but_text_onto_a_terminal(zoo, run, card):
    list_with(zoo, b"# A card\n\tof " + card)
    assert run("pull", "tcl-epyc")[0] == 0
    code, out, _ = run("info", "tcl-epyc", "--card", "--quiet")
    assert code == 0
    assert out.startswith("# A card\n")
    assert all(letter.isprintable() or letter in "\n\t" for letter in out)


def test_scores_with_control_characters_are_refused(zoo, run):
    list_with(zoo, results={"\x1b[2J": {"top1": 0.5}})
    run("pull", "tcl-epyc")
    code, _, err = run("info", "tcl-epyc")
    assert (code, "control characters" in err) == (1, True)


@pytest.mark.parametrize("text", ["[/b] x", "[red]x[/red]", "[link=http://x]y[/link]", ":smile:", "[", r"\[b]"])
def test_what_a_checkpoints_files_say_in_brackets_is_shown_as_it_is(zoo, run, text):
    score = {"pairwise": 0.7}
    devices = [{"corpus": f"c{text}", "device": "epyc", "column": score, "learnt": score, "now": score}]
    list_with(
        zoo, split=f"s{text}", results={"model": score | {"label": f"m{text}"}, f"k{text}": score}, devices=devices
    )
    for command, more in (("pull", []), ("info", [f"c{text}"])):
        code, out, _ = run(command, "tcl-epyc")
        assert code == 0
        assert all(shown in out for shown in (f"s{text} split", f"m{text}", f"k{text}", *more))


@pytest.mark.parametrize(
    "devices",
    [["a"], {"a": 1}, "a", 7, [None, []], [{"column": 1, "learnt": {"pairwise": "high"}, "now": {"pairwise": 0.5}}]],
)
def test_devices_of_another_shape_stop_nothing(zoo, run, devices):
    list_with(zoo, split=["test"], results=[], devices=devices)
    for command in ("pull", "info"):
        code, out, _ = run(command, "tcl-epyc")
        assert (code, "this checkpoint" in out) == (0, True)

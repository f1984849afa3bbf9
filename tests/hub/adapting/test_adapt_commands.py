"""The command line of adapting and of the corpus it leaves, and the real tools behind it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from adapt_kit import QUICK, Lab, toolbox
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.adaptation import tools as adapt_tools
from tchub.hub.adaptation.card import local_card
from tchub.hub.adaptation.judge import Judgement
from tchub.hub.adaptation.pool import ONE_PROGRAM, PoolEntry
from tchub.hub.adaptation.tools import Base, extract_tasks, rebuild
from tchub.hub.cli import main
from tchub.zoo.corpus import Corpus
from tchub.zoo.models import Checkpoint


def test_the_command_line(base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    tools = toolbox(base, Lab())
    monkeypatch.setattr(adapt_module, "Tools", lambda: tools)
    monkeypatch.setattr(adapt_module, "FineTuneConfig", lambda: QUICK)
    args = ["adapt", "tcl-epyc", "--budget", "40", "--pool", "24", "--rounds", "1", "--work-dir", str(tmp_path)]
    assert main([*args, "--workload", "toy", "--json"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert result["measured"] == 40
    assert result["decision"] in ("adapted", "kept")
    assert main([*args, "--workload", "toy"]) == 0
    shown = capsys.readouterr()
    assert "pairwise" in shown.out
    assert "hold-out: 8 to do\n" in shown.err, "no terminal: a line a phase"
    assert "round 1 of 1: 16 to do\n" in shown.err
    assert f"tchub tune toy --checkpoint {result['name']}" in shown.err
    assert main(["adapt", "--budget", "0"]) == 1
    assert "allows no measurement" in capsys.readouterr().err


def test_corpora_that_were_learnt_and_left_out_are_shown(adapted, monkeypatch: pytest.MonkeyPatch, capsys):
    result, *_ = adapted
    left_out = {"mi50": {"before": 0.812, "after": 0.604, "interval": [-0.3, -0.1]}}
    training = {"sources": ["xeon", "graviton"], "left_out": left_out}
    told = replace(result, sources=("xeon", "mi50", "graviton"), learning=result.learning | {"training": training})
    monkeypatch.setattr(adapt_module, "adapt", lambda *_, **__: told)
    assert main(["adapt", "tcl-epyc"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "learnt xeon, graviton; left out mi50, after which the base ranked the labels worse (0.812, then" in shown


def test_the_verdict_and_the_card_tell_top_1_which_may_fall_while_pairwise_accuracy_rises(
    adapted, monkeypatch: pytest.MonkeyPatch, capsys
):
    result, *_ = adapted
    before, after = {"top1": 0.8, "top5": 0.95, "pairwise": 0.6}, {"top1": 0.726, "top5": 0.9, "pairwise": 0.7}
    told = replace(result, before=before, after=after)
    monkeypatch.setattr(adapt_module, "adapt", lambda *_, **__: told)
    assert main(["adapt", "tcl-epyc"]) == 0
    assert "top-1 (top-5)  0.800 (0.950) before, 0.726 (0.900) after" in capsys.readouterr().out
    facts = Checkpoint.load(result.path).config.lineage | {"name": "a", "version": "1.0.0", "data_licence": "CC0-1.0"}
    card = local_card(facts, Judgement(result.guard, before, after, None, None))
    assert "top-1 (top-5), base | 0.800 (0.950) |" in card
    assert "top-1 (top-5), adapted | 0.726 (0.900) |" in card


def test_the_card_names_the_licences(adapted):
    result, *_ = adapted
    card = (result.path / "README.md").read_text()
    assert "| licence of the weights | Apache-2.0 |" in card
    assert "| licence of what others measured and it learnt | CC0-1.0 |" in card


def test_tasks_that_are_left_out_and_the_reason_of_a_method_read_as_they_are_meant(
    adapted, monkeypatch: pytest.MonkeyPatch, capsys
):
    result, *_ = adapted
    learning = result.learning | {"method": "few-shot", "reason": "it was asked for", "strength": 0.5}
    told = replace(result, skipped=(("one", ONE_PROGRAM),), learning=learning)
    monkeypatch.setattr(adapt_module, "adapt", lambda *_, **__: told)
    assert main(["adapt", "tcl-epyc"]) == 0
    shown = capsys.readouterr().out
    assert "left out 1 task: one program only" in shown
    assert "few-shot (it was asked for), 50% of the way" in shown


def test_the_corpus_commands(adapted, tmp_path: Path, capsys):
    result, _, _, _ = adapted
    folder = shutil.copytree(result.corpus, tmp_path / "corpus")
    meta = Corpus.open(folder).meta
    assert main(["corpus", "stats", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["programs"] == meta["programs"]
    assert main(["corpus", "check", str(folder)]) == 0
    assert "no test task in training" in capsys.readouterr().out
    (folder / "corpus.json").write_text(json.dumps(meta | {"programs": 1, "device": "other"}))
    assert main(["corpus", "check", str(folder), "--json"]) == 1
    failed = json.loads(capsys.readouterr().out)
    assert {f["name"] for f in failed["findings"] if not f["ok"]} == {"counts", "one device"}


@pytest.mark.parametrize("operator", ["batch-matmul-scores", "softmax-rows"])
def test_a_candidate_made_again_from_its_trace_is_the_same_program(operator: str):
    """The pool keeps traces only; layouts that a schedule rewrites must come back too."""
    from tvm_ffi import structural_equal

    target = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}
    (task,) = extract_tasks(operator, target)
    candidates = adapt_tools.make_candidates(task, target, 4, 0)
    for candidate in candidates:
        again = rebuild(task, PoolEntry(0, candidate.key, candidate.trace, candidate.strategy))
        assert structural_equal(again.mod, candidate.mod)
        assert again.args_info == candidate.args_info
        assert again == candidate

"""`tchub adapt --device cuda` from extraction to the verdict, on a card of paper."""

import json
from pathlib import Path
from typing import Any

import pytest
from fake_tuning import programs_in
from paper_card import PaperCard
from tchub.hub.records.store import RunStore
from tchub.zoo.corpus import Corpus

OPTIONS = ["--device", "cuda", "--budget", "12", "--per-task", "9", "--rounds", "1", "--json"]


def test_a_checkpoint_is_adapted_to_a_card_and_a_lost_card_costs_nothing_measured(
    card: PaperCard, tmp_path: Path, pt2: Path, run: Any, monkeypatch: pytest.MonkeyPatch, learnt_briefly: None
) -> None:
    command = ["adapt", "tcl-t4", "--workload", str(pt2), "--out", str(tmp_path / "adapt"), *OPTIONS]
    for number, fault in enumerate(["illegal access", "too much memory"], start=2):
        card.break_program(number, fault)
    # The card is lost in the middle: the run ends with what was measured, and goes on when it is back.
    put, count = RunStore.put, 0

    def put_until_lost(store: RunStore, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == 7:
            card.becomes("lost")
        return put(store, *args, **kwargs)

    monkeypatch.setattr(RunStore, "put", put_until_lost)
    code, _, err = run(*command)
    assert code == 1
    assert "CUDA_ERROR_UNKNOWN" in err
    assert "what was measured is kept" in err
    kept = len(programs_in(tmp_path / "adapt", "random"))
    (card.folder / "lost").unlink()
    code, out, err = run(*command)
    assert code == 0, err
    result = json.loads(out)
    assert (result["device"], result["target"]["arch"], result["measured"]) == ("t4", "sm_75", 12)
    assert result["reused"] == kept > 0
    assert result["failed"] == 2
    assert {pick["error"] for pick in result["picks"]} == {None, "run"}
    corpus = Corpus.open(Path(result["corpus"]))
    assert (corpus.meta["device"], corpus.meta["cpu_model"], corpus.meta["programs"]) == ("t4", "Tesla T4", 12)
    assert result["base"].startswith("tcl-t4@")


def test_float16_is_refused_where_there_are_no_tensor_cores_and_where_nothing_is_measured(
    run: Any, pt2: Path, tmp_path: Path
) -> None:
    code, _, err = run("adapt", "tcl-epyc", "--device", "cpu", "--workload", str(pt2), "--precision", "float16")
    assert (code, "float16 is for NVIDIA cards with tensor cores" in err) == (1, True)
    code, _, err = run("adapt", "tcl-t4", "--corpus", tmp_path, "--precision", "float16")
    assert (code, "nothing is measured with a corpus, and precision is given" in err) == (1, True)


@pytest.mark.parametrize(
    ("checkpoint", "device", "kind"), [("tcl-epyc", "cuda", "gpu"), ("tcl-t4", "cpu", "cpu")], ids=str
)
def test_a_checkpoint_of_the_other_kind_is_refused(
    card: PaperCard, run: Any, pt2: Path, checkpoint: str, device: str, kind: str
) -> None:
    code, _, err = run("adapt", checkpoint, "--device", device, "--workload", str(pt2))
    assert code == 2, "wrong usage"
    assert f"choose a checkpoint of a {kind} family" in err

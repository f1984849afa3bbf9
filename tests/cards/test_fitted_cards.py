"""The card of a checkpoint that was really trained, on two corpora made up here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tchub.cards import check_card, render_card
from tchub.zoo.corpus import Corpus, Program, Task, write_corpus
from tchub.zoo.primitives import Primitive, PrimitiveSequence
from tchub.zoo.training import TrainConfig
from tchub.zoo.training.fit import fit

SMALL = TrainConfig(arch="tilenet", feature_schema="nest", model={"hidden": 8, "layers": 1}, epochs=1)


def make_corpus(path: Path, device: str, family: str, names: list[str], licence: str) -> Corpus:
    """A dozen programs of each of some matrix products; the first two are tasks of a held-out network."""
    rng = np.random.default_rng(0)
    tasks, programs = [], []
    for number, name in enumerate(names):
        task_id = f"{number:016x}"
        networks = (("bert-tiny", 1),) if number < 2 else ()
        tasks.append(Task(task_id, name, "matmul", 1.0, f"{name}{path.name}", name, networks))
        for i in range(12):
            split = Primitive("Split", (0, 0, 64, *map(int, 2 ** rng.integers(0, 4, 5))))
            told = PrimitiveSequence((split, Primitive("Unroll", (0, -1, 16), ("explicit",))), "ansor").to_json()
            seconds = float(np.exp(rng.standard_normal()) * 1e-3)
            facts = (task_id, f"{i:04d}", "[]", "tuned", (seconds,), seconds, device, "cuda")
            programs.append(Program(*facts, framework="ansor", primitives=told))
    meta = {
        "device": device, "family": family, "target": "cuda", "tvm_version": "not said", "framework": "ansor",
        "licence": licence, "source": f"owner/{path.name}", "notes": "made up",
    }  # fmt: skip
    return write_corpus(path, meta, tasks, programs)


def test_the_card_of_a_fitted_checkpoint_tells_both_corpora(tmp_path):
    target = make_corpus(tmp_path / "own", "t4", "t4", [f"matmul-{i}" for i in range(8)], "none found")
    names = ["other-0", "other-1", "matmul-0", *(f"other-{i}" for i in range(2, 9))]
    source = make_corpus(tmp_path / "others", "v100", "v100", names, "GPL-3.0")
    fitted = fit(
        target, SMALL, sources=[source], version="1.0.0", seed=3, command="tchub train tilenet",
        lineage={"weights_licence": "Apache-2.0", "data": "measured", "measured_on": ["t4", "v100"]},
    )  # fmt: skip
    fitted.checkpoint.save(tmp_path / "made")
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    metrics = json.loads(json.dumps(fitted.metrics))
    text = render_card(config, metrics)
    own, other = config["training"]["corpus"], config["training"]["sources"][0]
    assert f": {own['programs']} of {own['programs'] + other['programs']}. The others were measured on `v100`." in text
    assert f"| own | t4 | ansor | {own['programs']} | {own['tasks']} | none found | owner/own |" in text
    assert f"| others | v100 | ansor | {other['programs']} | {other['tasks']} | GPL-3.0 | owner/others |" in text
    assert "own: no licence was found" in text
    assert "others: its log is under GPL-3.0" in text
    assert f"2 tasks, {metrics['programs']} programs, measured on t4, seed 3" in text
    assert "On the validation tasks" in text
    assert "None" not in text
    assert check_card(text, config, metrics) == []

"""Cards of checkpoints of several corpora: what was measured, under which licences, and where they lost."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from huggingface_hub import ModelCard
from tchub.cards import CardError, check_card, render_card
from tchub.zoo.devices import get_device


def corpus(name: str, device: str, programs: int, licence: str | None = "MIT", **facts: Any) -> dict[str, Any]:
    """The facts of a corpus as a training config holds them."""
    return {
        "name": name, "device": device, "licence": licence, "programs": programs, "tasks": 12,
        "programs_without_features": 0, "how": "imported from a log of ansor; latency is the median of the repeats",
        "networks": [], "held_out": [], "framework": "ansor", "source": f"owner/{name}@0a1b2c", **facts,
    }  # fmt: skip


def scores(pairwise: float, top1: float = 0.8) -> dict[str, float]:
    """The five scores, of which two are told."""
    return {"top1": top1, "top5": 0.95, "mean_top1": top1, "mean_top5": 0.96, "pairwise": pairwise}


CONFIG: dict[str, Any] = {
    "format": 1,
    "name": "tilenet-t4",
    "version": "1.0.0",
    "arch": "tilenet",
    "family": "t4",
    "feature_schema": "nest-gpu",
    "device": get_device("t4").to_dict(),
    "tvm": "",
    "model": {"hidden": 256},
    "lineage": {
        "weights_licence": "Apache-2.0",
        "authors": "the authors",
        "data": "measured",
        "measured_on": ["t4", "rtx2080ti", "v100"],
    },
    "training": {
        "command": "tchub train tilenet --corpus t4 --corpus rtx2080ti --corpus v100 --seed 2",
        "seed": 2,
        "seconds": 1234.5,
        "parameters": 189510,
        "stages": 2,
        "init": None,
        "tasks_fraction": 1.0,
        "programs_fraction": 0.1,
        "programs_per_task": 0,
        "corpus": corpus("t4", "t4", 90, "none found"),
        "sources": [
            corpus("rtx2080ti", "rtx2080ti", 4_000, "none found", programs_without_features=17),
            corpus("v100", "v100", 30_000),
        ],
    },
}
METRICS: dict[str, Any] = {
    "format": 1, "corpus": "t4", "split": "test", "device": "t4", "seed": 2, "seconds": 1234.5, "tasks": 16,
    "programs": 9_876,
    "trained_on": [{"name": "t4", "programs": 90}],
    "results": {
        "model": scores(0.883, 0.912),
        "random": scores(0.5, 0.4),
        "xgboost": scores(0.81) | {"pairwise": {"mean": 0.81, "stdev": 0.002}},
        "tenset-mlp": scores(0.82),
    },
    "validation": scores(0.871),
    "seeds": {"count": 3, "pairwise": {"mean": 0.88, "stdev": 0.0031}, "top1": {"mean": 0.9, "stdev": 0.02}},
    "few_shot": {"16": scores(0.93), "4": scores(0.89)},
    "few_shot_rivals": {
        "gbdt": {"4": scores(0.6), "16": scores(0.94)},
        "fine-tune": {"4": scores(0.88), "16": scores(0.9)},
    },
    "transfer": [
        {"corpus": "rtx3090", "split": "test", "metrics": scores(0.7), "random": scores(0.5, 0.3)},
        {"corpus": "k80", "split": "all", "metrics": scores(0.48, 0.2), "random": scores(0.5, 0.3)},
    ],
}  # fmt: skip


def changed(document: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    """A copy in which entries of the named parts are others."""
    copied = copy.deepcopy(document)
    for name, entries in parts.items():
        copied[name] |= entries
    return copied


def opening(text: str) -> str:
    """What stands between the title and the first section."""
    return text.split("\n# ")[1].split("\n## ", maxsplit=1)[0]


def section(text: str, title: str) -> str:
    """What stands under a heading."""
    return text.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def lines(text: str, start: str) -> list[list[str]]:
    """The cells of every table line that starts so."""
    found = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


TEXT = render_card(CONFIG, METRICS)


def test_the_first_lines_say_that_the_device_itself_was_measured():
    assert "**Measured on the device itself.**" in opening(TEXT)
    assert "measured on `t4`" in opening(TEXT)
    assert "90 of 34,090" in opening(TEXT)
    assert "The others were measured on `rtx2080ti`, `v100`." in opening(TEXT)


def test_the_first_lines_say_that_nothing_of_the_device_was_measured():
    config = changed(
        CONFIG,
        lineage={"data": "transferred", "measured_on": ["rtx2080ti"]},
        training={"corpus": corpus("rtx2080ti", "rtx2080ti", 4_000), "sources": []},
    )
    text = opening(render_card(config, METRICS | {"device": "rtx2080ti"}))
    assert (
        "**Transferred, not measured.** No program in the training was measured on a device of the family `t4`" in text
    )
    assert "`rtx2080ti`, **not** on a device of the family `t4`" in text


def test_a_stand_in_is_named_and_is_no_measurement_of_the_family():
    stand_in = "a Cortex-A72 board stands in for the Graviton1, whose core it is"
    config = changed(
        CONFIG,
        lineage={"data": "transferred", "measured_on": ["cortex-a72"], "stand_in": stand_in},
        training={"corpus": corpus("cortex-a72", "graviton1", 800, "GPL-3.0"), "sources": []},
    ) | {"family": "graviton", "device": get_device("graviton1").to_dict()}
    text = render_card(config, METRICS | {"device": "graviton1"})
    assert "Transferred, not measured." in opening(text)
    assert stand_in.removeprefix("a ") in opening(text)
    assert "The scores below are of the stand-in's programs; none is of the family itself." in opening(text)
    assert "transferred" in (ModelCard(text).data.tags or [])


def test_a_measurement_that_no_corpus_holds_cannot_be_claimed():
    config = changed(
        CONFIG, lineage={"measured_on": ["v100"]}, training={"corpus": corpus("v100", "v100", 9), "sources": []}
    )
    with pytest.raises(CardError, match="no device of the family t4"):
        render_card(config, METRICS)


def test_without_a_word_in_the_lineage_the_corpora_decide():
    silent = {"weights_licence": "Apache-2.0"}
    assert "Measured on the device itself" in opening(render_card(CONFIG | {"lineage": silent}, METRICS))
    judged_only = changed(CONFIG, training={"corpus": corpus("t4", "t4", 0)}) | {"lineage": silent}
    text = render_card(judged_only, METRICS)
    assert "Transferred, not measured" in opening(text)
    assert lines(text, "t4")[0][3] == "judged by only"


def test_every_corpus_stands_in_the_table_of_the_data():
    assert lines(TEXT, "rtx2080ti") == [
        ["rtx2080ti", "rtx2080ti", "ansor", "4,000", "12", "none found", "owner/rtx2080ti@0a1b2c"]
    ]
    assert lines(TEXT, "v100")[0][3:6] == ["30,000", "12", "MIT"]
    assert "No task that computes the same as a test task" in TEXT
    assert "17 programs of rtx2080ti could not be described" in TEXT


def test_a_log_without_a_licence_and_one_under_the_gpl_are_named_plainly():
    config = changed(CONFIG, training={"sources": [corpus("cortex-a72", "rtx3080", 5, "GPL-3.0")]})
    text = render_card(config, METRICS)
    assert "- **t4: no licence was found** where its log was published (owner/t4@0a1b2c)." in text
    assert "- **cortex-a72: its log is under GPL-3.0**" in text
    assert "- Weights: Apache-2.0" in text
    assert ModelCard(text).data.to_dict()["data_licence"] == "none found, GPL-3.0"


def test_the_spread_over_seeds_stands_below_the_checkpoint():
    assert lines(TEXT, "**this checkpoint**")[0][1:4] == ["0.912", "0.950", "0.883"]
    assert lines(TEXT, "mean of 3 seeds")[0][1:4] == ["0.900 ± 0.020", "-", "0.880 ± 0.003"]
    assert lines(TEXT, "XGBoost")[0][3] == "0.810 ± 0.002"
    assert lines(TEXT, "TenSet-MLP")
    assert "16 tasks, 9,876 programs, measured on t4" in TEXT


def test_a_baseline_that_could_not_rank_all_programs_says_how_many():
    results = METRICS["results"] | {"xgboost": scores(0.8) | {"label": "XGBoost on statements", "programs": 9_000}}
    assert lines(
        render_card(CONFIG, METRICS | {"results": results}), "XGBoost on statements (on 9,000 of the programs)"
    )


def test_few_labels_are_listed_by_number_beside_the_rivals():
    rows = [row for number in ("4", "16") for row in lines(TEXT, number)]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        ("4", "**this checkpoint**", "0.890"),
        ("4", "gradient-boosted trees", "0.600"),
        ("4", "fine-tuning by gradient steps", "0.880"),
        ("16", "**this checkpoint**", "0.930"),
        ("16", "gradient-boosted trees", "0.940"),
        ("16", "fine-tuning by gradient steps", "0.900"),
    ]
    assert "Where it lost with 16 labels: gradient-boosted trees, pairwise accuracy 0.940 against 0.930." in TEXT
    assert "lost with 4 labels" not in TEXT


def test_other_corpora_are_listed_and_a_loss_is_told():
    assert lines(TEXT, "k80")[0][1:5] == ["all", "0.200", "0.950", "0.480"]
    assert "Where it lost: on k80 to random choice, top-1 0.300 against 0.200" in TEXT
    assert "lost: on rtx3090" not in TEXT


def test_the_share_of_the_target_and_the_stages_are_told():
    assert "Share: 10% of the target's training programs, at random" in TEXT
    assert "features `nest-gpu`, 189,510 parameters." in TEXT
    assert "Stages: 2; the other corpora first, then `t4` alone" in TEXT
    zero = render_card(changed(CONFIG, training={"programs_fraction": 0.0}), METRICS)
    assert "nothing of the target was learnt from (zero-shot)" in zero


def test_only_a_cpu_is_told_to_tune_here():
    assert "tchub tune" not in TEXT
    assert "tchub adapt" not in TEXT
    assert "tchub pull tilenet-t4" in TEXT
    assert "tchub tune" in render_card(CONFIG | {"device": get_device("ryzen-3700x").to_dict()}, METRICS)


def test_only_a_model_that_takes_context_is_said_to():
    assert "becomes the model's context" in section(TEXT, "How to use")
    assert "context" not in section(render_card(CONFIG | {"arch": "tlp"}, METRICS), "How to use")


def test_what_the_files_do_not_hold_is_left_out():
    bare = {key: METRICS[key] for key in ("format", "corpus", "split", "device", "results")}
    text = render_card(CONFIG, bare | {"results": {"model": scores(0.8), "tenset-mlp": None}})
    for gone in ("±", "With a few programs", "On other corpora", "validation tasks", "Made by", "TVM: ", "TenSet"):
        assert gone not in text
    assert "None" not in text


def test_no_line_of_a_table_is_torn():
    for block in TEXT.split("\n\n"):
        table = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in table}) <= 1, block


def test_the_card_agrees_with_its_files_and_the_hub_reads_it():
    assert check_card(TEXT, CONFIG, METRICS) == []
    data = ModelCard(TEXT).data
    assert data.library_name == "tchub"
    assert {"tilenet", "device:t4", "measured"} <= set(data.tags or [])
    assert {result.metric_type for result in data.eval_results or []} == {"top1", "top5", "pairwise"}


def test_a_cpu_card_says_with_how_many_threads_programs_ran_where_the_log_does() -> None:
    """Of a GPU's programs the number means nothing."""
    config = copy.deepcopy(CONFIG) | {"family": "epyc", "device": get_device("epyc").to_dict()}
    config["lineage"]["data"] = "transferred"
    assert "- Threads of a program: not recorded\n" in render_card(config, METRICS)
    config["training"]["corpus"]["threads"] = 4
    assert "- Threads of a program: 4 (t4), not recorded (rtx2080ti), not recorded (v100)\n" in render_card(
        config, METRICS
    )
    del config["training"]["sources"]
    assert "- Threads of a program: 4\n" in render_card(config, METRICS)
    assert "Threads of a program" not in render_card(CONFIG, METRICS)

"""The leaderboard compares what was judged on the same programs, and nothing else."""

from typing import Any

from scripts.benchmarks.report.leaderboard import SCORES, leaderboard_markdown


def scores(pairwise: float) -> dict[str, float]:
    return dict.fromkeys(SCORES, 0.25) | {"pairwise": pairwise}


def transfer(pairwise: float, programs: int, learnt: bool) -> dict[str, Any]:
    row = {"corpus": "k80", "device": "k80", "device_learnt": learnt, "tasks": 2, "programs": programs}
    return row | {"metrics": scores(pairwise), "random": scores(0.5)}


def checkpoint(name: str, metrics: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int]:
    training = {"corpus": {"name": "k80", "programs": 1000}, "seconds": 5.0, "parameters": 10}
    return {"name": name, "version": "1.0.0", "training": training}, {"transfer": [], **metrics}, 2**20


OWN = {"corpus": "k80", "device": "k80", "tasks": 2, "programs": 40}
RESULTS = {
    "model": scores(0.75),
    "random": scores(0.5),
    "xgboost": scores(0.8) | {"label": "XGBoost on primitives"},
    "tenset-mlp": scores(0.9) | {"label": "TenSet-MLP"},
}
SEEDS = {"count": 3, "pairwise": {"mean": 0.74, "stdev": 0.01}}
ELSEWHERE = transfer(0.4, 30, True) | {"corpus": "t4", "device": "t4"}
DEVICE = OWN | {"now": scores(0.6), "random": scores(0.5)}
PAGE = leaderboard_markdown(
    [
        checkpoint("tcl-k80", OWN | {"results": RESULTS, "seeds": SEEDS}),
        checkpoint("tcl-v100", {"results": {}, "devices": [], "transfer": [transfer(0.7, 40, False), ELSEWHERE]}),
        checkpoint("tcl-a100", {"results": {}, "devices": [], "transfer": [transfer(0.95, 20, True)]}),
        checkpoint("tcl-kb-gpu", {"results": RESULTS, "devices": [DEVICE, DEVICE | {"now": None}]}),
    ],
    [ELSEWHERE | {"name": "XGBoost on primitives", "metrics": scores(0.6)}],
)


def names(head: str) -> list[str]:
    """The first column of the table whose head begins so."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return [line.split(" | ")[0].removeprefix("| ") for line in lines]


def test_a_table_ranks_what_was_judged_on_the_same_programs_the_rest_stands_below() -> None:
    ranked = ["*XGBoost on primitives*", "tcl-k80", "tcl-v100 \\*", "tcl-kb-gpu", "*random choice*"]
    assert names("model") == ranked, "the star: no program of the device was learnt; TenSet-MLP is a checkpoint itself"
    assert names("on some of them") == ["tcl-a100"], "its 0.95 is of half of the programs"
    elsewhere = PAGE[PAGE.index("## t4") :]
    order = ["*XGBoost on primitives*", "*random choice*", "tcl-v100"]
    assert [line.split(" | ")[0].removeprefix("| ") for line in elsewhere.splitlines()[6:]] == order, "chance is ranked"

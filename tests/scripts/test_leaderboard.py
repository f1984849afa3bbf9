"""The leaderboard compares what was judged on the same programs, and nothing else."""

from typing import Any

from scripts.benchmarks.report.leaderboard import SCORES, leaderboard_markdown


def scores(pairwise: float) -> dict[str, float]:
    return dict.fromkeys(SCORES, 0.25) | {"pairwise": pairwise}


def transfer(pairwise: float, programs: int) -> dict[str, Any]:
    row = {"corpus": "k80", "device": "k80", "device_learnt": False, "tasks": 2, "programs": programs}
    return {"results": {}, "devices": [], "transfer": [row | {"metrics": scores(pairwise), "random": scores(0.5)}]}


def checkpoint(name: str, metrics: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int]:
    training = {"corpus": {"name": "k80", "programs": 1000}, "seconds": 5.0, "parameters": 10}
    return {"name": name, "version": "1.0.0", "training": training}, {"transfer": [], **metrics}, 2**20


OWN = {"corpus": "k80", "device": "k80", "tasks": 2, "programs": 40}
RESULTS = {"model": scores(0.75), "random": scores(0.5), "xgboost": scores(0.8) | {"label": "XGBoost on primitives"}}
CHECKPOINTS = [
    checkpoint("tcl-k80", OWN | {"results": RESULTS}),
    checkpoint("tcl-v100", transfer(0.7, 40)),
    checkpoint("tcl-a100", transfer(0.95, 20)),
]


def test_a_table_ranks_what_was_judged_on_the_same_programs_the_rest_stands_below() -> None:
    page = leaderboard_markdown(CHECKPOINTS, [])

    def first_column(head: str) -> list[str]:
        lines = page[page.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
        return [line.split(" | ")[0].removeprefix("| ") for line in lines]

    ranked = ["*XGBoost on primitives*", "tcl-k80", "tcl-v100 \\*", "*random choice*"]
    assert first_column("model") == ranked, "the star: no program of the device was learnt"
    assert first_column("on some of them") == ["tcl-a100 \\*"], "its 0.95 is of half of the programs"

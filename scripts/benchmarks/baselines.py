"""XGBoost on the corpora that are no family's own, for the leaderboard: cards have it on the others.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks baselines --json

It learns the training tasks of the corpus alone, at most `PER_TASK` programs of each, and its test tasks judge.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tchub.zoo.corpus import split_tasks
from tchub.zoo.training import evaluate_model, evaluate_random
from tchub.zoo.training.fit import fit_trees
from tchub.zoo.training.programs import Share
from tchub.zoo.training.training_data import load_training_data

from scripts.benchmarks.common import Document, benchmark, note
from scripts.zoo.plan import OWN, open_corpus, read_plan
from scripts.zoo.publish import RIVALS
from scripts.zoo.trees import TREES

PER_TASK = 200  # as the zoo's trees


def judge_trees() -> Iterator[dict[str, Any]]:
    """Yield the scores of each XGBoost on each corpus that has a split and judges no family."""
    plan = read_plan()
    judging = {family["target"] for family in plan["families"].values()}
    for name in (*plan["corpora"], *OWN):
        corpus = open_corpus(name)
        split = split_tasks(corpus)
        for key in ("xgboost", "xgboost-nest") if name not in judging and split.train and split.test else ():
            schema, trees = TREES[key]
            data = load_training_data(corpus, (), schema, Share(per_task=PER_TASK))
            assert data.test is not None, f"{name} has no test programs"
            scores = evaluate_model(fit_trees(trees, data), data.test)
            note(f"{name} {key}: {scores['pairwise']:.4f}")
            yield {
                "corpus": name,
                "device": data.device.name,
                "name": RIVALS[key],
                "learnt": len(data.train),
                "tasks": len(np.unique(data.test.group)),
                "programs": len(data.test),
                "metrics": scores,
                "random": evaluate_random(data.test.latency, data.test.group, data.test.task_weights),
            }


@benchmark("baselines")
def main() -> Document:
    """Judge XGBoost; writes docs/benchmarks/baselines.json, which `leaderboard.py` reads."""
    torch.set_num_threads(1)
    rows = list(judge_trees())
    best = {row["corpus"]: 0.0 for row in rows}
    for row in rows:
        best[row["corpus"]] = max(best[row["corpus"]], row["metrics"]["pairwise"])
    return {"pairwise": best}, {"rows": rows}, (0,)

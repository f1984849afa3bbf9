"""What a source, and what adapting made of it, are worth on further programs of the network.

The hold-out of an adaptation is small, since a user pays for it. These programs are measured once for a network, target
and seed, half of them random and half evolved from those, as a tuner meets them, and judge all sources.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from scripts.benchmarks.local.runs import LocalRun
from scripts.benchmarks.tuning.runs import read_json, write_json

SCORES = ("pairwise", "mean_top1")
# Far from the seeds of the runs, whose candidates are other ones.
_SEED = 1000


def further(run: LocalRun) -> dict[str, dict[str, float]]:
    """Scores of the start and of what the guard decided on, without labels and with those learnt from as context.

    None of the programs that judge has been measured by the run. A checkpoint that takes no context has the same scores
    in both cases.

    Returns:
        `start` and `decided`, each `pairwise`, `mean_top1`, and `given_pairwise`, `given_mean_top1`; `programs` has the
        number of those that judge.
    """
    path = run.folder / f"further-{run.judging}.json"
    if not path.is_file():
        write_json(path, _scored(run))
    return read_json(path)


def _scored(run: LocalRun) -> dict[str, dict[str, float]]:
    from tchub.hub.api import choose_checkpoint
    from tchub.zoo.corpus import Corpus

    adapted = read_json(run.adapted_file)
    judging, learnt = Corpus.open(_measure(run)), Corpus.open(adapted["corpus"])
    starts = {"start": adapted["start"], "decided": adapted["checkpoint"]}
    return {name: _scores(choose_checkpoint(words).checkpoint, judging, learnt) for name, words in starts.items()}


def _measure(run: LocalRun) -> str:
    """The corpus of further programs; what is there is not measured again."""
    from tchub import hub
    from tchub.hub.device.device_choice import parse_target

    target = parse_target(run.at.level)
    out = run.work / run.network / f"further-{run.target}-{run.seed}-{run.judging}"
    count = run.judging * read_json(run.adapted_file)["adapt"]["tasks"]
    return hub.collect(run.network, count, out, target=target, threads=run.at.threads, seed=_SEED + run.seed).path


def _scores(checkpoint: Any, judging: Any, learnt: Any) -> dict[str, float]:
    from tchub.zoo.adapt.cross_validation import informed_scores
    from tchub.zoo.features import get_schema
    from tchub.zoo.training import evaluate_scores
    from tchub.zoo.training.programs import Share, read_programs

    schema = get_schema(checkpoint.config.feature_schema)
    measured = frozenset((program.task_id, program.key) for program in learnt.iter_programs())
    ids = sorted(set(judging.tasks) & set(learnt.tasks))
    held, _ = read_programs(judging, ids, schema, share=Share(without=measured), device=checkpoint.device)
    known, _ = read_programs(learnt, ids, schema, device=checkpoint.device)
    if held is None or known is None:
        raise RuntimeError(f"{judging.path} and {learnt.path} share no task with programs to compare")
    # Tasks of both are numbered as those that judge.
    number = {task: n for n, task in enumerate(held.task_ids)}
    shared = np.flatnonzero([known.task_ids[n] in number for n in known.group])
    known = replace(
        known.take(shared),
        group=np.array([number[known.task_ids[n]] for n in known.group[shared]], dtype=np.int64),
        task_ids=held.task_ids,
        task_weights=held.task_weights,
    )
    found = {"programs": float(len(held))}
    given = informed_scores(checkpoint.model, held.features, held.group, known)
    for prefix, scores in (("", checkpoint.model.score(held.features)), ("given_", given)):
        metrics = evaluate_scores(scores, held.latency, held.group, held.task_weights)
        found |= {prefix + name: metrics[name] for name in SCORES}
    return found

"""Every checkpoint that ships scores as it did when `golden_scores.json` was written.

`python tests/zoo/models/test_golden_scores.py` writes the file again; do so only where a change of scores is meant.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tchub.zoo.checkpoints
import torch
from safetensors.torch import load_file
from tchub.zoo.corpus import Corpus, sequence_of
from tchub.zoo.features import get_schema
from tchub.zoo.machine import one_thread
from tchub.zoo.models import Checkpoint
from tchub.zoo.primitives import PrimitiveSequence, from_ansor_steps, from_autotvm, from_trace_json

sys.path += map(str, (Path(__file__).parents[1], Path(__file__).parents[1] / "primitives"))

from autotvm_samples import SAMPLES
from test_ansor import gpu_matmul
from trace_samples import matmul_trace, thread_trace

ROOT = Path(tchub.zoo.checkpoints.__file__).parent
CORPUS = Path(__file__).parents[3] / "corpora" / "epyc-turin"
GOLDEN = Path(__file__).with_name("golden_scores.json")
CHECKPOINTS = sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/*/config.json"))
TASKS, PROGRAMS, LABELS = 4, 12, 10


def synthetic(schema) -> np.ndarray:
    """(48, rows, width): programs of 1 to all rows, the device's row last where the schema has one."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(48, schema.rows, schema.width)).astype(np.float32)
    filled = rng.integers(1, schema.rows + 1, size=48)
    features[np.arange(schema.rows) >= filled[:, None]] = 0
    if schema.hardware and schema.rows > 1:
        features[:, -1] = rng.normal(size=schema.width)
    return features


def measured(checkpoint: Checkpoint) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and latencies of the first programs of a few tasks of the corpus that ships."""
    corpus = Corpus.open(CORPUS)
    ids = sorted(corpus.tasks)[:: len(corpus.tasks) // TASKS][:TASKS]
    tasks = []
    for task_id in ids:
        programs = [program for program in corpus.programs(task_id) if program.valid][:PROGRAMS]
        latency = np.array([program.latency for program in programs])
        tasks.append((checkpoint.features([sequence_of(program) for program in programs]), latency))
    return tasks


def programs_of_every_framework() -> list[PrimitiveSequence]:
    """A program of each framework, and of each template of AutoTVM."""
    autotvm = [from_autotvm(template, *SAMPLES[template]) for template in sorted(SAMPLES)]
    return [from_ansor_steps(gpu_matmul()), *autotvm, *map(from_trace_json, (matmul_trace(), thread_trace()))]


def scores_of(name: str) -> dict[str, list[float]]:
    checkpoint = Checkpoint.load(ROOT / name)
    schema, model = get_schema(checkpoint.config.feature_schema), checkpoint.model
    features = synthetic(schema)
    context, latency = features[:LABELS], np.linspace(1e-4, 1e-3, LABELS)
    with one_thread():
        scores = {"synthetic": model.score(features)}
        if schema.source != "statements":
            scores["frameworks"] = model.score(checkpoint.features(programs_of_every_framework()))
        if hasattr(model, "score_given"):
            scores["synthetic, given labels"] = model.score_given(features, context, latency)
        if schema.source != "statements" and schema.name.endswith("-cpu"):
            tasks = measured(checkpoint)
            scores["corpus"] = np.concatenate([model.score(x) for x, _ in tasks])
            if hasattr(model, "score_given"):
                given = [model.score_given(x, x[:LABELS], seconds[:LABELS]) for x, seconds in tasks]
                scores["corpus, given labels"] = np.concatenate(given)
    return {key: values.tolist() for key, values in scores.items()}


def test_every_checkpoint_has_golden_scores():
    assert sorted(json.loads(GOLDEN.read_text())) == CHECKPOINTS


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_scores_are_the_golden_ones(name):
    golden, scores = json.loads(GOLDEN.read_text())[name], scores_of(name)
    assert golden.keys() == scores.keys()
    for key, values in golden.items():
        expected = np.array(values)
        np.testing.assert_allclose(scores[key], expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))


def test_weights_stored_in_float16_are_computed_in_float32():
    folder = next(ROOT.glob("tenset-mlp-k80/*"))
    assert {t.dtype for t in load_file(folder / "model.safetensors").values()} == {torch.float16, torch.float32}
    assert {t.dtype for t in Checkpoint.load(folder).model.state_dict().values()} == {torch.float32}


if __name__ == "__main__":
    GOLDEN.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(scores_of(name))}' for name in CHECKPOINTS) + "\n}\n")

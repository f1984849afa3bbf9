"""Programs of all frameworks read, and become features, as they did when `golden_data.json` was written.

`python tests/zoo/corpus/test_golden_data.py` writes the file again; do so only where a change of the data is meant.
Texts are compared by their digest, features by weighted sums, whose last digits may differ from machine to machine.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "primitives")]
GOLDEN = HERE / "golden_data.json"
CORPUS = HERE.parents[2] / "corpora" / "epyc-turin"

from autotvm_samples import SAMPLES, record  # noqa: E402
from tchub.zoo.corpus import Corpus, computations, sequence_of, split_tasks  # noqa: E402
from tchub.zoo.corpus.importers import ImportContext, import_corpus  # noqa: E402
from tchub.zoo.devices import get_device  # noqa: E402
from tchub.zoo.features import SCHEMAS  # noqa: E402
from tchub.zoo.features.schema import FeatureSchema  # noqa: E402
from tchub.zoo.features.skeleton import Skeleton  # noqa: E402
from tchub.zoo.primitives import PrimitiveSequence, from_ansor_steps, from_autotvm, from_trace_json  # noqa: E402
from tchub.zoo.primitives.metaschedule import Template  # noqa: E402
from test_ansor import gpu_matmul  # noqa: E402
from test_one_language import CONV, DENSE  # noqa: E402
from trace_samples import matmul_trace, thread_trace  # noqa: E402

MATRIX_SCHEMAS = [name for name, schema in SCHEMAS.items() if schema.source != "statements"]


def ansor_sequences() -> Iterator[PrimitiveSequence]:
    yield from (from_ansor_steps(gpu_matmul()[:length]) for length in range(12, 26))
    for rows, columns, size, unroll in ((1, 2, 7, 0), (2, 5, 512, 16), (3, 2, 1000, 16)):
        yield from_ansor_steps(gpu_matmul((1, rows, 2, 1), (2, columns, 1, 1), (4, 2), size, unroll))


@cache
def corpus() -> Corpus:
    return Corpus.open(CORPUS)


SEQUENCES: dict[str, Callable[[], list[PrimitiveSequence]]] = {
    "ansor": lambda: list(ansor_sequences()),
    "autotvm": lambda: [from_autotvm(template, *SAMPLES[template]) for template in sorted(SAMPLES)],
    "metaschedule": lambda: [
        *(from_trace_json(matmul_trace(unroll=u, location=at)) for u in range(4) for at in (-2, -1, 0, 3)),
        *(from_trace_json(thread_trace(t, v)) for t in range(3) for v in range(4)),
    ],
    "one language": lambda: [*CONV.values(), *DENSE.values()],
    "epyc-turin": lambda: [
        sequence_of(program) for task_id in sorted(corpus().tasks)[::20] for program in corpus().programs(task_id)[:8]
    ],
}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=repr).encode()).hexdigest()[:16]


def checksums(features: np.ndarray) -> list[float]:
    """Two weighted sums of a batch of matrices: any change of a column moves them."""
    weights = np.random.default_rng(0).normal(size=(2, features[0].size))
    order = 1 + np.arange(len(features)) % 7
    return [float(f"{value:.8g}") for value in weights @ (order @ features.reshape(len(features), -1).astype(float))]


def features_of(name: str, schema: FeatureSchema) -> list[float]:
    device = get_device("epyc-turin" if schema.kind == "cpu" else "t4")
    return checksums(schema.extract(SEQUENCES[name](), device))


def skeletons_of(schema: FeatureSchema) -> list[float]:
    decisions = [((2, 2, 4, 8), (4, 2, 1, 16), (32, 4), at, unroll) for at in (-2, -1, 3) for unroll in range(4)]
    return checksums(Skeleton(Template(matmul_trace()[0]), schema).features(decisions))


def imported(lines: list[str]) -> str:
    """Digest of the corpus that a log becomes."""
    with TemporaryDirectory() as name:
        (Path(name) / "log.json").write_text("\n".join(lines))
        report = import_corpus(Path(name) / "log.json", Path(name) / "c", ImportContext("t4", "MIT", "a log"))
        made = Corpus.open(Path(name) / "c")
        counts = [report.duplicates, sorted(report.broken.items())]
        return digest([*map(repr, made.tasks.values()), *map(repr, made.iter_programs()), counts])


def ansor_lines() -> list[str]:
    keys = [
        *(
            ["conv2d_layer", 2, 16, 8, 8, 32, 3, 3, 2, "SAME"],
            ["depthwise_conv2d_layer", 2, 16, 8, 8, 3, 3, 1, "VALID"],
        ),
        *(["pool_layer", "max", 2, 16, 8, 8, 2, 2, 2, 0], ["matmul_layer", 8, 64, 16], ["relu_layer", 8, 4]),
        *(["0" * 32, [1, 8, 8, 16], [3, 3, 16, 32], [1, 8, 8, 32]], ["0" * 32, 8, 64, 16, 64, 8, 16], ["other", 3]),
    ]
    results = [[[1e-3], 0, 0.5, 16], [[1e10], 4, 0.5, 16], [[2e-3, 4e-3], 0, 0.5, 16], [[1.0], 99, 0, 0]]
    lines = [
        json.dumps({"i": [[json.dumps(key), "cuda"], [[], [["SP", 2, 0, 64, [factor], 1]]]], "r": result})
        for key in keys
        for factor, result in zip((8, 4, 4, 2), results, strict=True)
    ]
    return [*lines, "{broken", "[]"]


def golden() -> dict[str, Any]:
    """Return everything that is compared."""
    values: dict[str, Any] = {}
    for name, sequences in SEQUENCES.items():
        values[f"sequences of {name}"] = digest([sequence.to_json() for sequence in sequences()])
        values |= {f"{schema} of {name}": features_of(name, SCHEMAS[schema]) for schema in MATRIX_SCHEMAS}
    values |= {f"{schema} of a skeleton": skeletons_of(SCHEMAS[schema]) for schema in MATRIX_SCHEMAS}
    values["log of ansor"] = imported(ansor_lines())
    records = [record(template) for template in sorted(SAMPLES)]
    values["log of autotvm"] = imported([*records, *records[:2], record(error=6), record(costs=[]), "{"])
    values["computations"] = digest(computations(corpus()))
    values["tasks"] = digest([(task.task_id, task.op, task.flops, task.networks) for task in corpus().tasks.values()])
    split = split_tasks(corpus())
    values["split"] = digest([split.train, split.val, split.test])
    return values


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return golden()


@pytest.mark.parametrize("name", json.loads(GOLDEN.read_text()) if GOLDEN.exists() else [])
def test_data_are_what_they_were(values: dict[str, Any], name: str) -> None:
    expected = json.loads(GOLDEN.read_text())[name]
    assert values[name] == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-5))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=1) + "\n")

"""How often do programs that differ read the same? And how long does reading them take?

    python -m scripts.benchmarks collisions --programs 500

For each operator, on a CPU and on a GPU target (no GPU is needed), random candidates of MetaSchedule's own design
spaces and candidates of its evolutionary search are read as primitive sequences and as matrices. The repetition
rate is one minus the share of distinct ones among distinct traces, as in the TLP paper, section 4.3, which reports
1.04% for sequences and 1.40% for cropped matrices on the TenSet CPU corpus. With `--corpus` the traces of a
collected corpus are counted as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from tchub.zoo.features import get_schema
from tchub.zoo.primitives import PrimitiveSequence, from_trace, from_trace_json

from scripts.benchmarks.common import finish

TARGETS = {"cpu": {"kind": "llvm", "num-cores": 4}, "gpu": "nvidia/nvidia-t4"}
OPERATORS = (
    *("conv2d-3x3", "conv2d-1x1", "depthwise-3x3", "dense-square", "dense-row", "batch-matmul-scores"),
    *("softmax-rows", "pool-max-3x3"),
)
BATCH = 2048


def _traces(operator: str, target: Any, strategy: Any, count: int, seed: int) -> list[Any]:
    """Live traces of candidates of one operator."""
    import tvm
    from tchub.hub.networks.operators import operator_module
    from tchub.zoo.corpus.workloads import OPERATORS as specs
    from tchub.zoo.tvm_import import import_tensor_intrinsics
    from tvm.s_tir import meta_schedule as ms

    import_tensor_intrinsics()
    context = ms.TuneContext(
        mod=operator_module(specs[operator]),
        target=tvm.target.Target(target),
        space_generator="post-order-apply",
        search_strategy=strategy,
        num_threads=1,
        rand_state=seed + 1,
    )
    spaces = context.generate_design_space()
    context.pre_tuning(count, count, spaces, ms.database.MemoryDatabase(), ms.cost_model.RandomModel())
    return [candidate.sch.trace for candidate in context.generate_measure_candidates() or ()]


def _candidates(operator: str, target: Any, count: int, seed: int) -> Iterator[Any]:
    from tvm.s_tir import meta_schedule as ms

    evolved = ms.search_strategy.EvolutionarySearch(
        population_size=64, init_measured_ratio=0.0, init_min_unmeasured=16, genetic_num_iters=2
    )
    yield from _traces(operator, target, "replay-trace", count, seed)
    yield from _traces(operator, target, evolved, min(count, 64), seed)


def _count(sequences: Iterable[PrimitiveSequence], traces: int, kind: str) -> dict[str, Any]:
    """How many of the distinct traces of one task are told apart."""
    distinct = list(dict.fromkeys(sequences))
    matrices = get_schema(f"tlp-{kind}").extract(distinct)
    return {
        "traces": traces,
        "sequences": len(distinct),
        "matrices": len({m.tobytes() for m in matrices}),
        "longest": max(map(len, distinct), default=0),
    }


def _rates(rows: Iterable[dict[str, Any]]) -> tuple[int, float, float]:
    """(traces, repetition rate of sequences, repetition rate of matrices)."""
    rows = list(rows)
    traces = sum(row["traces"] for row in rows)
    lost = [traces - sum(row[what] for row in rows) for what in ("sequences", "matrices")]
    return traces, lost[0] / max(traces, 1), lost[1] / max(traces, 1)


def _microseconds(traces: list[Any]) -> float:
    """Processor time to read one live trace of a known design space."""
    started = time.process_time()
    for trace in traces:
        from_trace(trace)
    return (time.process_time() - started) / max(len(traces), 1) * 1e6


def _extraction(sequences: list[PrimitiveSequence], kind: str) -> float:
    """Milliseconds of processor time to turn a batch of 2048 known programs into matrices; the best of 5."""
    batch = (sequences * (BATCH // len(sequences) + 1))[:BATCH]
    schema, times = get_schema(f"tcl-{kind}"), []
    for _ in range(5):
        started = time.process_time()
        schema.extract(batch)
        times.append((time.process_time() - started) * 1e3)
    return min(times)


def _operator(operator: str, kind: str, programs: int, seed: int) -> dict[str, Any]:
    traces = list(_candidates(operator, TARGETS[kind], programs, seed))
    distinct = {json.dumps(t.as_json(True), default=lambda constant: constant.value): t for t in traces}
    sequences = [from_trace(t) for t in distinct.values()]
    agree = all(from_trace_json(text) == s for text, s in zip(distinct, sequences, strict=True))
    return {
        "operator": operator,
        "target": kind,
        **_count(sequences, len(distinct), kind),
        "readers_agree": agree,
        "read_us": round(_microseconds(traces), 1),
        "extract_2048_ms": round(_extraction(sequences, kind), 1) if sequences else None,
    }


def _corpus(folder: Path) -> dict[str, Any]:
    """The programs of a collected corpus, task by task; its keys tell distinct traces."""
    import pyarrow.parquet as pq
    from tchub.zoo.corpus import Corpus
    from tchub.zoo.devices import get_device

    kind = get_device(Corpus.open(folder).meta["device"]).kind
    table = pq.read_table(folder / "programs.parquet", columns=["task_id", "key", "trace"]).to_pydict()
    tasks: dict[str, dict[str, PrimitiveSequence]] = {}
    for task, key, trace in zip(*table.values(), strict=True):
        tasks.setdefault(task, {})[key] = from_trace_json(trace)
    counts = [_count(programs.values(), len(programs), kind) for programs in tasks.values()]
    traces, sequences, matrices = _rates(counts)
    return {
        "programs": traces,
        "tasks": len(tasks),
        "sequence_repetition": sequences,
        "matrix_repetition": matrices,
        "longest": max(row["longest"] for row in counts),
    }


@click.command()
@click.option("--programs", default=300, show_default=True, help="Random candidates per operator and target.")
@click.option("--operator", "operators", multiple=True, default=OPERATORS, help="Operators of the suites.")
@click.option("--seed", default=0, show_default=True)
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), help="A collected corpus to count too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def main(programs: int, operators: tuple[str, ...], seed: int, corpus: Path | None, as_json: bool) -> None:
    """Collision rates and reading times of the schedule-primitive language."""
    started = time.time()
    rows = []
    for operator in operators:
        for kind in TARGETS:
            rows.append(_operator(operator, kind, programs, seed))
            click.echo(" ".join(f"{key}={value}" for key, value in rows[-1].items()), err=True)
    summary: dict[str, Any] = {"readers_agree": all(row["readers_agree"] for row in rows)}
    for kind in TARGETS:
        own = [row for row in rows if row["target"] == kind]
        traces, sequence_rate, matrix_rate = _rates(own)
        summary |= {
            f"{kind}_traces": traces,
            f"{kind}_sequence_repetition": sequence_rate,
            f"{kind}_matrix_repetition": matrix_rate,
            f"{kind}_read_us_mean": sum(row["read_us"] for row in own) / len(own),
            f"{kind}_extract_2048_ms_max": max(row["extract_2048_ms"] or 0 for row in own),
        }
    if corpus:
        summary |= {f"corpus_{key}": value for key, value in _corpus(corpus).items()}
    finish("collisions", summary, {"rows": rows, "tlp_paper": {"sequences": 0.010430, "matrices": 0.014034}},
           [seed], as_json, started)  # fmt: skip


if __name__ == "__main__":
    main()

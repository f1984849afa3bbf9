"""Features of programs that TVM holds: primitives and nests from traces, statements from lowering.

A trace tells the first two for next to nothing: its design space is recognised, and the candidate's decisions go
straight into the space's skeleton. Statements are those of TVM's own PerStoreFeature, which lowers each program: some
20 ms each, on as many threads as the search has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.corpus.tir import operator_class
from ...zoo.devices import Device
from ...zoo.features import DeviceKindError, FeatureSchema, get_schema
from ...zoo.features.columns import OPS
from ...zoo.features.skeleton import Skeleton
from ...zoo.features.statements import lowered_statements, statement_matrices
from ...zoo.primitives.metaschedule import Template, read_trace
from ...zoo.primitives.scope import Decision
from ...zoo.tvm_import import import_tensor_intrinsics
from ..device.candidate import replayed
from ..device.host_facts import usable_cpus

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint


def candidate_features(
    checkpoint: Checkpoint, context: Any, candidates: Sequence[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices of programs of one task.

    Args:
        checkpoint: its feature schema decides, and its device where the schema has a hardware row.
        context: MetaSchedule's `TuneContext` of the task: its module, target and number of threads.
        candidates: MetaSchedule's `MeasureCandidate`s.

    Returns:
        float32 (n, rows, width), and (N,) bool: which n of the N programs they are. A program is left out when it
        is to be lowered and TVM cannot.
    """
    schema = get_schema(checkpoint.config.feature_schema)
    if schema.source != "statements":
        device = checkpoint.device if schema.hardware else None
        matrices = trace_features(schema, device, [candidate.sch.trace for candidate in candidates])
        return matrices, np.ones(len(candidates), dtype=bool)
    lowered = list(lowered_statements(context, candidates))
    usable = np.array([isinstance(statements, np.ndarray) for statements in lowered], dtype=bool)
    kept = [statements for statements in lowered if isinstance(statements, np.ndarray)]
    op = OPS.index(operator_class(context.mod))
    return statement_matrices(kept, [op] * len(kept), schema.rows), usable


def trace_features(schema: FeatureSchema, device: Device | None, traces: Sequence[Any]) -> np.ndarray:
    """Return the matrices of live traces, of any design spaces, float32 (N, rows, width).

    Raises:
        TraceFormatError: an instruction or a decision is malformed or unknown.
    """
    spaces: dict[Template, tuple[list[int], list[list[Decision]]]] = {}
    for index, trace in enumerate(traces):
        template, decisions = read_trace(trace)
        indices, programs = spaces.setdefault(template, ([], []))
        indices.append(index)
        programs.append(decisions)
    matrices = np.empty((len(traces), schema.rows, schema.width), np.float32)
    for template, (indices, programs) in spaces.items():
        matrices[indices] = skeleton(template, schema, device).features(programs)
    return matrices


@lru_cache(1024)
def skeleton(template: Template, schema: FeatureSchema, device: Device | None) -> Skeleton:
    """Return the skeleton of a design space, made once."""
    return Skeleton(template, schema, device)


def replayed_features(
    checkpoint: Checkpoint, mod: Any, traces: Sequence[str], target: dict[str, Any] | str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices of one task's programs that are not live: each is replayed in TVM, for models of statements.

    Args:
        checkpoint: its feature schema and its device decide.
        mod: the task's unscheduled module.
        traces: JSON texts of `[instructions, decisions]`.
        target: the TVM target that they are for, as a dictionary or a tag.

    Returns:
        As `candidate_features`.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    device: Any = tvm.target.Target(target)
    import_tensor_intrinsics(device.kind.name)
    context = ms.TuneContext(mod=mod, target=device, num_threads=usable_cpus())
    # Without argument infos, which are for running a program.
    candidates = [ms.MeasureCandidate(replayed(mod, json.loads(trace)), []) for trace in traces]
    return candidate_features(checkpoint, context, candidates)


# Kinds of devices ----------------------------------------------------------------------------------------


def require_kind(checkpoint: Checkpoint, device: str, kind: str) -> None:
    """Refuse a checkpoint of the other kind of device.

    Args:
        checkpoint: whose feature schema decides.
        device, kind: name and kind, `cpu` or `gpu`, of what its programs are for.

    Raises:
        DeviceKindError: one is for CPUs, the other a GPU.
    """
    schema = get_schema(checkpoint.config.feature_schema)
    if schema.kind != kind:
        raise DeviceKindError(
            f"{checkpoint.config.name} reads {schema.name}, but the programs are for {device}, a {kind}",
            remedy=f"choose a checkpoint of a {kind} family (`tchub list --kind {kind}`)",
            schema=schema.name,
            device=device,
        )

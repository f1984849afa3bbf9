"""TVM's own statement features, PerStoreFeature, of measured programs: what stock MetaSchedule's XGBoost reads.

Every program is replayed from its trace and lowered, some 20 ms each, so the result is cached on disk, one
`.npz` a task.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...zoo.models.files import write_atomically
from ..device.tvm_import import import_tensor_intrinsics

_BATCH = 32


def perstore_features(
    workload: str,
    traces: Sequence[str],
    target: dict[str, Any] | str,
    cache: Path | None = None,
    *,
    extract_workload: bool = False,
    on_program: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
    """Features of programs of one task.

    Args:
        workload: `tvm.ir.save_json` of the task's module.
        traces: JSON of `[instructions, decisions]`, post-processing included.
        target: a TVM target, as a dict or its JSON.
        cache: folder for the features; created when needed.
        extract_workload: adds 8 features of the unscheduled task to the 164 of each statement. Off in stock
            MetaSchedule, and therefore here.
        on_program: told how many programs were done, after each few.

    Returns:
        One float32 array (statements, 164 or 172) a program; (0, ...) where TVM finds no statement.
    """
    identity = json.dumps([workload, target, extract_workload, _tvm_version()], sort_keys=True)
    path = cache / f"{_digest(identity)}.npz" if cache else None
    known = _read_cache(path)
    keys = [_digest(trace) for trace in traces]
    missing = {key: trace for key, trace in zip(keys, traces, strict=True) if key not in known}
    if missing:
        made = _extract(workload, list(missing.values()), target, extract_workload, on_program)
        known |= dict(zip(missing, made, strict=True))
        if path:
            _write_cache(path, known)
    return [known[key] for key in keys]


def _extract(
    workload: str,
    traces: list[str],
    target: dict[str, Any] | str,
    extract_workload: bool,
    on_program: Callable[[int], None] | None,
) -> Iterator[np.ndarray]:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    import_tensor_intrinsics()
    mod: Any = tvm.ir.load_json(workload)
    context = ms.TuneContext(mod=mod, target=tvm.target.Target(target), num_threads=1)
    extractor = ms.feature_extractor.PerStoreFeature(extract_workload=extract_workload)
    for start in range(0, len(traces), _BATCH):
        part = traces[start : start + _BATCH]
        candidates = [_replay(mod, trace) for trace in part]
        for features in extractor.extract_from(context, candidates):
            yield features.numpy().astype(np.float32)
        if on_program:
            on_program(len(part))


def _replay(mod: Any, trace: str) -> Any:
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Trace

    schedule = Schedule(mod)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    # The extractor reads the schedule alone; a candidate wants argument infos only for running it.
    return ms.MeasureCandidate(schedule, [])


def _read_cache(path: Path | None) -> dict[str, np.ndarray]:
    """What a cache file holds; nothing when it is not there or damaged, since it can be made again."""
    if path is None or not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as data:
            parts = np.split(data["rows"], np.cumsum(data["lengths"])[:-1])
            return dict(zip(data["keys"].tolist(), parts, strict=True))
    except (ValueError, KeyError, OSError, zipfile.BadZipFile):
        return {}


def _write_cache(path: Path, features: dict[str, np.ndarray]) -> None:
    file = io.BytesIO()
    np.savez_compressed(
        file,
        keys=np.array(list(features)),
        lengths=np.array([len(f) for f in features.values()], dtype=np.int64),
        rows=np.concatenate(list(features.values())),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, file.getvalue())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _tvm_version() -> str:
    from importlib.metadata import version

    return version("apache-tvm")

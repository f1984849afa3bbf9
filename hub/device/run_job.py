"""Running one compiled program in a worker: its output checked, its time taken, the machine watched meanwhile."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .output_check import ReferenceOutputs, load_reference, written
from .timing import DriftConfig, DriftWatch, TimingConfig, make_reference_kernel, measure_watched, time_kernel

ArgsInfo = Sequence[tuple[Sequence[int], str]]
_KEPT_BYTES = 256 << 20


@dataclass(frozen=True)
class RunResult:
    """Result of running one program.

    Attributes:
        latencies: seconds a run, one entry a repeat; empty for a wrong program.
        seconds: what all of it took.
        wrong: what is wrong with the output, or None.
        repeated: times that it was timed again because the machine was disturbed.
        disturbed: whether the machine was disturbed at the end too.
    """

    latencies: list[float]
    seconds: float
    wrong: str | None = None
    repeated: int = 0
    disturbed: bool = False


def random_values(args_info: ArgsInfo) -> list[np.ndarray[Any, Any]]:
    """Random contents, the same for the same shapes: zeros let a processor take short cuts."""
    generator = np.random.default_rng(0)
    values = []
    for shape, dtype in args_info:
        if dtype.startswith(("int", "uint", "bool")):
            contents = random_integers(generator, shape, dtype, args_info)
        else:
            contents = generator.random(size=tuple(shape), dtype=np.float32) + 0.1
        values.append(contents.astype(_numpy_dtype(dtype)))
    return values


def random_integers(
    generator: np.random.Generator, shape: Sequence[int], dtype: str, args_info: ArgsInfo
) -> np.ndarray[Any, Any]:
    """Both booleans, or integers that may be indices or divisors: 1 and 2, where a dimension has extent 2 only 1."""
    drawn = generator.integers(0, 2, size=tuple(shape))
    if dtype.startswith("bool"):
        return drawn
    return np.minimum(drawn + 1, 1 if any(2 in extents for extents, _ in args_info) else 2)


def _numpy_dtype(dtype: str) -> Any:
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes  # bfloat16 and the 8-bit floats, which numpy alone does not know

        return np.dtype(getattr(ml_dtypes, dtype))


class _Arguments:
    """Arguments of recent tasks: the programs of a task take the same ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[Any]] = OrderedDict()
        self._bytes: dict[str, int] = {}

    def get(self, args_info: ArgsInfo) -> list[Any]:
        import tvm

        key = repr(args_info)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        values = random_values(args_info)
        self._kept[key] = [tvm.runtime.tensor(contents) for contents in values]
        self._bytes[key] = sum(contents.nbytes for contents in values)
        while len(self._kept) > 1 and sum(self._bytes.values()) > _KEPT_BYTES:
            oldest, _ = self._kept.popitem(last=False)
            del self._bytes[oldest]
        return self._kept[key]

    def drop(self, args_info: ArgsInfo) -> None:
        self._kept.pop(repr(args_info), None)
        self._bytes.pop(repr(args_info), None)


_arguments = _Arguments()


@lru_cache(maxsize=1)
def _watcher(config: DriftConfig) -> tuple[DriftWatch, Callable[[], float]]:
    several = int(os.environ.get("TVM_NUM_THREADS", "1")) > 1 and hasattr(os, "sched_getaffinity")
    return DriftWatch(config), make_reference_kernel(sorted(os.sched_getaffinity(0)) if several else ())


def run(
    library: str,
    args_info: ArgsInfo,
    config: TimingConfig,
    best: float | None,
    drift: DriftConfig | None = None,
    reference: str | None = None,
) -> RunResult:
    """Time a compiled program on random inputs.

    Args:
        best: latency in seconds of the task's fastest known program, or None.
        drift: how the machine is watched, or None.
        reference: file with the task's right outputs, or None.
    """
    import tvm

    start = time.perf_counter()
    module = tvm.runtime.load_module(library)
    args = _arguments.get(args_info)
    wrong = None if reference is None else _check(module, args, load_reference(reference))
    if wrong is not None:
        _arguments.drop(args_info)  # it may have written its inputs
        return RunResult([], time.perf_counter() - start, wrong)
    watch, kernel = _watcher(drift or DriftConfig(retries=0))
    watched = measure_watched(lambda: time_kernel(module, args, tvm.cpu(), config, best), kernel, watch)
    return RunResult(watched.value, time.perf_counter() - start, None, watched.repeated, watched.disturbed)


def _check(module: Any, args: Sequence[Any], reference: ReferenceOutputs) -> str | None:
    for argument, right in reference.outputs.items():
        args[argument].copyfrom(np.zeros_like(right))  # what the program before left there is right
    module["main"](*args)
    return reference.complaint({argument: args[argument].numpy() for argument in reference.outputs})


def make_reference(library: str, args_info: ArgsInfo, reduction: int, path: str) -> int:
    """Run a task's unscheduled program once and write its outputs to `path`; returns how many there are."""
    import tvm

    values = random_values(args_info)
    args = [tvm.runtime.tensor(contents) for contents in values]
    tvm.runtime.load_module(library)["main"](*args)
    after = [arg.numpy() for arg in args]
    outputs = {argument: after[argument] for argument in written(values, after)}
    ReferenceOutputs(outputs, reduction).save(path)
    return len(outputs)

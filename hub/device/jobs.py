"""Jobs of a worker that run a compiled program, and check what it computes."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ...zoo.files import file_sha256
from .build_jobs import PREPACK, BuildResult
from .errors import DeviceError
from .onsite.runs import ArgsInfo, TimingConfig, random_values
from .timing import DriftWatch, make_reference_kernel, measure_watched, time_in_turn, time_kernel, turns_of

Array = np.ndarray[Any, Any]


def open_library(path: Path | str, sha256: str | None) -> Any:
    """Return a compiled library as a TVM module. To load one is to run its code, and nothing else here does it.

    Raises a DeviceError where it has not the sha256 that was built, or that its user names by it.
    """
    import tvm

    if sha256 is not None and file_sha256(path) != sha256:
        raise DeviceError(f"{path} is not the library that was built: its sha256 differs", remedy="build it again")
    return tvm.runtime.load_module(str(path))


# Running --------------------------------------------------------------------------------------------

# Arguments of recent tasks stay, since the programs of a task take the same ones, up to this size.
_KEPT_BYTES = 256 << 20
_arguments: dict[str, tuple[int, list[Any]]] = {}


@dataclass(frozen=True)
class RunResult:
    """Result of running one program; no latencies where its output is `wrong`, which says how.

    Attributes:
        latencies: seconds a run, one entry a repeat.
        repeated: times that it was timed again because the machine was disturbed.
        disturbed: whether the machine was disturbed at the end too.
        bus_id: PCI bus address of the card that ran it.
    """

    latencies: list[float]
    seconds: float
    wrong: str | None = None
    repeated: int = 0
    disturbed: bool = False
    bus_id: str = ""


def _tensors(args_info: ArgsInfo) -> list[Any]:
    import tvm

    key = repr(args_info)
    if key not in _arguments:
        values = random_values(args_info)
        size = sum(contents.nbytes for contents in values)
        if size + sum(kept for kept, _ in _arguments.values()) > _KEPT_BYTES:
            _arguments.clear()
        _arguments[key] = size, [tvm.runtime.tensor(contents) for contents in values]
    return _arguments[key][1]


# Seconds of a checked run, and times the best latency, from which on it is the measurement: repeats take long, and
# nothing more is to be learnt.
_LONG, _MANY = 0.5, 100.0


@lru_cache(maxsize=1)
def _watcher() -> tuple[DriftWatch, Callable[[], float]]:
    several = int(os.environ.get("TVM_NUM_THREADS", "1")) > 1
    return DriftWatch(), make_reference_kernel(sorted(os.sched_getaffinity(0)) if several else ())


def run(
    library: str,
    args_info: ArgsInfo,
    config: TimingConfig,
    best: float | None,
    reference: tuple[ArgsInfo, str] | None = None,
    built: BuildResult | None = None,
) -> RunResult:
    """Time a compiled program on random inputs; see `take_repeats`.

    Args:
        reference: the task's arguments and the file with its right outputs; None: not checked.
    """
    import tvm

    start = time.perf_counter()
    built = built or BuildResult()
    module = open_library(library, built.sha256)
    args = _tensors(args_info)
    wrong, checked = None, 0.0
    if reference is not None:
        right = load_reference(reference[1])
        wrong, checked = _check(module, args, _tensors(reference[0]), built.prepacked, right)
    if wrong is not None:
        _arguments.clear()  # it may have written its inputs
        return RunResult([], time.perf_counter() - start, wrong)
    if best is not None and checked > max(_LONG, _MANY * best):
        return RunResult([checked], time.perf_counter() - start, None)
    watch, kernel = _watcher()
    measure = partial(time_kernel, module, args, tvm.cpu(), config, best)
    if config.weights and built.weights:
        turns = turns_of(args_info, args, built.weights, config.weights)
        measure = partial(time_in_turn, module["main"], turns, config, best)
    latencies, repeated, disturbed = measure_watched(measure, kernel, watch)
    return RunResult(latencies, time.perf_counter() - start, None, repeated, disturbed)


# Checking -------------------------------------------------------------------------------------------

# Wrong programs are wrong by far. A float32 sum of 25,000 terms in another order is off by a tenth of what is allowed,
# a half-precision one by up to 5%.
_ALLOWED_EPSILONS, _MOST = 4096.0, 0.05
# Of outputs in one of these types that are rounded to so few levels, this share may be on the next one; levels are
# apart by whole steps, but for this share of one.
_ROUNDED, _LEVELS, _FEW, _STEP = ("float32", "int8", "uint8"), 256, 1e-3, 1e-2


def make_reference(library: str, sha256: str, args_info: ArgsInfo, path: str) -> int:
    """Run a task's unscheduled program once and write its outputs to `path`; returns how many there are."""
    import tvm

    before = random_values(args_info)
    args = [tvm.runtime.tensor(contents) for contents in before]
    open_library(library, sha256)["main"](*args)
    save_reference(path, before, [arg.numpy() for arg in args])
    return len(load_reference(path))


def save_reference(path: str, before: Sequence[Array], after: Sequence[Array]) -> None:
    """Write those arguments that a right program has changed to a file that `load_reference` reads."""
    changed = {i: a for i, (b, a) in enumerate(zip(before, after, strict=True)) if not np.array_equal(b, a)}
    # numpy's format has no name for the types of ml_dtypes.
    plain = {str(i): a.astype(np.float32) if a.dtype.kind == "V" else a for i, a in changed.items()}
    with Path(path).open("wb") as file:
        np.savez(file, **plain)  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def load_reference(path: str) -> dict[int, Array]:
    """Return right outputs by the number of the argument, kept in memory for the programs to come."""
    with np.load(path) as data:
        return {int(name): data[name] for name in data.files}


def _check(
    module: Any, args: Sequence[Any], inputs: Sequence[Any], prepacked: Sequence[int], right: Mapping[int, Array]
) -> tuple[str | None, float]:
    """Return what is wrong with the outputs for a task's `inputs`, and the seconds of the run.

    Args:
        args: have the shapes that the program takes.
    """
    if prepacked:
        module[PREPACK](*(inputs[i] for i in prepacked), *(args[i] for i in prepacked))
    inputs = [args[i] if i in prepacked else value for i, value in enumerate(inputs)]
    for argument in right:
        inputs[argument].copyfrom(np.zeros_like(inputs[argument].numpy()))  # what the program before left is right
    start = time.perf_counter()
    module["main"](*inputs)
    seconds = time.perf_counter() - start
    return complaint({argument: inputs[argument].numpy() for argument in right}, right), seconds


def complaint(outputs: Mapping[int, Array], right: Mapping[int, Array]) -> str | None:
    """Return what is wrong with a program's outputs, or None."""
    for argument, values in right.items():
        allowed, distance = tolerance(outputs[argument].dtype), difference(outputs[argument], values)
        if distance > allowed and not _on_other_levels(outputs[argument], values):
            return f"argument {argument} is off by {distance:.2g} (allowed {allowed:.2g})"
    return None


def _on_other_levels(output: Array, right: Array) -> bool:
    """Return whether outputs that are rounded to equal levels, as quantised ones, are on the next one here and there.

    What is halfway between two levels is on either of them as it was added up.
    """
    levels = np.unique(right).astype(np.float64) if right.dtype.name in _ROUNDED else np.empty(0)
    if output.size <= _LEVELS or not 2 < levels.size <= _LEVELS or not np.isfinite(levels).all():
        return False
    step = np.median(np.diff(levels))
    steps = np.diff(levels[1:-1]) / step  # those at the ends may be where numbers are cut off
    apart = np.abs(output.astype(np.float64) - right)
    equal = np.abs(steps - np.round(steps)).max(initial=0) <= _STEP and apart.max() <= (1 + _STEP) * step
    return bool(equal and (apart > _STEP * step).sum() <= max(1, _FEW * right.size))


def tolerance(dtype: np.dtype[Any]) -> float:
    """Return the largest relative difference of two right outputs of a dtype; 0 for integers."""
    if not _is_float(dtype):
        return 0.0
    from ml_dtypes import finfo

    return float(min(_MOST, _ALLOWED_EPSILONS * float(finfo(dtype).eps)))


def _is_float(dtype: np.dtype[Any]) -> bool:
    # numpy's floats, and those that ml_dtypes adds: bfloat16, and floats of 8 bits
    return np.issubdtype(dtype, np.floating) or (dtype.kind == "V" and "float" in dtype.name)


def difference(output: Array, right: Array) -> float:
    """Return the largest difference, relative to the right values and their mean size; inf where only one is finite."""
    if right.size == 0:
        return 0.0
    if not _is_float(right.dtype):
        return 0.0 if np.array_equal(output, right) else math.inf
    ours, theirs = output.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return math.inf
    ours, theirs = ours[finite], theirs[finite]
    if ours.size == 0:
        return 0.0
    size = np.abs(theirs)
    return float(np.max(np.abs(ours - theirs) / np.maximum(size + size.mean(), np.finfo(np.float64).tiny)))

"""Compiled networks beside PyTorch: outputs compared and latencies measured, in a fresh process."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from ...zoo.files import file_sha256
from ..device.patience import TimeLimit, run_process
from ..device.timing import POOL_ENVIRONMENT, POOL_SETTLE_SECONDS
from .errors import LatencyError
from .output_check import OutputCheck

if TYPE_CHECKING:
    from .network import Network

MIN_REPEATS = 5
_MAX_REPEATS = 60
_REPEAT_SECONDS = 0.02  # a repeat runs a quick network several times
_WARM_UP = 2


@dataclass(frozen=True)
class Latency:
    """Repeats of one system, interleaved with those of the others.

    Attributes:
        seconds: one number a repeat: the mean of its runs.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the repeats in seconds."""
        return median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile in seconds."""
        if len(self.seconds) < 2:
            return self.median, self.median
        first, _, third = quantiles(self.seconds, n=4, method="inclusive")
        return first, third

    def as_dict(self) -> dict[str, Any]:
        """JSON form, in seconds."""
        first, third = self.quartiles
        repeats = list(self.seconds)
        return {"median": self.median, "first_quartile": first, "third_quartile": third, "repeats": repeats}


@dataclass(frozen=True)
class Comparison:
    """A check for each library, a latency for each system, and why a system has none."""

    checks: dict[str, OutputCheck]
    latencies: dict[str, Latency]
    errors: dict[str, str] = field(default_factory=dict)


def compare(
    network: Network,
    libraries: Mapping[str, Path],
    *,
    threads: int = 1,
    max_seconds: float = 30.0,
    min_repeats: int = MIN_REPEATS,
    timeout: float = 600.0,
    rivals: Sequence[str] = (),
) -> Comparison:
    """Check libraries against PyTorch and time all of them, PyTorch eager included, in a fresh process.

    The process runs on `threads` cores with `threads` threads, and takes the systems in turn, so that a disturbance
    hits all of them.

    Args:
        libraries: system name to library; `pytorch` is added, except for an ONNX file.
        max_seconds: of timing, shared by the systems.
        min_repeats: of each system, however long they take; 1 where a first impression is enough.
        timeout: seconds that the whole process may compute.
        rivals: other runtimes to time, see `rivals`; why one has no latency stands in `Comparison.errors`.

    Raises:
        LatencyError: the process failed, e.g. a library crashed.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="tchub-latency-") as folder:
        inputs = Path(folder, "inputs.pt")
        torch.save(network.inputs(), inputs)
        request = {
            "reference": str(reference_file(network, Path(folder))),
            "inputs": str(inputs),
            "libraries": {name: (str(Path(path).resolve()), file_sha256(path)) for name, path in libraries.items()},
            "threads": threads,
            "max_seconds": max_seconds,
            "min_repeats": min_repeats,
            "rivals": list(rivals),
        }
        answer = _ask(request, threads, timeout)
    checks = {name: OutputCheck.from_dict(facts) for name, facts in answer["checks"].items()}
    return Comparison(checks, {name: Latency(tuple(s)) for name, s in answer["seconds"].items()}, answer["errors"])


def reference_file(network: Network, folder: Path) -> Path:
    """The file that the worker takes the right output from: the ONNX file itself, or an exported program."""
    import torch

    if network.origin == "onnx":
        return Path(getattr(network, "path")).resolve()  # noqa: B009 (only an OnnxNetwork has one)
    path = folder / "network.pt2"
    torch.export.save(_saveable(network.export()), path)
    return path


def _saveable(exported: Any) -> Any:
    """Give the outputs in a flat tuple: PyTorch cannot save every form of them, e.g. the results of `x.topk(5)`."""
    from torch.utils._pytree import tree_structure

    entry, *rest = exported.module_call_graph
    flat = tree_structure(tuple(range(entry.signature.out_spec.num_leaves)))
    exported = copy(exported)
    exported._module_call_graph = [replace(entry, signature=replace(entry.signature, out_spec=flat)), *rest]
    return exported


def measure(
    runs: Mapping[str, Callable[[], Any]], max_seconds: float, min_repeats: int = MIN_REPEATS, *, settle: bool = False
) -> dict[str, list[float]]:
    """Seconds a run of each system, one number a repeat; systems take turns until the time is up.

    Args:
        max_seconds: shared by the systems.
        min_repeats: of each system, however long they take.
        settle: let the threads of the system before go to sleep: TVM's and OpenMP's turn in circles for a while.
    """
    loops, spent = {}, dict.fromkeys(runs, 0.0)
    for name, run in runs.items():
        once = min(_time(run, 1) for _ in range(min(_WARM_UP, min_repeats)))
        loops[name] = max(1, round(_REPEAT_SECONDS / once))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    share = max_seconds / max(1, len(runs))  # none where an ONNX file's only library is slow
    for _ in range(_MAX_REPEATS):
        for name, run in runs.items():
            if len(seconds[name]) >= min_repeats and spent[name] > share:
                continue
            if settle:
                time.sleep(POOL_SETTLE_SECONDS)
                if loops[name] > 1:  # its own threads are awake again then
                    run()
            value = _time(run, loops[name])
            spent[name] += value * loops[name]
            seconds[name].append(value)
    return seconds


def _time(run: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def _ask(request: dict[str, Any], threads: int, timeout: float) -> dict[str, Any]:
    count = str(threads)
    env = (
        os.environ | dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), count) | POOL_ENVIRONMENT
    )
    command = [sys.executable, "-m", "tchub.hub.networks.latency_worker"]
    try:
        done = run_process(command, json.dumps(request), env, TimeLimit(timeout))
    except TimeoutError as error:
        raise LatencyError(
            f"measuring the latency was ended: {error}", remedy="tune with more trials, or wait longer"
        ) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LatencyError(
            f"the compiled network failed (exit code {done.returncode}): {last}",
            remedy="run `tchub doctor`; then tune again in a new output folder",
            exit_code_of_worker=done.returncode,
        )
    return json.loads(lines[-1])

"""Compiled networks beside PyTorch: outputs compared and latencies measured, in a fresh process."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import msgspec

from ...zoo.files import file_sha256
from ..device.patience import TimeLimit, run_process
from ..device.timing import POOL_ENVIRONMENT, POOL_SETTLE_SECONDS
from .errors import LatencyError
from .output_check import OutputCheck

if TYPE_CHECKING:
    from .frontend.network import Network

Libraries = Callable[[], Mapping[str, Path]]
MIN_REPEATS = 5
_MAX_REPEATS = 60
_REPEAT_SECONDS = 0.02  # a repeat runs a quick network several times
_WARM_UP = 2
# Of the seconds that a run took. Linux takes the core away from a real-time process for what is left of a second of
# which it had 95%: 50 ms, which would be a fifth of a run of BERT-base, and always of the same system's.
_REST = 0.08


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

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, in seconds."""
        first, third = self.median, self.median
        if len(self.seconds) > 1:
            first, _, third = quantiles(self.seconds, n=4, method="inclusive")
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
    libraries: Libraries,
    *,
    threads: int = 1,
    max_seconds: float = 30.0,
    min_repeats: int = MIN_REPEATS,
    timeout: float = 600.0,
    rivals: Sequence[str] = (),
    precision: str = "float32",
) -> Comparison:
    """Check libraries against PyTorch and time all of them, PyTorch eager included, in a fresh process.

    The process runs on `threads` cores with `threads` threads, and takes the systems in turn, so that a disturbance
    hits all of them.

    Args:
        libraries: builds the libraries, by the names of the systems; `pytorch` is added, except for an ONNX file. A
            name `NAME/FUNCTION` is that function of the library, which is checked alone; any other is its `main`.
        max_seconds: of timing, shared by the systems.
        min_repeats: of each system, however long they take; 1 where a first impression is enough.
        timeout: seconds that the whole process may compute.
        rivals: other runtimes to time, see `rivals`; why one has no latency stands in `Comparison.errors`.
        precision: in which libraries and runtimes multiply; the right output is in float32, or float64 in doubt.

    Raises:
        LatencyError: the process failed, e.g. a library crashed.
    """
    request = {
        "threads": threads,
        "max_seconds": max_seconds,
        "min_repeats": min_repeats,
        "rivals": list(rivals),
        "precision": precision,
    }
    counts = dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    remedy = "run `tchub doctor`, then tune again in a new output folder, with more trials where it was too slow"
    worker = "tchub.hub.networks.rivals"
    limit, environment = TimeLimit(timeout), counts | POOL_ENVIRONMENT
    return compare_in_process(worker, network, libraries, request, limit, remedy, environment)


def compare_in_process(
    module: str,
    network: Network,
    libraries: Libraries,
    request: dict[str, Any],
    limit: TimeLimit,
    remedy: str,
    environment: Mapping[str, str] | None = None,
) -> Comparison:
    """Return what a fresh process of a module finds: it compares and times libraries beside a network.

    The libraries are built while it loads PyTorch, TVM and the original, which takes seconds.

    Args:
        request: for the module, on its stdin as two lines of JSON: the first has `reference` and `inputs` besides, the
            second `libraries`, the path and sha256 of each. Its answer, the last line of its stdout, has `checks`,
            `seconds` and `errors`, each by system.
        environment: beside that of this process.

    Raises:
        LatencyError: it failed.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="tchub-latency-") as folder:
        inputs = Path(folder, "inputs.pt")

        def lines() -> Iterator[str]:
            torch.save(network.inputs(), inputs)
            files = {"reference": str(reference_file(network, Path(folder))), "inputs": str(inputs)}
            yield json.dumps(request | files) + "\n"
            paths = libraries()
            digests = {path: file_sha256(path) for path in set(paths.values())}
            built = {name: (str(path.resolve()), digests[path]) for name, path in paths.items()}
            yield json.dumps({"libraries": built}) + "\n"

        answer = _ask(lines(), module, limit, remedy, os.environ | dict(environment or {}))
    latencies = {name: Latency(tuple(seconds)) for name, seconds in answer["seconds"].items()}
    return Comparison(msgspec.convert(answer["checks"], dict[str, OutputCheck]), latencies, answer["errors"])


def reference_file(network: Network, folder: Path) -> Path:
    """Return the file that the worker takes the right output from: the ONNX file itself, or an exported program."""
    import torch
    from torch.utils._pytree import tree_structure

    from .frontend.onnx_file import OnnxNetwork

    if isinstance(network, OnnxNetwork):
        return network.file(folder)
    # With flat outputs: PyTorch cannot save every form of them, e.g. that of `x.topk(5)`.
    exported, path = copy(network.export()), folder / "network.pt2"
    entry, *rest = exported.module_call_graph
    flat = tree_structure(tuple(range(entry.signature.out_spec.num_leaves)))
    exported._module_call_graph = [replace(entry, signature=replace(entry.signature, out_spec=flat)), *rest]
    torch.export.save(exported, path)
    return path


def measure(
    runs: Mapping[str, Callable[[], Any]], max_seconds: float, min_repeats: int = MIN_REPEATS, *, settle: bool = False
) -> dict[str, list[float]]:
    """Return seconds a run of each system, one number a repeat; systems take turns until the time is up.

    Where several are compared, a turn begins with a run that is not timed: after another system's, a network finds its
    weights in no cache and its threads asleep. In a service that runs it over and over it does not.

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
            if len(runs) > 1 and min_repeats > 1:
                spent[name] += _time(run, 1)
            value = _time(run, loops[name])
            spent[name] += value * loops[name]
            seconds[name].append(value)
    return seconds


def _time(run: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    seconds = time.perf_counter() - start
    if seconds > _REPEAT_SECONDS:
        time.sleep(_REST * seconds)
    return seconds / times


def _ask(
    request: Iterable[str], module: str, limit: TimeLimit, remedy: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    quick = "from runpy import run_module as run; from tchub.zoo.tvm_import import import_quickly; import_quickly(); "
    command = [sys.executable, "-c", f"{quick}run('{module}', run_name='__main__')"]
    try:
        done = run_process(command, request, environment, limit)
    except TimeoutError as error:
        raise LatencyError(f"the comparison with the original was ended: {error}", remedy=remedy) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        if own := re.match(r"tchub\.[\w.]+NetworkImportError: (.*)", last):  # the original itself cannot be run
            raise LatencyError(own[1], remedy="export the network in another way, or at another opset")
        raise LatencyError(f"the compiled network failed (exit code {done.returncode}): {last}", remedy=remedy)
    return json.loads(lines[-1])

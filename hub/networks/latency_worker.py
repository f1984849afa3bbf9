"""A fresh process that runs compiled networks and PyTorch in turn: `python -m tchub.hub.networks.latency_worker`.

Reads a JSON request on stdin, answers with one JSON line on stdout (see `latency.compare`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..device.host_facts import physical_cores
from ..device.jobs import open_library
from ..device.pool import timing_cpus
from .latency import measure
from .output_check import check_output
from .rivals import ReferenceNetwork, arrays, rival_runs

Run = Callable[[], Any]


def _shield(threads: int) -> None:
    """Stay on the last cores; with real-time priority, if granted and some cores stay free, as the measurer does."""
    if hasattr(os, "sched_setaffinity"):
        physical = physical_cores(sorted(os.sched_getaffinity(0)))
        os.sched_setaffinity(0, timing_cpus(physical, threads))
        if threads < len(physical):
            with contextlib.suppress(PermissionError):  # not root: the timing is the same, only less shielded
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _library(path: str, sha256: str, inputs: Sequence[torch.Tensor]) -> Run:
    import tvm
    from tvm import relax

    library = open_library(path, sha256)
    device: Any = tvm.cpu()
    machine = relax.VirtualMachine(library, device)
    arguments = [tvm.runtime.tensor(x.numpy()) for x in inputs]
    main = machine["main"]
    return lambda: main(*arguments)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what `latency.compare` asks."""
    inputs = torch.load(request["inputs"], weights_only=True)
    with torch.inference_mode():
        libraries = request["libraries"].items()
        runs = {name: _library(path, sha256, inputs) for name, (path, sha256) in libraries}
        reference = ReferenceNetwork(request["reference"], inputs)
        expected = arrays(reference.run())
        checks, first = {}, {}
        for name, run in runs.items():
            start = time.perf_counter()
            output = run()
            first[name] = time.perf_counter() - start
            checks[name] = check_output(arrays(output), expected, reference.exact).as_dict()
        if not reference.is_onnx:
            runs["pytorch"] = reference.run
        rivals, errors = rival_runs(request["rivals"], reference, expected, request["threads"])
        runs |= rivals
        # A first impression of a slow library is its first run: an untuned network may take a minute.
        slow = {n: [s] for n, s in first.items() if request["min_repeats"] == 1 and s > request["max_seconds"]}
        quick = {name: run for name, run in runs.items() if name not in slow}
        settle = torch.get_num_threads() > 1
        seconds = slow | measure(quick, request["max_seconds"], request["min_repeats"], settle=settle)
        return {"checks": checks, "seconds": seconds, "errors": errors}


def main() -> None:
    """Answer the request on stdin."""
    request = json.loads(sys.stdin.read())
    _shield(request["threads"])
    torch.set_num_threads(request["threads"])
    print(json.dumps(answer(request)))


if __name__ == "__main__":
    main()

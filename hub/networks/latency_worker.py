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
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ..device.host_facts import physical_cores
from ..device.jobs import open_library
from ..device.pool import timing_cpus
from .errors import NetworkImportError
from .exported_file import in_precision, load_exported
from .latency import measure
from .output_check import check_output
from .shapes import call_arguments

Run = Callable[[], Any]


def _shield(threads: int) -> None:
    """Stay on the last cores; with real-time priority, if granted and some cores stay free, as the measurer does."""
    if hasattr(os, "sched_setaffinity"):
        physical = physical_cores(sorted(os.sched_getaffinity(0)))
        os.sched_setaffinity(0, timing_cpus(physical, threads))
        if threads < len(physical):
            with contextlib.suppress(PermissionError):  # not root: the timing is the same, only less shielded
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


class ReferenceNetwork:
    """The original network, which the right output is taken from; see `latency.reference_file`.

    Args:
        path: of an exported program or an ONNX file.
        inputs: tensors in the order of the compiled function's parameters.
    """

    def __init__(self, path: str, inputs: Sequence[torch.Tensor]) -> None:
        self._path, self._inputs = path, inputs
        self.is_onnx = path.endswith(".onnx")
        if self.is_onnx:
            from .onnx_file import reference_module

            self.module: Any = reference_module(Path(path))
            self._args, self._kwargs = tuple(inputs), {}
        else:
            exported = load_exported(Path(path))
            self.module = exported.module()
            self._args, self._kwargs = call_arguments(exported, inputs)

    def run(self) -> Any:
        """Run it once."""
        return self.module(*self._args, **self._kwargs)

    def exact(self) -> list[np.ndarray] | None:
        """Return its outputs computed in float64; None where its operators have no float64, as in an ONNX file."""
        if self.is_onnx:
            return None
        try:
            exported = in_precision(load_exported(Path(self._path)), "the original", torch.float64)
        except NetworkImportError:
            return None
        wide = [x.double() if x.is_floating_point() else x for x in self._inputs]
        args, kwargs = call_arguments(exported, wide)
        return arrays(exported.module()(*args, **kwargs))


def add_compiled(runs: dict[str, Run], reference: ReferenceNetwork, errors: dict[str, str]) -> None:
    """The network as PyTorch's own compiler makes it: a rival, so that its failure is a fact and no error."""
    rival = copy(reference)
    rival.module = torch.compile(reference.module)
    try:
        rival.run()
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        errors["torch.compile"] = f"{type(error).__name__}: {lines[0][:300]}"
        return
    runs["torch.compile"] = rival.run


def _library(path: str, sha256: str, inputs: Sequence[torch.Tensor]) -> Run:
    import tvm
    from tvm import relax

    library = open_library(path, sha256)
    device: Any = tvm.cpu()
    machine = relax.VirtualMachine(library, device)
    arguments = [tvm.runtime.tensor(x.numpy()) for x in inputs]
    main = machine["main"]
    return lambda: main(*arguments)


def arrays(output: Any) -> list[np.ndarray]:
    """The tensors of an output, PyTorch's or TVM's, nested or not; constants are in the signature."""
    nested = isinstance(output, dict | list | tuple) or hasattr(output, "numpy")
    tensors = [x for x in tree_leaves(output if nested else list(output)) if hasattr(x, "numpy")]
    tensors = [x.float() if x.dtype in (torch.bfloat16, torch.float16) else x for x in tensors]
    return [x.numpy(force=True) if isinstance(x, torch.Tensor) else x.numpy() for x in tensors]


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
        errors: dict[str, str] = {}
        if not reference.is_onnx:
            runs["pytorch"] = reference.run
            if request.get("torch_compile"):
                add_compiled(runs, reference, errors)
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

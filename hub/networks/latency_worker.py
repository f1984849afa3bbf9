"""A fresh process that runs compiled networks and PyTorch in turn: `python -m tchub.hub.networks.latency_worker`.

Reads a JSON request on stdin, answers with one JSON line on stdout (see `compile.compare`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Run = Callable[[], Any]

WARM_UP = 2
MIN_REPEATS, MAX_REPEATS = 5, 60
REPEAT_SECONDS = 0.02


def _shield(threads: int) -> None:
    """Stay on the last cores, with real-time priority if granted, as the measurer of single programs does."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
        with contextlib.suppress(PermissionError):  # not root: the timing is the same, only less shielded
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def reference_run(path: str, inputs: Sequence[torch.Tensor]) -> Run:
    """Runs what the right output is taken from; see `compile.reference_file`."""
    if path.endswith(".onnx"):
        from pathlib import Path

        from .onnx_file import reference_module

        module = reference_module(Path(path))
    else:
        module = torch.export.load(path).module()
    return lambda: module(*inputs)


def add_compiled(runs: dict[str, Run], path: str, inputs: Sequence[torch.Tensor], errors: dict[str, str]) -> None:
    """The network as PyTorch's own compiler makes it: a rival, so that its failure is a fact and no error."""
    compiled = torch.compile(torch.export.load(path).module())
    try:
        compiled(*inputs)
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        errors["torch.compile"] = f"{type(error).__name__}: {lines[0][:300]}"
        return
    runs["torch.compile"] = lambda: compiled(*inputs)


def _library(path: str, inputs: Sequence[torch.Tensor]) -> Run:
    import tvm
    from tvm import relax

    library: Any = tvm.runtime.load_module(path)
    device: Any = tvm.cpu()
    machine = relax.VirtualMachine(library, device)
    arguments = [tvm.runtime.tensor(x.numpy()) for x in inputs]
    main = machine["main"]
    return lambda: main(*arguments)


def arrays(output: Any) -> list[np.ndarray]:
    """The tensors of an output, PyTorch's or TVM's, nested or not."""
    if isinstance(output, torch.Tensor):
        return [output.detach().numpy()]
    if hasattr(output, "numpy"):
        return [output.numpy()]
    if isinstance(output, dict):
        return [a for value in output.values() for a in arrays(value)]
    return [a for item in output for a in arrays(item)]


def check(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], rtol: float, atol: float) -> dict[str, Any]:
    """Compare outputs; see `compile.OutputCheck`."""
    same_form = len(found) == len(expected) and all(a.shape == b.shape for a, b in zip(found, expected, strict=False))
    facts: dict[str, Any] = {"rtol": rtol, "atol": atol, "outputs": len(expected)}
    largest = max((float(np.abs(b).max(initial=0)) for b in expected), default=0.0)
    if not same_form:
        return facts | {"ok": False, "max_abs_diff": float("inf"), "max_abs_output": largest}
    worst, ok = 0.0, True
    for a, b in zip(found, expected, strict=True):
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        scale = max(1.0, float(np.abs(b64).max(initial=0)))
        difference = np.abs(a64 - b64)
        ok = ok and bool((difference <= atol * scale + rtol * np.abs(b64)).all())  # NaN is not <=
        worst = max(worst, float(difference.max(initial=0))) if not np.isnan(difference).any() else float("inf")
    return facts | {"ok": ok, "max_abs_diff": worst, "max_abs_output": largest}


def _time(run: Run, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def measure(runs: dict[str, Run], max_seconds: float) -> dict[str, list[float]]:
    """Seconds a run of each system, one number a repeat; systems take turns until the time is up."""
    loops, spent = {}, dict.fromkeys(runs, 0.0)
    for name, run in runs.items():
        once = min(_time(run, 1) for _ in range(WARM_UP))
        loops[name] = max(1, round(REPEAT_SECONDS / once))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    share = max_seconds / len(runs)
    for _ in range(MAX_REPEATS):
        for name, run in runs.items():
            if len(seconds[name]) >= MIN_REPEATS and spent[name] > share:
                continue
            value = _time(run, loops[name])
            spent[name] += value * loops[name]
            seconds[name].append(value)
    return seconds


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what `compile.compare` asks."""
    inputs = torch.load(request["inputs"], weights_only=True)
    with torch.inference_mode():
        runs = {name: _library(path, inputs) for name, path in request["libraries"].items()}
        reference = reference_run(request["reference"], inputs)
        expected = arrays(reference())
        checks = {name: check(arrays(run()), expected, request["rtol"], request["atol"]) for name, run in runs.items()}
        errors: dict[str, str] = {}
        if not request["reference"].endswith(".onnx"):
            runs["pytorch"] = reference
            if request.get("torch_compile"):
                add_compiled(runs, request["reference"], inputs, errors)
        return {"checks": checks, "seconds": measure(runs, request["max_seconds"]), "errors": errors}


def main() -> None:
    """Answer the request on stdin."""
    request = json.loads(sys.stdin.read())
    _shield(request["threads"])
    torch.set_num_threads(request["threads"])
    print(json.dumps(answer(request)))


if __name__ == "__main__":
    main()

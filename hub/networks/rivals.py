"""The original network, and other runtimes that a compiled one is timed beside, on the same inputs and threads.

That a runtime does not take a network, or computes something else, is a fact of the comparison and no error.
`python -m tchub.hub.networks.rivals` is the fresh process in which all of them run in turn (see `latency.compare`).
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import tvm
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_leaves
from tvm import relax

from ..device.host_facts import physical_cores
from ..device.jobs import open_library
from ..device.pool import timing_cpus
from .errors import NetworkImportError
from .frontend.exported_file import in_precision, load_exported
from .frontend.onnx_file import reference_module
from .frontend.onnx_inputs import shake_from_integers
from .frontend.shapes import call_arguments
from .latency import measure
from .output_check import MOST, OutputCheck, check_output, few_differ
from .weights import read_weights, with_weights

Run = Callable[[], Any]
# Other inputs to try, at most, where a library differs from the original.
NEARBY = 4
# Runs with inputs that change in their last digits, and the change as a share of their spread: in another order, the
# sums of one convolution in float32 differ by 4e-6 of theirs, and those of some dozens by several times that.
_SHAKEN, _LAST_DIGITS = 4, 3e-5


class ReferenceNetwork:
    """The original network, which the right output is taken from; see `latency.reference_file`.

    Args:
        request: of a worker, see `latency.compare_in_process`: `reference` is the path of an exported program or an
            ONNX file; `inputs` that of tensors in the order of the compiled function's parameters.
        device: PyTorch's device to run an exported program on; the CPU for an ONNX file. There it runs in the
            request's `precision`, by PyTorch's own mixed precision.
    """

    def __init__(self, request: Mapping[str, Any], device: torch.device | None = None) -> None:
        self.path = path = request["reference"]
        self.inputs: list[torch.Tensor] = [*torch.load(request["inputs"], weights_only=True, map_location=device)]
        self.on_card = device is not None and device.type != "cpu"
        wanted = request.get("precision", "float32")
        self.precision = "float32" if device is None else wanted
        self._half = torch.bfloat16 if wanted == "bfloat16" else torch.float16
        self.is_onnx = path.endswith(".onnx")
        if self.is_onnx:
            self.module: Any = reference_module(Path(path))
            self._arguments: Callable[[Sequence[torch.Tensor]], Any] = lambda inputs: (tuple(inputs), {})
        else:
            exported = load_exported(Path(path))
            if device is not None:
                exported = move_to_device_pass(exported, str(device))
            self.module = exported.module()
            self._arguments = partial(call_arguments, exported)
        self.args, self.kwargs = self._arguments(self.inputs)

    def nearby(self, seed: int, size: float = 1e-3) -> Self | None:
        """Return this network on inputs changed by `size` times their spread, or None where none can be changed."""
        generator = torch.Generator().manual_seed(seed)
        inputs = [_noisy(x, generator, size) for x in self.inputs]
        if all(map(torch.equal, inputs, self.inputs)):
            return None
        other = copy(self)
        for name in ("_exact", "_shaken"):
            vars(other).pop(name, None)
        other.inputs = inputs
        other.args, other.kwargs = self._arguments(inputs)
        return other

    def run(self) -> Any:
        """Run it once."""
        return self.module(*self.args, **self.kwargs) if self.precision == "float32" else self._mixed()

    def _mixed(self) -> Any:
        with torch.autocast(self.inputs[0].device.type, self._half):
            return self.module(*self.args, **self.kwargs)

    def halved(self) -> list[np.ndarray] | None:
        """Return its outputs by PyTorch's own mixed precision; None where it has none, or lacks an operator in it."""
        if self.is_onnx:
            return None
        try:
            return arrays(self._mixed())
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None

    @cached_property
    def _exact(self) -> list[np.ndarray] | None:
        if self.is_onnx:
            try:
                return arrays(reference_module(Path(self.path), optimised=False)(*self.args))
            except Exception:  # whatever ONNX Runtime raises at an operator that it has as a fused one alone
                return None
        try:
            exported = in_precision(load_exported(Path(self.path)), "the original", torch.float64)
        except NetworkImportError:
            return None
        wide = [x.double() if x.is_floating_point() else x for x in (one.cpu() for one in self.inputs)]
        args, kwargs = call_arguments(exported, wide)
        return arrays(exported.module()(*args, **kwargs))

    def exact(self) -> list[np.ndarray] | None:
        """Return its outputs as exactly as they are known: in float64, or those of an ONNX file's operators one by one.

        None where its operators have no float64, or cannot be run alone.
        """
        return self._exact

    @cached_property
    def _shaken(self) -> list[list[np.ndarray]]:
        shaken = copy(self)
        if self.is_onnx:
            named = zip(self.module.input_names, self.inputs, strict=True)
            images = [name for name, x in named if x.dtype in (torch.uint8, torch.int8) and len(x.unique()) > 2]
            shake = partial(shake_from_integers, images=images, size=_LAST_DIGITS)
            shaken.module = reference_module(Path(self.path), shake=shake)
        return [arrays((shaken.nearby(seed, _LAST_DIGITS) or shaken).run()) for seed in range(_SHAKEN)]

    def shaken(self) -> list[list[np.ndarray]]:
        """Return its outputs for inputs changed by about what the sums of its layers are rounded by.

        What an ONNX file makes of integers is changed in their place.


        There are none where float64 says how far its own float32 is off.
        """
        return self._shaken if self.is_onnx or self._exact is None else []


def _noisy(x: torch.Tensor, generator: torch.Generator, size: float) -> torch.Tensor:
    """Return numbers changed by `size` times their spread, within their range; masks and the like stay."""
    wide = x.detach().double()
    if not x.is_floating_point() or x.numel() < 2 or not bool(wide.isfinite().all()):
        return x
    if 2 * len(wide.unique()) < x.numel():  # a mask, an image of a few colours, numbers of classes
        return x
    noise = torch.randn(x.shape, generator=generator, dtype=wide.dtype).to(x.device)
    return (wide + size * wide.std() * noise).clamp(wide.min(), wide.max()).to(x.dtype)


def check_library(
    output: Any,
    run: Callable[[Sequence[torch.Tensor]], Any],
    reference: ReferenceNetwork,
    expected: Sequence[np.ndarray[Any, Any]],
    precision: str = "float32",
) -> OutputCheck:
    """Compare a compiled network with the original; where a few of its numbers differ, on slightly other inputs too.

    In a detector two of several hundred sorted scores may be so close that rounding decides their order, and then two
    rows of its outputs change places. With other inputs, those scores are apart; a wrong kernel is wrong there too.

    Args:
        output: of the compiled network for the original's inputs.
        run: gives its output for other inputs.
        expected: the original's outputs for its own inputs.
        precision: in which the compiled network multiplies.
    """
    ours = arrays(output)
    check = check_output(ours, expected, reference.exact, precision, reference.halved, reference.shaken)
    if check.ok or not few_differ(ours, expected, precision):
        return check
    for other in map(reference.nearby, range(NEARBY)):
        if other is None:
            break
        again = check_output(arrays(run(other.inputs)), arrays(other.run()), precision=precision, halved=other.halved)
        if again.ok and set(again.unchecked) <= set(check.unchecked):
            return replace(again, judged_by="other inputs")
    return check


def arrays(output: Any) -> list[np.ndarray]:
    """Return the tensors of an output, PyTorch's or TVM's, nested or not; constants are in the signature."""
    nested = isinstance(output, dict | list | tuple) or hasattr(output, "numpy")
    leaves = tree_leaves(output if nested else list(output))
    tensors = [x for x in leaves if hasattr(x, "numpy") or isinstance(x, np.ndarray)]
    tensors = [x.float() if x.dtype in (torch.bfloat16, torch.float16) else x for x in tensors]
    tensors = [x.detach().cpu() if isinstance(x, torch.Tensor) else x for x in tensors]
    return [x if isinstance(x, np.ndarray) else x.numpy() for x in tensors]


def rival_runs(
    names: Sequence[str], reference: ReferenceNetwork, expected: Sequence[np.ndarray[Any, Any]], threads: int
) -> tuple[dict[str, Run], dict[str, str]]:
    """Return what runs the network once in each runtime, and why a runtime has none.

    Args:
        names: of `_MAKE`.
        expected: its outputs; a runtime whose outputs are others has no latency.
    """
    runs: dict[str, Run] = {}
    errors: dict[str, str] = {}
    for name in names:
        try:
            run = _MAKE[name](reference, threads)
            output = arrays(run())
            doubts = (reference.exact, reference.precision, reference.halved, reference.shaken)
            check = check_output(output, expected, *doubts)
        except Exception as error:  # whatever a foreign compiler raises
            lines = str(error).strip().splitlines() or ["no message"]
            errors[name] = f"{type(error).__name__}: {lines[0][:300]}"
            continue
        # ONNX Runtime's own run of a file may round more than the one to compare with.
        rounded = reference.is_onnx and name == "onnxruntime" and _is_near(output, expected)
        if rounded or check.ok or few_differ(output, expected, reference.precision):  # see `check_library`
            runs[name] = run
        else:
            errors[name] = f"its output is wrong: off by {check.max_abs_diff:.1e}"
    return runs, errors


def _is_near(output: Sequence[np.ndarray[Any, Any]], expected: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return whether outputs are what is expected, up to a share of its spread by which it is not lost."""
    pairs = list(zip(output, expected, strict=True))
    return all(bool((np.abs(ours - theirs) <= MOST * np.std(theirs)).all()) for ours, theirs in pairs)


def _compiled(reference: ReferenceNetwork, _threads: int) -> Run:
    """Run PyTorch's compiler, with weights as constants, as for deployment; on a card with CUDA graphs."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    rival = copy(reference)
    rival.module = torch.compile(reference.module, mode="reduce-overhead" if reference.on_card else None)
    return rival.run


def _onnxruntime(reference: ReferenceNetwork, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    with tempfile.TemporaryDirectory(prefix="tchub-onnx-") as folder:
        session = onnxruntime.InferenceSession(_onnx_file(reference, Path(folder)), options, ["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    inputs = {name: x.numpy() for name, x in zip(names, reference.inputs, strict=True)}
    return lambda: session.run(None, inputs)


def _openvino(reference: ReferenceNetwork, threads: int) -> Run:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        # It would compute in bfloat16 where the CPU can.
        "INFERENCE_PRECISION_HINT": "bf16" if reference.precision == "bfloat16" else "f32",
    }
    with tempfile.TemporaryDirectory(prefix="tchub-openvino-") as folder:
        model = openvino.convert_model(_onnx_file(reference, Path(folder)))
        compiled = openvino.compile_model(model, "CPU", settings)
    inputs = {number: x.numpy() for number, x in enumerate(reference.inputs)}
    request = compiled.create_infer_request()

    def run() -> Any:
        request.infer(inputs, share_inputs=True, share_outputs=True)
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return run


_MAKE: Mapping[str, Callable[[ReferenceNetwork, int], Run]] = {
    "pytorch": lambda reference, _: reference.run, "torch.compile": _compiled,
    "onnxruntime": _onnxruntime, "openvino": _openvino,
}  # fmt: skip


def _onnx_file(reference: ReferenceNetwork, folder: Path) -> str:
    """Return the network's ONNX file, exported where it has none."""
    if reference.is_onnx:
        return str(reference.path)
    path = str(folder / "network.onnx")
    program: Any = torch.onnx.export(reference.module, reference.args, kwargs=reference.kwargs, dynamo=True)
    program.save(path)
    return path


# The worker


def _libraries(request: Mapping[str, Any]) -> dict[str, Callable[[Sequence[torch.Tensor]], Run]]:
    """Return for each system a function that binds its compiled network to inputs."""

    @cache
    def opened(path: str, sha256: str) -> tuple[Any, list[Any]]:
        device: Any = tvm.cpu()
        return relax.VirtualMachine(open_library(path, sha256), device), read_weights(Path(path))

    def bound(name: str, inputs: Sequence[torch.Tensor]) -> Run:
        machine, weights = opened(*request["libraries"][name])
        return partial(
            with_weights(machine[function_of(name)], weights), *(tvm.runtime.tensor(x.numpy()) for x in inputs)
        )

    return {name: partial(bound, name) for name in request["libraries"]}


def function_of(system: str) -> str:
    """Return the function of a library that a system is, see `latency.compare`."""
    return system.partition("/")[2] or "main"


def asked(prepare: Callable[[int], None] = lambda threads: None) -> tuple[dict[str, Any], ReferenceNetwork]:
    """Return the request on stdin, and the original network, which is loaded before the libraries are there.

    Args:
        prepare: called before that, with the number of threads.
    """
    request = json.loads(sys.stdin.readline())
    prepare(request.get("threads", 1))
    with torch.inference_mode():
        reference = ReferenceNetwork(request)
    return request | json.loads(sys.stdin.readline()), reference


@torch.inference_mode()
def answer(request: dict[str, Any], reference: ReferenceNetwork) -> dict[str, Any]:
    """Do what `latency.compare` asks."""
    runs: dict[str, Run] = {}
    expected = arrays(reference.run())
    checks, first = {}, {}
    for name, library in _libraries(request).items():
        runs[name] = library(reference.inputs)
        start = time.perf_counter()
        output = runs[name]()
        first[name] = time.perf_counter() - start
        again = lambda inputs, bind=library: bind(inputs)()  # noqa: E731
        checks[name] = check_library(output, again, reference, expected, request["precision"]).as_dict()
    timed = copy(reference)
    timed.precision = request["precision"]
    if not reference.is_onnx:  # in float32 where PyTorch lacks an operator in the precision
        runs["pytorch"] = timed.run if timed.precision == "float32" or timed.halved() is not None else reference.run
    rivals, errors = rival_runs(request["rivals"], timed, expected, request["threads"])
    runs |= rivals
    # A first impression of a slow library is its first run: an untuned network may take long.
    slow = {n: [s] for n, s in first.items() if request["min_repeats"] == 1 and s > request["max_seconds"]}
    # Of a library with several networks the other ones are only checked.
    quick = {name: run for name, run in runs.items() if name not in slow and function_of(name) == "main"}
    settle = torch.get_num_threads() > 1
    seconds = slow | measure(quick, request["max_seconds"], request["min_repeats"], settle=settle)
    return {"checks": checks, "seconds": seconds, "errors": errors}


def main() -> None:
    """Answer the request on stdin, on the last cores; with real-time priority, as the measurer, if cores stay free."""
    physical = physical_cores(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_setaffinity") else []

    def take_cores(threads: int) -> None:
        if physical:
            os.sched_setaffinity(0, timing_cpus(physical, threads))
        torch.set_num_threads(threads)

    request, reference = asked(take_cores)
    # Not before: libraries are built on these cores until then.
    if request["threads"] < len(physical):
        with contextlib.suppress(PermissionError):  # not root: the timing is the same, only less shielded
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print(json.dumps(answer(request, reference)))


if __name__ == "__main__":
    main()

"""A network and a tuning database to a shared library; its output checked and its latency measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from ..durable import kept_on_disk
from .errors import LatencyError, OutputMismatchError

if TYPE_CHECKING:
    from tvm import IRModule

    from .network import Network

# float32 networks of a few hundred layers, summed in another order than PyTorch sums them.
RTOL = 1e-3
ATOL = 1e-4


@dataclass(frozen=True)
class BuiltLibrary:
    """A compiled network.

    Attributes:
        path: the shared library.
        seconds: compile time.
        functions: kernels in it; tuned: those with a schedule of the database.
        size: bytes.
    """

    path: str
    seconds: float
    functions: int
    tuned: int
    size: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class OutputCheck:
    """How near the compiled network's output is to PyTorch's.

    Attributes:
        ok: every |tvm - torch| <= atol * max(1, max |torch|) + rtol * |torch|.
        max_abs_diff: largest difference; max_abs_output: largest number of PyTorch's output.
        rtol, atol: the tolerances.
        outputs: tensors compared.
    """

    ok: bool
    max_abs_diff: float
    max_abs_output: float
    rtol: float
    atol: float
    outputs: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


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
        return {
            "median": self.median,
            "first_quartile": first,
            "third_quartile": third,
            "repeats": list(self.seconds),
        }


@dataclass(frozen=True)
class Comparison:
    """What the worker found: a check for each library, a latency for each system, why a system has none."""

    checks: dict[str, OutputCheck]
    latencies: dict[str, Latency]
    errors: dict[str, str] = field(default_factory=dict)


def build_library(
    mod: IRModule, target: Any, database: Any | None, path: Path, linker: str | None = None
) -> BuiltLibrary:
    """Compile a fused Relax module, with the best schedules of a MetaSchedule database if there is one.

    The module is taken as it is: running the fusion passes again, as MetaSchedule's `compile_relax` does,
    could make functions that the database has never seen.

    Args:
        mod: as `Network.relax_module` gives it, whose functions are the tuned tasks.
        target: a `tvm.target.Target`.
        database: MetaSchedule's, or None for untuned code.
        path: of the shared library; written atomically.
        linker: for another architecture, called as `LINKER -shared -o LIBRARY OBJECTS`; None for this machine's own.
    """
    from contextlib import nullcontext

    import tvm
    from tvm import relax

    from ..device.rpc_jobs import linked_by

    counts = {"functions": 0, "tuned": 0}

    def lower(mod: Any, _context: Any) -> Any:
        if database is not None:
            mod = relax.transform.MetaScheduleApplyDatabase()(mod)
        kernels = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        counts["functions"] = len(kernels)
        counts["tuned"] = sum(bool(f.attrs.get("tirx.is_scheduled", False)) for f in kernels)
        return tvm.transform.Sequential(_lowering())(mod)

    pipeline: Any = tvm.transform.module_pass(lower, opt_level=0)
    start = time.monotonic()
    # An empty database is false, and must be there all the same.
    with target, nullcontext() if database is None else database, tvm.transform.PassContext(opt_level=3):
        library = relax.build(mod, target=target, relax_pipeline=pipeline)
    temporary = path.with_name(f"{path.stem}.part.so")
    with kept_on_disk(path):
        library.export_library(str(temporary), fcompile=linked_by(linker) if linker else None)
        temporary.replace(path)
    return BuiltLibrary(str(path), time.monotonic() - start, **counts, size=path.stat().st_size)


def _lowering() -> list[Any]:
    """Relax's own passes from tensor functions to the virtual machine, for a module that is fused already."""
    from tvm.relax import transform

    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]


def compare(
    network: Network,
    libraries: Mapping[str, Path],
    *,
    threads: int = 1,
    max_seconds: float = 30.0,
    timeout: float = 600.0,
    rtol: float = RTOL,
    atol: float = ATOL,
    torch_compile: bool = False,
) -> Comparison:
    """Check libraries against PyTorch and time all of them, PyTorch eager included, in a fresh process.

    The process runs on `threads` cores with `threads` threads, and takes the systems in turn, so that a
    disturbance hits all of them. An ONNX file is checked against ONNX's reference evaluator, which is not
    timed.

    Args:
        libraries: system name to library; `pytorch` is added, except for an ONNX file.
        max_seconds: of timing, shared by the systems.
        timeout: of the whole process.
        torch_compile: also time the network as `torch.compile` makes it, by the name `torch.compile`; where that
            fails, the error stands in `Comparison.errors`.

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
            "libraries": {name: str(Path(path).resolve()) for name, path in libraries.items()},
            "threads": threads,
            "max_seconds": max_seconds,
            "rtol": rtol,
            "atol": atol,
            "torch_compile": torch_compile,
        }
        answer = _ask(request, threads, timeout)
    checks = {name: OutputCheck(**facts) for name, facts in answer["checks"].items()}
    return Comparison(checks, {name: Latency(tuple(s)) for name, s in answer["seconds"].items()}, answer["errors"])


def reference_file(network: Network, folder: Path) -> Path:
    """The file that the worker takes the right output from: the ONNX file itself, or an exported program."""
    import torch

    if network.origin == "onnx":
        return Path(getattr(network, "path")).resolve()  # noqa: B009 (only an OnnxNetwork has one)
    path = folder / "network.pt2"
    torch.export.save(network.export(), path)
    return path


def _ask(request: dict[str, Any], threads: int, timeout: float) -> dict[str, Any]:
    count = str(threads)
    env = os.environ | dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), count)
    env["TVM_BIND_THREADS"] = "0"  # TVM's pool would leave the cores that the worker stays on
    command = [sys.executable, "-m", "tchub.hub.networks.latency_worker"]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), env=env, timeout=timeout, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise LatencyError(
            f"measuring the latency took more than {timeout:g} s", remedy="tune with more trials, or wait longer"
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


def require(check: OutputCheck, network: str) -> None:
    """Raises OutputMismatchError when the check failed."""
    if not check.ok:
        raise OutputMismatchError(
            f"the compiled {network} differs from PyTorch by {check.max_abs_diff:.3g} "
            f"(largest output {check.max_abs_output:.3g}, rtol {check.rtol:g}, atol {check.atol:g})",
            remedy="do not use the library; report the network and the database folder",
            **check.as_dict(),
        )

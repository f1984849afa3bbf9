"""What a worker does: compile one scheduled module, or time one compiled kernel. Runs in a forked process."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

ArgsInfo = Sequence[tuple[Sequence[int], str]]


@dataclass(frozen=True)
class TimingConfig:
    """How one program is timed.

    Attributes:
        min_repeat_seconds: a repeat runs the program often enough to last this long.
        min_repeats: repeats always taken.
        max_repeats: repeats at most.
        spread: stop when (third quartile - first quartile) / median of the repeats is under this.
        max_seconds: stop after this much timing, whatever the spread.
        slow_factor: a program this many times slower than the best known of its task gets one repeat only.
    """

    min_repeat_seconds: float = 0.004
    min_repeats: int = 3
    max_repeats: int = 10
    spread: float = 0.02
    max_seconds: float = 0.6
    slow_factor: float = 5.0


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker sets for itself before its first job.

    Attributes:
        cpus: cores it may run on, or None.
        idle: run only when the core has nothing else to do.
        urgent: ask for real-time priority, so that a busy neighbour disturbs the timing less; granted to root only.
            (A nice value would not do: where sessions are scheduled as groups, it starves the session's own builders.)
        threads: threads of a program.
        memory_bytes: address space at most; an allocation over it fails in the worker alone.
    """

    cpus: tuple[int, ...] | None = None
    idle: bool = False
    urgent: bool = False
    threads: int = 1
    memory_bytes: int | None = None


def warm_up() -> None:
    """Import TVM and everything that a build or a run needs."""
    import numpy  # noqa: F401
    import tvm  # noqa: F401
    from tvm.driver import build  # noqa: F401
    from tvm.s_tir import meta_schedule  # noqa: F401

    from .tvm_import import import_tensor_intrinsics

    import_tensor_intrinsics()


def serve(connection: Connection) -> None:
    """Answer jobs until the other side closes: (True, value) or (False, exception name, message)."""
    while True:
        try:
            job, args = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, _find(job)(*args))
        except Exception as error:
            answer = (False, type(error).__name__, _last_line(error))
        connection.send(answer)


def _find(job: str) -> Callable[..., Any]:
    """A job of this module by its name, or one of another module as `package.module:function`."""
    if ":" not in job:
        return _JOBS[job]
    module, _, name = job.partition(":")
    return getattr(import_module(module), name)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else repr(error))[:500]


def set_up(setup: WorkerSetup) -> int:
    """Apply a `WorkerSetup`; returns the process id."""
    os.environ["TVM_NUM_THREADS"] = str(setup.threads)
    if setup.cpus is not None:
        os.sched_setaffinity(0, setup.cpus)
    if setup.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if setup.urgent:
        with contextlib.suppress(PermissionError):  # not granted: the timing is the same, only less shielded
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if setup.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory_bytes, setup.memory_bytes))
    return os.getpid()


def build(module_json: str, target: dict[str, Any], library: str) -> float:
    """Compile a scheduled module into the shared library `library`; returns seconds.

    The write is atomic: a killed build leaves no library that looks whole.
    """
    import tvm
    from tvm.driver import build as tvm_build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    start = time.perf_counter()
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module_json))
    built = tvm_build(mod, target=tvm.target.Target(target))
    partial = f"{library}.{os.getpid()}.so"
    linker = shutil.which("ld")
    built.export_library(partial, **({"fcompile": _link} if linker else {}))
    os.replace(partial, library)
    return time.perf_counter() - start


def _link(output: str, objects: Sequence[str], **_: Any) -> None:
    """Link with `ld` itself: the compiler driver that TVM calls costs a fifth of a build.

    What the kernel takes from libc and libm is resolved when it is loaded into this interpreter.
    """
    subprocess.run(["ld", "-shared", "-o", output, *objects], check=True, capture_output=True)


def _random_argument(shape: Sequence[int], dtype: str, generator: Any) -> Any:
    """Random contents: zeros let a processor take short cuts. Integers are indices, kept to 0 and 1."""
    import numpy as np
    import tvm

    if dtype.startswith(("int", "uint", "bool")):
        values = generator.integers(0, 2, size=tuple(shape))
    else:
        values = generator.random(size=tuple(shape), dtype=np.float32) + 0.1
    return tvm.runtime.tensor(values.astype(dtype))


def _spread(costs: Sequence[float]) -> float:
    low, middle, high = statistics.quantiles(costs, n=4)
    return (high - low) / middle if middle > 0 else 0.0


def run(library: str, args_info: ArgsInfo, config: TimingConfig, best: float | None) -> tuple[list[float], float]:
    """Time a compiled kernel on random inputs.

    Args:
        best: latency in seconds of the task's fastest known program, or None.

    Returns:
        Seconds a run, one entry a repeat: until the spread is small or the program is clearly slow; and the
        seconds that all of it took.
    """
    import numpy as np
    import tvm

    start = time.perf_counter()
    module = tvm.runtime.load_module(library)
    generator = np.random.default_rng(0)
    args = [_random_argument(shape, dtype, generator) for shape, dtype in args_info]
    costs = time_kernel(module, args, tvm.cpu(), config, best)
    return costs, time.perf_counter() - start


def time_kernel(module: Any, args: Sequence[Any], device: Any, config: TimingConfig, best: float | None) -> list[float]:
    """Seconds a run, one entry a repeat, as `run` gives them; the module may be on another machine, as its device."""
    start = time.perf_counter()
    once = module.time_evaluator("main", device, number=1, repeat=1)
    # The first run also pages in code and data; the faster of two, so that one preempted run (10 ms) does not
    # make a program of 0.3 ms look slow.
    first = min(float(once(*args).results[0]) for _ in range(2))
    if best is not None and first > config.slow_factor * best and first > config.min_repeat_seconds:
        return [first]
    number = max(1, int(config.min_repeat_seconds / max(first, 1e-9)))
    repeat = module.time_evaluator("main", device, number=number, repeat=1)
    costs: list[float] = []
    while len(costs) < config.max_repeats:
        costs.append(float(repeat(*args).results[0]))
        if len(costs) < config.min_repeats:
            continue
        if _spread(costs) < config.spread or time.perf_counter() - start > config.max_seconds:
            break
    return costs


_JOBS = {"set_up": set_up, "build": build, "run": run}

"""Jobs of a worker for a remote server: hold one RPC session, and time one program after another through it.

Runs in a process forked by the zygote: TVM's client waits without end for a server that hangs, so its caller must be
able to kill it. The session lives as long as the process.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ...zoo.errors import last_line
from .run_job import random_integers
from .worker import ArgsInfo, TimingConfig, time_kernel

_HERE = __name__
CONNECT, RUN, CROSS_BUILD = f"{_HERE}:connect", f"{_HERE}:run", f"{_HERE}:cross_build"


@dataclass(frozen=True)
class ServerFacts:
    """Facts that a server reports of its machine; None where its TVM was built without LLVM.

    Attributes:
        mcpu: LLVM's name of the CPU.
        triple: LLVM's triple, e.g. `x86_64-linux-gnu`.
        threads: TVM's worker threads there.
    """

    mcpu: str | None = None
    triple: str | None = None
    threads: int | None = None

    @property
    def architecture(self) -> str | None:
        """E.g. `x86_64` or `aarch64`."""
        return self.triple.partition("-")[0] if self.triple else None


# Of TVM's ways to place threads (`AffinityMode`) the usual one: fast cores first.
_BIG_CORES = 1


@dataclass(frozen=True)
class RemoteRun:
    """Result of running a program.

    Attributes:
        latencies: seconds a run, one entry a repeat.
        seconds: what the run cost, the transfer included.
        error: what the program did wrong.
        fault: what the server did wrong; the program may do well on another one.
        refused: whether the fault was that it could not load the program.
    """

    latencies: tuple[float, ...] = ()
    seconds: float = 0.0
    error: str | None = None
    fault: str | None = None
    refused: bool = False


@dataclass
class _Session:
    """The connection of this process; the arguments of the last program are kept for the next with the same ones."""

    remote: Any
    args_info: ArgsInfo | None = None
    args: Sequence[Any] = ()


_session: _Session | None = None


def connect(host: str, port: int, matchkey: str, lease: float, threads: int | None = None) -> ServerFacts:
    """Open the session of this process.

    Args:
        lease: seconds after which the server ends the session, whatever becomes of this client.
        threads: that programs use there; None: as many as the server likes.
    """
    global _session  # noqa: PLW0603 (one session a process is the point of the process)
    from tvm import rpc

    remote = rpc.connect(host, port, matchkey, session_timeout=ceil(lease))
    _session = _Session(remote)
    if threads is not None:
        set_threads(remote, threads)
    return ServerFacts(
        mcpu=_optional(remote, "target.llvm_get_system_cpu"),
        triple=_optional(remote, "target.llvm_get_system_triple"),
        threads=_optional(remote, "runtime.NumThreads"),
    )


def set_threads(remote: Any, threads: int) -> None:
    """Let a server's programs use so many threads; latencies of another number are those of another device."""
    remote.get_function("runtime.config_threadpool")(_BIG_CORES, threads)


def _optional(remote: Any, name: str) -> Any:
    """Return the result of a server's function, or None where it has no such function."""
    try:
        value = remote.get_function(name)()
    except AttributeError:
        return None
    return int(value) if isinstance(value, int) else str(value)


def run(library: str, args_info: ArgsInfo, config: TimingConfig, best: float | None) -> RemoteRun:
    """Send a library to the server and time its `main` there; see `worker.run`."""
    start = time.perf_counter()
    session = _session
    if session is None:
        return RemoteRun(fault="no session is open")
    name = Path(library).name
    try:
        session.remote.upload(library, name)
        module = session.remote.load_module(name)
        device = session.remote.cpu()
    except Exception as error:
        fault = f"the server cannot load the program: {last_line(error)}"
        return RemoteRun(fault=fault, refused=_is_alive(session))
    try:
        costs = time_kernel(module, _arguments(session, args_info), device, config, best)
        session.remote.remove(name)
    except Exception as error:
        message = last_line(error)
        if _is_alive(session):
            return RemoteRun(error=message)
        return RemoteRun(fault=f"the server is gone: {message}")
    return RemoteRun(tuple(costs), time.perf_counter() - start)


def _arguments(session: _Session, args_info: ArgsInfo) -> Sequence[Any]:
    """Random contents on the server; integers are those that `worker.run` has."""
    import numpy as np
    import tvm

    if session.args_info == args_info:
        return session.args
    device = session.remote.cpu()
    fill = session.remote.get_function("tvm.contrib.random.random_fill_for_measure")
    generator = np.random.default_rng(0)
    args = []
    for shape, dtype in args_info:
        if dtype.startswith("float"):
            tensor: Any = tvm.runtime.empty(tuple(shape), dtype, device)
            fill(tensor)
        else:
            integers = random_integers(generator, shape, dtype, args_info)
            tensor = tvm.runtime.tensor(integers.astype(dtype), device)
        args.append(tensor)
    session.args_info, session.args = args_info, args
    return args


def _is_alive(session: _Session) -> bool:
    """Return whether the server still answers: the error was the program's then."""
    try:
        session.remote.get_function("runtime.NumThreads")
    except Exception:
        return False
    return True


def linked_by(linker: str) -> Callable[..., None]:
    """Return the function by which TVM's `export_library` links: runs `LINKER -shared -o LIBRARY OBJECTS`."""

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        subprocess.run([linker, "-shared", "-o", output, *objects], check=True, capture_output=True)

    return link


def cross_build(module_json: str, target: dict[str, Any], library: str, linker: str) -> float:
    """`worker.build` for another architecture, linked by `linked_by(linker)`; returns seconds."""
    import tvm
    from tvm.driver import build as tvm_build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    start = time.perf_counter()
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module_json))
    partial = f"{library}.{os.getpid()}.so"
    tvm_build(mod, target=tvm.target.Target(target)).export_library(partial, fcompile=linked_by(linker))
    os.replace(partial, library)
    return time.perf_counter() - start

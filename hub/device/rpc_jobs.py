"""Jobs of a worker for a remote server: hold one RPC session, and time one program after another through it.

TVM's client waits without end for a server that hangs, so its caller must be able to kill it: the session lives in a
worker, as long as that process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ...zoo.errors import last_line
from .jobs import RunResult
from .onsite.contents import ArgsInfo, random_integers
from .onsite.repeats import TimingConfig
from .timing import time_kernel

CONNECT, RUN = f"{__name__}:connect", f"{__name__}:run"
# Of TVM's ways to place threads (`AffinityMode`) the usual one: fast cores first.
_BIG_CORES = 1


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


@dataclass(frozen=True)
class ServerFault:
    """A program was not run, and may do well on another server.

    Attributes:
        refused: whether the server could not load the program.
    """

    message: str
    refused: bool = False


@dataclass
class _Connection:
    """The session of this process; the arguments of the last program are kept for the next with the same ones."""

    remote: Any
    args_info: ArgsInfo | None = None
    args: Sequence[Any] = ()

    def is_alive(self) -> bool:
        """Return whether the server still answers: the error was the program's then."""
        try:
            self.remote.get_function("runtime.NumThreads")
        except Exception:
            return False
        return True


_connection: _Connection | None = None


def connect(host: str, port: int, matchkey: str, lease: float, threads: int | None = None) -> ServerFacts:
    """Open the session of this process.

    Args:
        lease: seconds after which the server ends the session, whatever becomes of this client.
        threads: that programs use there; None: as many as the server likes.
    """
    global _connection  # noqa: PLW0603 (one session a process is the point of the process)
    from tvm import rpc

    remote = rpc.connect(host, port, matchkey, session_timeout=ceil(lease))
    _connection = _Connection(remote)
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


def run(library: str, args_info: ArgsInfo, config: TimingConfig, best: float | None) -> RunResult | ServerFault:
    """Send a library to the server and time its `main` there; raises what the program does wrong. See `jobs.run`."""
    start, connection = time.perf_counter(), _connection
    assert connection is not None  # `connect` came first
    name = Path(library).name
    try:
        connection.remote.upload(library, name)
        module, device = connection.remote.load_module(name), connection.remote.cpu()
    except Exception as error:
        fault = f"the server cannot load the program: {last_line(error)}"
        return ServerFault(fault, refused=connection.is_alive())
    try:
        costs = time_kernel(module, _arguments(connection, args_info), device, config, best)
        connection.remote.remove(name)
    except Exception as error:
        if connection.is_alive():
            raise
        return ServerFault(f"the server is gone: {last_line(error)}")
    return RunResult(costs, time.perf_counter() - start)


def _arguments(connection: _Connection, args_info: ArgsInfo) -> Sequence[Any]:
    """Return random contents on the server; integers are those that `jobs.run` has."""
    import numpy as np
    import tvm

    if connection.args_info == args_info:
        return connection.args
    device = connection.remote.cpu()
    fill = connection.remote.get_function("tvm.contrib.random.random_fill_for_measure")
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
    connection.args_info, connection.args = args_info, args
    return args

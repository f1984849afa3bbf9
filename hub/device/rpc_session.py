"""TVM's RPC: its address in `--device`, the servers that a tracker has for a key, and the jobs of a session with one.

TVM's client waits without end for a server that hangs, so its caller must be able to kill it: the session lives in a
worker, as long as that process.
"""

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from ...zoo.errors import last_line
from .errors import DeviceError, NoServerError
from .jobs import RunResult
from .onsite.runs import ArgsInfo, TimingConfig, random_integers
from .timing import time_kernel

LOCAL, CPU = "local", "cpu"
Endpoint = tuple[str, int]
_SECONDS = 5.0  # for the tracker to answer a question; TVM's own client waits without end


@dataclass(frozen=True)
class RpcAddress:
    """A tracker, and the key under which servers of one kind of device register there."""

    host: str
    port: int
    key: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"rpc://{host}:{self.port}/{self.key}"


def parse_device(text: str) -> RpcAddress | None:
    """Return the address in `rpc://host:port/key`, None for `local` and `cpu`; others are a DeviceError."""
    if text in (LOCAL, CPU):
        return None
    try:
        parts = urlsplit(text)
        host, port, key = parts.hostname, parts.port, unquote(parts.path.removeprefix("/"))
        if parts.scheme != "rpc" or not host or not port or not key:
            raise ValueError("it is neither local, cpu, cuda or cuda:N, nor an rpc:// address with host, port and key")
        # TVM's servers append a random number to the key after a colon, and options after a space.
        if any(sign in key for sign in " :/") or parts.query or parts.fragment or parts.username:
            raise ValueError("a key has no space, colon or slash, and nothing follows it")
    except ValueError as error:  # of `urlsplit`: a port that is no number, or brackets that do not close
        raise DeviceError(
            f"cannot measure on the device {text!r}: {error}",
            remedy="give local, cpu, cuda, or rpc://host:port/key with the tracker's host and port and its key",
        ) from error
    return RpcAddress(host, port, key)


class TrackerClient:
    """A tracker's servers of one key. Each question is a connection of its own, so threads may share a client."""

    def __init__(self, address: RpcAddress) -> None:
        self.address = address

    def servers(self) -> list[Endpoint]:
        """Return the servers that are registered now, free or in use; raises a NoServerError."""
        from tvm.rpc.base import TrackerCode

        with self._connected() as connection:
            summary = _ask(connection, [TrackerCode.SUMMARY])
        wanted = f"server:{self.address.key}"
        return sorted((str(s["addr"][0]), int(s["addr"][1])) for s in summary["server_info"] if s["key"] == wanted)

    def request(self, seconds: float) -> tuple[Endpoint, str] | None:
        """Reserve a server: its endpoint, and the key that lets one client in, once; None when none was free in time.

        A reservation that nobody takes up is void after some seconds. Raises a NoServerError.
        """
        from tvm.rpc.base import TrackerCode

        priority = 1
        with self._connected() as connection:
            connection.settimeout(seconds)
            try:
                host, port, matchkey = _ask(connection, [TrackerCode.REQUEST, self.address.key, "", priority])
            except TimeoutError:
                return None
        return (str(host), int(port)), str(matchkey)

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        from tvm.rpc.base import RPC_TRACKER_MAGIC, recvall

        try:
            with socket.create_connection((self.address.host, self.address.port), _SECONDS) as connection:
                # A question is two small writes, and the second must not wait for the first to be acknowledged.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(struct.pack("<i", RPC_TRACKER_MAGIC))
                if struct.unpack("<i", recvall(connection, 4))[0] != RPC_TRACKER_MAGIC:
                    raise OSError("what answers is no RPC tracker")
                yield connection
        except (OSError, ValueError) as error:
            raise NoServerError(
                f"the RPC tracker at {self.address.host}:{self.address.port} does not answer: {error}",
                remedy=f"start one there: python -m tvm.exec.rpc_tracker --port {self.address.port}",
            ) from error


def _ask(connection: socket.socket, question: list[Any]) -> Any:
    from tvm.rpc.base import TrackerCode, recvjson, sendjson

    sendjson(connection, question)
    code, answer = recvjson(connection)
    if code != TrackerCode.SUCCESS:
        raise OSError(f"the tracker answers with code {code}")
    return answer


# Jobs of the worker that holds a session --------------------------------------------------------------

# Of TVM's ways to place threads (`AffinityMode`) the usual one: fast cores first.
_BIG_CORES = 1


@dataclass(frozen=True)
class ServerFacts:
    """LLVM's names of a server's CPU and triple, None where its TVM has no LLVM, and TVM's worker threads there."""

    mcpu: str | None = None
    triple: str | None = None
    threads: int | None = None

    @property
    def architecture(self) -> str | None:
        """E.g. `x86_64` or `aarch64`."""
        return self.triple.partition("-")[0] if self.triple else None


@dataclass(frozen=True)
class ServerFault:
    """A program was not run, and may do well on another server; `refused` where the server could not load it."""

    message: str
    refused: bool = False


_remote: Any = None  # the session of this process


def connect(host: str, port: int, matchkey: str, lease: float, threads: int | None = None) -> ServerFacts:
    """Open the session of this process, which the server ends after `lease` seconds; see `set_threads`."""
    global _remote  # noqa: PLW0603 (one session a process is the point of the process)
    from tvm import rpc

    _remote = rpc.connect(host, port, matchkey, session_timeout=ceil(lease))
    if threads is not None:
        set_threads(_remote, threads)
    names = ("target.llvm_get_system_cpu", "target.llvm_get_system_triple", "runtime.NumThreads")
    return ServerFacts(*(_optional(_remote, name) for name in names))


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
    start, name = time.perf_counter(), Path(library).name
    try:
        _remote.upload(library, name)
        module, device = _remote.load_module(name), _remote.cpu()
    except Exception as error:
        return ServerFault(f"the server cannot load the program: {last_line(error)}", refused=_answers())
    try:
        costs = time_kernel(module, _arguments(tuple(args_info)), device, config, best)
        _remote.remove(name)
    except Exception as error:
        if _answers():  # the error was the program's then
            raise
        return ServerFault(f"the server is gone: {last_line(error)}")
    return RunResult(costs, time.perf_counter() - start)


def _answers() -> bool:
    try:
        _remote.get_function("runtime.NumThreads")
    except Exception:
        return False
    return True


@lru_cache(maxsize=1)  # programs of a task, which come one after the other, take the same ones
def _arguments(args_info: ArgsInfo) -> Sequence[Any]:
    """Return random contents on the server; integers are those that `jobs.run` has."""
    import tvm

    device = _remote.cpu()
    fill = _remote.get_function("tvm.contrib.random.random_fill_for_measure")
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
    return args

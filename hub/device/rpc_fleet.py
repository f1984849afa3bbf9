"""The servers of one key: sessions opened, used for a while, given back; dead and hanging servers left behind."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .errors import NoServerError
from .pool import JobResult, Worker, Zygote
from .rpc_address import RpcAddress
from .rpc_jobs import CONNECT, RUN, ServerFacts
from .worker import WorkerSetup

# One thread and one process of this machine serve one server; both mostly wait.
_MOST_SERVERS = 1024
# A session is opened anew after so many programs: TVM's client and server keep memory from one to the next.
_PROGRAMS_PER_SESSION = 100


@dataclass(frozen=True)
class RpcConfig:
    """Settings of using servers.

    Attributes:
        attempts: servers that a program is tried on before the loss of a server is held against the program. TVM's
            server does not survive a program that crashes it, so many attempts let one program end many servers.
        connect_timeout: seconds for a reserved server to open a session.
        request_timeout: seconds to wait in the tracker's queue before asking again.
        lease: seconds that a session is used at most, so that others get their turn; the server ends one that is
            older, which frees it from a program that never ends.
        patience: seconds without any server before the run ends.
        refresh: seconds between two looks at the tracker's list.
        quarantine: seconds that a server which could not load a program is passed over, while there are others.
        linker: links programs for another architecture: called as `LINKER -shared -o LIBRARY OBJECTS`.
        threads: that programs use on a server; None: as many as it likes.
    """

    attempts: int = 2
    connect_timeout: float = 10.0
    request_timeout: float = 5.0
    lease: float = 60.0
    patience: float = 120.0
    refresh: float = 1.0
    quarantine: float = 30.0
    linker: str | None = None
    threads: int | None = None


@dataclass
class Session:
    """An open session.

    Attributes:
        endpoint: the server.
        facts: what it says of itself.
        worker: the process that holds the session.
        opened: `time.monotonic()`.
        programs: how many it was used for.
    """

    endpoint: Endpoint
    facts: ServerFacts
    worker: Worker
    opened: float = field(default_factory=time.monotonic)
    programs: int = 0

    def run(self, args: tuple[Any, ...], timeout: float) -> JobResult:
        """Send and time one program; see `rpc_jobs.run`. The value is a `RemoteRun`."""
        self.programs += 1
        return self.worker.call(RUN, args, timeout)


class Fleet:
    """Opens and closes sessions, in threads. Close it before its zygote.

    Args:
        address: tracker and key.
        config: time-outs.
        zygote: forks the process of each session.

    Attributes:
        servers: those registered at the last look.
        last_fault: the latest reason why a server could not be used.
        ready: whether sessions can be opened: TVM is imported.
    """

    def __init__(self, address: RpcAddress, config: RpcConfig, zygote: Zygote) -> None:
        self.address, self.config = address, config
        self.servers: list[Endpoint] = []
        self.last_fault = "no server is registered"
        self.ready = False
        self._tracker = TrackerClient(address)
        self._zygote = zygote
        self._threads = ThreadPoolExecutor(_MOST_SERVERS, thread_name_prefix="tchub-rpc")
        self._quarantine: dict[Endpoint, float] = {}
        self._expected: ServerFacts | None = None
        self._lock = threading.Lock()
        self._open: set[Worker] = set()
        self._closed = False

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Do something that waits in a thread."""
        return self._threads.submit(call, *args)

    def look(self) -> None:
        """Read the tracker's list; a tracker that does not answer has no servers."""
        try:
            self.servers = self._tracker.servers()
        except NoServerError as error:
            self.servers, self.last_fault = [], error.message

    def open(self) -> Session | None:
        """A session with a free server; None when there is none, or it does not answer."""
        worker = Worker(self._zygote, WorkerSetup(), waits=True)
        with self._lock:
            if self._closed:
                return None
            self._open.add(worker)
        # Forked before a server is asked for: an offer lapses within seconds, and the first fork waits for TVM.
        worker.call("set_up", (WorkerSetup(),), self.config.connect_timeout)
        self.ready = True
        offer = self._offer()
        session = None if offer is None else self._connect(worker, offer.endpoint, offer.matchkey)
        if session is None:
            self._end(worker)
        return session

    def _offer(self) -> Offer | None:
        try:
            offer = self._tracker.request(self.config.request_timeout)
        except NoServerError as error:
            self.last_fault = error.message
            return None
        if offer is None:
            self.last_fault = "no server is free"
        elif self._is_suspect(offer.endpoint):
            return None  # the offer lapses, and the server registers again
        return offer

    def _connect(self, worker: Worker, endpoint: Endpoint, matchkey: str) -> Session | None:
        args = (*endpoint, matchkey, self.config.lease, self.config.threads)
        result = worker.call(CONNECT, args, self.config.connect_timeout)
        session = Session(endpoint, result.value or ServerFacts(), worker)
        if result.error is not None:
            self.last_fault = f"{_name(endpoint)} does not open a session: {result.message}"
        elif not self._is_as_expected(session.facts):
            self.last_fault = f"{_name(endpoint)} is a {session.facts.mcpu}, not a {self._expected_cpu()}"
            self.suspect(endpoint)
        else:
            return session
        return None

    def _is_as_expected(self, facts: ServerFacts) -> bool:
        """Servers of one key must be of one kind: their latencies are compared."""
        with self._lock:
            self._expected = self._expected or facts
            return (facts.mcpu, facts.architecture) == (self._expected.mcpu, self._expected.architecture)

    def _expected_cpu(self) -> str | None:
        return self._expected.mcpu if self._expected else None

    def suspect(self, endpoint: Endpoint) -> None:
        """Pass over a server for a while."""
        with self._lock:
            self._quarantine[endpoint] = time.monotonic() + self.config.quarantine

    def _is_suspect(self, endpoint: Endpoint) -> bool:
        """Only while another server is not: a fault of all is the program's, or this machine's."""
        with self._lock:
            now = time.monotonic()
            suspects = {server for server, until in self._quarantine.items() if until > now}
        return endpoint in suspects and not set(self.servers) <= suspects

    def is_spent(self, session: Session, run_timeout: float) -> bool:
        """Return whether the session is too old, or has served too much, for one more program."""
        age = time.monotonic() - session.opened
        return session.programs >= _PROGRAMS_PER_SESSION or age > self.config.lease - run_timeout

    def give_back(self, session: Session) -> None:
        """End a session; the server registers as free."""
        self._end(session.worker)

    def _end(self, worker: Worker) -> None:
        worker.stop()
        with self._lock:
            self._open.discard(worker)

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            self._closed = True
            workers = list(self._open)
        for worker in workers:
            worker.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint[0]}:{endpoint[1]}"


def ask_server(address: RpcAddress, config: RpcConfig) -> ServerFacts:
    """Return the facts of the servers of a key, from the first that answers.

    Raises:
        NoServerError: no tracker, or none of its servers answers for `config.patience` seconds.
    """
    TrackerClient(address).servers()  # a tracker that is not there is said at once
    zygote = Zygote()
    fleet = Fleet(address, config, zygote)
    until = math.inf
    try:
        while time.monotonic() < until:
            fleet.look()
            session = fleet.open()
            if session is not None:
                fleet.give_back(session)
                return session.facts
            until = min(until, time.monotonic() + config.patience)
    finally:
        fleet.close()
        zygote.close()
    raise no_server(fleet)


def no_server(fleet: Fleet) -> NoServerError:
    """The error when a run cannot go on."""
    address = fleet.address
    return NoServerError(
        f"no server of {address} could be used for {fleet.config.patience:g} s "
        f"({len(fleet.servers)} registered): {fleet.last_fault}",
        remedy=f"start one: python -m tvm.exec.rpc_server --tracker {address.host}:{address.port} "
        f"--key {address.key}; then run the same command again: what was measured is kept",
        address=str(address),
        last=fleet.last_fault,
    )


Endpoint = tuple[str, int]


@dataclass(frozen=True)
class Offer:
    """A server that the tracker reserved.

    Attributes:
        endpoint: host and port of the server.
        matchkey: lets one client in, once. An offer that nobody takes up is void after some seconds.
    """

    endpoint: Endpoint
    matchkey: str


class TrackerClient:
    """A tracker's servers of one key. Each question is a connection of its own, so threads may share a client.

    Args:
        address: the tracker and the key.
        timeout: seconds for the tracker to answer a question.
    """

    def __init__(self, address: RpcAddress, timeout: float = 5.0) -> None:
        self.address = address
        self._timeout = timeout

    def servers(self) -> list[Endpoint]:
        """The servers that are registered now, free or in use.

        Raises:
            NoServerError: the tracker does not answer.
        """
        from tvm.rpc.base import TrackerCode

        with self._connected() as connection:
            summary = _ask(connection, [TrackerCode.SUMMARY])
        wanted = f"server:{self.address.key}"
        return sorted((str(s["addr"][0]), int(s["addr"][1])) for s in summary["server_info"] if s["key"] == wanted)

    def request(self, patience: float) -> Offer | None:
        """Reserve a server; None when none was free for `patience` seconds.

        Raises:
            NoServerError: the tracker does not answer.
        """
        from tvm.rpc.base import TrackerCode

        priority = 1
        with self._connected() as connection:
            connection.settimeout(patience)
            try:
                host, port, matchkey = _ask(connection, [TrackerCode.REQUEST, self.address.key, "", priority])
            except TimeoutError:
                return None
        return Offer((str(host), int(port)), str(matchkey))

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        from tvm.rpc.base import RPC_TRACKER_MAGIC, recvall

        try:
            with socket.create_connection((self.address.host, self.address.port), self._timeout) as connection:
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
                address=str(self.address),
                last=str(error),
            ) from error


def _ask(connection: socket.socket, question: list[Any]) -> Any:
    from tvm.rpc.base import TrackerCode, recvjson, sendjson

    sendjson(connection, question)
    code, answer = recvjson(connection)
    if code != TrackerCode.SUCCESS:
        raise OSError(f"the tracker answers with code {code}")
    return answer

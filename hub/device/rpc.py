"""Measuring on other machines through TVM's RPC: built here, run on every server that the tracker has for a key."""

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from .candidate import Candidate
from .errors import NoServerError
from .measure import MeasureConfig, Measurement, MeasuringJob, ProgramMeasurer
from .pool import JobResult, Worker, Zygote, builder_setups, require_compiler
from .rpc_session import Endpoint, RpcAddress, ServerFacts, ServerFault, TrackerClient, connect, run
from .worker import WorkerSetup

# One thread and one process of this machine serve one program under way; both mostly wait.
_MOST_PROGRAMS = 1024
# A session is opened anew after so many programs: TVM's client and server keep memory from one to the next.
_PROGRAMS_PER_SESSION = 100
_POLL_SECONDS = 0.5
# Between two looks at the tracker's list; in the tracker's queue before asking again.
_REFRESH_SECONDS, _REQUEST_SECONDS = 0.5, 2.0
# A session is used so long at most, so that others get their turn; the server ends one that is older, which frees it
# from a program that never ends.
_LEASE_SECONDS = 60.0
# A server that could not load a program is passed over for so long, while there are others.
_QUARANTINE_SECONDS = 30.0
# Servers that a program is tried on before the loss of a server is held against the program. TVM's server does not
# survive a program that crashes it, so many attempts let one program end many servers.
_ATTEMPTS = 2


@dataclass(frozen=True)
class RpcConfig:
    """Settings of using servers.

    Attributes:
        connect_timeout: seconds for a reserved server to open a session; patience: without any server before the end.
        linker: of programs for another architecture: called as `LINKER -shared -o LIBRARY OBJECTS`.
        threads: that programs use on a server; None: as many as it likes.
    """

    connect_timeout: float = 10.0
    patience: float = 120.0
    linker: str | None = None
    threads: int | None = None


@dataclass(eq=False)
class ServerSession:
    """An open session with a server."""

    endpoint: Endpoint
    facts: ServerFacts
    worker: Worker
    opened: float = field(default_factory=time.monotonic)
    programs: int = 0


class ServerPool:
    """The `servers` of one key, as of the last look at the tracker's list: sessions, lent to one thread at a time."""

    def __init__(self, address: RpcAddress, config: RpcConfig, zygote: Zygote, lease: float = _LEASE_SECONDS) -> None:
        self.address, self.config, self._lease = address, config, lease
        self.servers: list[Endpoint] = []
        self._last_fault = "no server is registered"
        self._zygote, self._tracker = zygote, TrackerClient(address)
        self._changed = threading.Condition()
        self._sessions: set[ServerSession] = set()
        self._free: list[ServerSession] = []
        self._opening = 0
        self._quarantine: dict[Endpoint, float] = {}
        self._expected: ServerFacts | None = None
        self._look_due = self._served = -math.inf

    def acquire(self, tried: Sequence[Endpoint], over: Event) -> ServerSession | None:
        """Return a session with a server that is not in `tried`, unless no other answers; None when `over` is set.

        A NoServerError ends the wait after `config.patience` seconds without any server.
        """
        self._zygote.wait()
        began = time.monotonic()
        while not over.is_set():
            self._look()
            with self._changed:
                if (session := self._take(tried)) is not None:
                    return session
                may_open = len(self._sessions) + self._opening < len(self.servers)
                self._opening += may_open
            opened = self.open() if may_open else None
            with self._changed:
                self._opening -= may_open
                if opened is not None:
                    self._sessions.add(opened)
                    self._free.append(opened)
                    if over.is_set():  # nobody recalls what is opened after the end
                        self._forget(opened)
                    self._changed.notify_all()
                    continue
                if self._sessions:
                    self._served = time.monotonic()
                elif time.monotonic() - max(began, self._served) > self.config.patience:
                    raise self._no_server()
                self._changed.wait(_POLL_SECONDS)
        return None

    def _take(self, tried: Sequence[Endpoint]) -> ServerSession | None:
        for session in list(self._free):
            old = time.monotonic() - session.opened > self._lease / 2
            if old or session.programs >= _PROGRAMS_PER_SESSION:
                self._forget(session)
        alone = all(session.endpoint in tried for session in self._sessions)
        session = next((one for one in self._free if alone or one.endpoint not in tried), None)
        if session is not None:
            self._free.remove(session)
            session.programs += 1
        return session

    def give_back(self, session: ServerSession) -> None:
        """Lend a session to the next."""
        with self._changed:
            if session in self._sessions:
                self._free.append(session)
            self._changed.notify_all()

    def drop(self, session: ServerSession, fault: str, *, refused: bool) -> None:
        """End a session with a server at fault, and pass over one that refused a program for a while."""
        with self._changed:
            self._last_fault = f"{_name(session.endpoint)}: {fault}"
            if refused:
                self._suspect(session.endpoint)
            self._forget(session)
            self._changed.notify_all()

    def recall(self) -> None:
        """End all sessions, those in use as well; the servers register as free."""
        with self._changed:
            for session in list(self._sessions):
                self._forget(session)

    def _forget(self, session: ServerSession) -> None:
        session.worker.stop()
        self._sessions.discard(session)
        if session in self._free:
            self._free.remove(session)
        self._served = time.monotonic()

    def _look(self) -> None:
        """Read the tracker's list from time to time; a tracker that does not answer has no servers."""
        with self._changed:
            if time.monotonic() < self._look_due:
                return
            self._look_due = math.inf
        try:
            servers = self._tracker.servers()
        except NoServerError as error:
            servers, self._last_fault = [], error.message
        with self._changed:
            self.servers, self._look_due = servers, time.monotonic() + _REFRESH_SECONDS

    def open(self) -> ServerSession | None:
        """Return a new session with a free server; None when there is none, or it cannot be used."""
        try:
            offer = self._tracker.request(_REQUEST_SECONDS)
        except NoServerError as error:
            self._last_fault = error.message
            return None
        if offer is None:
            self._last_fault = "no server is free"
            return None
        endpoint, matchkey = offer
        with self._changed:
            suspects = {server for server, until in self._quarantine.items() if until > time.monotonic()}
            # Passed over only while another is not at fault, else the fault is the program's.
            if endpoint in suspects and not set(self.servers) <= suspects:
                return None  # the offer lapses, and the server registers again
        worker = Worker(self._zygote, WorkerSetup(), waits=True)
        args = (*endpoint, matchkey, self._lease, self.config.threads)
        result = worker.call(connect, args, self.config.connect_timeout)
        if result.error is not None:
            self._last_fault = f"{_name(endpoint)} does not open a session: {result.message}"
        else:
            with self._changed:
                facts: ServerFacts = result.value
                first = self._expected = self._expected or facts
                if (facts.mcpu, facts.architecture) == (first.mcpu, first.architecture):
                    return ServerSession(endpoint, facts, worker)
                # Latencies of a key are compared, so that all its servers must be of one kind.
                self._last_fault = f"{_name(endpoint)} is a {facts.mcpu}, not a {first.mcpu}"
                self._suspect(endpoint)
        worker.stop()
        return None

    def _suspect(self, endpoint: Endpoint) -> None:
        self._quarantine[endpoint] = time.monotonic() + _QUARANTINE_SECONDS

    def _no_server(self) -> NoServerError:
        address = self.address
        return NoServerError(
            f"no server of {address} could be used for {self.config.patience:g} s "
            f"({len(self.servers)} registered): {self._last_fault}",
            remedy=f"start one: python -m tvm.exec.rpc_server --tracker {address.host}:{address.port} "
            f"--key {address.key}; then run the same command again: what was measured is kept",
        )


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint[0]}:{endpoint[1]}"


def ask_server(address: RpcAddress, config: RpcConfig) -> ServerFacts:
    """Return the facts of the servers of a key, from the first that answers; raises as `ServerPool.acquire`."""
    TrackerClient(address).servers()  # an absent tracker is an error at once
    zygote = Zygote()
    pool = ServerPool(address, config, zygote)
    try:
        session = pool.acquire((), Event())
        assert session is not None
        return session.facts
    finally:
        pool.recall()
        zygote.close()


class RpcMeasurer(ProgramMeasurer):
    """Measures candidates on the servers of one key; see `ProgramMeasurer`.

    A program whose server dies or hangs goes to another server. Servers may come and go while it measures. Programs use
    as many threads as the servers' target has num-cores.
    """

    def __init__(self, address: RpcAddress, target: dict[str, Any], config: MeasureConfig, rpc: RpcConfig) -> None:
        rpc = replace(rpc, threads=rpc.threads or int(target.get("num-cores", 1)))
        if rpc.linker is None:
            require_compiler()
        builders = builder_setups()
        super().__init__(target, config, builders, "check `--target` and the servers' logs")
        self.linker = rpc.linker
        self._cores = len(builders)
        self._servers = ServerPool(address, rpc, self._zygote, max(_LEASE_SECONDS, 2 * config.run_timeout))
        self._threads = ThreadPoolExecutor(_MOST_PROGRAMS, thread_name_prefix="tchub-rpc")
        self._over = Event()

    def close(self) -> None:
        self._over.set()
        self._servers.recall()
        self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()

    def window(self) -> int:
        """Return the programs that give every core and every server a next one."""
        return min(_MOST_PROGRAMS, 2 * (self._cores + len(self._servers.servers)))

    def measure(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Measure candidates and give the servers back; see `ProgramMeasurer.measure`.

        Raises:
            NoServerError: no server could be used for `rpc.patience` seconds; what was measured was yielded before.
        """
        self._over = over = Event()
        try:
            yield from super().measure(candidates)
        finally:
            over.set()
            self._servers.recall()

    def _start_run(self, job: MeasuringJob) -> Future[JobResult]:
        return self._threads.submit(self._run_on_servers, job, self._over)

    def _run_on_servers(self, job: MeasuringJob, over: Event) -> JobResult:
        """Run a built program on a server, or on another one where that fails; waits."""
        tried: list[Endpoint] = []
        while (session := self._servers.acquire(tried, over)) is not None:
            best = self._best.get(job.candidate.task_id)
            args = (str(job.library), job.candidate.args_info, self.config.timing, best)
            result = session.worker.call(run, args, self.config.run_timeout)
            fault = result.value if result.error is None else ServerFault(str(result.message))
            if not isinstance(fault, ServerFault) or result.error == "exception":
                self._servers.give_back(session)
                return result
            self._servers.drop(session, fault.message, refused=fault.refused)
            tried.append(session.endpoint)
            if len(tried) >= _ATTEMPTS:
                if fault.refused or result.error == "timeout":
                    return JobResult(error="exception" if fault.refused else "timeout", message=fault.message)
                lost = "the server was lost, or the program crashed it"
                return JobResult(error="crash", message=f"{lost}: {fault.message}")
        return JobResult(error="crash", message="the run was stopped")

"""Measuring on other machines through TVM's RPC: built here, run on every server that the tracker has for a key."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from .measure import MeasureConfig, Measurement, check_compiler, cores
from .measurement import FailureWatch
from .pool import JobResult, WorkerPool, Zygote
from .rpc_address import RpcAddress
from .rpc_fleet import Endpoint, Fleet, RpcConfig, Session, no_server
from .rpc_jobs import CROSS_BUILD, RemoteRun
from .worker import WorkerSetup

if TYPE_CHECKING:
    from .candidate import Candidate
    from .measure import MeasureConfig


class RpcMeasurer:
    """Measures candidates on the servers of one key. Use as a context manager: it owns processes and a folder.

    A program whose server dies or hangs goes to another server. Servers may come and go while it measures.

    Args:
        address: tracker and key.
        target: the servers' TVM target as a dictionary; programs use as many threads as it has num-cores.
        config: time-outs and repeats, as for this machine.
        rpc: how servers are used.
        zygote: forks the workers and stays open; None for one of its own.

    Attributes:
        overlaps: whether programs are built while others are timed, as they always are.
        used: the servers that programs were measured on, with how many.
    """

    overlaps = True

    def __init__(
        self, address: RpcAddress, target: dict[str, Any], config: MeasureConfig | None = None,
        rpc: RpcConfig | None = None, zygote: Zygote | None = None,
    ) -> None:  # fmt: skip
        self.target, self.config, rpc = target, config or MeasureConfig(), rpc or RpcConfig()
        threads = rpc.threads or int(target.get("num-cores", 1))
        self.rpc = replace(rpc, lease=max(rpc.lease, 2 * self.config.run_timeout), threads=threads)
        if self.rpc.linker is None:
            check_compiler()
        self._scratch = Path(tempfile.mkdtemp(prefix="tchub-rpc-"))
        self._zygote, self._owned = zygote or Zygote(), zygote is None
        memory = psutil.virtual_memory().total
        self._cores = cores()
        self._builders = WorkerPool(self._zygote, [WorkerSetup((core,), memory_bytes=memory) for core in self._cores])
        self._fleet = Fleet(address, self.rpc, self._zygote)
        self._failures = FailureWatch(self.config, "check `--target` and the servers' logs; a busy server needs time")
        self._best: dict[str, float] = {}
        self._serial = 0
        self.used: dict[Endpoint, int] = {}

    @property
    def outcomes(self) -> dict[str, int]:
        """Count of programs by outcome."""
        return self._failures.outcomes

    def __enter__(self) -> RpcMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sessions and workers, and remove the scratch folder."""
        self._fleet.close()
        self._builders.close()
        if self._owned:
            self._zygote.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def know(self, task_id: str, latency: float) -> None:
        """Tell the latency of a program measured earlier, so that clearly slower ones stop early."""
        self._best[task_id] = min(latency, self._best.get(task_id, float("inf")))

    def measure(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Measure candidates; yields each with its measurement as soon as it is known.

        Raises:
            NoServerError: no server could be used for `rpc.patience` seconds; what was measured was yielded before.
            MeasurementFailureRateError: nearly every program failed.
        """
        batch = RemoteBatch(self, self._fleet, candidates)
        try:
            for program, measurement in batch.results():
                if measurement.error is None:
                    self.know(program.candidate.task_id, measurement.latency)
                yield program.candidate, self._failures.count(measurement)
        finally:
            batch.end()

    def build(self, candidate: Candidate) -> tuple[RemoteProgram, Future[JobResult]]:
        """Start to compile a candidate."""
        import tvm

        self._serial += 1
        program = RemoteProgram(candidate, self._scratch / f"{self._serial}.so")
        args = (tvm.ir.save_json(candidate.mod), self.target, str(program.library))
        job = "build" if self.rpc.linker is None else CROSS_BUILD
        linker = () if self.rpc.linker is None else (self.rpc.linker,)
        return program, self._builders.submit(job, (*args, *linker), self.config.build_timeout)

    def window(self) -> int:
        """Return how many programs may be on their way: every core and every server has a next one."""
        return 2 * (len(self._cores) + len(self._fleet.servers))

    def run(self, session: Session, program: RemoteProgram) -> JobResult:
        """Run a built program on a server; waits."""
        candidate = program.candidate
        best = self._best.get(candidate.task_id)
        args = (str(program.library), candidate.args_info, self.config.timing, best)
        result = session.run(args, self.config.run_timeout)
        if result.error is None and result.value.fault is None:
            self.used[session.endpoint] = self.used.get(session.endpoint, 0) + 1
        return result


_POLL_SECONDS = 0.5
_LOST = "the server was lost, or the program crashed it"


@dataclass
class RemoteProgram:
    """A candidate on its way.

    Attributes:
        library: what it is compiled into.
        tried: servers that were lost, or at fault, while they had it.
    """

    candidate: Candidate
    library: Path
    build_seconds: float = 0.0
    tried: list[Endpoint] = field(default_factory=list)


class BuildAndRun(Protocol):
    """The part of the measurer that a batch uses."""

    config: MeasureConfig

    def window(self) -> int:
        """Return how many programs may be on their way."""
        ...

    def build(self, candidate: Candidate) -> tuple[RemoteProgram, Future[JobResult]]:
        """Start to compile."""
        ...

    def run(self, session: Session, program: RemoteProgram) -> JobResult:
        """Run on a server; waits."""
        ...


Finished = tuple[RemoteProgram, Measurement]


class RemoteBatch:
    """One call of `measure`. All that waits is a future with what to do at its end; one thread does all of that.

    Args:
        measurer: builds and runs.
        fleet: opens sessions.
        candidates: what to measure; read as far ahead as `measurer.window()` says.
    """

    def __init__(self, measurer: BuildAndRun, fleet: Fleet, candidates: Iterable[Candidate]) -> None:
        self._measurer, self._fleet = measurer, fleet
        self._waiting: Iterator[Candidate] | None = iter(candidates)
        self._ready: deque[RemoteProgram] = deque()
        self._sessions: dict[int, Session] = {}
        self._free: list[Session] = []
        self._opening: set[Future[Session | None]] = set()
        self._events: dict[Future[Any], Callable[[Any], Finished | None]] = {}
        self._underway = 0
        self._look_due = self._served = time.monotonic()

    def results(self) -> Iterator[Finished]:
        """Programs with their measurements, as they end.

        Raises:
            NoServerError: no server could be used for `patience` seconds while programs waited.
        """
        while True:
            self._start_builds()
            if not self._underway:
                return
            self._look()
            self._open_sessions()
            self._start_runs()
            self._check_patience()
            done, _ = wait(self._events, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                finished = self._events.pop(future)(future)
                if finished is not None:
                    self._underway -= 1
                    finished[0].library.unlink(missing_ok=True)
                    yield finished

    def end(self) -> None:
        """Give back the servers, those too that answer only now."""
        for session in list(self._sessions.values()):
            self._fleet.give_back(session)
        for future in self._opening:
            future.add_done_callback(self._give_back_late)

    def _give_back_late(self, future: Future[Session | None]) -> None:
        session = None if future.cancelled() or future.exception() else future.result()
        if session is not None:
            self._fleet.give_back(session)

    # Starting ----------------------------------------------------------------------------------------

    def _start_builds(self) -> None:
        while self._waiting is not None and self._underway < self._measurer.window():
            candidate = next(self._waiting, None)
            if candidate is None:
                self._waiting = None
                return
            program, future = self._measurer.build(candidate)
            self._events[future] = partial(self._built, program)
            self._underway += 1

    def _look(self) -> None:
        """Read the tracker's list from time to time, and now when there is work at first."""
        if time.monotonic() >= self._look_due:
            self._look_due = float("inf")
            self._events[self._fleet.submit(self._fleet.look)] = self._looked

    def _open_sessions(self) -> None:
        """Open as many sessions as there are servers and programs that wait."""
        room = len(self._fleet.servers) - len(self._sessions) - len(self._opening)
        need = len(self._ready) - len(self._free) - len(self._opening)
        for _ in range(min(room, need)):
            future = self._fleet.submit(self._fleet.open)
            self._opening.add(future)
            self._events[future] = self._opened

    def _start_runs(self) -> None:
        for session in list(self._free):
            program = self._next_for(session)
            if program is None:
                continue
            self._free.remove(session)
            if self._fleet.is_spent(session, self._measurer.config.run_timeout):
                self._drop(session)
                continue
            self._ready.remove(program)
            future = self._fleet.submit(self._measurer.run, session, program)
            self._events[future] = partial(self._ran, session, program)

    def _next_for(self, session: Session) -> RemoteProgram | None:
        """The first ready program that this server did not fail on, unless no other server answers."""
        alone = all(other.endpoint == session.endpoint for other in self._sessions.values())
        return next((p for p in self._ready if alone or session.endpoint not in p.tried), None)

    def _check_patience(self) -> None:
        now = time.monotonic()
        if self._sessions or not self._ready or (self._opening and not self._fleet.ready):
            self._served = now
        elif now - self._served > self._fleet.config.patience:
            raise no_server(self._fleet)

    # What to do at the end of each -------------------------------------------------------------------

    def _looked(self, _: Future[None]) -> None:
        self._look_due = time.monotonic() + self._fleet.config.refresh

    def _opened(self, future: Future[Session | None]) -> None:
        self._opening.remove(future)
        session = future.result()
        if session is not None:
            self._sessions[id(session)] = session
            self._free.append(session)

    def _built(self, program: RemoteProgram, future: Future[JobResult]) -> Finished | None:
        result = future.result()
        if result.error is not None:
            error = {"exception": "build", "timeout": "build_timeout", "crash": "crash"}[result.error]
            return program, Measurement((), error, result.message, measured_at=time.time())
        program.build_seconds = float(result.value)
        self._ready.append(program)
        return None

    def _ran(self, session: Session, program: RemoteProgram, future: Future[JobResult]) -> Finished | None:
        result = future.result()
        outcome = result.value if result.error is None else RemoteRun(fault=result.message)
        if outcome.fault is None:
            self._free.append(session)
            error = None if outcome.error is None else "run"
            return program, _measurement(program, outcome, error)
        self._drop(session)
        if outcome.refused:
            self._fleet.suspect(session.endpoint)
        self._fleet.last_fault = f"{session.endpoint[0]}:{session.endpoint[1]}: {outcome.fault}"
        program.tried.append(session.endpoint)
        if len(program.tried) < self._fleet.config.attempts:
            self._ready.appendleft(program)
            return None
        error = "run_timeout" if result.error == "timeout" else "run" if outcome.refused else "crash"
        message = outcome.fault if error != "crash" else f"{_LOST}: {outcome.fault}"
        return program, _measurement(program, RemoteRun(error=message), error)

    def _drop(self, session: Session) -> None:
        """Forget a session; its server registers anew when it can."""
        del self._sessions[id(session)]
        self._fleet.give_back(session)


def _measurement(program: RemoteProgram, outcome: RemoteRun, error: str | None) -> Measurement:
    return Measurement(
        outcome.latencies, error, outcome.error, program.build_seconds, outcome.seconds, measured_at=time.time()
    )

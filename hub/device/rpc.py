"""Measuring on other machines through TVM's RPC: built here, run on every server that the tracker has for a key."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from .failures import FailureWatch
from .measure import MeasureConfig, Measurement, check_compiler, cores
from .pool import JobResult, WorkerPool, Zygote
from .rpc_address import RpcAddress
from .rpc_batch import Batch, Program
from .rpc_fleet import Fleet, RpcConfig, Session
from .rpc_jobs import CROSS_BUILD
from .rpc_tracker import Endpoint
from .worker import WorkerSetup

if TYPE_CHECKING:
    from .candidate import Candidate


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
        """How many programs ended how."""
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
        batch = Batch(self, self._fleet, candidates)
        try:
            for program, measurement in batch.results():
                if measurement.error is None:
                    self.know(program.candidate.task_id, measurement.latency)
                yield program.candidate, self._failures.count(measurement)
        finally:
            batch.end()

    def build(self, candidate: Candidate) -> tuple[Program, Future[JobResult]]:
        """Start to compile a candidate."""
        import tvm

        self._serial += 1
        program = Program(candidate, self._scratch / f"{self._serial}.so")
        args = (tvm.ir.save_json(candidate.mod), self.target, str(program.library))
        job = "build" if self.rpc.linker is None else CROSS_BUILD
        linker = () if self.rpc.linker is None else (self.rpc.linker,)
        return program, self._builders.submit(job, (*args, *linker), self.config.build_timeout)

    def window(self) -> int:
        """How many programs may be on their way: enough for every core and every server to have a next one."""
        return 2 * (len(self._cores) + len(self._fleet.servers))

    def run(self, session: Session, program: Program) -> JobResult:
        """Run a built program on a server; waits."""
        candidate = program.candidate
        best = self._best.get(candidate.task_id)
        args = (str(program.library), candidate.args_info, self.config.timing, best)
        result = session.run(args, self.config.run_timeout)
        if result.error is None and result.value.fault is None:
            self.used[session.endpoint] = self.used.get(session.endpoint, 0) + 1
        return result

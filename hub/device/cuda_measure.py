"""Measuring candidate programs on a card of this machine: compiled by all cores, run by one process that has the card.

The runtime of TVM is not needed there: programs go through the driver's own interface. Their outputs are compared with
what the task's unscheduled program computes on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .cuda_card import CUDA
from .cuda_compile import find_nvcc
from .cuda_jobs import COMPILE, OPEN, RUN, CardAddress, CardFault
from .errors import DeviceError
from .measure import Measurer, MeasuringJob, ProgramMeasurer
from .measurement import MeasureConfig, Measurement
from .pool import JobResult, Worker
from .worker import WorkerSetup

if TYPE_CHECKING:
    from .candidate import Candidate

_LOST = "lost"


class CudaMeasurer(Measurer):
    """Measures candidates on a card.

    A program that breaks the context, hangs or needs more memory than there is costs itself and the process that has
    the card; another takes over.

    Args:
        number: of the card.
        target: TVM's CUDA target as a dictionary.
        config, note: as of `Measurer`; its threads are of no account.

    Raises:
        DeviceError: no context on the card: another process has it for itself, its memory is full, or it is lost.
    """

    def __init__(
        self,
        number: int,
        target: dict[str, Any],
        config: MeasureConfig | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__({"kind": "llvm"}, config, note)  # of the references
        self.overlaps = True  # the card does not mind what the CPU does
        self._nvcc, self._card_target = find_nvcc(), target
        self._card = CardAddress(os.environ.get("TCHUB_LIBCUDA"), number)
        self._worker = Worker(self._zygote, WorkerSetup(), waits=True)
        self._runs = ThreadPoolExecutor(1, thread_name_prefix="tchub-cuda")
        opened = self._call(OPEN, (self._card,))
        if opened.error is not None:
            self.close()
            raise self._refusal(opened)

    def close(self) -> None:
        """End the workers and remove the scratch folder."""
        self._runs.shutdown(wait=False, cancel_futures=True)
        self._worker.stop()
        super().close()

    def measure(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Measure candidates; see `ProgramMeasurer.measure`.

        Raises:
            DeviceError: the card is lost; what was measured was yielded before.
        """
        yield from ProgramMeasurer.measure(self, candidates)

    def _start_build(self, candidate: Candidate, active: dict[Future[JobResult], MeasuringJob]) -> None:
        import tvm

        self._serial += 1
        image = self.scratch / f"{self._serial}.cubin"
        args = (tvm.ir.save_json(candidate.mod), self._card_target, str(image), self._nvcc)
        active[self.builders.submit(COMPILE, args, self.config.build_timeout)] = MeasuringJob(candidate, image)

    def _start_run(self, job: MeasuringJob) -> Future[JobResult]:
        reference = self._reference(job)
        self.watched["checked"] += reference is not None
        best = self._best.get(job.candidate.task_id)
        args = (str(job.library), job.built, job.candidate.args_info, self.config.timing, best, reference)
        return self._runs.submit(self._run, (self._card, *args))

    def _run(self, args: tuple[Any, ...]) -> JobResult:
        """Run a program; one after which no new context can be had is not blamed: the card is lost."""
        result = self._call(RUN, args)
        if result.error is not None and not self._worker.alive:
            opened = self._call(OPEN, (self._card,))
            return opened if opened.error is not None else result
        return result

    def _call(self, job: str, args: tuple[Any, ...]) -> JobResult:
        """Have the process that owns the card do a job; a fatal fault is its last one."""
        result = self._worker.call(job, args, self.config.run_timeout)
        fault = result.value
        if not isinstance(fault, CardFault):
            return result
        if fault.fatal:
            self._worker.stop()
        return JobResult(error=_LOST if fault.lost else "exception", message=fault.message)

    def _measurement(self, job: MeasuringJob, result: JobResult) -> Measurement:
        if result.error == _LOST:
            raise self._refusal(result)
        return super()._measurement(job, result)

    def _refusal(self, result: JobResult) -> DeviceError:
        return DeviceError(
            f"{CUDA}:{self._card.number} cannot be used: {result.message}",
            remedy="see `nvidia-smi` for what holds the card (nvidia-smi -c DEFAULT lets processes share it), then run "
            "the same command again: what was measured is kept",
            number=self._card.number,
        )

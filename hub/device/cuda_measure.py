"""Measuring candidate programs on a card of this machine: compiled by all cores, run by one process that has the card.

The runtime of TVM is not needed there: programs go through the driver's own interface. Their outputs are compared with
what the task's unscheduled program computes on the CPU. What a program breaks (an illegal access, a sticky error)
breaks the context of its process, so that the next program gets a new process. A reference kernel after each program
shows a card that slows down (heat, its power limit, other processes); NVML, where it is, says why.
"""

import os
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ...zoo.errors import TchubWarning
from .build_jobs import BuildResult
from .card_state import LEAST_BYTES, card_state
from .cubin_cache import CubinCache
from .cuda_card import CUDA
from .cuda_compile import find_compiler
from .errors import DeviceError
from .jobs import RunResult, complaint, load_reference
from .measure import MeasureConfig, Measurement, Measurer, MeasuringJob
from .onsite.cuda import CudaDriver, CudaProgram
from .onsite.files import OnsiteError, ProgramError
from .onsite.runs import ArgsInfo, TimingConfig, random_values, take_repeats
from .pool import Job, JobResult, Worker
from .timing import DriftWatch, measure_watched
from .worker import WorkerSetup

_LOST = "lost"


class CudaMeasurer(Measurer):
    """Measures candidates on the card of a number; see `Measurer`. The config's threads are of no account.

    A program that breaks the context, hangs or needs more memory than there is costs itself and the process that has
    the card; another takes over. A card that is lost, here or in `measure`, or that others hold is a DeviceError.
    """

    def __init__(self, number: int, target: dict[str, Any], config: MeasureConfig | None = None) -> None:
        super().__init__(target, config)
        self.overlaps = True  # the card does not mind what the CPU does
        self.linker, self.cubins = find_compiler(), CubinCache.here()
        self._card = os.environ.get("TCHUB_LIBCUDA"), number
        self._worker = Worker(self._zygote, WorkerSetup(), waits=True)
        self._runs = ThreadPoolExecutor(1, thread_name_prefix="tchub-cuda")
        self._slowed: set[str] = set()
        opened = self._call(open_card)
        if opened.error is not None:
            self.close()
            raise self._refusal(opened)

    def close(self) -> None:
        """End the workers and remove the scratch folder; a TchubWarning where the card slowed down."""
        self._runs.shutdown(wait=False, cancel_futures=True)
        self._worker.stop()
        super().close()
        if slower := self.watched["disturbed"]:
            why = f": {' and '.join(sorted(self._slowed))}" if self._slowed else " (see `nvidia-smi`)"
            beside = (
                f"{CUDA}:{self._card[1]} ran slower than before beside {slower} of {self.outcomes.total()} programs"
            )
            warnings.warn(f"{beside}{why}; their latencies are too long", TchubWarning, stacklevel=2)

    def submit_run(self, *args: Any) -> Future[JobResult]:
        return self._runs.submit(self._run, args)

    def _run(self, args: tuple[Any, ...]) -> JobResult:
        """Run a program; one after which no new context can be had is not blamed: the card is lost."""
        result = self._call(run, *args)
        if result.error is not None and not self._worker.alive:
            opened = self._call(open_card)
            return opened if opened.error is not None else result
        return result

    def _call(self, job: Job, *args: Any) -> JobResult:
        """Have the process that owns the card do a job; a fatal fault is its last one."""
        result = self._worker.call(job, (self._card, *args), self.config.run_timeout)
        fault = result.value
        if not isinstance(fault, CardFault):
            return result
        if fault.fatal:
            self._worker.stop()
        return JobResult(error=_LOST if fault.lost else "exception", message=fault.message)

    def _measurement(self, job: MeasuringJob, result: JobResult) -> Measurement:
        if result.error == _LOST:
            raise self._refusal(result)
        measurement = super()._measurement(job, result)
        if measurement.disturbed and (state := card_state(result.value.bus_id)) is not None:
            others = (state.processes or 1) - 1
            self._slowed.update((*state.slowed_by, *([f"{others} other processes there"] if others else [])))
        return measurement

    def _refusal(self, result: JobResult) -> DeviceError:
        number = self._card[1]
        return DeviceError(
            f"{CUDA}:{number} cannot be used: {result.message}",
            remedy="see `nvidia-smi` for what holds the card (nvidia-smi -c DEFAULT lets processes share it), then run "
            "the same command again: what was measured is kept",
        )


# Jobs of the process that has the card -----------------------------------------------------------------

_Card = tuple[str | None, int]  # path of the driver's library (None: the system's), and the card's number there


@dataclass(frozen=True)
class CardFault:
    """What went wrong: `fatal` where its process must not run another, `lost` where the card is gone."""

    message: str
    fatal: bool = True
    lost: bool = False


class _HeldCard:
    """The card as its process holds it: the driver, and the reference kernel that the driver compiles."""

    def __init__(self, card: _Card) -> None:
        self.driver = CudaDriver(*card)
        self.driver.spin_up()
        launch = {"kernel": "spin", "grid": [self.driver.facts()["multiprocessors"], 1, 1], "block": [128, 1, 1],
                  "shared": 0, "params": [["arg", 0]]}  # fmt: skip
        plan, spin = {"workspaces": [], "launches": [launch]}, Path(__file__).with_name("spin.ptx").read_bytes()
        try:
            self._spin = CudaProgram(self.driver, spin, plan, [np.zeros(1, np.float32)])
        except ProgramError:  # a driver without its compiler: the card is not watched, and programs are cubins
            self._spin = None
        self.watch = DriftWatch()

    def reference(self) -> float:
        """Return the seconds of the reference kernel, the median of three."""
        return sorted(self._spin.run(1) for _ in range(3))[1] if self._spin else 0.0


@lru_cache(maxsize=1)
def _held(card: _Card) -> _HeldCard:
    return _HeldCard(card)


def open_card(card: _Card) -> CardFault | None:
    """Make the context of this process; return why there is none."""
    try:
        free = _held(card).driver.free_bytes()
    except (OnsiteError, ProgramError) as error:
        return CardFault(str(error), lost=True)
    if free < LEAST_BYTES:
        return CardFault(f"{free / 2**30:.2f} GiB of its memory are free, and 1 is needed", lost=True)
    return None


def run(
    card: _Card,
    image: str,
    args_info: ArgsInfo,
    config: TimingConfig,
    best: float | None,
    reference: tuple[ArgsInfo, str] | None,
    built: BuildResult,
) -> RunResult | CardFault:
    """Time a compiled program on random inputs, each run with an empty L2 cache; see `jobs.run`."""
    start = time.perf_counter()
    try:
        held = _held(card)
    except (OnsiteError, ProgramError) as error:
        return CardFault(str(error), lost=True)
    right = {} if reference is None else load_reference(reference[1])
    inputs = [np.zeros_like(value) if i in right else value for i, value in enumerate(random_values(args_info))]
    try:
        program = CudaProgram(held.driver, Path(image).read_bytes(), built.plan or {}, inputs)
        wrong = None
        if right:
            program.run(1)
            wrong = complaint(dict(enumerate(program.outputs())), right)
        costs: list[float] = []
        repeated, disturbed = 0, False
        if wrong is None:
            measure = partial(take_repeats, program.repeats, config, best)
            costs, repeated, disturbed = measure_watched(measure, held.reference, held.watch)
        program.close()
    except ProgramError as error:
        return CardFault(str(error), fatal=error.fatal)
    return RunResult(costs, time.perf_counter() - start, wrong, repeated, disturbed, held.driver.bus_id)

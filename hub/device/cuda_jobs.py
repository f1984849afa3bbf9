"""Jobs of a worker for a card: compile a program for it; hold its context, check what a program computes, and time it.

What a program breaks (an illegal access, a sticky error) breaks the context of its process, so that the next program
needs a new process: the caller ends it where a fault is fatal.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...zoo.files import file_sha256
from .contents import ArgsInfo, random_values
from .cuda_compile import compile_cuda
from .jobs import BuildResult, RunResult, complaint, load_reference
from .onsite.cuda import CudaDriver, CudaProgram
from .onsite.files import OnsiteError, ProgramError
from .timing import TimingConfig, take_repeats

COMPILE, OPEN, RUN = (f"{__name__}:{job}" for job in ("compile_program", "open_card", "run"))
# An idle card runs at a fraction of its clock.
_SPIN_UP_SECONDS = 0.3
# Programs are small; what a card needs besides is the driver's own and the flushing of the cache.
_LEAST_BYTES = 1 << 30
# Events of one repeat at most: short programs are flushed before each run, which takes longer than they do.
_MOST_RUNS = 100


@dataclass(frozen=True)
class CardBuild(BuildResult):
    """A program compiled for a card; `plan` says how it is launched, see `launch_plan`."""

    plan: dict[str, Any] | None = None


@dataclass(frozen=True)
class CardFault:
    """A program that was not measured.

    Attributes:
        fatal: whether its process must not run another; lost: whether the card itself cannot be used.
    """

    message: str
    fatal: bool = True
    lost: bool = False


@dataclass(frozen=True)
class CardAddress:
    """A card: the path of its driver's library (None: the system's), and its number there."""

    library: str | None
    number: int


def compile_program(module_json: str, target: dict[str, Any], image: str, nvcc: str) -> CardBuild:
    """Compile a scheduled module into the cubin `image`; written atomically."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    start = time.perf_counter()
    mod: Any = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module_json))
    unfinished = Path(f"{image}.{os.getpid()}")
    try:
        plan = compile_cuda(mod, target, unfinished, nvcc=nvcc)
        sha256 = file_sha256(unfinished)
        os.replace(unfinished, image)
    finally:
        unfinished.unlink(missing_ok=True)
    return CardBuild(time.perf_counter() - start, sha256, plan=plan)


@lru_cache(maxsize=1)
def card_driver(card: CardAddress) -> CudaDriver:
    """Return the card with its context, made at the first call; its clock is up then.

    Raises:
        OnsiteError: the card cannot be used.
    """
    driver = CudaDriver(card.library, card.number)
    try:
        start = time.perf_counter()
        while time.perf_counter() - start < _SPIN_UP_SECONDS:
            driver.flush()
            driver.call("cuCtxSynchronize")
    except ProgramError as error:
        raise OnsiteError(str(error), 3) from error
    return driver


def open_card(card: CardAddress) -> CardFault | None:
    """Make the context of this process; return why there is none."""
    try:
        free = card_driver(card).free_bytes()
    except (OnsiteError, ProgramError) as error:
        return CardFault(str(error), lost=True)
    if free < _LEAST_BYTES:
        return CardFault(f"{free / 2**30:.2f} GiB of its memory are free, and 1 is needed", lost=True)
    return None


def run(
    card: CardAddress,
    image: str,
    build: CardBuild,
    args_info: ArgsInfo,
    config: TimingConfig,
    best: float | None,
    reference: tuple[ArgsInfo, str] | None = None,
) -> RunResult | CardFault:
    """Time a compiled program on random inputs, each run with an empty L2 cache; see `jobs.run`."""
    start = time.perf_counter()
    try:
        driver = card_driver(card)
    except OnsiteError as error:
        return CardFault(str(error), lost=True)
    right = {} if reference is None else load_reference(reference[1])
    values = random_values(args_info)
    inputs = [np.zeros_like(value) if i in right else value for i, value in enumerate(values)]
    try:
        program = CudaProgram(driver, Path(image).read_bytes(), build.plan or {}, inputs)
        wrong = None
        if right:
            program.run(1)
            outputs = program.outputs()
            wrong = complaint({argument: outputs[argument] for argument in right}, right)
        costs = [] if wrong else take_repeats(lambda n, repeats: _repeats(program, n, repeats), config, best)
        program.close()
    except ProgramError as error:
        return CardFault(str(error), fatal=error.fatal)
    return RunResult(costs, time.perf_counter() - start, wrong)


def _repeats(program: CudaProgram, number: int, repeats: int) -> list[float]:
    return [program.run_cold(min(number, _MOST_RUNS)) for _ in range(repeats)]

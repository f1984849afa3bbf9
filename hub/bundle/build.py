"""Building a bundle: tasks of a workload, candidates, compiled in forked workers, packed."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import Workload

from ...zoo.apportion import apportion
from ...zoo.corpus import Corpus
from ...zoo.corpus.canonical import canonical_task, renamed_program
from ...zoo.corpus.tir import computation_of_module
from ...zoo.files import write_atomically
from ..device.candidate import Candidate, args_of, tuning_record
from ..device.host_facts import usable_cpus
from ..device.pool import JobResult, WorkerPool, Zygote, builder_setups
from ..device.timing import TimingConfig
from ..networks.errors import NetworkLoadError
from ..networks.tasks import TuningTask
from ..networks.workloads import tasks_of
from ..search.candidates import evolved_candidates, has_choice, random_candidates, tune_context
from ..search.errors import NoCandidateError
from ..search.models import choose_model
from .archive import BundleProgram, write_parts
from .target import BundleTarget, compiler_of


@dataclass(frozen=True)
class BuildSettings:
    """Contents of a bundle.

    Attributes:
        programs: in all, shared evenly by the tasks.
        checkpoint: take the half of each task's programs that this checkpoint ranks first among four times as many.
        max_bytes: size of an archive at most; more than one is written where it needs be.
        build_timeout: seconds a program may take to compile.
    """

    programs: int
    seed: int = 0
    checkpoint: str | None = None
    max_bytes: int | None = None
    build_timeout: float = 60.0


@dataclass(frozen=True)
class BundleResult:
    """The paths and bytes of the archives, their tasks and programs, and how many of these could not be compiled."""

    paths: list[str]
    bytes: list[int]
    tasks: int
    programs: int
    failed: int
    seconds: float


def build_bundle(
    workload: str,
    target: BundleTarget,
    out: Path,
    settings: BuildSettings,
    *,
    corpus: Corpus | None = None,
    count: Callable[[str, int, int], None] = lambda *_: None,
    note: Callable[[str], None] = lambda _: None,
) -> BundleResult:
    """Compile programs of a workload for a target and pack them.

    A second call after a stop compiles only what is missing: compiled programs lie in `out` with the suffix
    `.work` until the archive is there, apart by what decides them: workload, target, code, threads and versions.
    What did not compile is tried again.

    Args:
        corpus: programs measured before: new ones are evolved from its fastest, none of it is built again.
        count: called after each program: what is done, the programs done, and all of them.

    Raises:
        NetworkLoadError: the workload has no task with a choice of programs.
        StorageError: the archive cannot be written.
    """
    start = time.monotonic()
    tvm_target = tvm.target.Target(target.target)
    note(f"extracting the tasks of {workload}")
    tasks = [task for task in tasks_of(workload, tvm_target) if has_choice(task, tvm_target)]
    if not tasks:
        raise NetworkLoadError(f"no task of {workload} has a choice of programs", remedy="name a larger suite")
    shares = apportion(settings.programs, {task.task_id: 1.0 for task in tasks})
    rest = out.with_suffix(".work")
    facts = _deciding_facts(workload, target)
    work = rest / hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    work.mkdir(parents=True, exist_ok=True)
    chosen = choose_candidates(tasks, shares, tvm_target, settings.seed, settings.checkpoint, corpus, note)
    names = {task.task_id: task.name for task in tasks}
    programs: list[BundleProgram] = []
    for program in _compile(chosen, target, work, settings.build_timeout):
        programs.append(program)
        count(f"compile {names[program.task_id]}", len(programs), settings.programs)
    order = list(names)
    programs.sort(key=lambda program: (order.index(program.task_id), program.key))
    command = f"tchub bundle --workload {workload} --target {shlex.quote(target.device or json.dumps(target.target))}"
    command += f" --programs {settings.programs} --seed {settings.seed} --out bundle.zip"
    facts |= {"timing": asdict(TimingConfig()), "command": command}
    paths = write_parts(out, facts, {t.task_id: _task(t) for t in tasks}, programs, settings.max_bytes)
    shutil.rmtree(rest)
    return BundleResult(
        [str(path) for path in paths],
        [path.stat().st_size for path in paths],
        len({program.task_id for program in programs}),
        len(programs),
        sum(program.error is not None for program in programs),
        time.monotonic() - start,
    )


def _deciding_facts(workload: str, target: BundleTarget) -> dict[str, Any]:
    """Return what decides what a program is compiled to."""
    versions = {"tchub_version": version("tchub"), "ffi_version": version("apache-tvm-ffi")}
    return {"workload": workload, **asdict(target), **versions, "tvm_version": str(tvm.__version__)}


def _task(task: TuningTask) -> dict[str, Any]:
    plain = {name: getattr(task, name) for name in ("task_id", "name", "op", "flops", "networks")}
    return {
        "manifest": plain | {"args": args_of(ArgInfo.from_entry_func(task.mod, remove_preproc=True))},
        "origin": {"workload": str(tvm.ir.save_json(task.mod)), "computation": computation_of_module(task.mod)},
    }


def _compile(
    candidates: Iterator[Candidate], target: BundleTarget, work: Path, timeout: float
) -> Iterator[BundleProgram]:
    """Compile on all cores; programs come as they are done."""
    waiting: dict[Future[JobResult], tuple[Candidate, Path]] = {}
    with ExitStack() as stack:
        pool: WorkerPool | None = None
        for candidate in candidates:
            file = work / f"{candidate.task_id}-{candidate.key}.bin"
            if (plan := file.with_suffix(".json")).exists():
                yield _program(candidate, file, json.loads(plan.read_text()))
                continue
            pool = pool or _start_pool(stack)
            args = (str(tvm.ir.save_json(candidate.mod)), target.target, str(file), compiler_of(target), target.code)
            waiting[pool.submit("build", args, timeout)] = candidate, file
            if len(waiting) >= 2 * usable_cpus():
                yield from _take(waiting)
        while waiting:
            yield from _take(waiting)


def _start_pool(stack: ExitStack) -> WorkerPool:
    zygote = Zygote()
    stack.callback(zygote.close)
    pool = WorkerPool(zygote, builder_setups())
    stack.callback(pool.close)
    return pool


def _take(waiting: dict[Future[JobResult], tuple[Candidate, Path]]) -> Iterator[BundleProgram]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for future in done:
        (candidate, file), result = waiting.pop(future), future.result()
        if result.error is None:
            plan = result.value.plan
            if result.value.prepacked:
                plan = {"prepacked": [[index, *candidate.args_info[index]] for index in result.value.prepacked]}
            write_atomically(file.with_suffix(".json"), json.dumps(plan).encode())  # it is whole
            yield _program(candidate, file, plan)
        else:  # not remembered: a longer time-out, or a disk with room, may let it compile
            yield _program(candidate, None, None, result.failure("build"), result.message)


def _program(candidate: Candidate, *outcome: Any) -> BundleProgram:
    return BundleProgram(candidate.task_id, candidate.key, candidate.strategy, candidate.trace, *outcome)


# A checkpoint chooses among so many times the programs that it may take.
_CHOICE = 4


def choose_candidates(
    tasks: Sequence[TuningTask],
    shares: Mapping[str, int],
    target: Any,
    seed: int,
    checkpoint: str | None,
    corpus: Corpus | None,
    note: Callable[[str], None],
) -> Iterator[Candidate]:
    """Yield candidates of every task, its share of them at most.

    Half of each share are the best that a checkpoint knows of; all are evolved from the programs of a corpus.
    """
    model = choose_model(checkpoint, update="none").make() if checkpoint else None
    for task in tasks:
        count = shares[task.task_id]
        if count == 0:
            continue
        try:
            measured, known = _measured(corpus, task.task_id)
            if measured:
                yield from evolved_candidates(task, target, count, measured, seed, known)
            elif model is None:
                yield from random_candidates(task, target, count, seed, known)
            else:
                many = random_candidates(task, target, _CHOICE * count, seed, known)
                yield from _ranked(model, task, target, many, count)
        except NoCandidateError as error:
            note(f"{error.message}: left out")


def _measured(corpus: Corpus | None, task_id: str) -> tuple[list[tuple[str, float]], list[str]]:
    if corpus is None or task_id not in corpus.tasks:
        return [], []
    _, new_names = canonical_task(corpus.tasks[task_id])
    programs = [renamed_program(program, new_names) for program in corpus.programs(task_id)]
    return [(p.trace, p.latency) for p in programs if p.valid], [p.key for p in programs]


def _ranked(model: Any, task: TuningTask, target: Any, many: list[Candidate], count: int) -> list[Candidate]:
    """The first half of `count` by the model's ranking, the rest as they came, so that slow programs are there too."""
    workload = Workload(task.mod)
    records: list[Any] = [tuning_record(task.mod, target, workload, json.loads(one.trace), ()) for one in many]
    programs = [record.as_measure_candidate() for record in records]
    scores = np.asarray(model.predict(tune_context(task, target, "replay-trace", 0), programs))
    best = [many[index] for index in np.argsort(-scores, kind="stable")[: (count + 1) // 2]]
    taken = {candidate.key for candidate in best}
    return [*best, *(candidate for candidate in many if candidate.key not in taken)][:count]

"""Building a bundle: its target, tasks of a workload, candidates, compiled in forked workers, packed."""

import hashlib
import json
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
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
from ...zoo.corpus import Corpus, Program
from ...zoo.corpus.canonical import canonical_task, renamed_program
from ...zoo.corpus.tir import computation_of_module
from ...zoo.devices import known_device
from ...zoo.files import write_atomically
from ..device.build_jobs import build
from ..device.candidate import Candidate, args_of, tuning_record
from ..device.cubin_cache import CubinCache
from ..device.cuda_compile import find_compiler
from ..device.detect import detect_local
from ..device.device_choice import parse_target
from ..device.extensions import architecture_of
from ..device.host_facts import usable_cpus
from ..device.onsite.files import OnsiteError
from ..device.onsite.tvm_runtime import find_libraries
from ..device.pool import JobResult, WorkerPool, Zygote, builder_setups
from ..device.timing import TimingConfig
from ..networks.errors import NetworkLoadError
from ..networks.tasks import TuningTask
from ..networks.workloads import tasks_of
from ..search.candidates import evolved_candidates, has_choice, random_candidates, tune_context
from ..search.cost_model import choose_model
from ..search.errors import NoCandidateError
from ..search.tensor_cores import check_precision
from .archive import BundleError, BundleProgram, write_parts


@dataclass(frozen=True)
class BundleTarget:
    """A target and how programs for it travel.

    Attributes:
        target: TVM's target as a dictionary.
        device: the device of the zoo that it is the target of; None where only a target was given.
        device_kind: `cpu` or `cuda`.
        code: `library`, `cubin` or `ptx`.
        arch: `x86_64` or `aarch64` for a CPU, `sm_90` and its like for a GPU.
        threads: of a program on a CPU.
    """

    target: dict[str, Any]
    device: str | None
    device_kind: str
    code: str
    arch: str
    threads: int = 1


def resolve_target(text: str, threads: int | None = None, code: str | None = None) -> BundleTarget:
    """Return the target of a name: `local`, a device of `tchub devices`, or TVM's target as JSON.

    Args:
        threads: of a program on a CPU, the target's `num-cores`; None for those of the device: this machine's physical
            cores that may be used, or the `num-cores` of its target, 1 where it names none.
        code: `cubin` (the default) or `ptx` for a GPU; None for a CPU, whose programs are libraries.

    Raises:
        BundleError: the target is neither LLVM's nor CUDA's, or its linker is missing.
        DeviceError: no such target, or nothing compiles CUDA.
    """
    if text == "local":
        local = detect_local(threads)
        target, device = dict(local.target), local.device.name
    else:
        known = known_device(text)
        target, device = dict(parse_target(text) or {}), known and known.name
    kind, arch = target.get("kind"), target.get("arch")
    wrong = f"bundles are built for llvm and cuda, not for {kind!r}"
    resolved = None
    if kind == "cuda":
        code = code or "cubin"
        wrong = f"a CUDA bundle needs the target's arch and cubin or ptx, not {arch!r} and {code!r}"
        if arch and code in ("cubin", "ptx"):
            resolved = BundleTarget(target, device, "cuda", code, str(arch))
    elif kind == "llvm":
        arch, threads = architecture_of(target), threads or int(target.get("num-cores", 1))
        wrong = f"a CPU bundle is for x86_64 or aarch64, not for {arch!r}"
        if arch in ("x86_64", "aarch64"):
            resolved = BundleTarget({**target, "num-cores": threads}, device, "cpu", "library", arch, threads)
    if resolved is None:
        remedy = 'for example --target h200, graviton2, or \'{"kind": "cuda", "arch": "sm_90", ...}\''
        raise BundleError(wrong, remedy=remedy, target=json.dumps(target))
    compiler_of(resolved)
    return resolved


def compiler_of(target: BundleTarget) -> str | tuple[str, ...]:
    """Return what compiles CUDA, or the command that links a CPU's programs; an error where there is none."""
    if target.device_kind == "cuda":
        return find_compiler()
    arch = target.arch
    names = [f"{arch}-linux-gnu-ld", "ld.lld", *(["ld"] if arch == platform.machine() else [])]
    linker = next((name for name in names if shutil.which(name)), None)
    if linker is None:
        raise BundleError(
            f"no linker for {arch} was found",
            remedy=f"install {arch}-linux-gnu-ld (Debian: binutils-{arch.replace('_', '-')}-linux-gnu) or ld.lld",
            target=json.dumps(target.target),
        )
    # Symbols that nothing outside needs, and the time of the link, would make every archive larger and different.
    return linker, "--build-id=none", "--strip-all"


def copy_runtime(folder: Path) -> list[Path]:
    """Copy TVM's ffi and runtime libraries of this installation into a folder; return the copies."""
    try:
        sources = [Path(path) for path in find_libraries(None)]
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy2(source, folder / source.name)) for source in sources]
    except OnsiteError as error:
        raise BundleError(str(error), remedy="install tchub with TVM: see `tchub doctor`") from error
    except OSError as error:
        raise BundleError(
            f"cannot copy TVM's runtime to {folder}: {error}", remedy="choose another folder", path=str(folder)
        ) from error


@dataclass(frozen=True)
class BuildSettings:
    """Contents of a bundle.

    Attributes:
        programs: in all, shared evenly by the tasks.
        precision: float32, float16 or bfloat16, see `TuneConfig`.
        checkpoint: take the half of each task's programs that this checkpoint ranks first among four times as many.
        max_bytes: size of an archive at most; more than one is written where it needs be.
        build_timeout: seconds a program may take to compile.
    """

    programs: int = 200
    seed: int = 0
    precision: str = "float32"
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
    tvm_target = tvm.target.Target(target.target)
    check_precision(settings.precision, target.target, target.device or "this target")
    note(f"extracting the tasks of {workload}")
    tasks = tasks_of(workload, tvm_target, precision=settings.precision)
    tasks = [task for task in tasks if has_choice(task, tvm_target)]
    if not tasks:
        raise NetworkLoadError(f"no task of {workload} has a choice of programs", remedy="name a larger suite")
    chosen = choose_candidates(tasks, tvm_target, settings, corpus, note)
    options = {"--workload": workload, "--target": target.device or json.dumps(target.target), "--out": "bundle.zip"}
    options |= {f"--{name}": str(getattr(settings, name)) for name in ("programs", "precision", "seed")}
    command = shlex.join(["tchub", "bundle", *(part for pair in options.items() for part in pair)])
    return pack(workload, chosen, tasks, target, out, settings, command, count)


def pack(
    workload: str,
    candidates: Iterator[Candidate],
    tasks: Sequence[TuningTask],
    target: BundleTarget,
    out: Path,
    settings: BuildSettings,
    command: str,
    count: Callable[[str, int, int], None] = lambda *_: None,
) -> BundleResult:
    """Compile candidates and write them with their tasks; see `build_bundle`."""
    start = time.monotonic()
    versions = {"tchub_version": version("tchub"), "ffi_version": version("apache-tvm-ffi")}
    facts = {"workload": workload, **asdict(target), **versions, "tvm_version": str(tvm.__version__)}
    rest = out.with_suffix(".work")
    work = rest / hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    work.mkdir(parents=True, exist_ok=True)
    names = {task.task_id: task.name for task in tasks}
    programs: list[BundleProgram] = []
    for program in _compile(candidates, target, work, settings.build_timeout):
        programs.append(program)
        count(f"compile {names[program.task_id]}", len(programs), settings.programs)
    order = list(names)
    programs.sort(key=lambda program: (order.index(program.task_id), program.key))
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
    cubins = CubinCache.here() if target.device_kind == "cuda" else None
    with ExitStack() as stack:
        pool: WorkerPool | None = None
        for candidate in candidates:
            file = work / f"{candidate.task_id}-{candidate.key}.bin"
            if (plan := file.with_suffix(".json")).exists():
                yield _program(candidate, file, json.loads(plan.read_text()))
                continue
            if pool is None:
                stack.callback((zygote := Zygote()).close)
                pool = WorkerPool(zygote, builder_setups())
                stack.callback(pool.close)
            program = str(tvm.ir.save_json(candidate.mod)), target.target, str(file)
            args = (*program, compiler_of(target), target.code, cubins)
            waiting[pool.submit(build, args, timeout)] = candidate, file
            if len(waiting) >= 2 * usable_cpus():
                yield from _take(waiting)
        while waiting:
            yield from _take(waiting)


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
    target: Any,
    settings: BuildSettings,
    corpus: Corpus | None,
    note: Callable[[str], None],
) -> Iterator[Candidate]:
    """Yield candidates of every task, its share of them at most.

    Half of each share are the best that a checkpoint knows of; all are evolved from the programs of a corpus.
    """
    model = choose_model(settings.checkpoint, update="none").make() if settings.checkpoint else None
    shares, seed = apportion(settings.programs, {task.task_id: 1.0 for task in tasks}), settings.seed
    for task in tasks:
        count = shares[task.task_id]
        measured: list[Program] = []
        if corpus is not None and task.task_id in corpus.tasks:
            _, new_names = canonical_task(corpus.tasks[task.task_id])
            measured = [renamed_program(program, new_names) for program in corpus.programs(task.task_id)]
        known, valid = [p.key for p in measured], [(p.trace, p.latency) for p in measured if p.valid]
        try:
            if count and valid:
                yield from evolved_candidates(task, target, count, valid, seed, known)
            elif count and model is None:
                yield from random_candidates(task, target, count, seed, known)
            elif count:
                many = random_candidates(task, target, _CHOICE * count, seed, known)
                yield from _ranked(model, task, target, many, count)
        except NoCandidateError as error:
            note(f"{error.message}: left out")


def _ranked(model: Any, task: TuningTask, target: Any, many: list[Candidate], count: int) -> list[Candidate]:
    """The first half of `count` by the model's ranking, the rest as they came, so that slow programs are there too."""
    workload = Workload(task.mod)
    records: list[Any] = [tuning_record(task.mod, target, workload, json.loads(one.trace), ()) for one in many]
    programs = [record.as_measure_candidate() for record in records]
    scores = np.asarray(model.predict(tune_context(task, target, "replay-trace", 0), programs))
    best = [many[index] for index in np.argsort(-scores, kind="stable")[: (count + 1) // 2]]
    taken = {candidate.key for candidate in best}
    return [*best, *(candidate for candidate in many if candidate.key not in taken)][:count]

"""The right outputs of tasks: each task's unscheduled program, built and run once, before its candidates."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compiling import Compiling
from .output_check import reduction_size
from .pool import JobResult, WorkerPool

if TYPE_CHECKING:
    from tvm import IRModule

ArgsInfo = tuple[tuple[tuple[int, ...], str], ...]


def _args_info(mod: IRModule) -> ArgsInfo:
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    infos: Any = ArgInfo.from_entry_func(mod, remove_preproc=False)
    return tuple((tuple(int(d) for d in info.shape), str(info.dtype)) for info in infos)


class References:
    """Files of right outputs, one a task. A task whose unscheduled program fails or takes long has none.

    Args:
        compiling: builds the unscheduled programs.
        runner: runs them.
        scratch: folder for the files.
        seconds: time that an unscheduled program may take.

    Attributes:
        missing: why tasks have no reference, by task.
    """

    def __init__(self, compiling: Compiling, runner: WorkerPool, scratch: Path, seconds: float) -> None:
        self._compiling = compiling
        self._runner = runner
        self._scratch = scratch
        self._seconds = seconds
        self._args: dict[str, ArgsInfo] = {}
        self._made: dict[str, Future[JobResult]] = {}
        self.missing: dict[str, str] = {}

    def add(self, task_id: str, mod: IRModule, target: dict[str, Any]) -> None:
        """Start to build a task's unscheduled program; does nothing for a task that was told before."""
        import tvm

        if task_id in self._args:
            return
        self._args[task_id] = args_info = _args_info(mod)
        library = self._scratch / f"reference-{task_id}.so"
        made: Future[JobResult] = Future()
        self._made[task_id] = made
        job = (str(library), args_info, reduction_size(mod), str(self._path(task_id)))

        def run(build: Future[JobResult]) -> None:
            if build.cancelled() or build.exception() is not None or build.result().error is not None:
                _pass_on(build, made)
                return
            self._runner.submit("make_reference", job, self._seconds).add_done_callback(finish)

        def finish(done: Future[JobResult]) -> None:
            library.unlink(missing_ok=True)
            _pass_on(done, made)

        self._compiling.start(tvm.ir.save_json(mod), target, library).add_done_callback(run)

    def wait(self, task_id: str) -> None:
        """Wait until a task's reference is there, or cannot be."""
        self._made[task_id].result()

    def _path(self, task_id: str) -> Path:
        return self._scratch / f"reference-{task_id}.npz"

    def of(self, task_id: str, args_info: Any) -> str | None:
        """The file for programs of a task with these arguments; None where they cannot be checked, or not yet."""
        if self._args.get(task_id) != args_info or not self._made[task_id].done():
            return None
        made = self._made[task_id].result()
        if made.error is not None:
            self.missing[task_id] = f"{made.error}: {made.message}"
        return str(self._path(task_id)) if made.error is None and made.value else None


def _pass_on(done: Future[JobResult], to: Future[JobResult]) -> None:
    """A job's end as another future's; whoever waits for that one must hear of errors too."""
    if done.cancelled():
        to.set_result(JobResult(error="crash"))
    elif (error := done.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())

"""`tune`: a network, a cost model and a number of trials to a compiled library, checked, timed and reported."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.errors import TchubError
from ..device.device_choice import choose_device, fitting_checkpoint
from ..networks.errors import LatencyError
from ..networks.latency import Comparison, Latency, compare
from ..networks.library import BuiltLibrary
from ..networks.manifest import write_manifest
from ..networks.network import Network
from ..networks.output_check import require
from ..networks.prepare import LAYOUTS, check_layout
from ..networks.shapes import Shapes
from ..networks.sources import open_network
from ..networks.tuned import TunedNetwork, load_tuned
from ..records.run_folder import claim, locked
from ..search.errors import InterruptedRunError
from ..search.interrupt import StopFlag
from ..search.models import ModelChoice, choose_model
from ..search.task_search import SearchSettings
from .report import RunOutcome, make_report, write_report
from .session import SessionSettings, TuningSession
from .tune_job import TuneJob, TuneProgress, Variant, compile_all, open_job, session_facts

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.nn import Module

    from ..search.online import OnlineSettings


class TuneArgumentError(TchubError):
    """An argument of `tune` that has no meaning, e.g. no trials."""


@dataclass(frozen=True)
class TuneResult:
    """What `tune` came to.

    Attributes:
        report: as `report.json` has it.
        folder: with the library, `network.json`, the database, `trials.jsonl`, `report.json` and `report.html`.
        library: the compiled network.
    """

    report: dict[str, Any]
    folder: Path
    library: Path

    @property
    def latency(self) -> dict[str, float]:
        """Median end-to-end latency in seconds by system: untuned, tuned, pytorch, and stock where compared.

        Without pytorch for a remote device, and empty where `report["latency_note"]` says why.
        """
        return {name: facts["median"] for name, facts in self.report["latency"].items()}

    def load(self) -> TunedNetwork:
        """Return the tuned network, to be called as the original; see `load_tuned`."""
        return load_tuned(self.folder)

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return self.report


def tune(
    network: str | Path | Network | Module | ExportedProgram,
    example_inputs: Sequence[Any] | Tensor | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    shapes: Shapes | None = None,
    checkpoint: str | None = None,
    trials: int = 128,
    out: str | Path = "out",
    device: str = "local",
    linker: str | None = None,
    target: dict[str, Any] | None = None,
    threads: int | None = None,
    layout: str = LAYOUTS[0],
    seed: int = 0,
    trials_per_iter: int | None = None,
    early_stop: float = 0.0,
    update: str = "auto",
    online: OnlineSettings | None = None,
    search: SearchSettings | None = None,
    compare_stock: bool = False,
    reuse: bool = True,
    resume: bool = True,
    builder: Any = None,
    runner: Any = None,
    progress: TuneProgress | None = None,
) -> TuneResult:
    """Tune a network with TVM's MetaSchedule, guided by a checkpoint.

    A run that was stopped goes on when called again with the same output folder; more trials may be asked for.

    Args:
        network: a `torch.nn.Module`, which is tuned in inference mode and stays as it is, an exported program, a
            reference network's name, a `.pt2`, `.onnx` or transformers config file, or a `Network`.
        example_inputs: of a module: its positional arguments, or the only one. The network is tuned for their shapes.
        example_kwargs: of a module: its arguments by name.
        name: of a module or an exported program in the report and of its library; None for the module's class.
        shapes: sizes to tune at where the network has dynamic shapes, e.g. `{"batch": [1, 8]}`: one library for each
            choice; the trials are shared. The report's latencies are those of the first, and `variants` has all.
        checkpoint: a checkpoint's name or folder; None for the one that fits this machine best; `stock` for
            MetaSchedule's own XGBoost model; `none` for no model (random choice).
        trials: programs to measure.
        out: folder; see `TuneResult.folder`.
        device: where programs are measured: `local`, or `rpc://host:port/key` for the servers of TVM's RPC tracker.
        linker: what links programs for another architecture, called as `LINKER -shared -o LIBRARY OBJECTS`.
        target: TVM target as a dictionary; None for this machine's, or for what the RPC servers say of themselves.
        threads: threads of a program, and of PyTorch in the comparison; None for one a physical core that may be used.
        layout: of the network's convolutions: `channels-last`, or `as-imported`, which leaves the graph as it is.
        seed: of the searches.
        trials_per_iter: programs of a task in one round at most; None: so many that half of the trials give every task
            a floor.
        early_stop: end when one more round of any task is expected to gain less than this share of the network's
            latency; 0: spend all trials.
        update: how the checkpoint learns from the measurements: `few-shot` moves its weights, `context` hands them
            to a TileNet as they are, `none` does neither, `auto` is what suits the model.
        online: settings of that learning.
        search: which search, and how far it looks.
        compare_stock: tune again with MetaSchedule's own model and as many trials, into `out/stock`; neither
            run then begins with programs of earlier ones.
        reuse: begin with the programs that earlier runs measured on this device for this target.
        resume: take up what the folder holds; False refuses a folder that holds a run.
        builder, runner: MetaSchedule objects instead of tchub's workers, e.g. for a remote device.
        progress: told of every step.

    Raises:
        DeviceKindError: the checkpoint is for the other kind of device.
        TuneArgumentError: an argument makes no sense.
        DeviceChoiceError, NoServerError, TargetError, DeviceSetupError: the device
            cannot be used; NoServerError also when its servers went away: the folder holds all that was measured.
        NetworkLoadError, NetworkImportError: the network cannot be tuned.
        RunStateError: the folder is in use, or holds something else.
        TuningFailedError, MeasurementFailureRateError: nearly every program failed.
        OutputMismatchError: the compiled network is wrong; the report is written all the same.
        LatencyError: the compiled network, or what it is checked against, does not run on this machine; the report is
            written all the same.
        InterruptedRunError: the user stopped it; the folder holds all that was measured.
        TchubError: whatever the registry raises.
    """
    _check_arguments(trials, threads, builder, runner, device)
    check_layout(layout)
    again = reuse and not compare_stock
    settings = SessionSettings(
        trials, trials_per_iter, seed, search or SearchSettings(), early_stop=early_stop, reuse=again
    )
    folder, progress = Path(out), progress or TuneProgress()
    if shapes or example_inputs is not None or example_kwargs is not None or not isinstance(network, str | Path):
        network = open_network(network, example_inputs, example_kwargs, name=name, shapes=shapes)
    with locked(folder), ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        progress.stage("find out what the device is" if device != "local" else "load the cost model")
        chosen = choose_device(device, threads, target=target, linker=linker)
        threads = chosen.facts.cores
        checkpoint = checkpoint or fitting_checkpoint(chosen)
        models = [
            choose_model(
                checkpoint, seed=seed, update=update, online=online, device=chosen.sheet, runs_on=chosen.facts.device,
                threads=threads,
            )
        ]  # fmt: skip
        if compare_stock and models[0].name != "stock":
            models.append(choose_model("stock", seed=seed))
        job = open_job(network, chosen, threads, layout, settings, (builder, runner), stop, progress, folder, stack)
        return _run(job, models, resume)


def _check_arguments(trials: int, threads: int | None, builder: Any, runner: Any, device: str) -> None:
    at_least_one = "give a number of at least 1"
    problems = {
        "trials": (trials < 1, at_least_one),
        "threads": (threads is not None and threads < 1, at_least_one),
        "builder": ((builder is None) != (runner is None), "give both builder and runner"),
        "device": (builder is not None and device != "local", "give a builder and a runner, or a device"),
    }
    for name, (is_wrong, remedy) in problems.items():
        if is_wrong:
            raise TuneArgumentError(f"{name} makes no sense as given", remedy=remedy, argument=name)


def _run(job: TuneJob, models: list[ModelChoice], resume: bool) -> TuneResult:
    outcomes: list[RunOutcome] = []
    with _reporting_when_stopped(job, outcomes):
        for label, model in zip(("tuned", "stock"), models, strict=False):
            outcomes.append(_session(job, label, model, outcomes, resume))
        finished = [_finish(job, variant, outcomes) for variant in job.variants]
    report = _report(job, outcomes, "done") | finished[0].facts(job)
    if len(finished) > 1:
        report["variants"] = [{"network": one.variant.network.name} | one.facts(job) for one in finished]
    write_report(report, job.folder)
    for one in finished:
        if one.error is not None and job.device.address is None:
            raise one.error
        for name, check in one.comparison.checks.items():
            require(check, f"{one.variant.network.name} ({name})")
    tuned = [(one.tuned, one.variant.signature, one.variant.first.mod) for one in finished]
    write_manifest(job.folder, job.network.name, tuned, job.device.facts.target, job.threads)
    return TuneResult(report, job.folder, finished[0].tuned)


@dataclass(frozen=True)
class _Finished:
    """A variant of the network, compiled, compared and timed."""

    variant: Variant
    libraries: dict[str, BuiltLibrary]
    comparison: Comparison
    error: LatencyError | None

    @property
    def tuned(self) -> Path:
        return Path(self.libraries["tuned"].path)

    def facts(self, job: TuneJob) -> dict[str, Any]:
        """What the report says of it; the untuned library's facts are those of the first build."""
        untuned = self.variant.first.comparison
        latencies = _only(untuned.latencies, "untuned") | self.comparison.latencies
        return {
            "libraries": {name: library.as_dict() for name, library in self.libraries.items()},
            "output_check": {k: check.as_dict() for k, check in (untuned.checks | self.comparison.checks).items()},
            "latency": {name: latency.as_dict() for name, latency in latencies.items()},
            "latency_note": self.error and f"not measured on {job.device.name}: {self.error.message}",
        }


def _finish(job: TuneJob, variant: Variant, outcomes: list[RunOutcome]) -> _Finished:
    job.progress.stage("compile")
    libraries = compile_all(job, variant, outcomes)
    job.check_stop()
    job.progress.stage("check the output and measure the latency")
    comparison, error = _compare(job, variant.network, {k: Path(v.path) for k, v in libraries.items()})
    return _Finished(variant, libraries, comparison, error)


def _only(latencies: Mapping[str, Latency], name: str) -> dict[str, Latency]:
    return {name: latencies[name]} if name in latencies else {}


def _compare(job: TuneJob, network: Network, libraries: dict[str, Path]) -> tuple[Comparison, LatencyError | None]:
    """Output checks and latencies, or why they could not be had: what was tuned is worth a report all the same."""
    from .remote_latency import compare_remote

    try:
        if job.device.address is None:
            return compare(network, libraries, threads=job.threads), None
        return compare_remote(network, libraries, job.device.address, threads=job.threads), None
    except LatencyError as error:
        return Comparison({}, {}), error


def _session(job: TuneJob, label: str, model: ModelChoice, before: list[RunOutcome], resume: bool) -> RunOutcome:
    folder = job.folder if label == "tuned" else job.folder / label
    resumed = claim(folder, session_facts(job, model), resume=resume)
    job.progress.stage(f"{'resume' if resumed else 'tune'} with {model.title}")
    untuned = before[0].view.untuned if before else None
    session = TuningSession(
        job.tasks,
        job.target,
        model.make(),
        job.measure,
        folder,
        job.settings,
        job.stop,
        partial(job.progress.session, label),
        untuned,
        job.history,
    )
    outcome = RunOutcome(label, model, session.view, folder)
    start = time.monotonic()
    try:
        session.run()
    except InterruptedRunError:
        outcome.seconds = time.monotonic() - start
        before.append(outcome)
        raise
    outcome.seconds = time.monotonic() - start
    return outcome


def _report(job: TuneJob, outcomes: list[RunOutcome], status: str) -> dict[str, Any]:
    facts = {
        "network": job.network.name,
        "origin": job.network.origin,
        "target": str(job.target),
        "device": job.device.name,
        "threads": job.threads,
        "layout": job.variants[0].first.layout,
        "notes": list(dict.fromkeys([*job.network.notes, *(n for v in job.variants for n in v.first.notes)])),
        "settings": job.settings.as_dict(),
    }
    return make_report(facts, outcomes, job.device.facts, status, job.started)


@contextmanager
def _reporting_when_stopped(job: TuneJob, outcomes: list[RunOutcome]) -> Iterator[None]:
    """On Ctrl-C: write what there is, and say how to go on."""
    try:
        yield
    except InterruptedRunError as error:
        if outcomes:
            write_report(_report(job, outcomes, "interrupted"), job.folder)
        done = sum(outcome.view.done for outcome in outcomes)
        raise InterruptedRunError(
            f"interrupted after {done} measured programs; all are kept in {job.folder}",
            remedy="run the same command again to go on",
            path=str(job.folder),
            measured=done,
        ) from error


__all__ = ["TuneArgumentError", "TuneProgress", "TuneResult", "tune"]

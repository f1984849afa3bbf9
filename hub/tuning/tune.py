"""`tune`: a network, a cost model and a number of trials to a compiled library, checked, timed and reported."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import tvm
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn import Module

from ...zoo.errors import last_line
from ...zoo.files import locked_folder
from ..device.device_choice import ChosenDevice, checkpoint_kind, choose_device, fitting_checkpoint
from ..device.measure import MeasureConfig
from ..device.timing import weights_between
from ..networks.alternatives import Alternative, find_alternatives, further_weights, lower_known
from ..networks.errors import LatencyError
from ..networks.frontend.network import Network
from ..networks.frontend.shapes import Shapes
from ..networks.latency import Comparison, Libraries, compare
from ..networks.library import BuiltLibrary, build_library
from ..networks.manifest import write_manifest
from ..networks.output_check import require
from ..networks.sources import open_network
from ..networks.tasks import TuningTask, merged_variants, network_tasks, weight_bytes
from ..networks.transform.fused_attention import AttentionShape
from ..networks.transform.fused_depthwise import DepthwiseShape
from ..networks.transform.winograd import ConvShape
from ..records.database import best_programs, export_json
from ..records.scope import MeasurementScope
from ..records.store import RunStore, open_store
from ..search.choice import AlternativeChoice
from ..search.cost_model import ModelChoice, choose_model
from ..search.errors import InterruptedRunError, TuningError
from ..search.interrupt import StopFlag
from ..search.measuring import RunnerMeasure, WorkerMeasure
from ..search.roofline import measure_roofline
from ..search.scheduler import TaskProgress
from ..search.schedules import ScheduleDatabase
from ..search.tensor_cores import check_precision
from .builds import Compare, FirstBuild, first_build, first_compare
from .config import TuneConfig
from .progress import TuneProgress
from .remote_latency import compare_card, compare_remote
from .report import SessionOutcome, TuneResult, make_report, write_report
from .session import TuningSession

# Of timing the compiled network beside others, shared by all.
SECONDS, FAST_SECONDS = 30.0, 2.0


def tune(
    network: str | Path | Network | Module | ExportedProgram,
    example_inputs: Sequence[Any] | Tensor | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    shapes: Shapes | None = None,
    out: str | Path = "out",
    config: TuneConfig | None = None,
    progress: TuneProgress | None = None,
    **options: Any,
) -> TuneResult:
    """Tune a network with TVM's MetaSchedule, guided by a checkpoint.

    A run that was stopped goes on when called again with the same output folder; more trials may be asked for.

    Args:
        network: a `torch.nn.Module`, which is tuned in inference mode and stays as it is, an exported program, a
            reference network's name, a `.pt2`, `.onnx` or transformers config file, or a `Network`.
        example_inputs: of a module: its positional arguments, or the only one. The network is tuned for their shapes.
        example_kwargs: of a module: its arguments by name.
        shapes: sizes to tune at where the network has dynamic shapes, e.g. `{"batch": [1, 8]}`: one library for each
            choice; the trials are shared. The report's latencies are those of the first, and `variants` has all.
        out: folder; see `TuneResult.folder`.
        **options: fields of `TuneConfig`, e.g. `trials=256, checkpoint="tilenet-epyc"`; they win over `config`.

    Raises:
        DeviceKindError: the checkpoint is for the other kind of device.
        TuningError: a setting makes no sense, or asks for tensor cores that the device lacks.
        DeviceError, NoServerError: the device cannot be used; NoServerError also
            when its servers went away: the folder holds all that was measured.
        NetworkLoadError, NetworkImportError: the network cannot be tuned.
        LockError: another process tunes into the folder.
        RunStateError: the folder holds something else.
        MeasurementFailureRateError: nearly every program failed.
        OutputMismatchError: the compiled network is wrong; the report is written all the same.
        LatencyError: the compiled network, or what it is checked against, does not run on this machine; the report is
            written all the same.
        InterruptedRunError: the user stopped it; the folder holds all that was measured.
        TchubError: whatever the registry raises.
    """
    config = replace(config or TuneConfig(), **options)
    if "stock" in config.compare:
        config = replace(config, reuse=False)
    folder, progress = Path(out), progress or TuneProgress()
    if shapes or example_inputs is not None or example_kwargs is not None or not isinstance(network, str | Path):
        network = open_network(network, example_inputs, example_kwargs, name=config.name, shapes=shapes)
    with locked_folder(folder), ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        progress.stage("find out what the device is" if config.device != "local" else "load the cost model")
        others = [name for name in config.compare if name not in ("stock", "torch.compile")]
        kind = "cpu" if others or config.builder is not None else checkpoint_kind(config.checkpoint)
        device = config.device
        if isinstance(device, str):
            device = choose_device(device, config.threads, target=config.target, linker=config.linker, kind=kind)
        check_precision(config.precision, device.facts.target, device.facts.cpu_model)
        if device.away:
            if config.compare:
                raise TuningError("nothing can be compared where the device is not", remedy="leave out --compare")
            config = replace(config, untuned=False)
        if device.card is not None and others:
            remedy = "compare a card with stock and torch.compile alone"
            raise TuningError(f"{', '.join(others)} would run on the CPU", remedy=remedy)
        models = [
            choose_model(
                config.checkpoint or fitting_checkpoint(device), seed=config.seed, update=config.update,
                runs_on=device.facts.device, threads=device.facts.cores,
            )
        ]  # fmt: skip
        if "stock" in config.compare and models[0].name != "stock":
            models.append(choose_model("stock", seed=config.seed))
        return _Run(network, device, config, stop, progress, folder, stack).tune(models)


@dataclass(frozen=True)
class _FinishedBuild:
    """A variant of the network, compiled, compared and timed."""

    first: FirstBuild
    libraries: dict[str, BuiltLibrary]
    comparison: Comparison
    error: LatencyError | None

    @property
    def library(self) -> Path:
        return Path(self.libraries["tuned"].path)

    def facts(self, device: ChosenDevice) -> dict[str, Any]:
        """Return the report's facts; the untuned library's are those of the first build."""
        untuned = self.first.comparison
        before = {name: latency for name, latency in untuned.latencies.items() if name == "untuned"}
        return {
            "libraries": {name: asdict(library) for name, library in self.libraries.items()},
            "output_check": {k: check.as_dict() for k, check in (untuned.checks | self.comparison.checks).items()},
            "latency": {name: latency.as_dict() for name, latency in (before | self.comparison.latencies).items()},
            "latency_note": self.error and f"not measured on {device.name}: {self.error.message}",
            "not_compared": dict(self.comparison.errors),
        }


def _stopping(compare: Compare, stop: StopFlag, text: str) -> Compare:
    """Return a comparison that stops when the user did: Ctrl-C reaches the process that compares, too."""

    def compared(network: Network, libraries: Libraries) -> Comparison:
        try:
            return compare(network, libraries)
        except LatencyError:
            stop.check(text)
            raise

    return compared


class _Run:
    """One call of `tune`: the network as tasks, the device, the folder."""

    def __init__(
        self,
        source: str | Path | Network,
        device: ChosenDevice,
        config: TuneConfig,
        stop: StopFlag,
        progress: TuneProgress,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        """Open what measures, import the network and extract its tasks; `stack` closes what was opened."""
        self.device, self.config, self.folder = device, config, folder
        self.stop, self.progress, self.stack = stop, progress, stack
        self.outcomes: list[SessionOutcome] = []
        self.started, self.roofline = time.time(), None
        threads, self.target = device.facts.cores, tvm.target.Target(device.facts.target)
        if config.builder is not None:
            self.measure: RunnerMeasure | WorkerMeasure = RunnerMeasure(config.builder, config.runner, self.target)
        else:  # the workers start while the network is imported
            self.measure = WorkerMeasure(stack.enter_context(device.measurer(MeasureConfig(threads))))
        progress.stage("import the network")
        self.network = open_network(source)
        check, early = None, "interrupted before anything was measured"
        if config.mode == "search":
            progress.stage("compile the network untuned and check its output")
            check = None if device.away else _stopping(first_compare(device, threads, config.precision), stop, early)
        # Nothing but measuring finds a good schedule of several operators as one: those that are known have none.
        fused = [AttentionShape, DepthwiseShape] if config.mode == "search" else []
        kinds = [ConvShape] * config.winograd + fused if device.card is None else []
        how = (self.target, config.layout, check, device.linker, config.precision, kinds, self.measure.builders)
        self.variants = [first_build(one, *how) for one in self.network.variants]
        stop.check(early)
        groups: list[list[TuningTask]] = []
        weights: list[int] = []
        self.alternatives: list[Alternative] = []
        for first in self.variants:
            name = first.network.name
            own = network_tasks(first.mod, self.target, name)
            added, ways = find_alternatives(first.graph, own, self.target, name, first.shapes)
            self.alternatives += ways
            groups.append(own + added)
            weights.append(weight_bytes(first.mod) + further_weights(groups[-1], ways))
        self.tasks, self.weights = merged_variants(groups), 0
        if isinstance(self.measure, WorkerMeasure) and device.address is None:
            self.weights = max(map(weights_between, weights))
            self.measure.of_network(self.weights)

    def tune(self, models: list[ModelChoice]) -> TuneResult:
        """Tune with each model, compile, compare and report."""
        with self._reporting_when_stopped():
            # A builder and a runner do not say what device they are for; the kernels are a CPU's.
            if self.config.builder is None and self.device.card is None:
                self.progress.stage("measure the peak of the device")
                self.roofline = measure_roofline(self.measure, self.device.facts.cores)
                if self.roofline is None:
                    why = "the peak of the device could not be measured"
                    self.progress.note(f"{why}: trials go by the tasks' latencies alone")
            for label, model in zip(("tuned", "stock"), models, strict=False):
                self._session(label, model)
            finished = [self._finish(variant) for variant in self.variants]
        report = self._report("done") | finished[0].facts(self.device)
        if len(finished) > 1:
            report["variants"] = [{"network": one.first.network.name} | one.facts(self.device) for one in finished]
        write_report(report, self.folder)
        for one in finished:
            if one.error is not None and self.device.address is None and not self.device.away:
                raise one.error
            for name, check in one.comparison.checks.items():
                require(check, f"{one.first.network.name} ({name})")
        tuned = [(one.library, one.first.signature, one.first.mod) for one in finished]
        write_manifest(self.folder, self.network.name, tuned, self.device.facts.target, self.device.facts.cores)
        return TuneResult(report, self.folder, finished[0].library)

    def _session(self, label: str, model: ModelChoice) -> None:
        folder = self.folder if label == "tuned" else self.folder / label
        scope = MeasurementScope.of_device(self.device.facts, self.weights)
        # A builder and a runner do not say what device they are for.
        store = self.stack.enter_context(open_store(folder, scope, share=self.config.builder is None))
        fast = self.config.mode == "fast"
        way = self._choose_ways() if fast else None
        identity = {
            "network": self.network.name, "target": str(self.target), "model": model.name,
            "tasks": [task.task_id for task in self.tasks], "device": self.device.name,
        }  # fmt: skip
        resumed = store.claim(identity, resume=self.config.resume)
        self.device.take_back(store, self.tasks)
        self.progress.stage(f"{'resume' if resumed else 'tune'} with {model.title}")
        untuned = self.outcomes[0].view.untuned if self.outcomes else None
        on_change = partial(self.progress.session, label)
        tasks = [task for task in self.tasks if task.weight] if fast else self.tasks
        session = TuningSession(
            tasks, self.target, model.make(), self.measure, store, self.config, self.stop, on_change, untuned,
            self.roofline, () if fast else self.alternatives, self._schedules(store, model.schedules),
        )  # fmt: skip
        outcome = SessionOutcome(label, model, session.view, session.database, folder, way or session.choice)
        self.outcomes.append(outcome)
        start = time.monotonic()
        try:
            if fast:
                outcome.chosen = session.choose()
            else:
                session.run()
        except BaseException as error:
            if not isinstance(error, InterruptedRunError):
                self.outcomes.remove(outcome)
            raise
        finally:
            outcome.seconds = time.monotonic() - start
            self.roofline = session.roofline
        export_json(session.database, folder / "database")

    def _schedules(self, store: RunStore, path: Path | None) -> ScheduleDatabase:
        """Return the schedules that the checkpoint brings, else the wheel, and those of earlier runs on this device."""
        known = ScheduleDatabase.pretuned(self.target, path)
        if store.home is None or not self.config.reuse:
            return known
        return ScheduleDatabase(((p.task_id, p.trace, p.latency) for p in store.home.fastest()), known)

    def _choose_ways(self) -> AlternativeChoice:
        """Choose how to compute convolutions by what the roofline allows."""
        bounds = [inf if self.roofline is None else self.roofline.bound(task) for task in self.tasks]
        progress = [TaskProgress(task.weight, known=bound) for task, bound in zip(self.tasks, bounds, strict=True)]
        choice = AlternativeChoice(self.tasks, progress, self.alternatives)
        weights = choice.weights()
        self.tasks = [replace(task, weight=weights[task.task_id]) for task in self.tasks]
        return choice

    def _finish(self, variant: FirstBuild) -> _FinishedBuild:
        libraries: dict[str, BuiltLibrary] = {}

        def built() -> dict[str, Path]:
            if not libraries:
                self.progress.stage("compile")
                libraries.update({outcome.label: self._build(variant, outcome) for outcome in self.outcomes})
                self.stop.check()
            return {name: Path(library.path) for name, library in libraries.items()}

        comparison, error = self._compare(variant.network, built)
        built()  # where nothing was compared
        return _FinishedBuild(variant, libraries, comparison, error)

    def _build(self, variant: FirstBuild, outcome: SessionOutcome) -> BuiltLibrary:
        self.stop.check()
        best = outcome.chosen
        if best is None:
            best = best_programs(outcome.database, self.tasks, outcome.view.better_untuned())
        path = (outcome.folder / variant.library_name).with_suffix(".so" if self.device.card is None else ".cuda")
        chosen, known = outcome.choice.chosen(), {task.task_id for task in self.tasks}
        mod = variant.mod
        if self.device.card is None:  # where convolutions may be computed otherwise
            mod = lower_known(variant.graph, chosen, known, self.target)
        try:
            return build_library(mod, self.target, best, path, self.device.linker, builders=self.measure.builders)
        except RuntimeError as error:  # TVM's own errors are such
            raise TuningError(
                f"the tuned {variant.network.name} could not be compiled: {last_line(error)}",
                remedy="run the same command again: what was measured is kept; if it fails again, free memory and disk",
            ) from error

    def _compare(self, network: Network, built: Libraries) -> tuple[Comparison, LatencyError | None]:
        """Return output checks and latencies, or why there are none: the tuning is worth a report all the same."""
        threads = self.device.facts.cores

        def libraries() -> Mapping[str, Path]:
            paths = built()
            self.progress.stage("check the output and measure the latency")
            return paths

        try:
            rivals = [name for name in self.config.compare if name != "stock"]
            if self.device.away:
                raise LatencyError("the network was not run: load it there with tchub.hub.load_tuned")
            precision = self.config.precision
            if self.device.card is not None:
                card, rivals = self.device.card, ["pytorch", *rivals]
                return compare_card(network, libraries, card, rivals=rivals, precision=precision), None
            if self.device.address is None:
                seconds = FAST_SECONDS if self.config.mode == "fast" else SECONDS
                how = partial(compare, max_seconds=seconds, rivals=rivals, precision=precision)
                return how(network, libraries, threads=threads), None
            address = self.device.address
            return compare_remote(network, libraries, address, threads=threads, precision=precision), None
        except LatencyError as error:
            return Comparison({}, {}), error

    def _report(self, status: str) -> dict[str, Any]:
        facts = {
            "network": self.network.name,
            "target": str(self.target),
            "device": self.device.name,
            "threads": self.device.facts.cores,
            "layout": self.variants[0].layout,
            "notes": list(dict.fromkeys([*self.network.notes, *(n for v in self.variants for n in v.notes)])),
            "settings": self.config.as_dict(),
            "roofline": self.roofline and asdict(self.roofline),
        }
        return make_report(facts, self.outcomes, self.device.facts, status, self.started)

    @contextmanager
    def _reporting_when_stopped(self) -> Iterator[None]:
        """On Ctrl-C, write what there is, and say how to go on."""
        try:
            yield
        except InterruptedRunError as error:
            if self.outcomes:
                write_report(self._report("interrupted"), self.folder)
                for outcome in self.outcomes:
                    export_json(outcome.database, outcome.folder / "database")
            if "bundle" in error.fields:
                raise
            done = sum(outcome.view.done for outcome in self.outcomes)
            raise InterruptedRunError(
                f"interrupted after {done} measured programs; all are kept in {self.folder}",
                path=str(self.folder),
                measured=done,
            ) from error

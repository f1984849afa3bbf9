"""What every session of one `tune` shares: the network as tasks, the device, the folder; and its compilation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..device.device_choice import ChosenDevice
from ..networks.errors import LatencyError
from ..networks.latency import Comparison, compare
from ..networks.library import BuiltLibrary, build_library
from ..networks.network import Network
from ..networks.signature import Signature
from ..networks.sources import open_network
from ..networks.tasks import TuningTask, from_extracted, merged_variants
from ..search.errors import InterruptedRunError
from ..search.interrupt import StopFlag
from ..search.models import ModelChoice
from .first_build import Compare, FirstBuild, first_build
from .report import RunOutcome
from .session import SessionSettings, SessionView

if TYPE_CHECKING:
    from ..records.history import History
    from ..search.measuring import Measure


def first_compare(device: ChosenDevice, threads: int) -> Compare:
    """Return what runs an untuned library once beside the original: in a process here, or on an RPC server.

    A server that cannot run it is no end: its programs are measured all the same, and the report says why.
    """
    from .remote_latency import compare_remote

    address = device.address
    if address is None:
        return partial(compare, threads=threads, min_repeats=1, max_seconds=1.0)

    def remote(network: Network, libraries: Mapping[str, Path]) -> Comparison:
        try:
            return compare_remote(network, libraries, address, threads=threads)
        except LatencyError as error:
            return Comparison({}, {}, {"untuned": error.message})

    return remote


class TuneProgress:
    """Told what happens; this one says nothing."""

    def stage(self, text: str) -> None:
        """A step of the whole run begins, e.g. `compile`."""

    def note(self, text: str) -> None:
        """Something that is worth a line of its own, e.g. that the machine is busy."""

    def session(self, label: str, view: SessionView) -> None:
        """The session `label` (`tuned` or `stock`) changed; `view` is updated in place."""


@dataclass(frozen=True)
class Variant:
    """A network at fixed shapes, and its first build."""

    network: Network
    signature: Signature
    first: FirstBuild


@dataclass(frozen=True)
class TuneJob:
    """What every session of one `tune` shares.

    Attributes:
        variants: the network at each of the sizes that were asked for; one where its shapes are fixed.
        tasks: of all variants.
    """

    network: Network
    variants: list[Variant]
    tasks: list[TuningTask]
    device: ChosenDevice
    target: Any
    threads: int
    settings: SessionSettings
    measure: Measure
    stop: StopFlag
    progress: TuneProgress
    folder: Path
    history: History | None
    started: float = field(default_factory=time.time)

    def check_stop(self) -> None:
        if self.stop.requested:
            raise InterruptedRunError("interrupted")


def open_job(
    source: str | Path | Network,
    device: ChosenDevice,
    threads: int,
    layout: str,
    settings: SessionSettings,
    pair: tuple[Any, Any],
    stop: StopFlag,
    progress: TuneProgress,
    folder: Path,
    stack: ExitStack,
) -> TuneJob:
    """Open what measures, import the network and extract its tasks; `stack` closes what was opened."""
    import tvm
    from tvm.s_tir.meta_schedule import relax_integration

    from ..device.measure import MeasureConfig
    from ..records.history import open_history
    from ..search.measuring import MeasureHere, MeasureWith

    tvm_target = tvm.target.Target(device.facts.target)
    if pair[0] is not None:
        measure: Measure = MeasureWith(*pair, tvm_target)
        history = None  # a builder and a runner do not say what device they are for
    else:  # the workers start while the network is imported
        measure = MeasureHere(stack.enter_context(device.measurer(MeasureConfig(threads=threads), progress.note)))
        history = stack.enter_context(open_history(device.facts, tvm_target, threads))
    progress.stage("import the network")
    network = open_network(source)
    signatures = [variant.signature() for variant in network.variants]
    progress.stage("compile the network untuned and check its output")
    try:
        variants = [
            Variant(one, signature, first_build(one, tvm_target, layout, first_compare(device, threads), device.linker))
            for one, signature in zip(network.variants, signatures, strict=True)
        ]
    except LatencyError:  # Ctrl-C reaches the process that compares, too
        _check_early(stop)
        raise
    _check_early(stop)
    tasks = merged_variants(
        from_extracted(relax_integration.extract_tasks(variant.first.mod, tvm_target), variant.network.name)
        for variant in variants
    )
    return TuneJob(
        network,
        variants,
        tasks,
        device,
        tvm_target,
        threads,
        settings,
        measure,
        stop,
        progress,
        folder,
        history,
    )


def _check_early(stop: StopFlag) -> None:
    if stop.requested:
        raise InterruptedRunError("interrupted before anything was measured", remedy="run the same command again")


def session_facts(job: TuneJob, model: ModelChoice) -> dict[str, Any]:
    """What the folder of a session is claimed with."""
    return {
        "network": job.network.name,
        "target": str(job.target),
        "model": model.name,
        "tasks": [task.task_id for task in job.tasks],
        "threads": job.threads,
        "settings": job.settings.as_dict(),
        "device": job.device.name,
    }


def compile_all(job: TuneJob, variant: Variant, outcomes: list[RunOutcome]) -> dict[str, BuiltLibrary]:
    """Compile a variant of the network with the best programs of each session."""
    from .session import best_programs, open_database

    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in variant.network.name)
    linker = job.device.linker
    libraries = {}
    for outcome in outcomes:
        job.check_stop()
        found = open_database(outcome.folder / "database")
        database = best_programs(found, job.tasks, outcome.view.better_untuned())
        libraries[outcome.label] = build_library(
            variant.first.mod, job.target, database, outcome.folder / f"{name}.so", linker
        )
    return libraries

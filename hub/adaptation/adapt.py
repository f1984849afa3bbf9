"""`adapt`: measure a few well-picked programs on this machine, fine-tune a checkpoint on them, keep it if it helps."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.adapt.adapt_model import applying
from ...zoo.files import locked_folder
from ...zoo.machine import one_thread
from ..api import choose_checkpoint
from ..device.device_choice import ChosenDevice, choose_device, fitting_checkpoint
from ..device.host_facts import usable_cores
from ..networks.sources import open_network
from ..networks.tasks import workload_names
from ..records.scope import MeasurementScope
from ..records.store import open_store
from ..registry import home_root
from ..search.candidate_features import require_kind
from ..search.errors import InterruptedRunError
from ..search.interrupt import StopFlag
from .config import AdaptConfig, AdaptProgress, SessionContext
from .learner import Learner
from .pool import PoolMeasurer, make_pool
from .result import AdaptResult
from .session import AdaptSession
from .sources import AdaptationSources, open_sources
from .store import AdaptationRecord, variant_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.nn import Module

    from ..networks.network import Network
    from ..networks.shapes import Shapes

DEFAULT_WORKLOAD = "reference"


def adapt(
    checkpoint: str | None = None,
    workload: str | Path | Network | Module | ExportedProgram | None = None,
    *,
    example_inputs: Sequence[Any] | Tensor | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    shapes: Shapes | None = None,
    config: AdaptConfig | None = None,
    progress: AdaptProgress | None = None,
) -> AdaptResult:
    """Adapt a checkpoint to a device: this machine, or others behind TVM's RPC.

    A fifth of the budget goes to programs picked at random, which are never learnt from; the rest goes to the
    sampler's picks. If the adapted model does not rank the held-out programs better than its base, the base
    is kept and nothing is stored. Measurements are journaled: a run that was killed goes on, and one of a larger budget
    goes on from what a smaller one measured.

    Args:
        checkpoint: a name, or a checkpoint's folder; None for the one that fits the device best.
        workload: a network, operator or suite by name, or a network's file (`.pt2`, `.onnx`, transformers
            config), a `torch.nn.Module` or an exported program, whose tasks are measured; None for the reference suite.
        example_inputs, example_kwargs: of a module, see `tune`.
        shapes: sizes of a network's dynamic shapes, see `tune`.
        config: device, budget and all other settings.
        progress: receives every phase.

    Raises:
        UnknownDeviceChoiceError, NoServerError, RemoteTargetError, NoCrossCompilerError: the device cannot be used.
        LocalTargetError: this machine cannot run programs for the target.
        NetworkLoadError: the workload is neither a name nor a file.
        AdaptError: the method lacks what it learns from, or learns nothing from the corpora; a source does not fit; no
            task has a choice of programs, or the budget is too small for them.
        DeviceKindError: the checkpoint is for the other kind of device.
        MeasurementFailureRateError: nearly every program failed.
        LabelError: the measurements have no order to learn, or to judge by.
        InterruptedRunError: the user stopped it; run it again to go on.
        LockError: another process adapts in the same folder.
        TchubError: whatever the registry, the workload or the measurer raise.
    """
    config, progress = config or AdaptConfig(), progress or AdaptProgress()
    network: str | Network
    if not shapes and (workload is None or isinstance(workload, str | Path)):
        network = name = str(workload or DEFAULT_WORKLOAD)
        if name not in workload_names() and not Path(name).exists():
            open_network(name)  # raises, and names what is near
    else:
        network = open_network(workload or DEFAULT_WORKLOAD, example_inputs, example_kwargs, shapes=shapes)
        name = network.name
    context = SessionContext(config, Path(), progress)
    with context.timed("prepare"):
        device, target = config.device, None if config.target is None else dict(config.target)
        if not isinstance(device, ChosenDevice):
            device = choose_device(device, config.threads, target=target, linker=config.linker)
        sources = _open_sources(checkpoint, config, device)
        require_kind(sources.bases[0].checkpoint, device.facts.device)
    local = device.facts
    folder = Path(config.out) if config.out else _default_folder(sources, name, device)
    context = replace(context, folder=folder)
    scope = MeasurementScope.of_device(local)
    with locked_folder(folder, "--out or TCHUB_HOME"), one_thread(), ExitStack() as stack:
        journal = stack.enter_context(open_store(folder, scope))
        with StopFlag() as stop:
            pool = make_pool(network, local, scope.as_dict(), context, stop)
            measurer = stack.enter_context(PoolMeasurer(pool, device, journal, stop, progress))
            with context.timed("features"):
                learner = Learner(sources, local, pool, measurer, context)
            session = AdaptSession(learner, name, journal)
            session.spend()
        try:  # nothing is measured any more: Ctrl-C stops at once, and long training keeps the state of each epoch
            adapted, judgement = session.finish()
            # The name tells a number of threads that the device does not have by itself.
            threads = None if device.address is None and config.threads == usable_cores() else config.threads
            variant = variant_of(device.asked, threads, device.address and device.address.key)
            return AdaptationRecord(session, adapted, judgement, variant).finish(folder / f"corpus-{scope.key}")
        except KeyboardInterrupt as error:
            raise InterruptedRunError(
                f"interrupted while learning from {len(measurer.results)} measured programs",
                remedy="run the same command again: it goes on from there",
                measured=len(measurer.results),
            ) from error


def _open_sources(checkpoint: str | None, config: AdaptConfig, device: ChosenDevice) -> AdaptationSources:
    """Open what is adapted and learnt from; raise AdaptError where the method cannot."""
    sources = open_sources(
        checkpoint, config.source_names, lambda name: choose_checkpoint(name or fitting_checkpoint(device))
    )
    for base in sources.bases:
        applying(config.method, base.checkpoint.model, len(sources.corpora))
    return sources


def adapt_root() -> Path:
    """Return the folder of the adaptations' work folders, in the user's data: losing it costs measurements."""
    return home_root().parent / "adapt"


def _default_folder(sources: AdaptationSources, workload: str, device: ChosenDevice) -> Path:
    suffix = f"-{device.facts.mcpu}" if device.asked else ""
    suffix = f"-rpc-{device.address.key}" if device.address else suffix
    name = Path(workload + suffix).name
    return adapt_root() / f"{sources.bases[0].entry.name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}"


__all__ = ["AdaptConfig", "AdaptProgress", "AdaptResult", "adapt", "adapt_root"]

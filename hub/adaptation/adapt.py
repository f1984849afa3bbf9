"""`adapt`: measure a few well-picked programs on this machine, fine-tune a checkpoint on them, keep it if it helps."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.nn import Module

from ...zoo.adapt import AdaptError
from ...zoo.adapt.adapt_model import applying
from ...zoo.corpus import Corpus
from ...zoo.files import locked_folder
from ...zoo.machine import one_thread
from ..api import choose_checkpoint
from ..device.detect import LocalDevice
from ..device.device_choice import ChosenDevice, checkpoint_kind, choose_device, fitting_checkpoint
from ..device.host_facts import usable_cores
from ..networks.frontend.network import Network
from ..networks.frontend.shapes import Shapes
from ..networks.sources import open_network
from ..networks.workloads import workload_names
from ..records.scope import MeasurementScope
from ..records.store import open_store
from ..registry import Registry, home_root
from ..search.candidate_features import require_kind
from ..search.errors import InterruptedRunError
from ..search.interrupt import StopFlag
from ..search.tensor_cores import check_precision
from .config import AdaptConfig, AdaptProgress, SessionContext, variant_of
from .corpus import RecordedLatencies, read_pool, recorded_device
from .learner import Learner
from .pool import PoolMeasurer, make_pool
from .record import AdaptationRecord
from .result import AdaptResult
from .session import AdaptSession
from .sources import AdaptationSources, corpus_name, open_sources

DEFAULT_WORKLOAD = "reference"
# Settings of measuring.
_MEASURING = ("device", "target", "linker", "threads", "precision", "budget", "worth")


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
    """Adapt a checkpoint to a device: this machine, others behind TVM's RPC, or that of a corpus (`config.corpus`).

    A fifth of the budget goes to programs picked at random, which are never learnt from; the rest goes to the
    sampler's picks. If the adapted model does not rank the held-out programs better than its base, the base
    is kept and stands for the name that the adapted one would have. Measurements are journaled: a run that was killed
    goes on, and one of a larger budget goes on from what a smaller one measured. With a corpus nothing is measured, and
    its test tasks are the hold-out.

    Args:
        checkpoint: a name, or a checkpoint's folder; None for the one that fits the device best.
        workload: a network, operator or suite by name, or a network's file (`.pt2`, `.onnx`, transformers
            config), a `torch.nn.Module` or an exported program, whose tasks are measured; None for the reference suite.
        example_inputs, example_kwargs: of a module, see `tune`.
        shapes: sizes of a network's dynamic shapes, see `tune`.
        config: device, budget and all other settings.
        progress: receives every phase.

    Raises:
        AdaptError: the method lacks what it learns from, or learns nothing from the corpora; a source does not fit; no
            task has a choice of programs, or the budget is too small for them.
        CorpusError: the corpus has no test tasks to judge by, or none to learn.
        DeviceKindError: the checkpoint is for the other kind of device.
        LabelError: the measurements have no order to learn.
        InterruptedRunError: the user stopped it; run it again to go on.
        TchubError: whatever the device, the registry, the workload or the measurer raise.
    """
    context = SessionContext(config or AdaptConfig(), Path(), progress or AdaptProgress())
    given = (workload, example_inputs, example_kwargs, shapes or None)
    if context.config.corpus is not None:
        return _adapt_from_corpus(checkpoint, context, measures=any(one is not None for one in given))
    config = context.config
    network: str | Network
    if not shapes and (workload is None or isinstance(workload, str | Path)):
        network = name = str(workload or DEFAULT_WORKLOAD)
        if name not in workload_names() and not Path(name).exists():
            open_network(name)  # raises, and names what is near
    else:
        network = open_network(workload or DEFAULT_WORKLOAD, example_inputs, example_kwargs, shapes=shapes)
        name = network.name
    with context.timed("prepare"):
        device, target = config.device, None if config.target is None else dict(config.target)
        if not isinstance(device, ChosenDevice):
            kind = checkpoint_kind(checkpoint)
            device = choose_device(device, config.threads, target=target, linker=config.linker, kind=kind)
        local = device.facts
        check_precision(config.precision, local.target, local.cpu_model)
        suffix = f"-rpc-{device.address.key}" if device.address else f"-{local.mcpu}" if device.asked else ""
        folder = Path(name + suffix).name
        sources, context = _open_sources(checkpoint, context, local, folder, lambda: fitting_checkpoint(device))
    # The name tells a number of threads that the device does not have by itself.
    threads = None if device.address is None and config.threads == usable_cores() else config.threads
    variant = variant_of(device.asked, threads, device.address and device.address.key)
    scope = MeasurementScope.of_device(local)
    with locked_folder(context.folder, "--out or TCHUB_HOME"), one_thread(), ExitStack() as stack:
        journal = stack.enter_context(open_store(context.folder, scope))
        with StopFlag() as stop:
            pool = make_pool(network, local, scope.as_dict(), context, stop)
            device.take_back(journal, pool.tasks)
            measurer = stack.enter_context(PoolMeasurer(pool, device, journal, stop, context.progress))
            session = AdaptSession(Learner(sources, local, pool, measurer, context), name, journal)
            session.spend()
        return _finish(session, variant, context.folder / f"corpus-{scope.key}")


def _adapt_from_corpus(checkpoint: str | None, context: SessionContext, *, measures: bool) -> AdaptResult:
    """Adapt to the device of a corpus, whose latencies are read."""
    config, plain = context.config, AdaptConfig()
    given = [name for name in _MEASURING if getattr(config, name) != getattr(plain, name)]
    if measures or given:
        raise AdaptError(
            f"nothing is measured with a corpus, and {', '.join(given) or 'a workload'} is given",
            remedy="leave it out, or leave out the corpus; with a corpus, labels are the budget",
        )
    corpus = Corpus.open(Path(str(config.corpus)))
    local, name = recorded_device(corpus), corpus_name(corpus)
    with context.timed("prepare"):
        best = lambda: Registry.default().resolve(None, local.device).entry.id  # noqa: E731
        sources, context = _open_sources(checkpoint, context, local, name, best)
    if corpus.path.resolve() in [one.path.resolve() for one in sources.corpora]:
        raise AdaptError(f"{corpus.path} is learnt already", remedy="leave it out of --sources")
    with locked_folder(context.folder, "--out or TCHUB_HOME"), one_thread():
        with StopFlag() as stop:
            pool, budget = read_pool(corpus, sources, context)
            context = replace(context, config=replace(config, budget=budget))
            latencies = RecordedLatencies(pool, stop, context.progress)
            session = AdaptSession(Learner(sources, local, pool, latencies, context), name, None)
            session.spend()
        return _finish(session, variant_of(key=pool.device), corpus.path)


def _finish(session: AdaptSession, variant: str, corpus: Path) -> AdaptResult:
    """Learn and judge; nothing is measured any more: Ctrl-C stops at once, and long training keeps its epochs."""
    try:
        adapted, judgement = session.finish()
        return AdaptationRecord(session, adapted, judgement, variant).finish(corpus)
    except KeyboardInterrupt as error:
        measured = len(session.measurer.results)
        message = f"interrupted while learning from {measured} measured programs"
        raise InterruptedRunError(message, measured=measured) from error


def _open_sources(
    checkpoint: str | None, context: SessionContext, local: LocalDevice, name: str, best: Callable[[], str | None]
) -> tuple[AdaptationSources, SessionContext]:
    """Open what is adapted and learnt from; return it and the context with its work folder."""
    config = context.config
    sources = open_sources(checkpoint, config.source_names, lambda name: choose_checkpoint(name or best()))
    for base in sources.bases:
        applying(config.method, base.checkpoint.model, len(sources.corpora))
    require_kind(sources.bases[0].checkpoint, local.device.name, local.device.kind)
    plain = f"{sources.bases[0].entry.name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}"
    return sources, replace(context, folder=Path(config.out) if config.out else adapt_root() / plain)


def adapt_root() -> Path:
    """Return the folder of the adaptations' work folders: losing it costs measurements."""
    return home_root().parent / "adapt"

"""`adapt`: measure a few well-picked programs on this machine, fine-tune a checkpoint on them, keep it if it helps."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.adapt.budget import Budget, parse_budget
from ...zoo.adapt.choose_method import applying, check_method
from ...zoo.adapt.fine_tune import FineTuneConfig
from ...zoo.adapt.sampling import Sampler, create_sampler
from ...zoo.adapt.stopping import WORTH
from ...zoo.errors import TchubError
from ...zoo.threads import one_thread
from ..device.device_choice import choose_device
from ..device.host_facts import usable_cores
from ..device.rpc_address import parse_device
from ..networks.shapes import Shapes
from ..networks.sources import open_network
from ..records.folder_lock import alone_in
from ..registry import home_root
from ..registry.store import store_error
from ..search.device_kind import require_kind
from ..search.errors import InterruptedRunError
from ..search.interrupt import StopFlag
from .job import AdaptJob
from .learn import Learner, Told
from .least import check_budget
from .name import variant_of
from .pool import PLACE, pool_features
from .result import AdaptResult
from .seen import PoolPrograms
from .session import AdaptSession
from .settings import AdaptProgress, AdaptSettings, Clock
from .sources import open_sources, split_names
from .store import finish
from .tools import Tools, chosen_tools, network_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.nn import Module

    from ..networks.network import Network

DEFAULT_WORKLOAD = "reference"
DEFAULT_POOL = 128


class AdaptArgumentError(TchubError):
    """An argument of `adapt` that has no meaning, e.g. rounds or a pool of nothing."""


class AdaptBusyError(TchubError):
    """Another process adapts in the same folder."""


def adapt(
    checkpoint: str | None = None,
    *,
    device: str = "local",
    target: dict[str, Any] | None = None,
    linker: str | None = None,
    budget: str | int | Budget = "10%",
    workload: str | Path | Network | Module | ExportedProgram | None = None,
    example_inputs: Sequence[Any] | Tensor | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    shapes: Shapes | None = None,
    method: str = "few-shot",
    sampler: str | Sampler = "rdu+",
    rounds: int = 3,
    sources: str | Sequence[str] = (),
    worth: float = WORTH,
    seed: int = 0,
    work_dir: Path | str | None = None,
    programs_per_task: int = DEFAULT_POOL,
    threads: int | None = None,
    fine_tune: FineTuneConfig | None = None,
    progress: AdaptProgress | None = None,
    tools: Tools | None = None,
) -> AdaptResult:
    """Adapt a checkpoint to a device: this machine, or others behind TVM's RPC.

    A fifth of the budget goes to programs picked at random, which are never learnt from; the rest goes to the
    sampler's picks. If the adapted model does not rank the held-out programs better than its base, the base
    is kept and nothing is stored. Measurements are journaled: a run that was killed goes on, and one of a larger budget
    goes on from what a smaller one measured.

    Args:
        checkpoint: a name, or a checkpoint's folder; None for the one that fits this machine best.
        device: `local`, or `rpc://host:port/key` for the servers of TVM's RPC tracker.
        target: TVM target as a dictionary; None for this machine's, or for what the RPC servers say of themselves.
        linker: for RPC servers of another architecture, see `tune`.
        budget: `10%` of the candidate pool, `200` programs (of a smaller pool all), `15m` of building and running, or
            `auto`, which measures in rounds until the next one is not worth its time.
        workload: a network, operator or suite by name, or a network's file (`.pt2`, `.onnx`, transformers
            config), a `torch.nn.Module` or an exported program, whose tasks are measured; None for the reference suite.
        example_inputs, example_kwargs: of a module, see `tune`.
        shapes: sizes of a network's dynamic shapes, see `tune`.
        method: `few-shot`, `committee`, `continual`, `multi-task`, or `auto` for the one that ranks best by
            cross-validation on the programs to learn from.
        sampler: a name of `zoo.adapt.sampling.SAMPLERS`, or a `Sampler`; the first batch is picked at random, or
            with `rdu+` and `strata` by how the base orders them.
        rounds: rounds of the sampler after the first batch, each with a model update; with the budget `auto` the
            least.
        sources: further checkpoints, of which the one that ranks the first batch best is adapted, and folders of
            corpora of other devices, from which continual and multi-task learn; `A,B` or a list.
        worth: with the budget `auto`, seconds of measuring that 1% of the network's latency is worth.
        seed: of every random choice.
        work_dir: for the pool, the journal and the corpus; None for a folder in the user's data.
        programs_per_task: candidates of each task in the pool.
        threads: threads of a program; None for one a physical core that may be used.
        fine_tune: how the model learns; the default suits a few hundred programs.
        progress: told of every phase.
        tools: other functions for detection, tasks, candidates, measuring and storing.

    Raises:
        DeviceChoiceError, NoServerError, TargetError, DeviceSetupError: the device cannot be used.
        TargetError: this machine cannot run programs for the target.
        BudgetError, UnknownSamplerError, AdaptArgumentError, UnknownNetworkError: an argument makes no sense.
        MethodError: no such method, it lacks what it learns from, or it learns nothing from the corpora.
        SourceFolderError: a source is neither a checkpoint nor a corpus.
        SourceSchemaError: a source reads other features than the checkpoint.
        DeviceKindError: the checkpoint is for the other kind of device.
        EmptyPoolError: no task has a choice of programs.
        MeasurementFailureRateError: nearly every program failed.
        LabelError: the measurements have no order to learn, or to judge by.
        InterruptedRunError: the user stopped it; run it again to go on.
        AdaptBusyError: another process adapts in the same folder.
        TchubError: whatever the registry, the workload or the measurer raise.
    """
    _check_arguments(method, rounds, programs_per_task, worth, seed)
    settings = AdaptSettings(
        parse_budget(budget), create_sampler(sampler), rounds, seed, fine_tune or FineTuneConfig(), method, worth
    )
    check_budget(settings.budget)
    tools, progress, clock = tools or Tools(), progress or AdaptProgress(), Clock()
    if not shapes and (workload is None or isinstance(workload, str | Path)):
        workload = str(workload or DEFAULT_WORKLOAD)
    else:
        network = open_network(workload or DEFAULT_WORKLOAD, example_inputs, example_kwargs, shapes=shapes)
        workload, tools = network.name, network_tools(tools, network)
    with clock("prepare"):
        tools.check_workload(workload)
        address = parse_device(device)
        if address is not None or target is not None:
            tools = chosen_tools(tools, choose_device(device, threads, target=target, linker=linker))
        begin = open_sources(checkpoint, split_names(sources), tools.find_base)
        for one in begin.bases:
            applying(method, one.checkpoint.model, len(begin.corpora))
        base = begin.bases[0]
        local = tools.detect(device, threads)
        require_kind(base.checkpoint, local.device)
    named = None if address is None and threads == usable_cores() else threads
    variant = variant_of(target, named, address and address.key)
    job = AdaptJob(begin, local, workload, settings, local.cores, programs_per_task, tools, variant)
    place = f"-rpc-{address.key}" if address else f"-{local.mcpu}" if target else ""
    folder = Path(work_dir) if work_dir else _default_folder(base.entry.name, job.workload + place)
    with _locked(folder), one_thread(), ExitStack() as stack:
        journal = stack.enter_context(tools.open_journal(folder / "journal.sqlite", job.scope))
        with StopFlag() as stop:
            pool = job.build_pool(folder, stop, progress, clock)
            measuring = stack.enter_context(job.measuring(pool, journal, stop, progress))
            with clock("features"):
                features = pool_features(replace(base.checkpoint, device=local.device), pool, local.target)
            programs = PoolPrograms(pool, local.device.name, tools.computation)
            told = Told(settings, progress, clock, folder / "training", programs, job.scope_id)
            learner = Learner(begin, local.device, features, pool, measuring, told)
            session = AdaptSession(learner, pool, measuring, told, job.to_rank)
            session.spend()
        return _learn(lambda: finish(job, folder, programs, measuring, session.learn(), clock), len(measuring.results))


def _learn(learn: Callable[[], AdaptResult], measured: int) -> AdaptResult:
    """Nothing is measured any more, so Ctrl-C stops at once: training that takes long keeps the state of each epoch."""
    try:
        return learn()
    except KeyboardInterrupt as error:
        raise InterruptedRunError(
            f"interrupted while learning from {measured} measured programs",
            remedy="run the same command again: it goes on from there",
            measured=measured,
        ) from error


def _check_arguments(method: str, rounds: int, programs_per_task: int, worth: float, seed: int) -> None:
    check_method(method)
    if not 0 < worth < math.inf:
        raise AdaptArgumentError(
            f"1% of the latency is worth {worth} seconds", remedy="give a positive number of seconds", argument="worth"
        )
    for name, value, least in (("rounds", rounds, 1), ("programs_per_task", programs_per_task, 1), ("seed", seed, 0)):
        if value < least:
            raise AdaptArgumentError(f"{name} is {value}", remedy=f"give a number of at least {least}", argument=name)


def adapt_root() -> Path:
    """Return the folder of the adaptations' work folders.

    It lies in the user's data, beside the adapted checkpoints: losing it costs measurements.
    """
    return home_root().parent / "adapt"


def _default_folder(name: str, workload: str) -> Path:
    return adapt_root() / f"{name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(workload).name)}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One adaptation a folder: two would measure at the same time, on the same cores."""
    busy = f"another process adapts in {folder}"
    with alone_in(
        folder,
        lambda: AdaptBusyError(busy, remedy="wait for it, or give another folder with --work-dir", path=str(folder)),
        lambda error: store_error(error, folder, PLACE),
    ):
        yield


__all__ = ["AdaptProgress", "AdaptResult", "adapt", "adapt_root"]

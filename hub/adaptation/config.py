"""The settings of an adaptation, the progress that it reports, and what its parts share."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.adapt import AdaptError, Budget, Sampler, create_sampler, parse_budget
from ...zoo.adapt.budget import WORTH
from ..registry import CheckpointName

if TYPE_CHECKING:
    from ...zoo.adapt.fine_tune import FineTuneConfig
    from ..device.device_choice import ChosenDevice

# Four programs to judge by, and two for each of the four batches of the default three rounds.
MIN_PROGRAMS = 12


@dataclass(frozen=True)
class AdaptConfig:
    """How an adaptation measures and learns.

    The first sentence about a field is the help of its option.

    Attributes:
        precision: float32; float16: on a card's tensor cores; bfloat16: on the tile registers of a Xeon with AMX. Both
            are added up in float32.
        device, target, linker, threads: where and for what programs are measured, see `tune`; or an open device.
        budget: 10% of the candidates, 200 programs, 15m of measuring, or auto: until a round is not worth its time. Of
            fewer candidates 200 are all.
        method: how the model learns: few-shot, ensemble, continual, multi-task, or auto: the one that ranks best. That
            is by cross-validation on the programs to learn from; the rounds' own updates are few-shot.
        sampler: picks programs: random, stratified, fasor, rdu, rdu+ or strata. Or a `Sampler`; the first
            batch is picked at random, or with `rdu+` and `strata` by how the base orders the programs.
        rounds: rounds of picking; of --budget auto the least. Each has a model update; the first batch is none of them.
        sources: further checkpoints, and corpora of other devices to learn from: A,B,... Or a list; the checkpoint that
            ranks the first batch best is adapted, and the corpora are for continual and multi-task.
        worth: of --budget auto: seconds for 1% of latency.
        seed: seed of every random choice.
        per_task: candidates of each task in the pool.
        corpus: read this corpus's latencies instead of measuring. Its programs are the candidates.
        labels: with --corpus: 16 labels of each task, or 10%. A share is of all candidates.
        out: work folder. It takes the pool, the measurements and the corpus; None for one in the user's data.
        fine_tune: how the model learns; None for what suits a few hundred programs.

    Raises:
        AdaptError: the budget, the sampler or the method is unknown, or a number is out of range.
    """

    device: str | ChosenDevice = "local"
    target: Mapping[str, Any] | None = None
    linker: str | None = None
    threads: int | None = None
    precision: str = "float32"
    budget: str | int | Budget = "10%"
    method: str = "few-shot"
    sampler: str | Sampler = "rdu+"
    rounds: int = 3
    sources: str | Sequence[str] = ()
    worth: float = WORTH
    seed: int = 0
    per_task: int = 128
    corpus: Path | str | None = None
    labels: str = "10%"
    out: Path | str | None = None
    fine_tune: FineTuneConfig | None = None

    def __post_init__(self) -> None:
        from ...zoo.adapt.adapt_model import check_method

        budget, labels = parse_budget(self.budget), self.label_budget
        if budget.kind == "programs":
            check_count(budget, math.floor(budget.value))
        check_method(self.method)
        create_sampler(self.sampler)
        if not 0 < self.worth < math.inf:
            raise AdaptError(f"worth is {self.worth} seconds", remedy="give a positive number of seconds")
        if labels.kind not in ("programs", "share") or (labels.kind == "programs" and labels.value < 2):
            raise AdaptError(
                f"labels are {labels.text}", remedy="give a number of each task, 2 or more, or a share such as 10%"
            )
        for name, least in (("rounds", 1), ("per_task", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise AdaptError(f"{name} is {getattr(self, name)}", remedy=f"give a number of at least {least}")

    @property
    def label_budget(self) -> Budget:
        """The labels of a corpus: `programs` of each task, or a share of the candidates."""
        return parse_budget(self.labels)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names and folders of the sources, empty ones left out."""
        parts = self.sources.split(",") if isinstance(self.sources, str) else self.sources
        return tuple(part.strip() for part in parts if part.strip())

    @property
    def learning(self) -> FineTuneConfig:
        """The settings of fine-tuning."""
        from ...zoo.adapt.fine_tune import FineTuneConfig

        return self.fine_tune or FineTuneConfig()


def check_count(budget: Budget, count: int, candidates: str = "") -> None:
    """Raise AdaptError where the programs that a budget comes to, of so many candidates, are too few."""
    if count >= MIN_PROGRAMS:
        return
    comes_to = f"{budget.text} is {count} of {candidates}" if candidates else f"{count} programs is too small"
    raise AdaptError(
        f"a budget of {comes_to}; adapting needs {MIN_PROGRAMS}: some to learn from, some to judge by",
        remedy=f"give --budget {MIN_PROGRAMS} or more"
        + (", or enlarge the pool with --per-task" if candidates else ""),
    )


class AdaptProgress:
    """Callbacks that a display may override; they do nothing here."""

    def start(self, phase: str, total: int) -> None:
        """Begin a phase of `total` steps."""

    def advance(self, failed: bool = False) -> None:
        """Complete one step of the phase."""

    def note(self, text: str) -> None:
        """Report something that is worth a line of its own: the chosen source, a point of the learning curve."""


@dataclass(frozen=True)
class SessionContext:
    """What the parts of an adaptation share: settings, work folder, progress, and wall seconds by phase."""

    config: AdaptConfig
    folder: Path
    progress: AdaptProgress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time inside to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began


# Names of what is stored --------------------------------------------------------------------------------------

LOCAL = "local"
# A variant's name has a target's kind and CPU in words; its cores are the programs' threads, and a machine has one
# triple.
_NAMED = ("kind", "mcpu", "mtriple", "num-cores")
_MAX_NAME = 32


def variant_of(target: Mapping[str, Any] | None = None, threads: int | None = None, key: str | None = None) -> str:
    """Return `local`, and target, threads and RPC key or device that were asked for, if any: `local-x86-64-v2-2t`."""
    parts = [LOCAL, *([_plain(key)] if key else [])]
    if target is not None:
        rest = {key: value for key, value in target.items() if key not in _NAMED}
        parts += [_plain(str(target.get("mcpu", target.get("kind", ""))))]
        parts += [_digits(json.dumps(rest, sort_keys=True))] if rest else []
    return "-".join([*parts, *([f"{threads}t"] if threads is not None else [])])


def _plain(text: str) -> str:
    """Return text in the alphabet of names; what is left out of a long or foreign one stands as digits."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain if plain and len(plain) <= _MAX_NAME else f"{plain[:_MAX_NAME]}-{_digits(text)}".strip("-")


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def adapted_name(base: str, variant: str) -> str:
    """Return the name of a variant of a checkpoint, e.g. `tcl-epyc+local`, also of a variant of it."""
    parsed = CheckpointName.parse(base)
    return CheckpointName(parsed.arch, parsed.family, variant).name

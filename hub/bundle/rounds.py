"""Rounds of `tune` and `adapt` for a GPU that is elsewhere: bundles leave, and a run goes on when results are there."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ...zoo.devices import get_device
from ..device.candidate import Candidate
from ..device.cuda_card import CUDA
from ..device.detect import LocalDevice
from ..device.device_choice import ChosenDevice
from ..device.measure import MeasureConfig, Measurement
from ..networks.tasks import TuningTask
from ..records.store import RunStore
from ..search.errors import InterruptedRunError
from .archive import Bundle, BundleError
from .build import BuildSettings, BundleTarget, pack, resolve_target
from .ingest import judged_programs

# Programs of a run's search, as a bundle and a run's store call them.
_OF_SEARCH = {"search": "tuned", "tuned": "tune"}


@dataclass(frozen=True)
class BundleDevice(ChosenDevice):
    """A GPU that is elsewhere, for `tune` and `adapt` in place of a device.

    What would be measured leaves as `round-1.zip`, `round-2.zip`, ... in the folder, and the run ends by an
    InterruptedRunError whose field `bundle` is the path. The same call goes on once the results lie beside it, in
    `round-1.jsonl`: the run's store takes them before anything is searched.

    Attributes:
        target: that programs are compiled for.
        folder: of the rounds.
        per_round: programs of a round of `tune`, about.
        tasks: of the run.
    """

    target: BundleTarget | None = None
    folder: Path = Path("rounds")
    per_round: int = 256
    tasks: list[TuningTask] = field(default_factory=list, compare=False)
    away = True

    @classmethod
    def of(cls, name: str, folder: Path, per_round: int = 256) -> Self:
        """Return the device of a name of `tchub devices`; a BundleError where it is no NVIDIA GPU."""
        sheet = get_device(name)
        if sheet.target["kind"] != CUDA:
            raise BundleError(
                f"rounds of bundles are for NVIDIA GPUs, and {name} is none",
                remedy="name one, e.g. --device h200; of a CPU's programs `tchub bundle` makes a corpus",
                device=name,
            )
        facts = LocalDevice(sheet, sheet.title, True, (f"{sheet.name}: programs are measured from bundles",))
        return cls(facts, card=0, target=resolve_target(name), folder=folder, per_round=per_round)

    @property
    def name(self) -> str:
        return f"bundle:{self.facts.device.name}"

    def rounds(self) -> list[Path]:
        """Return the bundles of the rounds so far, the first one first."""
        known = [path for path in self.folder.glob("round-*.zip") if path.stem.removeprefix("round-").isdigit()]
        return sorted(known, key=lambda path: int(path.stem.removeprefix("round-")))

    def take_back(self, store: RunStore, tasks: Sequence[TuningTask]) -> None:
        """Put results of the rounds into a run's store, which keeps what it has.

        Raises:
            InterruptedRunError: the last round has no results yet.
            BundleError: results of another bundle, or of another GPU.
        """
        self.tasks[:] = tasks
        spent = max((program.clock for program in store.programs(traces=False)), default=0.0)
        for path in self.rounds():
            if not (results := path.with_suffix(".jsonl")).is_file():
                raise _awaited(path, f"{path} waits for its results")
            bundle = Bundle(path)
            args = {task["task_id"]: task["args"] for task in bundle.manifest["tasks"]}
            for one in judged_programs(results, bundle, self.facts.device.name)[2]:
                if store.get(one.task_id, one.key) is not None:
                    continue
                spent += one.measurement.cost_seconds
                infos = tuple((tuple(shape), dtype) for shape, dtype in args[one.task_id])
                mod: Any = None
                strategy = _OF_SEARCH.get(one.strategy, one.strategy)
                candidate = Candidate(one.task_id, one.key, one.trace, strategy, mod, infos)
                store.put(candidate, one.measurement, clock=spent if strategy == "tune" else 0.0)

    def measurer(self, config: MeasureConfig) -> Any:
        return nullcontext(BundleMeasurer(self, config))


class BundleMeasurer:
    """Packs programs where a `Measurer` measures them."""

    prompt = False

    def __init__(self, device: BundleDevice, config: MeasureConfig) -> None:
        self.config, self._device = config, device

    def window(self) -> int:
        """Return the programs of a round."""
        return self._device.per_round

    def know(self, *_: Any) -> None:
        """Do nothing: what measures there knows no earlier round, and compares programs of a task with each other."""

    refer = know

    def measure(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Measurement]]:
        """Write the next bundle, and raise an InterruptedRunError that says how to go on."""
        device, target = self._device, self._device.target
        chosen = [replace(one, strategy=_OF_SEARCH.get(one.strategy, one.strategy)) for one in candidates]
        if target is None or not chosen:
            return iter(())
        path = device.folder / f"round-{len(device.rounds()) + 1}.zip"
        settings, command = BuildSettings(len(chosen)), "tchub tune --bundle"
        result = pack(path.stem, iter(chosen), device.tasks, target, path, settings, command)
        if result.paths != [str(path)]:
            for part in result.paths:
                Path(part).unlink()
            message = f"{len(chosen)} programs are too many for one archive"
            raise BundleError(message, remedy="give a smaller --per-round", path=str(path))
        raise _awaited(path, f"{path} has the next {len(chosen)} programs", len(chosen))


def _awaited(path: Path, message: str, programs: int | None = None) -> InterruptedRunError:
    remedy = f"`python3 {path.name} --out {path.stem}.jsonl` there, its output beside {path}, and this command again"
    return InterruptedRunError(message, remedy=remedy, bundle=str(path), programs=programs)

"""The settings of a tuning run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..networks import LAYOUTS
from ..search.errors import TuningError

if TYPE_CHECKING:
    from ..device.device_choice import ChosenDevice
    from ..search.settings import SearchSettings

# Fields that the report's settings leave out: they are said elsewhere in it, or are no settings of the search.
_ELSEWHERE = ("checkpoint", "update", "device", "linker", "target", "threads", "layout", "name")
_ELSEWHERE += ("compare", "resume", "builder", "runner")


RIVALS = {"torch.compile": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Runtimes that a tuned network is compared with, and the packages that they need (`pip install tchub[bench]`)."""


@dataclass(frozen=True)
class TuneConfig:
    """The settings of a tuning run; `tune` takes each as an argument by its name, and options have the first sentences.

    Attributes:
        checkpoint: a checkpoint's name or folder; None for the one that fits this machine best; `stock` for
            MetaSchedule's own XGBoost model; `none` for no model (random choice).
        mode: search or fast. `fast` measures no program: it compiles what schedules of earlier runs and the checkpoint
            suggest, then checks and times the network.
        trials: programs to measure.
        seed: seed of the searches.
        name: of a module or an exported program in the report and of its library; None for the module's class.
        device: where programs are measured: `local`, `cuda` or `cuda:1` for a card of this machine, or
            `rpc://host:port/key` for the servers of TVM's RPC tracker; or a `BundleDevice`.
        linker: what links programs for another architecture, called as `LINKER -shared -o LIBRARY OBJECTS`.
        target: TVM target as a dictionary; None for this machine's, or for that of the RPC servers.
        threads: threads of a program, and of PyTorch in the comparison; None for one a physical core that may be used.
        layout: layout of the convolutions: channels-last or as-imported. The latter leaves the graph as it is.
        precision: float32; float16: on a card's tensor cores; bfloat16: on the tile registers of a Xeon with AMX. Both
            are added up in float32.
        winograd: compute convolutions by Winograd's algorithm where it is faster. The error is slightly larger.
        trials_per_iter: programs of a task in one round at most. None: so many that half of the trials give every task
            a floor.
        early_stop: end when a round promises to gain less than this share of the latency. 0: spend all trials.
        latency_target: end when the network's tasks take no more milliseconds than this. None: spend all trials.
        update: how the checkpoint learns meanwhile: auto, none, context or few-shot. `few-shot` moves its weights,
            `context` hands the measurements to a TileNet as they are, `auto` is what suits the model.
        search: the search engine and its size; None for the default.
        compare: what the tuned network is timed beside, besides PyTorch: `torch.compile`, `onnxruntime`, `openvino`;
            and `stock`: tune again with MetaSchedule's own model and as many trials, into `out/stock`, where neither
            run begins with programs of earlier ones.
        reuse: begin with what earlier runs measured on this device. That is for the same target.
        resume: take up what the folder holds; False refuses a folder that holds a run.
        untuned: also measure each task by its default schedule, once, outside the budget and its clock.
        builder, runner: MetaSchedule objects instead of tchub's workers, e.g. for a remote device.

    Raises:
        TuningError: a value makes no sense. Field: argument.
        NetworkLoadError: no such layout.
        TuningError: `compare` names a runtime that is unknown or not installed.
    """

    checkpoint: str | None = None
    mode: str = field(default="search", metadata={"choices": ("search", "fast")})
    trials: int = 500
    seed: int = 0
    name: str | None = None
    device: str | ChosenDevice = "local"
    linker: str | None = None
    target: dict[str, Any] | None = None
    threads: int | None = None
    layout: str = field(default=LAYOUTS[0], metadata={"choices": LAYOUTS})
    precision: str = "float32"
    winograd: bool = True
    trials_per_iter: int | None = None
    early_stop: float = 0.0
    latency_target: float | None = None
    update: str = field(default="auto", metadata={"choices": ("auto", "none", "context", "few-shot")})
    search: SearchSettings | None = None
    compare: Sequence[str] = ()
    reuse: bool = True
    resume: bool = True
    untuned: bool = True
    builder: Any = field(default=None, compare=False)
    runner: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in (one for one in self.compare if one != "stock"):
            if name not in RIVALS:
                raise TuningError(f"unknown runtime {name!r}", remedy=f"choose from: {', '.join(RIVALS)}", runtime=name)
            if find_spec(RIVALS[name]) is None:
                raise TuningError(f"{name} is not installed", remedy="pip install 'tchub[bench]'", runtime=name)
        at_least_one = "give a number of at least 1"
        problems = {
            "layout": (self.layout not in LAYOUTS, f"choose one of: {', '.join(LAYOUTS)}"),
            "mode": (self.mode not in ("search", "fast"), "choose search or fast"),
            "compare": (self.mode == "fast" and "stock" in self.compare, "stock measures: leave out mode=fast"),
            "trials": (self.trials < 1, at_least_one),
            "latency_target": (self.latency_target is not None and not self.latency_target > 0, "give milliseconds"),
            "threads": (self.threads is not None and self.threads < 1, at_least_one),
            "builder": ((self.builder is None) != (self.runner is None), "give both builder and runner"),
            "device": (self.builder is not None and self.device != "local", "give a builder and a runner, or a device"),
        }
        for name, (is_wrong, remedy) in problems.items():
            if is_wrong:
                raise TuningError(f"{name}={getattr(self, name)!r} is not possible", remedy=remedy, argument=name)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings of the search in JSON form."""
        from ..search.settings import SearchSettings

        settings = {name: value for name, value in vars(self).items() if name not in _ELSEWHERE}
        settings["batch"] = settings.pop("trials_per_iter")
        return settings | {"search": asdict(self.search or SearchSettings())}

"""What a tuning run of the benchmark is, where its files are, and what its row says.

A run is one network, one system and one seed. It lives in `WORK/NETWORK/SYSTEM-SEED-TRIALS/`:

    row.json        written last and atomically: a folder without it holds a run that was cut short, and is done anew
    programs.jsonl  {task, key, trace} of each program that was its task's best for a while
    log.txt         what TVM wrote
    database/       MetaSchedule's JSON database

`row.json`:

    network, system, seed, trials_per_task
    tasks        [{task, name, weight}], by which the trajectory counts
    trajectory   [[seconds, task number, latency, key]], one entry a measured program, in the order of their ends;
                 seconds since tuning began; latency in seconds by the system's own measurer, null when it failed; key
                 of the program where it became its task's best, else null
    seconds      {tuning: wall time of the run's clock, prepare: import of TVM and of the network, process: all of it}
    phases       {search, model, measure, build, run}: seconds; build and run happen within measure, and may overlap
    adaptation   {seconds, trials} spent before the clock began, or null
    facts        what the system was: model, engine, batch
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Cheap ones first: a benchmark that is cut short has whole networks.
NETWORKS = ("bert-tiny", "vit-tiny", "mobilenet-v2", "resnet-50", "resnext-50", "bert-base")
SMALL = ("bert-tiny", "vit-tiny", "mobilenet-v2")
STOCK = "stock"
OURS = "tilenet"
UNTUNED = "untuned"
THREADS = 1
NOTE = "> "


@dataclass(frozen=True)
class System:
    """Who tunes.

    Attributes:
        words: for a reader.
        checkpoint: of the zoo, or None for MetaSchedule as it ships.
        engine: how programs are searched: `decisions`, `metaschedule`, or `auto` as `hub.tune` chooses.
        adapted: whether the checkpoint is adapted to the network first.
        layout: the network's graph: as TVM imports it, or prepared by tchub (`hub.networks.prepare`).
    """

    words: str
    checkpoint: str | None = None
    engine: str = "metaschedule"
    adapted: bool = False
    layout: str = "channels-last"


SYSTEMS = {
    STOCK: System("stock MetaSchedule, XGBoost model", layout="as-imported"),
    "tilenet": System("tchub, TileNet", "tilenet-epyc", "auto"),
    "tilenet-adapted": System("tchub, TileNet adapted with a 10% budget first", "tilenet-epyc", "auto", True),
    "stock-prepared": System("stock MetaSchedule, XGBoost model, on the graph that tchub prepares"),
    "stock-light": System("stock MetaSchedule, PyTorch hidden from its workers", layout="as-imported"),
    "stock-random": System("stock MetaSchedule, random model", layout="as-imported"),
    "tilenet-as-imported": System(
        "tchub, TileNet, on the graph as TVM imports it", "tilenet-epyc", "auto", layout="as-imported"
    ),
    "tilenet-evolutionary": System("tchub, TileNet in MetaSchedule's search", "tilenet-epyc"),
    "tcl": System("tchub, TCL", "tcl-epyc", "auto"),
    "tenset-mlp": System("tchub, TenSet-MLP in MetaSchedule's search", "tenset-mlp-epyc"),
    "tlp": System("tchub, TLP", engine="auto"),
}


@dataclass(frozen=True)
class Run:
    """One network, system and seed.

    Attributes:
        trials: programs a task of the graph as imported, on the average; systems that tune a prepared graph, which has
            fewer tasks, get as many in all.
        work: folder of all runs.
        tlp: checkpoint of the system `tlp`, for none ships for this CPU.
    """

    network: str
    system: str
    seed: int
    trials: int
    work: Path
    tlp: str | None = None

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.work / self.network / f"{self.system}-{self.seed}-{self.trials}"

    @property
    def label(self) -> str:
        """For progress lines."""
        return f"{self.network} {self.system} seed {self.seed}"

    def row(self) -> dict[str, Any] | None:
        """What it came to; None while it is not done."""
        path = self.folder / "row.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def programs(self) -> list[dict[str, str]]:
        """Programs that were their task's best for a while."""
        return [json.loads(line) for line in (self.folder / "programs.jsonl").read_text().splitlines()]

    def arguments(self) -> list[str]:
        """To hand it to another process; `from_arguments` takes them."""
        facts = {**vars(self), "work": str(self.work)}
        return [json.dumps(facts)]

    @classmethod
    def from_arguments(cls, text: str) -> Run:
        """The run of `arguments`."""
        facts = json.loads(text)
        return cls(**{**facts, "work": Path(facts["work"])})


def write_json(path: Path, value: Any) -> None:
    """Write a file so that a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value))
    os.replace(part, path)


def note(text: str) -> None:
    """One line of progress of a child process: its parent passes on what is marked so; TVM's log is not."""
    print(f"{NOTE}{text}", flush=True)


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return json.loads(path.read_text())

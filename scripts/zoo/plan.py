"""What the zoo is made of: `zoo.toml` as checkpoints to train and knowledge bases to distill, and where all is kept."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import ROOT, read_json

RUNS = ROOT / "runs" / "zoo"
# The repository's own corpora.
OWN = (
    *("epyc-turin", "epyc-turin-nhwc", "epyc-turin-tuned"),
    *("epyc-genoa-tuned", "epyc-genoa-products", "epyc-genoa-avx2"),
    *("xeon-cascadelake-tuned", "xeon-cascadelake-prefetch"),
)
_FIRST = "1.0.0"  # of what names no version in zoo.toml
LABELS = (4, 8, 16, 32)
STATEMENTS = ("tenset-mlp", "atformer")


@dataclass(frozen=True)
class Job:
    """One checkpoint to train: an architecture for a family."""

    arch: str
    family: str
    plan: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.arch}-{self.family}"

    @property
    def settings(self) -> dict[str, Any]:
        return self.plan["archs"][self.arch]

    @property
    def recipe(self) -> str:
        return self.settings.get("recipe", self.arch)

    @property
    def version(self) -> str:
        return self.settings.get("versions", {}).get(self.family) or self.settings.get("version", _FIRST)

    @property
    def place(self) -> dict[str, Any]:
        return self.plan["families"][self.family]

    @property
    def corpora(self) -> list[str]:
        """The target first; of a model of statements, those that have them."""
        if self.arch in STATEMENTS:
            own = self.settings.get("statements", {})
            return list(own.get(self.family, self.place.get("statements", ())))
        return [self.place["target"], *(self.place["sources"] if self.family in self.settings["sources"] else ())]

    @property
    def ships(self) -> bool:
        ships = self.settings["ships"]
        return self.family in ships if isinstance(ships, list) else bool(ships)

    def folder(self, seed: int) -> Path:
        return RUNS / "trained" / self.name / self.version / str(seed)

    def metrics(self, seed: int) -> dict[str, Any]:
        return read_json(self.folder(seed) / "metrics.json")

    def seeds(self) -> Iterator[int]:
        return (seed for seed in self.settings["seeds"] if (self.folder(seed) / "metrics.json").is_file())


def read_plan() -> dict[str, Any]:
    """`zoo.toml`."""
    return tomllib.loads((ROOT / "scripts" / "zoo.toml").read_text())


@dataclass(frozen=True)
class Base:
    """One knowledge base to distill: a checkpoint's name and its table of `zoo.toml`."""

    name: str
    settings: dict[str, Any]

    @property
    def corpora(self) -> list[str]:
        """What it learns; the last one is the target."""
        return self.settings["corpora"]

    @property
    def version(self) -> str:
        return self.settings.get("version", _FIRST)

    @property
    def folder(self) -> Path:
        return RUNS / "bases" / self.name / self.version

    @property
    def is_done(self) -> bool:
        return (self.folder / "config.json").is_file()


def bases(plan: dict[str, Any], names: tuple[str, ...] = ()) -> list[Base]:
    """The knowledge bases asked for, all without an argument, in the order of the file."""
    return [Base(name, settings) for name, settings in plan["knowledge-bases"].items() if not names or name in names]


def jobs(plan: dict[str, Any], families: tuple[str, ...] = (), archs: tuple[str, ...] = ()) -> list[Job]:
    """The checkpoints asked for, all without an argument, in the order of the file, family by family."""
    return [
        job
        for family in plan["families"]
        for arch in plan["archs"]
        if (not families or family in families) and (not archs or arch in archs)
        for job in [Job(arch, family, plan)]
        if job.corpora and family not in job.settings.get("except", ())
    ]


def corpus_folder(name: str) -> Path:
    """Of a corpus that was imported, or of one of the repository's own."""
    own = ROOT / "corpora" / name
    return own if own.is_dir() else RUNS / "corpora" / name


@cache
def open_corpus(name: str) -> Any:
    """A corpus that was imported, or one of the repository's own."""
    from tchub.zoo.corpus import Corpus

    return Corpus.open(corpus_folder(name))


def statement_store() -> Any:
    """Where all runs keep the statement features."""
    from tchub.zoo.training.programs import StatementStore

    return StatementStore(RUNS / "statements", 1)

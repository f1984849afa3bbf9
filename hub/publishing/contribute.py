"""From a machine to a published checkpoint: nine steps, each kept once it is finished and its inputs stay the same.

`contribute.json` in the output folder holds what the finished steps gave, with a digest of their inputs and files. A
step that was stopped is run again: collecting and training go on from their own files, publishing finds what it did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...zoo.corpus.schema import META_FILE, PROGRAMS_FILE, TASKS_FILE
from ...zoo.files import locked_folder, write_atomically
from ...zoo.models.config import CONFIG_FILE
from ...zoo.plain_json import json_file
from ..registry.files import METRICS_FILE, WEIGHTS_FILE, sha256_of
from .contribute_facts import FACTS_FILE, Asker, CardFacts, ContributionConfig
from .contribute_steps import (
    CHECKPOINT_FOLDER,
    ContributionSteps,
    corpus_content,
    corpus_folders,
    digest_of,
    load_base,
    recipe_of,
)
from .errors import ContributionError

if TYPE_CHECKING:
    from ..tuning.collect import CollectProgress

# Questions come before anything that takes hours.
STEPS = {
    "preflight": "is everything ready?",
    "device": "is its spec sheet known?",
    "facts": "authors, licences, limits",
    "collect": "measured programs",
    "train": "learning",
    "evaluate": "scores beside the baselines",
    "card": "the folder to publish",
    "check": "what a reviewer looks at",
    "publish": "to the Hub",
}
STATE_FILE = "contribute.json"
_FORMAT = 1


class StepResult(msgspec.Struct, frozen=True):
    """A finished step of a contribution: `done` now, or `kept` from an earlier run.

    Attributes:
        facts: what later steps need; digest: of its inputs and its files.
    """

    name: str
    outcome: str
    seconds: float
    facts: dict[str, Any]
    digest: str

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"name": self.name, "outcome": self.outcome, "seconds": self.seconds, "facts": self.facts}


class ContributionState(msgspec.Struct):
    """Finished steps of an output folder, by name."""

    format: int
    steps: dict[str, StepResult]


def contribute(
    config: ContributionConfig,
    *,
    ask: Asker | None = None,
    step: str | None = None,
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[CollectProgress], None] = lambda _: None,
) -> list[StepResult]:
    """Go from a machine to a checkpoint that others can use.

    A second call with the same config goes on where the first one stopped, by an error or a kill; with another
    config it does again what depends on the change.

    Args:
        config: `contribute.toml` in the output folder gives the facts that the config leaves open.
        ask: asks a person; None where nobody is there to ask.
        step: name of a step that is done again, with all after it.
        note: called with a line on what is being done.
        progress: called after each program that is measured.

    Raises:
        ContributionError: a fact or the yes to publishing is not given, the machine cannot measure, the device is
            unknown, or the state of the folder is damaged.
        LockError: another process works in the folder.
        TchubError: a subclass for each way a step can fail.
    """
    if config.destination and ask is None and not config.yes:
        message = f"nobody is there to agree to publishing in {config.repo}"
        raise ContributionError(message, reason="facts", remedy="add --yes, or --no-publish", missing=["yes"])
    with locked_folder(config.out):
        pipeline = _Pipeline(ContributionSteps(config, ask, note, progress), _read_state(config.out / STATE_FILE))
        if step is not None:
            pipeline.forget_from(step)
        pipeline.run()
        return pipeline.results


@dataclass
class _Pipeline:
    """The steps in their order, and what they work with."""

    steps: ContributionSteps
    finished: dict[str, StepResult]
    results: list[StepResult] = field(default_factory=list)

    def forget_from(self, name: str) -> None:
        """Take a step and all after it for unfinished."""
        later = list(STEPS)[list(STEPS).index(name) :]
        self.finished = {key: step for key, step in self.finished.items() if key not in later}
        self._write_state()

    def run(self) -> None:
        """Run all steps; the inputs of each are all that its result depends on."""
        config, out = self.steps.config, self.steps.config.out
        machine = {"cpu": _cpu(), "tvm": metadata.version("apache-tvm")} if config.measures else {}
        corpora = [corpus_content(folder) for folder in config.corpora]
        self._step("preflight", machine | {"repo": config.destination}, self.steps.check_ready)
        plan = {key: getattr(config, key) for key in ("device", "target", "threads")}
        device = self._step("device", machine | plan | {"corpora": corpora}, self.steps.find_device)
        arch = recipe_of(config).arch
        given = msgspec.structs.asdict(config.facts.over(CardFacts.read(out / FACTS_FILE)))
        earlier = self.finished["facts"].facts if "facts" in self.finished else {}
        gather = partial(self.steps.gather_facts, earlier, arch, device["family"])
        facts = self._step("facts", given | device | {"arch": arch}, gather)
        folders = corpus_folders(config, device["device"])
        plan |= {key: getattr(config, key) for key in ("workload", "programs", "seed")}
        plan = device | plan | {"licence": facts["data_licence"]} if config.measures else {"corpora": corpora}
        files = [folders[0] / name for name in (META_FILE, TASKS_FILE, PROGRAMS_FILE)] if config.measures else []
        self._step("collect", plan, lambda: self.steps.collect(folders, facts["data_licence"]), files)
        base = load_base(config.checkpoint).config if config.checkpoint else None
        plan = {
            "corpora": [corpus_content(folder) for folder in folders],
            "recipe": recipe_of(config).as_dict(),
            "base": base and f"{base.name}@{base.version}",
            "seed": config.seed,
        }
        trained = out / "training" / digest_of(plan)[:12]  # a changed plan does not meet the state of another one
        files = [trained / name for name in (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE)]
        self._step("train", plan, lambda: self.steps.train(folders, trained), files)
        metrics, folder = out / METRICS_FILE, out / CHECKPOINT_FOLDER
        self._step("evaluate", plan | _sha256s(files), lambda: self.steps.evaluate(folders[0], trained), [metrics])
        made_of = {"facts": facts, "trained": _sha256s(files), "metrics": sha256_of(metrics)}
        card = self._step("card", made_of, lambda: self.steps.write_card(trained, facts), [folder])
        made_of = {"files": _sha256s([folder]), "corpora": plan["corpora"]}
        report = self._step("check", made_of, lambda: self.steps.check(folder, folders))
        goal = {"repo": config.destination, "index": config.index_repo if config.destination else None}
        self._step("publish", goal | card | report, lambda: self.steps.publish(folder))

    def _step(
        self, name: str, inputs: dict[str, Any], run: Callable[[], dict[str, Any]], files: Iterable[Path] = ()
    ) -> dict[str, Any]:
        """Return the facts of a step: kept where neither its inputs nor its files changed, else by running it."""
        earlier = self.finished.get(name)
        title = f"[{list(STEPS).index(name) + 1}/{len(STEPS)}] {name}: {STEPS[name]}"
        if earlier and earlier.digest == digest_of([inputs, _sha256s(files)]):
            self.steps.note(f"{title}: done before")
            result = msgspec.structs.replace(earlier, outcome="kept", seconds=0.0)
        else:
            self.steps.note(f"{title} (again: something that it depends on changed)" if earlier else title)
            started = time.monotonic()
            facts = json.loads(json_file(run()))
            digest = digest_of([inputs, _sha256s(files)])
            result = self.finished[name] = StepResult(name, "done", time.monotonic() - started, facts, digest)
            self._write_state()
        self.results.append(result)
        return result.facts

    def _write_state(self) -> None:
        state = msgspec.to_builtins(ContributionState(_FORMAT, self.finished))
        write_atomically(self.steps.config.out / STATE_FILE, json_file(state))


def _read_state(path: Path) -> dict[str, StepResult]:
    if not path.is_file():
        return {}
    try:
        state = msgspec.json.decode(path.read_bytes(), type=ContributionState)
        if state.format == _FORMAT:
            return state.steps
        fault = f"it has format {state.format}, and this tchub reads {_FORMAT}"
    except (msgspec.DecodeError, OSError) as error:
        fault = f"it is damaged ({error})"
    raise ContributionError(
        f"{path} cannot be used: {fault}",
        reason="state",
        remedy="remove it: the steps are done again, and what was measured stays",
        path=str(path),
    )


def _cpu() -> str:
    from ..device.host_facts import read_host_facts

    return read_host_facts().brand


def _sha256s(paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of files by name, and of all files in folders by their path there."""
    files = {path.name: path for path in paths if path.is_file()}
    files |= {str(f.relative_to(p.parent)): f for p in paths if p.is_dir() for f in sorted(p.rglob("*")) if f.is_file()}
    return {name: sha256_of(path) for name, path in files.items()}

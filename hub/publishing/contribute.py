"""From a machine to a published checkpoint: nine steps, each kept once it is finished and its inputs stay the same.

`contribute.json` in the output folder holds what the finished steps gave, with a digest of their inputs and files. A
step that was stopped is run again: collecting and training go on from their own files, publishing finds what it did.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...cards import TITLES, draw, read_metrics, render_card
from ...zoo.corpus import Corpus, CorpusError, check_corpus, split_tasks
from ...zoo.corpus.schema import META_FILE, PROGRAMS_FILE, TASKS_FILE
from ...zoo.files import file_sha256, locked_folder, write_atomically, write_files
from ...zoo.models.config import CONFIG_FILE, CheckpointConfig
from ...zoo.plain_json import json_file
from ..device.host_facts import read_host_facts
from ..registry.files import CARD_FILE, METRICS_FILE, WEIGHTS_FILE
from ..registry.store import cache_root
from .check_files import PLOTS
from .contribute_facts import (
    Asker,
    ContributionConfig,
    choose_name,
    corpus_content,
    digest_of,
    find_device,
    gather_facts,
    load_base,
    recipe_of,
    sha256s,
)
from .errors import ContributionError
from .repository import Repository

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
    note: Callable[[str], None] = lambda _: None,
    progress: Callable[[CollectProgress], None] = lambda _: None,
) -> list[StepResult]:
    """Go from a machine to a checkpoint that others can use.

    A second call with the same config goes on where the first one stopped, by an error or a kill; with another
    config it does again what depends on the change.

    Args:
        ask: asks a person; None where nobody is there to ask.

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
        steps = ContributionSteps(config, ask, note, progress, _read_state(config.out / STATE_FILE))
        steps.run()
        return steps.results


@dataclass
class ContributionSteps:
    """The steps; the method of each returns its facts.

    Attributes:
        ask: asks a person; None where nobody is there to ask.
        finished: results of steps that are done, by name, of earlier runs too; results: those of this run.
    """

    config: ContributionConfig
    ask: Asker | None
    note: Callable[[str], None]
    progress: Callable[[CollectProgress], None]
    finished: dict[str, StepResult]
    results: list[StepResult] = field(default_factory=list)

    def run(self) -> None:
        """Run all steps; the inputs of each are all that its result depends on."""
        config, out = self.config, self.config.out
        machine = {"cpu": read_host_facts().brand, "tvm": metadata.version("apache-tvm")} if config.measures else {}
        given = [corpus_content(folder) for folder in config.corpora]
        self._step("preflight", machine | {"repo": config.destination}, self.check_ready)
        plan = machine | {key: getattr(config, key) for key in ("device", "target", "threads")}
        device = self._step("device", plan | {"corpora": given}, self.find_device)
        recipe = recipe_of(config)
        stated = msgspec.structs.asdict(config.facts)
        gather = partial(self.gather_facts, recipe.arch, device["family"])
        facts = self._step("facts", stated | device | {"arch": recipe.arch}, gather)
        folders = config.corpus_folders(device["device"])
        plan |= device | {key: getattr(config, key) for key in ("workload", "programs", "seed")}
        plan = plan | {"licence": facts["data_licence"]} if config.measures else {"corpora": given}
        files = [folders[0] / name for name in (META_FILE, TASKS_FILE, PROGRAMS_FILE)] if config.measures else []
        self._step("collect", plan, partial(self.collect, folders, facts["data_licence"]), files)
        base = load_base(config.checkpoint).config if config.checkpoint else None
        corpora = [corpus_content(folder) for folder in folders]
        start = base and f"{base.name}@{base.version}"
        plan = {"corpora": corpora, "recipe": recipe.as_dict(), "base": start, "seed": config.seed}
        trained = out / "training" / digest_of(plan)[:12]  # a changed plan does not meet the state of another one
        files = [trained / name for name in (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE)]
        self._step("train", plan, partial(self.train, folders, trained), files)
        scores, folder = out / METRICS_FILE, out / "checkpoint"
        self._step("evaluate", plan | sha256s(files), partial(self.evaluate, folders[0], trained), [scores])
        parts = {"facts": facts, "trained": sha256s(files), "metrics": file_sha256(scores)}
        card = self._step("card", parts, partial(self.write_card, trained, folder, facts), [folder])
        parts = {"files": sha256s([folder]), "corpora": corpora}
        report = self._step("check", parts, partial(self.check, folder, folders))
        goal = {"repo": config.destination, "index": config.index_repo if config.destination else None}
        self._step("publish", goal | card | report, partial(self.publish, folder))

    def _step(
        self, name: str, inputs: dict[str, Any], run: Callable[[], dict[str, Any]], files: Iterable[Path] = ()
    ) -> dict[str, Any]:
        """Return the facts of a step: kept where neither its inputs nor its files changed, else by running it."""
        earlier = self.finished.get(name)
        title = f"[{list(STEPS).index(name) + 1}/{len(STEPS)}] {name}: {STEPS[name]}"
        if earlier and earlier.digest == digest_of([inputs, sha256s(files)]):
            self.note(f"{title}: done before")
            result = msgspec.structs.replace(earlier, outcome="kept", seconds=0.0)
        else:
            self.note(f"{title} (again: something that it depends on changed)" if earlier else title)
            started = time.monotonic()
            facts = json.loads(json_file(run()))
            digest = digest_of([inputs, sha256s(files)])
            result = self.finished[name] = StepResult(name, "done", time.monotonic() - started, facts, digest)
            _write_state(self.config.out, self.finished)
        self.results.append(result)
        return result.facts

    def check_ready(self) -> dict[str, Any]:
        """Check that this machine can measure and that the Hub takes something from this person."""
        config = self.config
        if config.destination:
            Repository(config.destination).require_login()
            if config.index_repo:
                Repository(config.index_repo)  # a name that is none is refused now, not after hours
        if not config.measures:
            return {"warnings": []}
        from ..device.doctor import run_checks

        checks = [check for check in run_checks() if check.status != "ok"]
        for check in checks:
            self.note(f"{check.status}: {check.name}: {check.value}{f' -> {check.remedy}' if check.remedy else ''}")
        if bad := [check for check in checks if check.status == "fail"]:
            message = "this machine is not ready: " + "; ".join(f"{check.name}: {check.value}" for check in bad)
            more = [asdict(check) for check in bad]
            raise ContributionError(message, reason="machine", remedy=bad[0].remedy, checks=more)
        return {"warnings": [f"{check.name}: {check.value}" for check in checks]}

    def find_device(self) -> dict[str, Any]:
        """Find the device of the programs among those of the zoo."""
        device = find_device(self.config, self.note)
        self.note(f"{device.name}: {device.title}")
        return {"device": device.name, "family": device.family, "kind": device.kind}

    def gather_facts(self, arch: str, family: str) -> dict[str, Any]:
        """Gather the facts that only a person knows; those of an earlier run are not asked for again."""
        earlier = self.finished["facts"].facts if "facts" in self.finished else {}
        return msgspec.structs.asdict(choose_name(gather_facts(self.config, earlier, self.ask), arch, family))

    def collect(self, folders: list[Path], licence: str | None) -> dict[str, Any]:
        """Measure programs, or take the given corpora; then check that the corpora can be trusted."""
        config = self.config
        if config.measures:
            from ..tuning.collect import collect

            keys = ("device", "target", "linker", "threads", "seed")
            how: dict[str, Any] = {key: getattr(config, key) for key in keys}
            how |= {"licence": licence or "", "progress": self.progress, "say": self.note}
            measured = collect(",".join(config.workload), config.programs, folders[0], **how)
            self.note(f"{measured.programs} programs of {measured.tasks} tasks ({measured.failed} failed)")
        corpora = [Corpus.open(folder) for folder in folders]
        for corpus in corpora:
            if wrong := [f"{finding.name}: {finding.message}" for finding in check_corpus(corpus)[1] if not finding.ok]:
                remedy = "collect it again, or leave out what is wrong (`tchub corpus check` says more)"
                raise CorpusError(f"{corpus.path}: {'; '.join(wrong)}", remedy=remedy, path=str(corpus.path))
        tests = len(split_tasks(corpora[0]).test)
        self.note(f"{tests} of {len(corpora[0].tasks)} tasks judge, the others teach")
        return {"corpora": [str(folder.resolve()) for folder in folders], "programs": corpora[0].meta["programs"]}

    def train(self, folders: list[Path], trained: Path) -> dict[str, Any]:
        """Train; a training that was stopped goes on from its last saved epoch."""
        import torch

        from ...zoo.training.distributed import World
        from ...zoo.training.fit import CheckpointFacts, train_checkpoint
        from ...zoo.training.programs import Share, StatementStore

        config, recipe = self.config, recipe_of(self.config)
        command = ["tchub train", config.recipe or recipe.arch]
        command += [f"--corpus {path.resolve().name}" for path in folders]
        command += [f"--checkpoint {config.checkpoint}"] if config.checkpoint else []
        command += [f"--out DIR --seed {config.seed}"]
        train_checkpoint(
            [Corpus.open(folder) for folder in folders],
            recipe,
            trained,
            Share(seed=config.seed),
            StatementStore(cache_root().parent / "statements"),
            self.note,
            World(device="cuda" if torch.cuda.is_available() else "cpu"),
            init=load_base(config.checkpoint) if config.checkpoint else None,
            facts=CheckpointFacts(lineage={"base": None}, command=" ".join(command)),
        )
        return {"folder": str(trained.relative_to(config.out)), "weights": WEIGHTS_FILE}

    def evaluate(self, corpus: Path, trained: Path) -> dict[str, Any]:
        """Score the checkpoint beside random choice, XGBoost, a tenth of the data, and its start."""
        from ...zoo.models import Checkpoint
        from . import evaluate as evaluation

        plain = evaluation.EvaluationConfig(seed=self.config.seed, cache=cache_root().parent / "statements")
        full, judging = replace(plain, baselines=evaluation.CARD_BASELINES, curves=True), Corpus.open(corpus)
        checkpoint = Checkpoint.load(trained)
        alone = replace(checkpoint, config=replace(checkpoint.config, trust={}))  # as a card has its scores
        scores = evaluation.evaluate(alone, judging, full, self.note)
        if self.config.checkpoint:
            self.note("baseline: base")
            start = evaluation.evaluate(load_base(self.config.checkpoint), judging, plain)
            scores["results"]["base"] = start["results"]["model"]
        del scores["checkpoint"]
        metrics = json.loads((trained / METRICS_FILE).read_bytes()) | scores | {"measured_by": "tchub contribute"}
        write_atomically(self.config.out / METRICS_FILE, json_file(metrics))
        run = read_metrics(metrics)
        self.note(f"{run.programs} programs of {run.tasks} test tasks:")
        for line in run.scores:
            texts = (f"{TITLES[key]} {line.value(key) or 0:.3f}" for key in ("top1", "top5", "pairwise"))
            ahead = ", ahead of this checkpoint in a score" if line in run.beaten_by else ""
            self.note(f"  {line.label.strip('*')}: {', '.join(texts)}{ahead}")
        return {"results": metrics["results"]}

    def write_card(self, trained: Path, folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the folder that is published: config, weights, metrics, and the card with its plots."""
        config, metrics = CheckpointConfig.read(trained), (self.config.out / METRICS_FILE).read_bytes()
        lineage = config.lineage | {key: facts[key] for key in ("authors", "weights_licence")}
        lineage |= {"base": config.training.get("init"), "limits": list(facts["limits"] or ())}
        licence = {"licence": facts["data_licence"]} if self.config.measures else {}
        training = config.training | {"corpus": config.training["corpus"] | licence}
        name, version = facts["name"], facts["version"]
        config = replace(config, name=name, version=version, lineage=lineage, training=training)
        files = {
            WEIGHTS_FILE: (trained / WEIGHTS_FILE).read_bytes(),
            CONFIG_FILE: config.to_json(),
            METRICS_FILE: metrics,
            CARD_FILE: render_card(asdict(config), json.loads(metrics)).encode(),
        }
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".checkpoint-") as scratch:
            staged = Path(scratch) / folder.name
            write_files(staged, files)
            draw(json.loads(metrics), staged / PLOTS)
            shutil.rmtree(folder, ignore_errors=True)
            staged.replace(folder)
        self.note(f"{name} {version} in {folder}")
        return {"folder": folder.name, "name": name, "version": version}

    def check(self, folder: Path, corpora: list[Path]) -> dict[str, Any]:
        """Check what a reviewer looks at; what only those can compare who have the base's corpora may stay open."""
        from .check import check

        report = check(folder, corpora=corpora, note=self.note)
        for finding in report.findings:
            self.note(f"  {finding.outcome}: {finding.name}: {finding.detail}")
        if report.failed:
            report.require()
        return {"findings": report.as_dict()["findings"]}

    def publish(self, folder: Path) -> dict[str, Any]:
        """Publish, or leave the folder ready for it; nothing leaves the machine before this, nor without a yes."""
        from .publish import PublishConfig, publish

        config, repo, index = self.config, self.config.destination, self.config.index_repo
        if repo is None:
            self.note(f"nothing was published; the checkpoint is ready in {folder}")
            return {}
        listing = f", and ask the index {index} to list it" if index else ""
        question = f"Publish {folder} in the Hub repository {repo}{listing}?"
        if not (config.yes or (self.ask is not None and self.ask.yes(question))):
            message = f"nobody agreed to publish in {repo}; the checkpoint is ready in {folder}"
            remedy = "run this again and say yes, add --yes, or leave it at that with --no-publish"
            raise ContributionError(message, reason="consent", remedy=remedy, path=str(folder))
        # The step before has evaluated these very files.
        settings = PublishConfig(index_repo=index, index_named=config.index_named, evaluate=False)
        result = publish(folder, repo, config=settings, note=self.note)
        self.note(f"published: {result.url}")
        return {"published": result}


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
    remedy = "remove it: the steps are done again, and what was measured stays"
    raise ContributionError(f"{path} cannot be used: {fault}", reason="state", remedy=remedy, path=str(path))


def _write_state(folder: Path, finished: dict[str, StepResult]) -> None:
    write_atomically(folder / STATE_FILE, json_file(msgspec.to_builtins(ContributionState(_FORMAT, finished))))

"""From a machine to a published checkpoint: nine steps, each kept once it is finished and its inputs stay the same.

`contribute.json` in the output folder holds what the finished steps gave, with a digest of their inputs and files. A
step that was stopped is run again: collecting and training go on from their own files, publishing finds what it did.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...cards import TITLES, draw, read_metrics, render_card
from ...zoo.corpus import Corpus, CorpusError, check_corpus, split_tasks
from ...zoo.corpus.schema import META_FILE, PROGRAMS_FILE, TASKS_FILE
from ...zoo.files import locked_folder, write_atomically, write_files
from ...zoo.models.config import CONFIG_FILE, CheckpointConfig
from ...zoo.plain_json import json_file
from ..registry.files import CARD_FILE, METRICS_FILE, WEIGHTS_FILE, sha256_of
from ..registry.store import cache_root
from .check_files import PLOTS
from .contribute_facts import (
    FACTS_FILE,
    Asker,
    CardFacts,
    ContributionConfig,
    choose_name,
    find_device,
    gather_facts,
)
from .errors import ContributionError
from .repository import Repository

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ...zoo.training import TrainConfig
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
STATE_FILE, CHECKPOINT_FOLDER = "contribute.json", "checkpoint"
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
        pipeline = _Pipeline(config, ask, note, progress, _read_state(config.out / STATE_FILE))
        if step is not None:
            pipeline.forget_from(step)
        pipeline.run()
        return pipeline.results


@dataclass
class _Pipeline:
    """The steps in their order, and what they work with."""

    config: ContributionConfig
    ask: Asker | None
    note: Callable[[str], None]
    progress: Callable[[CollectProgress], None]
    finished: dict[str, StepResult]
    results: list[StepResult] = field(default_factory=list)

    def forget_from(self, name: str) -> None:
        """Take a step and all after it for unfinished."""
        later = list(STEPS)[list(STEPS).index(name) :]
        self.finished = {key: step for key, step in self.finished.items() if key not in later}
        self._write_state()

    def run(self) -> None:
        """Run all steps; the inputs of each are all that its result depends on."""
        config, out = self.config, self.config.out
        machine = {"cpu": _cpu(), "tvm": metadata.version("apache-tvm")} if config.measures else {}
        corpora = [corpus_content(folder) for folder in config.corpora]
        self._step("preflight", machine | {"repo": config.destination}, self.check_ready)
        plan = {key: getattr(config, key) for key in ("device", "target", "threads")}
        device = self._step("device", machine | plan | {"corpora": corpora}, self.find_device)
        arch = recipe_of(config).arch
        given = msgspec.structs.asdict(config.facts.over(CardFacts.read(out / FACTS_FILE)))
        facts = self._step("facts", given | device | {"arch": arch}, lambda: self.gather_facts(arch, device["family"]))
        folders = corpus_folders(config, device["device"])
        plan |= {key: getattr(config, key) for key in ("workload", "programs", "seed")}
        plan = device | plan | {"licence": facts["data_licence"]} if config.measures else {"corpora": corpora}
        files = [folders[0] / name for name in (META_FILE, TASKS_FILE, PROGRAMS_FILE)] if config.measures else []
        self._step("collect", plan, lambda: self.collect(folders, facts["data_licence"]), files)
        base = load_base(config.checkpoint).config if config.checkpoint else None
        plan = {
            "corpora": [corpus_content(folder) for folder in folders],
            "recipe": recipe_of(config).as_dict(),
            "base": base and f"{base.name}@{base.version}",
            "seed": config.seed,
        }
        trained = out / "training" / _digest(plan)[:12]  # a changed plan does not meet the state of another one
        files = [trained / name for name in (CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE)]
        self._step("train", plan, lambda: self.train(folders, trained), files)
        metrics, folder = out / METRICS_FILE, out / CHECKPOINT_FOLDER
        self._step("evaluate", plan | _sha256s(files), lambda: self.evaluate(folders[0], trained), [metrics])
        made_of = {"facts": facts, "trained": _sha256s(files), "metrics": sha256_of(metrics)}
        card = self._step("card", made_of, lambda: self.write_card(trained, facts), [folder])
        made_of = {"files": _sha256s([folder]), "corpora": plan["corpora"]}
        report = self._step("check", made_of, lambda: self.check(folder, folders))
        goal = {"repo": config.destination, "index": config.index_repo if config.destination else None}
        self._step("publish", goal | card | report, lambda: self.publish(folder))

    def _step(
        self, name: str, inputs: dict[str, Any], run: Callable[[], dict[str, Any]], files: Iterable[Path] = ()
    ) -> dict[str, Any]:
        """Return the facts of a step: kept where neither its inputs nor its files changed, else by running it."""
        earlier = self.finished.get(name)
        title = f"[{list(STEPS).index(name) + 1}/{len(STEPS)}] {name}: {STEPS[name]}"
        if earlier and earlier.digest == _digest([inputs, _sha256s(files)]):
            self.note(f"{title}: done before")
            result = msgspec.structs.replace(earlier, outcome="kept", seconds=0.0)
        else:
            self.note(f"{title} (again: something that it depends on changed)" if earlier else title)
            started = time.monotonic()
            facts = json.loads(json_file(run()))
            digest = _digest([inputs, _sha256s(files)])
            result = self.finished[name] = StepResult(name, "done", time.monotonic() - started, facts, digest)
            self._write_state()
        self.results.append(result)
        return result.facts

    def _write_state(self) -> None:
        state = msgspec.to_builtins(ContributionState(_FORMAT, self.finished))
        write_atomically(self.config.out / STATE_FILE, json_file(state))

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
            raise ContributionError(
                "this machine is not ready: " + "; ".join(f"{check.name}: {check.value}" for check in bad),
                reason="machine",
                remedy=bad[0].remedy,
                checks=[check.to_dict() for check in bad],
            )
        return {"warnings": [f"{check.name}: {check.value}" for check in checks]}

    def find_device(self) -> dict[str, Any]:
        """Find the device of the programs among those of the zoo."""
        device = find_device(self.config, self.note)
        self.note(f"{device.name}: {device.title}")
        return {"device": device.name, "family": device.family, "kind": device.kind}

    def gather_facts(self, arch: str, family: str) -> dict[str, Any]:
        """Gather the facts that only a person knows."""
        earlier = self.finished["facts"].facts if "facts" in self.finished else {}
        return msgspec.structs.asdict(choose_name(gather_facts(self.config, earlier, self.ask), arch, family))

    def collect(self, folders: list[Path], licence: str | None) -> dict[str, Any]:
        """Measure programs, or take the given corpora; then check that the corpora can be trusted."""
        config = self.config
        if config.measures:
            from ..tuning.collect import collect

            measured = collect(
                ",".join(config.workload),
                config.programs,
                folders[0],
                device=config.device,
                target=config.target,
                linker=config.linker,
                threads=config.threads,
                seed=config.seed,
                licence=licence or "",
                progress=self.progress,
                say=self.note,
            )
            self.note(f"{measured.programs} programs of {measured.tasks} tasks ({measured.failed} failed)")
        corpora = [Corpus.open(folder) for folder in folders]
        for corpus in corpora:
            _require_sound(corpus)
        tests = len(split_tasks(corpora[0]).test)
        self.note(f"{tests} of {len(corpora[0].tasks)} tasks judge, the others teach")
        return {"corpora": [str(folder.resolve()) for folder in folders], "programs": corpora[0].meta["programs"]}

    def train(self, folders: list[Path], trained: Path) -> dict[str, Any]:
        """Train; a training that was stopped goes on from its last saved epoch."""
        import torch

        from ...zoo.training.distributed import World
        from ...zoo.training.fit import CheckpointFacts, fit
        from ...zoo.training.programs import Share, StatementStore
        from ...zoo.training.training_data import load_training_data

        config, recipe = self.config, recipe_of(self.config)
        corpus, *sources = [Corpus.open(folder) for folder in folders]
        store = StatementStore(_statement_cache())
        fitted = fit(
            load_training_data(corpus, sources, recipe.feature_schema, Share(seed=config.seed), store),
            recipe,
            config.seed,
            init=load_base(config.checkpoint) if config.checkpoint else None,
            facts=CheckpointFacts(lineage={"base": None}, command=_training_command(config, folders)),
            folder=trained,
            on_epoch=lambda entry: self.note(_epoch_line(entry, recipe.epochs)),
            world=World(device="cuda" if torch.cuda.is_available() else "cpu"),
        )
        write_files(trained, {METRICS_FILE: json_file(fitted.metrics)})
        fitted.checkpoint.save(trained)
        return {"folder": str(trained.relative_to(config.out)), "weights": WEIGHTS_FILE}

    def evaluate(self, corpus: Path, trained: Path) -> dict[str, Any]:
        """Score the checkpoint beside random choice, XGBoost, a tenth of the data, and its start."""
        from ...zoo.models import Checkpoint
        from . import evaluate as evaluation

        options: dict[str, Any] = {"seed": self.config.seed, "cache": _statement_cache()}
        judging, baselines = Corpus.open(corpus), evaluation.BASELINES
        checkpoint = Checkpoint.load(trained)
        scores = evaluation.evaluate(checkpoint, judging, baselines=baselines, curves=True, note=self.note, **options)
        if self.config.checkpoint:
            self.note("baseline: base")
            start = evaluation.evaluate(load_base(self.config.checkpoint), judging, **options)
            scores["results"]["base"] = start["results"]["model"]
        del scores["checkpoint"]
        metrics = json.loads((trained / METRICS_FILE).read_bytes()) | scores | {"measured_by": "tchub contribute"}
        write_atomically(self.config.out / METRICS_FILE, json_file(metrics))
        run = read_metrics(metrics)
        self.note(f"{run.programs} programs of {run.tasks} test tasks:")
        for line in run.scores:
            texts = (f"{TITLES[key]} {line.value(key) or 0:.3f}" for key in ("top1", "top5", "pairwise"))
            self.note(f"  {line.label.strip('*')}: {', '.join(texts)}")
        if ahead := [line.label for line in run.beaten_by]:
            self.note(f"ahead of it in a score: {', '.join(ahead)}; the card says so, and more programs may help")
        return {"results": metrics["results"]}

    def write_card(self, trained: Path, facts: dict[str, Any]) -> dict[str, Any]:
        """Write the folder that is published: config, weights, metrics, and the card with its plots."""
        out = self.config.out
        config = _with_facts(CheckpointConfig.read(trained), facts, self.config.measures)
        metrics = (out / METRICS_FILE).read_bytes()
        files = {
            WEIGHTS_FILE: (trained / WEIGHTS_FILE).read_bytes(),
            CONFIG_FILE: config.to_json(),
            METRICS_FILE: metrics,
            CARD_FILE: render_card(asdict(config), json.loads(metrics)).encode(),
        }
        with tempfile.TemporaryDirectory(dir=out, prefix=".checkpoint-") as scratch:
            staged = Path(scratch) / CHECKPOINT_FOLDER
            write_files(staged, files)
            draw(json.loads(metrics), staged / PLOTS)
            shutil.rmtree(out / CHECKPOINT_FOLDER, ignore_errors=True)
            staged.replace(out / CHECKPOINT_FOLDER)
        self.note(f"{config.name} {config.version} in {out / CHECKPOINT_FOLDER}")
        return {"folder": CHECKPOINT_FOLDER, "name": config.name, "version": config.version}

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
        from .publish import publish

        config, repo, index = self.config, self.config.destination, self.config.index_repo
        if repo is None:
            self.note(f"nothing was published; the checkpoint is ready in {folder}")
            return {}
        listing = f", and ask the index {index} to list it" if index else ""
        question = f"Publish {folder} in the Hub repository {repo}{listing}?"
        if not (config.yes or (self.ask is not None and self.ask.yes(question))):
            raise ContributionError(
                f"nobody agreed to publish in {repo}; the checkpoint is ready in {folder}",
                reason="consent",
                remedy="run this again and say yes, add --yes, or leave it at that with --no-publish",
                path=str(folder),
            )
        # The step before has evaluated these very files.
        result = publish(folder, repo, index_repo=index, index_named=config.index_named, evaluate=False, note=self.note)
        self.note(f"published: {result.url}")
        return {"published": result.as_dict()}


def corpus_folders(config: ContributionConfig, device: str) -> list[Path]:
    """Return the folders of the corpora as they are now; the first one judges, and a card calls it by its name."""
    return [config.out / "corpora" / device] if config.measures else list(config.corpora)


def corpus_content(folder: Path) -> dict[str, str]:
    """Return all that a result depends on, wherever the corpus lies: name, and digests of facts, tasks and programs.

    Raises:
        CorpusError: the corpus is not there, or not whole.
    """
    corpus = Corpus.open(folder)
    facts = {key: value for key, value in corpus.meta.items() if key != "created"}
    digests = {name: sha256_of(corpus.path / name) for name in (TASKS_FILE, PROGRAMS_FILE)}
    return {"name": corpus.path.resolve().name, META_FILE: _digest(facts)} | digests


def recipe_of(config: ContributionConfig) -> TrainConfig:
    """Return the recipe of the config, else that of the base's architecture.

    Raises:
        TrainingError: the base is made of several networks.
    """
    from ...zoo.models import get_architecture
    from ...zoo.training import TrainConfig, TrainingError

    if config.recipe is None and config.checkpoint:
        base = load_base(config.checkpoint).config
        if (known := get_architecture(base.arch)).base:
            raise TrainingError(
                f"{base.name} is a {known.kind}, which no recipe trains",
                remedy=f"start from a plain {known.base}, or adapt this one: tchub adapt {base.name}",
                checkpoint=base.name,
            )
        return TrainConfig.find(base.arch)
    return TrainConfig.find(config.recipe or "tilenet")


def load_base(name: str) -> Checkpoint:
    """Return the checkpoint whose weights are the start, by its name or folder."""
    from ...zoo.models import Checkpoint
    from ..registry.registry import find_checkpoint

    return Checkpoint.load(find_checkpoint(name))


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


def _require_sound(corpus: Corpus) -> None:
    if wrong := [f"{finding.name}: {finding.message}" for finding in check_corpus(corpus) if not finding.ok]:
        raise CorpusError(
            f"{corpus.path}: {'; '.join(wrong)}",
            remedy="collect it again, or leave out what is wrong (`tchub corpus check` says more)",
            path=str(corpus.path),
        )


def _with_facts(config: CheckpointConfig, facts: dict[str, Any], measured_here: bool) -> CheckpointConfig:
    """Return the config with the facts that only a person knows."""
    lineage = config.lineage | {key: facts[key] for key in ("authors", "weights_licence")}
    lineage |= {"base": config.training.get("init"), "limits": list(facts["limits"] or ())}
    corpus = config.training["corpus"] | ({"licence": facts["data_licence"]} if measured_here else {})
    training = config.training | {"corpus": corpus}
    return replace(config, name=facts["name"], version=facts["version"], lineage=lineage, training=training)


def _training_command(config: ContributionConfig, corpora: list[Path]) -> str:
    """Return the command that trains the same again, for the card."""
    parts = ["tchub train", config.recipe or recipe_of(config).arch]
    parts += [f"--corpus {path.resolve().name}" for path in corpora]
    parts += [f"--checkpoint {config.checkpoint}"] if config.checkpoint else []
    return " ".join([*parts, f"--out DIR --seed {config.seed}"])


def _epoch_line(entry: dict[str, float], epochs: int) -> str:
    score = f", pairwise {entry['val_pairwise']:.4f} on the validation tasks" if "val_pairwise" in entry else ""
    return f"epoch {int(entry['epoch']) + 1} of {epochs}: loss {entry['loss']:.4f}{score}"


def _statement_cache() -> Path:
    return cache_root().parent / "statements"


def _cpu() -> str:
    from ..device.host_facts import read_host_facts

    return read_host_facts().brand


def _sha256s(paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of files by name, and of all files in folders by their path there."""
    files = {path.name: path for path in paths if path.is_file()}
    files |= {str(f.relative_to(p.parent)): f for p in paths if p.is_dir() for f in sorted(p.rglob("*")) if f.is_file()}
    return {name: sha256_of(path) for name, path in files.items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json_file(value)).hexdigest()

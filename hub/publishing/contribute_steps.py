"""The steps of a contribution: each goes on by itself with what an earlier, stopped run left."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...cards import TITLES, draw, read_metrics, render_card
from ...zoo.corpus import Corpus, CorpusError, check_corpus, split_tasks
from ...zoo.corpus.schema import META_FILE, PROGRAMS_FILE, TASKS_FILE
from ...zoo.files import write_atomically, write_files
from ...zoo.models.config import CONFIG_FILE, CheckpointConfig
from ...zoo.plain_json import json_file
from ..registry.files import CARD_FILE, METRICS_FILE, WEIGHTS_FILE, sha256_of
from ..registry.store import cache_root
from .check_files import PLOTS
from .contribute_facts import Asker, ContributionConfig, choose_name, find_device, gather_facts
from .errors import ContributionError
from .repository import Repository

if TYPE_CHECKING:
    from ...zoo.models import Checkpoint
    from ...zoo.training import TrainConfig
    from ..tuning.collect import CollectProgress

CHECKPOINT_FOLDER = "checkpoint"


@dataclass(frozen=True)
class ContributionSteps:
    """The work of each step, which returns its facts.

    Attributes:
        ask: asks a person; None where nobody is there to ask.
        note: called with a line on what is being done.
        progress: called after each program that is measured.
    """

    config: ContributionConfig
    ask: Asker | None
    note: Callable[[str], None]
    progress: Callable[[CollectProgress], None]

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

    def gather_facts(self, earlier: dict[str, Any], arch: str, family: str) -> dict[str, Any]:
        """Gather the facts that only a person knows; those of an earlier run are not asked for again."""
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

        plain = evaluation.EvaluationConfig(seed=self.config.seed, cache=_statement_cache())
        full, judging = replace(plain, baselines=evaluation.BASELINES, curves=True), Corpus.open(corpus)
        scores = evaluation.evaluate(Checkpoint.load(trained), judging, full, self.note)
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
        from .publish import PublishConfig, publish

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
        settings = PublishConfig(index_repo=index, index_named=config.index_named, evaluate=False)
        result = publish(folder, repo, config=settings, note=self.note)
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
    return {"name": corpus.path.resolve().name, META_FILE: digest_of(facts)} | digests


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


def digest_of(value: Any) -> str:
    return hashlib.sha256(json_file(value)).hexdigest()

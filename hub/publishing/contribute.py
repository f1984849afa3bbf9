"""From a machine to a published checkpoint: nine steps over the API's calls, each of which goes on by itself.

The same command finds what an earlier one left in the output folder: the person's answers in `facts.json`, programs in
the corpus, weights and scores in a folder that is named by a digest of all they depend on. The card is written and
checked anew, which takes seconds, and publishing finds what it did.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...cards import TITLES, draw, read_metrics, render_card
from ...zoo.corpus import Corpus, CorpusError, check_corpus, split_tasks
from ...zoo.corpus.schema import META_FILE
from ...zoo.devices import Device, UnknownDeviceError, get_device
from ...zoo.files import locked_folder, write_files
from ...zoo.models import Checkpoint
from ...zoo.models.config import CONFIG_FILE, CheckpointConfig
from ...zoo.plain_json import json_file
from ...zoo.training import TrainConfig
from ...zoo.training.distributed import World
from ...zoo.training.fit import CheckpointFacts, train_checkpoint
from ...zoo.training.programs import Share, StatementStore, corpus_device
from ..device.device_choice import ChosenDevice, choose_device
from ..registry import cache_root, find_checkpoint
from ..registry.files import CARD_FILE, METRICS_FILE, SCHEDULES_FILE, WEIGHTS_FILE
from ..search.schedules import brought
from .check import CheckFinding, check
from .check_files import PLOTS
from .contribute_facts import Asker, CardFacts, gather_facts
from .errors import PublishError
from .publish import PublishConfig, PublishResult, publish
from .repository import Repository

if TYPE_CHECKING:
    from ..tuning.collect import Count

    Note = Callable[[str], None]

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
EVALUATION_FILE = "evaluation.json"


@dataclass(frozen=True)
class ContributionConfig:
    """Settings of a contribution.

    Attributes:
        out: folder of all that is made.
        device, target, linker, threads: where and how to measure, see `choose_device`.
        workload: suites, networks or operators to measure; programs: in all.
        corpora: measured already, to learn from instead of measuring; the first one judges.
        recipe: how to train; that of the checkpoint's architecture unless given, else `tilenet`.
        checkpoint: its weights are the start.
        seed: of candidates and training.
        repo: of the Hub, to publish to; index_repo, index_named: as for `publish`.
        publish: publish at all; yes: without asking.
    """

    out: Path
    device: str = "local"
    target: dict[str, Any] | None = None
    linker: str | None = None
    threads: int | None = None
    workload: tuple[str, ...] = ("full",)
    programs: int = 12000
    corpora: tuple[Path, ...] = ()
    recipe: str | None = None
    checkpoint: str | None = None
    seed: int = 0
    facts: CardFacts = field(default_factory=CardFacts)
    repo: str | None = None
    index_repo: str | None = None
    index_named: bool = True
    publish: bool = True
    yes: bool = False

    @property
    def measures(self) -> bool:
        """True if programs are measured here."""
        return not self.corpora

    @property
    def destination(self) -> str | None:
        """The repository that it goes to, once a person agrees; None where nothing leaves this machine."""
        return self.repo if self.publish else None


@dataclass(frozen=True)
class Contribution:
    """A checkpoint that is ready to be published, or is.

    Attributes:
        folder: of the checkpoint; corpora: that it learnt from, the first of which judges.
        results: its scores, and those of the baselines.
    """

    name: str
    version: str
    folder: str
    corpora: tuple[str, ...]
    results: dict[str, Any]
    findings: tuple[CheckFinding, ...]
    published: PublishResult | None


def contribute(
    config: ContributionConfig,
    *,
    ask: Asker | None = None,
    note: Note = lambda _: None,
    progress: Count = lambda *_: None,
) -> Contribution:
    """Go from a machine to a checkpoint that others can use.

    A second call with the same config goes on where the first one stopped, by an error or a kill; with another
    config it does again what depends on the change.

    Args:
        ask: asks a person; None where nobody is there to ask.

    Raises:
        PublishError: a fact or the yes to publishing is not given, the machine cannot measure, or the device is
            unknown.
        LockError: another process works in the folder.
        TchubError: a subclass for each way a step can fail.
    """
    if config.destination and ask is None and not config.yes:
        message = f"nobody is there to agree to publishing in {config.repo}"
        raise PublishError(message, reason="facts", remedy="add --yes, or --no-publish", missing=["yes"])

    def begin(name: str) -> None:
        note(f"[{list(STEPS).index(name) + 1}/{len(STEPS)}] {name}: {STEPS[name]}")

    with locked_folder(config.out):
        begin("preflight")
        check_ready(config, note)
        begin("device")
        device, chosen = find_device(config, note)
        begin("facts")
        base = Checkpoint.load(find_checkpoint(config.checkpoint)) if config.checkpoint else None
        recipe = TrainConfig.find(config.recipe or (base.config.arch if base else "tilenet"))
        facts = gather_facts(config.facts, config.out, recipe.arch, device.family, ask, measures=config.measures)
        begin("collect")
        folders = (_measure(config, chosen, facts, note, progress),) if chosen else config.corpora
        corpora = [Corpus.open(folder) for folder in folders]
        note(f"{len(split_tasks(corpora[0]).test)} of {len(corpora[0].tasks)} tasks judge, the others teach")
        begin("train")
        trained = train(config, corpora, recipe, base, note)
        begin("evaluate")
        metrics = evaluate(config, corpora[0], trained, base, note)
        begin("card")
        folder = write_card(config, trained, metrics, facts)
        note(f"{facts.name} {facts.version} in {folder}")
        begin("check")
        report = check(folder, corpora=corpora, note=note)
        for finding in report.findings:
            note(f"  {finding.outcome}: {finding.name}: {finding.detail}")
        if report.failed:  # what only those can compare who have the start's corpora may stay open
            report.require()
        begin("publish")
        published = _publish(config, folder, ask, note)
    paths = str(folder), tuple(map(str, folders))
    return Contribution(str(facts.name), str(facts.version), *paths, metrics["results"], report.findings, published)


def check_ready(config: ContributionConfig, note: Note) -> None:
    """Check that this machine can measure and that the Hub takes something from this person."""
    if config.destination:
        Repository(config.destination).require_login()
        if config.index_repo:
            Repository(config.index_repo)  # a name that is none is refused now, not after hours
    if not config.measures:
        return
    from ..device.doctor import run_checks

    checks = [one for one in run_checks() if one.status != "ok"]
    for one in checks:
        note(f"{one.status}: {one.name}: {one.value}{f' -> {one.remedy}' if one.remedy else ''}")
    if bad := [one for one in checks if one.status == "fail"]:
        message = "this machine is not ready: " + "; ".join(f"{one.name}: {one.value}" for one in bad)
        raise PublishError(message, reason="machine", remedy=bad[0].remedy, checks=[asdict(one) for one in bad])


def find_device(config: ContributionConfig, note: Note) -> tuple[Device, ChosenDevice | None]:
    """Return the device of the programs, which must be one of the zoo's, and how it is measured on, if it is."""
    if not config.measures:
        device = corpus_device(Corpus.open(config.corpora[0]))
        get_device(device.family)
        return device, None

    chosen = choose_device(config.device, config.threads, target=config.target, linker=config.linker)
    facts = chosen.facts
    try:
        get_device(facts.family)
    except UnknownDeviceError as error:
        raise PublishError(
            f"{facts.cpu_model} has no spec sheet",
            reason="device",
            remedy="run there: tchub devices add NAME --from local; correct the sheet that it writes, propose it as "
            "zoo/devices/data/NAME.json, and run this again",
        ) from error
    if not facts.exact:
        note(f"no spec sheet of its own: {'; '.join(facts.reasons[:1])}")
    note(f"{facts.device.name}: {facts.device.title}")
    return facts.device, chosen


def _measure(
    config: ContributionConfig,
    device: ChosenDevice,
    facts: CardFacts,
    note: Note,
    progress: Count,
) -> Path:
    """Return the corpus of the programs that are measured; one that this very command collected is taken as it is."""
    from ..tuning.collect import CollectConfig, collect, collect_command

    own = {key: getattr(config, key) for key in ("device", "target", "linker", "threads", "seed")}
    settings = CollectConfig(**own, licence=facts.data_licence or "")
    workload = ",".join(config.workload)
    folder = config.out / "corpora" / device.facts.device.name
    command = collect_command(device, workload, config.programs, settings)
    wanted = {"command": command, "licence": settings.licence}
    if (folder / META_FILE).is_file() and wanted.items() <= Corpus.open(folder).meta.items():
        note(f"{folder}: collected before")
        return folder
    measured = collect(workload, config.programs, folder, config=settings, progress=progress, note=note)
    note(f"{measured.programs} programs of {measured.tasks} tasks ({measured.failed} failed)")
    return folder


def train(
    config: ContributionConfig, corpora: list[Corpus], recipe: TrainConfig, base: Checkpoint | None, note: Note
) -> Path:
    """Return the folder of the trained checkpoint; a training that was stopped goes on from its last saved epoch.

    Raises:
        CorpusError: a corpus cannot be trusted.
    """
    plan = {
        "corpora": [corpus_content(corpus) for corpus in corpora],
        "recipe": recipe.as_dict(),
        "base": base and f"{base.config.name}@{base.config.version}",
        "seed": config.seed,
    }
    folder = config.out / "training" / hashlib.sha256(json_file(plan)).hexdigest()[:12]
    if (folder / CONFIG_FILE).is_file():  # the last file of a training
        note(f"{folder}: trained before")
        return folder
    for corpus in corpora:
        if wrong := [f"{finding.name}: {finding.message}" for finding in check_corpus(corpus)[1] if not finding.ok]:
            remedy = "collect it again, or leave out what is wrong (`tchub corpus check` says more)"
            raise CorpusError(f"{corpus.path}: {'; '.join(wrong)}", remedy=remedy, path=str(corpus.path))
    command = ["tchub train", config.recipe or recipe.arch]
    command += [f"--corpus {corpus.path.resolve().name}" for corpus in corpora]
    command += [f"--checkpoint {config.checkpoint}"] if config.checkpoint else []
    command += [f"--out DIR --seed {config.seed}"]
    files, schedules = brought(corpora[::-1])  # the first corpus's device goes before the others
    train_checkpoint(
        corpora,
        recipe,
        folder,
        Share(seed=config.seed),
        StatementStore(cache_root().parent / "statements"),
        note,
        World(device="cuda" if torch.cuda.is_available() else "cpu"),
        files,
        init=base,
        facts=CheckpointFacts(lineage={"base": None} | schedules, command=" ".join(command)),
    )
    return folder


def corpus_content(corpus: Corpus) -> dict[str, Any]:
    """Return all that a training depends on, wherever the corpus lies: its name, its facts, and its tables' sha256."""
    return {"name": corpus.path.resolve().name} | {k: v for k, v in corpus.meta.items() if k != "created"}


def evaluate(
    config: ContributionConfig, corpus: Corpus, trained: Path, base: Checkpoint | None, note: Note
) -> dict[str, Any]:
    """Return the metrics of the checkpoint beside random choice, XGBoost, a tenth of the data, and its start."""
    from . import evaluate as evaluation

    path = trained / EVALUATION_FILE
    if not path.is_file():
        plain = evaluation.EvaluationConfig(seed=config.seed, cache=cache_root().parent / "statements")
        full = replace(plain, baselines=evaluation.CARD_BASELINES, curves=True)
        checkpoint = Checkpoint.load(trained)
        alone = replace(checkpoint, config=replace(checkpoint.config, trust={}))  # as a card has its scores
        scores = evaluation.evaluate(alone, corpus, full, note)
        if base:
            note("baseline: base")
            scores["results"]["base"] = evaluation.evaluate(base, corpus, plain)["results"]["model"]
        del scores["checkpoint"]
        scores = json.loads((trained / METRICS_FILE).read_bytes()) | scores | {"measured_by": "tchub contribute"}
        write_files(trained, {EVALUATION_FILE: json_file(scores)})
    metrics = json.loads(path.read_bytes())
    run = read_metrics(metrics)
    note(f"{run.programs} programs of {run.tasks} test tasks:")
    for line in run.scores:
        texts = (f"{TITLES[key]} {line.value(key) or 0:.3f}" for key in ("top1", "top5", "pairwise"))
        ahead = ", ahead of this checkpoint in a score" if line in run.beaten_by else ""
        note(f"  {line.label.strip('*')}: {', '.join(texts)}{ahead}")
    return metrics


def write_card(config: ContributionConfig, trained: Path, metrics: dict[str, Any], facts: CardFacts) -> Path:
    """Write the folder that is published: config, weights, metrics, and the card with its plots."""
    own = CheckpointConfig.read(trained)
    lineage = {"authors": facts.authors, "weights_licence": facts.weights_licence, "limits": list(facts.limits or ())}
    lineage = own.lineage | lineage | {"base": own.training.get("init")}
    licence = {"licence": facts.data_licence} if config.measures else {}
    training = own.training | {"corpus": own.training["corpus"] | licence}
    own = replace(own, name=str(facts.name), version=str(facts.version), lineage=lineage, training=training)
    folder = config.out / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    files = {WEIGHTS_FILE: (trained / WEIGHTS_FILE).read_bytes(), CONFIG_FILE: own.to_json()}
    files |= {METRICS_FILE: json_file(metrics), CARD_FILE: render_card(asdict(own), metrics).encode()}
    if (trained / SCHEDULES_FILE).is_file():
        files[SCHEDULES_FILE] = (trained / SCHEDULES_FILE).read_bytes()
    write_files(folder, files)
    draw(metrics, folder / PLOTS)
    return folder


def _publish(config: ContributionConfig, folder: Path, ask: Asker | None, note: Note) -> PublishResult | None:
    """Publish, or leave the folder ready for it; nothing leaves the machine before this, nor without a yes."""
    repo, index = config.destination, config.index_repo
    if repo is None:
        note(f"nothing was published; the checkpoint is ready in {folder}")
        return None
    listing = f", and ask the index {index} to list it" if index else ""
    question = f"Publish {folder} in the Hub repository {repo}{listing}?"
    if not (config.yes or (ask is not None and ask.yes(question))):
        message = f"nobody agreed to publish in {repo}; the checkpoint is ready in {folder}"
        remedy = "run this again and say yes, add --yes, or leave it at that with --no-publish"
        raise PublishError(message, reason="consent", remedy=remedy, path=str(folder))
    # These very files were evaluated right before.
    settings = PublishConfig(index_repo=index, index_named=config.index_named, evaluate=False)
    result = publish(folder, repo, config=settings, note=note)
    note(f"published: {result.url}")
    return result

"""Does one language carry over: what logs of Ansor and AutoTVM teach about MetaSchedule's programs.

    python -m scripts.benchmarks language --corpora DIR [--json]

DIR holds the imported corpora under the names of `scripts/zoo.toml`. Each model is judged on the target's test
tasks in three protocols: `scratch` learns from a tenth of the programs of the target's training tasks,
`zero_shot` from the other frameworks' corpora alone, `transfer` from those first and from the tenth then (trees
from both at once). Every result goes into the journal of the work folder at once; a run that was stopped goes on.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import ROOT, finish, recipe_of

TENTH, PER_TASK = 0.1, 200
METRICS = ("pairwise", "mean_top1", "top5")
PROTOCOLS = ("scratch", "zero_shot", "transfer")


@dataclass(frozen=True)
class Setting:
    """A MetaSchedule corpus and the corpora of other frameworks that teach about it."""

    target: str
    taught_by: str
    sources: tuple[str, ...]


SETTINGS = (
    Setting("a100-resnet34", "Ansor", ("v100", "k80")),
    Setting("epyc-turin", "AutoTVM", ("ryzen-3700x-autotvm", "xeon-8124m-autotvm", "xeon-4210-autotvm")),
    Setting("a100-resnet34", "Ansor + AutoTVM", ("v100", "k80", "v100-autotvm", "k80-autotvm", "rtx3080-autotvm")),
)
# Recipes, and what differs from them here by protocol, chosen by the target's validation tasks: a tenth of one corpus
# is few batches an epoch. TCL's long training on the sources is cut to what one core does in minutes.
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "tilenet": {
        "scratch": {"epochs": 60},
        "transfer": {"finetune": {"epochs": 40, "learning_rate": 0.003, "warmup_epochs": 0}},
    },
    "xgboost": {},
    "tcl": {"zero_shot": {"epochs": 4, "evaluate_every": 2, "warmup_epochs": 1}},
}
SEEDS = {"tilenet": (0, 1, 2), "xgboost": (0, 1, 2), "tcl": (0,)}


class Bench:
    """The runs of one setting after another, over one journal."""

    def __init__(self, corpora: Path, work: Path) -> None:
        self.corpora, self.work = corpora, work
        self.path = work / "journal.json"
        self.journal: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    @cache  # noqa: B019 - one bench a process
    def corpus(self, name: str):
        from tchub.zoo.corpus import Corpus

        shipped = ROOT / "corpora" / name
        return Corpus.open(shipped if shipped.exists() else self.corpora / name)

    @lru_cache(2)  # noqa: B019 - one bench a process
    def data(self, setting: Setting, schema: str, protocol: str, seed: int):
        """What a protocol learns from and is judged by."""
        from tchub.zoo.training.programs import Share
        from tchub.zoo.training.training_data import load_training_data

        if protocol == "transfer":  # read once already
            own, others = (self.data(setting, schema, p, seed) for p in ("scratch", "zero_shot"))
            return replace(own, sources=others.sources, corpora=[*own.corpora, *others.corpora[1:]])
        sources = [] if protocol == "scratch" else [self.corpus(name) for name in setting.sources]
        share = Share(programs=0.0 if protocol == "zero_shot" else TENTH, per_task=PER_TASK, seed=seed)
        return load_training_data(self.corpus(setting.target), sources, schema, share)

    def run(self, setting: Setting, model: str, seed: int) -> None:
        """All protocols of one model and seed that the journal lacks."""
        for protocol in PROTOCOLS:
            key = "/".join([setting.target, "" if protocol == "scratch" else setting.taught_by, model, protocol])
            key += f"/{seed}"
            if key not in self.journal:
                started = time.perf_counter()
                self.journal[key] = self._result(setting, model, protocol, seed)
                self.journal[key]["seconds"] = round(time.perf_counter() - started, 1)
                self._save()
                click.echo(f"{key}: {_row(self.journal[key])}", err=True)

    def _result(self, setting: Setting, model: str, protocol: str, seed: int) -> dict[str, Any]:
        from tchub.zoo.models import Checkpoint
        from tchub.zoo.training.baselines import TREES, fit_trees
        from tchub.zoo.training.fit import fit

        if model in TREES:
            data = self.data(setting, TREES[model][0], protocol, seed)
            trees = fit_trees(model, data, seed - 42)  # they draw from a seed of their own, which begins at 1
            return _result_of(trees.test, trees.validation, data)
        config = _recipe(model, protocol)
        folder = self.work / f"{setting.target}-{setting.taught_by}-{model}-{seed}".replace(" ", "")
        init = Checkpoint.load(folder) if protocol == "transfer" else None
        # From a checkpoint the second stage alone: the first one made the zero-shot model.
        data = self.data(setting, config.feature_schema, "scratch" if init else protocol, seed)
        fitted = fit(data, config, seed, init=init)
        if protocol == "zero_shot":
            fitted.checkpoint.save(folder)
        return _result_of(fitted.metrics["results"]["model"], fitted.metrics["validation"], data)

    def _save(self) -> None:
        partial = self.path.with_suffix(".tmp")
        partial.write_text(json.dumps(self.journal, indent=1, sort_keys=True) + "\n")
        os.replace(partial, self.path)


def _recipe(model: str, protocol: str):
    from tchub.zoo.training import TrainConfig

    return replace(TrainConfig.find(recipe_of(model)), **MODELS[model].get(protocol, {}))


def _result_of(scores: dict[str, float], validation: dict[str, float] | None, data: Any) -> dict[str, Any]:
    return {
        "test": {name: scores[name] for name in METRICS},
        "validation": {name: (validation or {}).get(name) for name in METRICS},
        "programs": {c["name"]: c["programs"] for c in data.corpora},
        "test_tasks": len(data.test.task_ids),
        "test_programs": len(data.test),
    }


def _row(result: dict[str, Any]) -> str:
    return "  ".join(f"{name} {result['test'][name]:.3f}" for name in METRICS) + f"  ({result['seconds']:.0f} s)"


def vocabulary(bench: Bench, setting: Setting, sample: int = 50) -> dict[str, Any]:
    """How much of the target's language the sources speak, over the first programs of every task.

    A structure is a sequence of primitives without its values. Shares are of the target's programs.
    """
    told = {name: list(_structures(bench, name, sample)) for name in (setting.target, *setting.sources)}
    known = [program for name in setting.sources for program in told[name]]
    shapes = {shape for program in known for shape in program}
    kinds = {shape[0] for shape in shapes}
    target = told[setting.target]
    own = [shape for program in target for shape in program]
    whole = set(known)
    return {
        "kinds_of_the_target": len({shape[0] for shape in own}),
        "kinds_in_common": len({shape[0] for shape in own} & kinds),
        "primitives_of_a_known_kind": sum(shape[0] in kinds for shape in own) / len(own),
        "primitives_of_a_known_shape": sum(shape in shapes for shape in own) / len(own),
        "programs_of_a_known_structure": sum(program in whole for program in target) / len(target),
        "structures": {name: len(set(programs)) for name, programs in told.items()},
        "median_length": {name: statistics.median(map(len, programs)) for name, programs in told.items()},
    }


def _structures(bench: Bench, name: str, sample: int) -> Iterator[tuple[Any, ...]]:
    from tchub.zoo.corpus import Program, sequence_of
    from tchub.zoo.features.nest import shape_of

    corpus = bench.corpus(name)
    for task_id in corpus.tasks:
        for row in corpus.table(task_id)[:sample].to_pylist():
            shapes = (shape_of(primitive)[0] for primitive in sequence_of(Program.from_row(row)))
            # Names of blocks are the workload's words, not the schedule's.
            yield tuple((*shape[:3], tuple(n for n in shape[3] if not n.startswith("@"))) for shape in shapes)


def summarise(journal: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Mean over the seeds of each figure, by target, sources, model and protocol."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, result in journal.items():
        groups.setdefault(key.rpartition("/")[0].replace("//", "/"), []).append(result["test"])
    return {
        f"{key}/{name}": statistics.mean(test[name] for test in tests)
        for key, tests in sorted(groups.items())
        for name in METRICS
    } | {f"{key}/seeds": len(tests) for key, tests in sorted(groups.items())}


def chance(bench: Bench, target: str) -> dict[str, float]:
    """What a random order gets on the target's test tasks."""
    from tchub.zoo.training import evaluate_random
    from tchub.zoo.training.programs import corpus_device, resolve_schema
    from tchub.zoo.training.training_data import load_part

    corpus = bench.corpus(target)
    data = load_part(corpus, "test", resolve_schema("nest", corpus_device(corpus).kind))
    scores = evaluate_random(data.latency, data.group, data.task_weights)
    return {name: scores[name] for name in METRICS}


@click.command()
@click.option("--corpora", required=True, type=click.Path(exists=True, path_type=Path), help="The imported corpora.")
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), default=tuple(MODELS))
@click.option("--target", "targets", multiple=True, default=tuple({s.target: 0 for s in SETTINGS}))
@click.option("--work", default=ROOT / "runs" / "language", show_default=True, type=click.Path(path_type=Path))
@click.option("--report-only", is_flag=True, help="Train nothing; write what the journal has.")
@click.option("--json", "as_json", is_flag=True)
def main(
    corpora: Path, models: tuple[str, ...], targets: tuple[str, ...], work: Path, report_only: bool, as_json: bool
) -> None:
    """Measure the transfer between frameworks and write docs/benchmarks/language.json."""
    import torch

    torch.set_num_threads(1)  # sums in another order train another model
    started = time.time()
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(corpora, work)
    settings = [setting for setting in SETTINGS if setting.target in targets]
    for model in () if report_only else models:
        for setting in settings:
            for seed in SEEDS[model]:
                bench.run(setting, model, seed)
    common = {f"{s.target} by {s.taught_by}": vocabulary(bench, s) for s in settings}
    random = {f"{target}/random/{k}": v for target in targets for k, v in chance(bench, target).items()}
    details = {"vocabulary": common, "runs": bench.journal}
    click.echo(json.dumps(common, indent=2), err=True)
    seeds = sorted({int(key.rpartition("/")[2]) for key in bench.journal})
    finish("language", random | summarise(bench.journal), details, seeds, as_json, started)


if __name__ == "__main__":
    main()

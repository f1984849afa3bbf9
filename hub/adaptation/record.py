"""The end of an adaptation: its corpus, the checkpoint that it stores where that is better, and its card."""

import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from ...cards import METRICS_FORMAT
from ...zoo.adapt import create_sampler, parse_budget
from ...zoo.adapt.adapt_model import AdaptedModel
from ...zoo.adapt.guard import Judgement
from ...zoo.corpus import Corpus
from ...zoo.files import write_files
from ...zoo.models import Checkpoint
from ...zoo.plain_json import json_file
from ..device.timing import TimingConfig
from ..records.corpus import export_corpus
from ..registry import Registry
from ..registry.files import SCHEDULES_FILE
from .config import LOCAL, adapted_name
from .corpus import CorpusPool
from .result import DRAWN, AdaptResult, AdaptSettings, MeasuredPool, Pick, TaskCount
from .session import AdaptSession, first_sampler
from .sources import LEARNT, corpus_digests, corpus_name, learnt_digests, pool_digests


@dataclass(frozen=True)
class AdaptationRecord:
    """A session that has ended: its last model, the comparison with the base, and the variant of the name to store."""

    session: AdaptSession
    adapted: AdaptedModel
    judgement: Judgement
    variant: str

    def finish(self, corpus: Path) -> AdaptResult:
        """Add what was measured to its corpus, store the model if it is better, and return the result."""
        session, adapted, counts = self.session, self.adapted, self._counts()
        registry, base, measurer = Registry.default(), session.learner.start.base.entry, session.measurer
        sizes = (counts["pool"], counts["programs"], counts["failed"])
        journal = None if session.journal is None else session.journal.path
        result = AdaptResult(
            settings=self._settings(),
            measurements=MeasuredPool(*sizes, measurer.reused, measurer.seconds, journal, corpus),
            learning={
                "method": adapted.method,
                "strength": adapted.strength,
                "cross_validated_gain": adapted.learnt_gain,
                "reason": adapted.reason,
                "tried": [asdict(tried) for tried in adapted.tried],
                "training": adapted.facts,
            },
            curve=tuple(session.curve),
            stop=session.stop,
            tasks=self._task_counts(),
            skipped=session.pool.skipped,
            picks=tuple(self._picks()),
            seconds=session.context.seconds,
            judgement=self.judgement,
            name=base.name,
        )
        with session.context.timed("store"):
            self._write_corpus(corpus)
            if result.adapted:
                result = self._store(result, counts)
            # The result stands for its variant's name and, of a corpus, for plain `+local`, while they are empty; but
            # for a base of a folder, which is in no store.
            variants = (self.variant, LOCAL if session.journal is None else self.variant)
            if base.id in {entry.id for entry in registry.entries()} or result.name != base.name:
                for other in {adapted_name(base.name, variant) for variant in variants} - {result.name}:
                    registry.home.stand_in(other, result.name)
        return result

    def _settings(self) -> AdaptSettings:
        session, learner, config = self.session, self.session.learner, self.session.context.config
        base, sampler = learner.start.base, create_sampler(config.sampler)
        return AdaptSettings(
            base=base.entry.id,
            base_reasons=base.reasons,
            asked=base.asked,
            sources=learner.sources.names,
            start=learner.start.reason,
            workload=session.workload,
            device=learner.local.device.name,
            target=learner.local.target,
            threads=learner.local.cores,
            method=config.method,
            sampler=sampler.name,
            first_sampler=first_sampler(sampler).name,
            rounds=config.rounds,
            seed=config.seed,
            budget=parse_budget(config.budget).text_for(len(session.pool)),
            hold_out=f"test split of the corpus {session.workload}" if session.pool.judging else DRAWN,
        )

    def _write_corpus(self, path: Path) -> None:
        """Write everything measured as a corpus that `tchub train` can read."""
        session, local, journal = self.session, self.session.learner.local, self.session.journal
        if journal is None:
            return
        programs = (journal.program(*session.pool.name(index)) for index in session.measurer.results)
        command = f"tchub adapt {session.learner.sources.bases[0].entry.id} --workload {session.workload}"
        facts: dict[str, Any] = {"command": command, "timing": TimingConfig(), "licence": "unpublished"}
        export_corpus(filter(None, programs), session.pool.tasks, local, path, **facts)

    def _store(self, result: AdaptResult, counts: Mapping[str, int]) -> AdaptResult:
        session, learner, model = self.session, self.session.learner, self.adapted.model
        local, base, start, pool = learner.local, learner.start.base, learner.start.chosen, session.pool
        lineage = self._lineage(result.settings, counts)
        name, corpora = adapted_name(base.entry.name, self.variant), self._learnt_corpora()
        corpora = [*([pool.corpus] if isinstance(pool, CorpusPool) else []), *corpora]
        several = [start.entry.data_licence, *(str(corpus.meta["licence"]) for corpus in corpora)]
        each = dict.fromkeys(one for licences in several for one in licences.split(", "))
        licences = {"weights_licence": lineage["weights_licence"], "data_licence": ", ".join(each)}
        data = {"device": local.device.name, "programs": counts["programs"], "tasks": counts["tasks"]}

        def save(folder: Path, version: str) -> None:
            config = replace(
                base.checkpoint.config,
                name=name,
                version=version,
                arch=model.arch,
                model=model.config.as_dict(),
                family=local.family,
                device=local.device.to_dict(),
                lineage=lineage,
                training={
                    "few_shot": asdict(session.context.config.learning),
                    "parameters": model.parameter_count(),
                    "corpus": data | {"licence": licences["data_licence"], "threads": local.cores},
                    LEARNT: self._learnt(),
                },
                tvm=str(tvm.__version__),
                trust=learner.trust(self.adapted, session.learn, session.hold_out),
            )
            Checkpoint(config, model, local.device).save(folder)
            if start.schedules is not None:
                shutil.copyfile(start.schedules, folder / SCHEDULES_FILE)
            results = {"model": self.judgement.after, "base": self.judgement.before}
            metrics = {"format": METRICS_FORMAT, "split": lineage["hold_out"], "results": results}
            card = local_card(replace(result, name=name, version=version), licences)
            files = {"metrics.json": json_file(metrics | {"guard": self.judgement.guard})}
            write_files(folder, files | {"README.md": card.encode()})

        registry = Registry.default()
        entry = registry.register_local(name, save, base.entry, data=data, **licences)
        return replace(result, name=name, version=entry.version, path=registry.home.path(entry))

    def _lineage(self, settings: AdaptSettings, counts: Mapping[str, int]) -> dict[str, Any]:
        """Return what the checkpoint was made from; sources are those compared or learnt."""
        start, guard, learnt = self.session.learner.start, self.judgement.guard, self._learnt_corpora()
        keys = ("hold_out", "base", "sampler", "budget", "rounds", "seed", "workload", "device", "target", "threads")
        schedules = {} if start.chosen.schedules is None else {"schedules": start.chosen.entry.lineage.get("schedules")}
        return {key: getattr(settings, key) for key in keys} | {
            "start": start.chosen.entry.id,
            "compared": list(start.compared),
            "sources": [*(n for n in start.compared if n != settings.base), *map(corpus_name, learnt)],
            "method": self.adapted.method,
            "asked_method": settings.method,
            "strength": self.adapted.strength,
            "training": self.adapted.facts,
            "cpu_model": self.session.learner.local.cpu_model,
            "measurements": dict(counts),
            "gain": guard.gain,
            "interval": list(guard.interval),
            "level": guard.level,
            "weights_licence": start.chosen.entry.weights_licence,
            "source_licences": {corpus_name(corpus): corpus.meta.get("licence") for corpus in learnt},
            **schedules,
        }

    def _learnt_corpora(self) -> list[Corpus]:
        learnt = self.adapted.facts.get("sources", ())
        return [corpus for corpus in self.session.learner.sources.corpora if corpus_name(corpus) in learnt]

    def _learnt(self) -> list[str]:
        """Return digests of what the model learnt of this device: here, in its start, and of corpora of the device."""
        pool, start = self.session.pool, self.session.learner.start.chosen
        corpora = (corpus for corpus in self._learnt_corpora() if corpus.meta["device"] == pool.device)
        own = {*pool_digests(pool, self.session.learn), *learnt_digests(start.checkpoint.config)}
        return sorted(own.union(*map(corpus_digests, corpora)))

    def _counts(self) -> dict[str, int]:
        session, results = self.session, self.session.measurer.results
        return {
            "pool": len(session.pool),
            "programs": len(results),
            "learn": len(session.learn),
            "hold_out": len(session.hold_out),
            "failed": sum(result.error is not None for result in results.values()),
            "tasks": len({session.pool.entries[index].task for index in results}),
        }

    def _picks(self) -> Iterator[Pick]:
        session, pool = self.session, self.session.pool
        for index in (*(() if pool.judging else session.hold_out), *session.learn):
            entry, result, reason = pool.entries[index], session.measurer.results[index], session.reasons.get(index)
            task, part = pool.tasks[entry.task], "learn" if reason else "hold-out"
            why: Any = {key: getattr(reason, key, None) for key in ("round", "diversity", "uncertainty", "total")}
            why |= {"latency": None if math.isnan(result.latency) else result.latency, "error": result.error}
            yield Pick(task.task_id, task.name, task.op, entry.key, part, **why)

    def _task_counts(self) -> tuple[TaskCount, ...]:
        session, tasks, group = self.session, self.session.pool.tasks, self.session.pool.group
        failed = [index for index, result in session.measurer.results.items() if result.error is not None]
        parts = (slice(None), session.learn, session.hold_out, failed)
        counts = zip(*(np.bincount(group[part], minlength=len(tasks)).tolist() for part in parts), strict=True)
        return tuple(TaskCount(task.task_id, task.name, task.op, *own) for task, own in zip(tasks, counts, strict=True))


def local_card(result: AdaptResult, licences: Mapping[str, str]) -> str:
    """Return the card of an adapted checkpoint."""
    settings, guard = result.settings, result.judgement.guard
    rows = dict(result.facts()) | {
        "licence of the weights": licences["weights_licence"],
        "licence of what others measured and it learnt": licences["data_licence"],
    }
    read, origin = "", "The hold-out was picked at random within each task and never learnt from"
    scope = "It comes from the same tasks that the model was adapted to, so it says nothing about other networks."
    if settings.hold_out != DRAWN:
        read, origin = f" to the corpus {settings.workload}", f"The hold-out is the {settings.hold_out}"
        scope = "No task that computes the same was learnt, so it tells of other networks on this device."
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# {result.name} {result.version}

Adapted on this machine from `{settings.base}`{read}; not published.

| | |
|---|---|
{table}

{origin}: {guard.programs} valid programs and {guard.pairs} pairs of {guard.tasks} tasks. {scope}
"""

"""The end of an adaptation: the corpus of what was measured, the stored checkpoint with its card, and the result."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...cards import METRICS_FORMAT
from ...zoo.adapt import create_sampler, parse_budget
from ...zoo.adapt.adapt_model import AdaptedModel
from ...zoo.corpus import Corpus
from ...zoo.models import Checkpoint
from ...zoo.plain_json import json_file
from ..registry import CheckpointName, Registry
from ..tuning.collect import export_corpus
from .result import AdaptResult, AdaptSettings, Judgement, MeasuredPool, Pick, TaskCount, top_text
from .session import AdaptSession, first_sampler
from .sources import LEARNT, corpus_digests, corpus_name, learnt_digests, pool_digests

LOCAL = "local"
# A variant's name has a target's kind and CPU in words; its cores are the programs' threads, and a machine has one
# triple.
_NAMED = ("kind", "mcpu", "mtriple", "num-cores")
_MAX_NAME = 32


def variant_of(target: Mapping[str, Any] | None = None, threads: int | None = None, key: str | None = None) -> str:
    """Return `local`, and what was asked for beside this machine's own target and threads: `local-x86-64-v2-2t`.

    Args:
        target, threads: those that were asked for, if any; key: of the RPC servers that measure.
    """
    parts = [LOCAL, *([_plain(key)] if key else [])]
    if target is not None:
        rest = {key: value for key, value in target.items() if key not in _NAMED}
        parts += [_plain(str(target.get("mcpu", target.get("kind", ""))))]
        parts += [_digits(json.dumps(rest, sort_keys=True))] if rest else []
    return "-".join([*parts, *([f"{threads}t"] if threads is not None else [])])


def _plain(text: str) -> str:
    """Return text in the alphabet of names; what is left out of a long or foreign one stands as digits."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain if plain and len(plain) <= _MAX_NAME else f"{plain[:_MAX_NAME]}-{_digits(text)}".strip("-")


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def adapted_name(base: str, variant: str) -> str:
    """Return the name of a variant of a checkpoint, e.g. `tcl-epyc+local`; a variant of a variant is one of the first.

    Those of two targets of one machine are not versions of one name.
    """
    parsed = CheckpointName.parse(base)
    return CheckpointName(parsed.arch, parsed.family, variant).name


def target_text(target: Mapping[str, Any], threads: int) -> str:
    """Return what programs are compiled for, in a few words."""
    cpu = str(target.get("mcpu", target.get("kind", "")))
    return f"{cpu}, {threads} thread{'s' if threads > 1 else ''}"


@dataclass(frozen=True)
class AdaptationRecord:
    """A session that has ended: writes its corpus and its checkpoint, and returns its result.

    Attributes:
        session: has measured and learnt.
        adapted: the last model; judgement: its comparison with the base.
        variant: of the stored checkpoint's name.
    """

    session: AdaptSession
    adapted: AdaptedModel
    judgement: Judgement
    variant: str

    def finish(self, corpus: Path) -> AdaptResult:
        """Add what was measured to a corpus, store the model if it is better, and return the result."""
        session, learner, context = self.session, self.session.learner, self.session.context
        name, version, path = learner.start.base.entry.name, None, None
        with context.timed("store"):
            self._write_corpus(corpus)
            if self.judgement.guard.decision == "adapted":
                name, version, path = self._store()
        counts = self._counts()
        return AdaptResult(
            settings=self._settings(),
            measurements=MeasuredPool(
                pool_size=counts["pool"],
                measured=counts["programs"],
                failed=counts["failed"],
                reused=session.measurer.reused,
                measuring_seconds=session.measurer.seconds,
                journal=session.journal.path,
                corpus=corpus,
            ),
            learning={
                "method": self.adapted.method,
                "strength": self.adapted.strength,
                "cross_validated_gain": self.adapted.learnt_gain,
                "reason": self.adapted.reason,
                "tried": [asdict(tried) for tried in self.adapted.tried],
                "training": self.adapted.facts,
            },
            curve=tuple(session.curve),
            stop=session.stop,
            tasks=self._task_counts(),
            skipped=session.pool.skipped,
            picks=self._picks(),
            seconds=context.seconds,
            judgement=self.judgement,
            name=name,
            version=version,
            path=path,
        )

    def _settings(self) -> AdaptSettings:
        learner, config = self.session.learner, self.session.context.config
        base, sampler = learner.start.base, create_sampler(config.sampler)
        return AdaptSettings(
            base=base.entry.id,
            base_reasons=base.reasons,
            asked=base.asked,
            sources=learner.sources.names,
            start=learner.start.reason,
            workload=self.session.workload,
            device=learner.local.device.name,
            target=learner.local.target,
            threads=learner.local.cores,
            method=config.method,
            sampler=sampler.name,
            first_sampler=first_sampler(sampler).name,
            rounds=config.rounds,
            seed=config.seed,
            budget=parse_budget(config.budget).text_for(len(self.session.pool)),
        )

    def _write_corpus(self, path: Path) -> None:
        """Write everything measured as a corpus that `tchub train` can read."""
        session, local = self.session, self.session.learner.local
        programs = (session.journal.program(*session.pool.name(index)) for index in session.measurer.results)
        command = f"tchub adapt {session.learner.sources.bases[0].entry.id} --workload {session.workload}"
        export_corpus(filter(None, programs), session.pool.tasks, local, path, command=command, licence="unpublished")

    def _store(self) -> tuple[str, str, Path]:
        import tvm

        learner, model, local = self.session.learner, self.adapted.model, self.session.learner.local
        base, counts, lineage = learner.start.base, self._counts(), self.lineage()
        name = adapted_name(base.entry.name, self.variant)
        started = [part.entry.data_licence for part in learner.start.parts]
        licences = {
            "weights_licence": lineage["weights_licence"],
            "data_licence": _joined([*started, *(str(corpus.meta["licence"]) for corpus in self._learnt_corpora())]),
        }
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
                    "few_shot": asdict(self.session.context.config.learning),
                    "parameters": model.parameter_count(),
                    "corpus": data | {"licence": licences["data_licence"], "threads": local.cores},
                    LEARNT: self._learnt(),
                },
                tvm=str(tvm.__version__),
                trust=learner.trust(self.adapted, self.session.learn, self.session.hold_out),
            )
            Checkpoint(config, model, local.device).save(folder)
            metrics = {
                "format": METRICS_FORMAT,
                "split": "measured hold-out",
                "results": {"model": self.judgement.after, "base": self.judgement.before},
                "guard": self.judgement.guard.as_dict(),
            }
            (folder / "metrics.json").write_bytes(json_file(metrics))
            card = local_card(lineage | licences | {"name": name, "version": version}, self.judgement)
            (folder / "README.md").write_text(card, encoding="utf-8")

        registry = Registry.default()
        entry = registry.register_local(name, save, base.entry, data=data, **licences)
        return name, entry.version, registry.home.path(entry)

    def lineage(self) -> dict[str, Any]:
        """Return what the checkpoint was made from, JSON-serialisable: base, sources, measurements, method, gain.

        Sources are those that had a part in it: checkpoints that were compared, and corpora that were learnt.
        """
        settings, start, guard = self._settings(), self.session.learner.start, self.judgement.guard
        learnt = self._learnt_corpora()
        keys = ("base", "sampler", "budget", "rounds", "seed", "workload", "device", "target", "threads")
        return {key: getattr(settings, key) for key in keys} | {
            "start": start.name,
            "compared": list(start.compared),
            "sources": [*(n for n in start.compared if n != settings.base), *map(corpus_name, learnt)],
            "method": self.adapted.method,
            "asked_method": settings.method,
            "strength": self.adapted.strength,
            "training": self.adapted.facts,
            "cpu_model": self.session.learner.local.cpu_model,
            "measurements": self._counts(),
            "gain": guard.gain,
            "interval": list(guard.interval),
            "level": guard.level,
            "weights_licence": _joined(part.entry.weights_licence for part in start.parts),
            "source_licences": {corpus_name(corpus): corpus.meta.get("licence") for corpus in learnt},
        }

    def _learnt_corpora(self) -> list[Corpus]:
        """Return the corpora that the model has learnt from: a method may leave some out, and one learns from none."""
        learnt = self.adapted.facts.get("sources", ())
        return [corpus for corpus in self.session.learner.sources.corpora if corpus_name(corpus) in learnt]

    def _learnt(self) -> list[str]:
        """Return digests of what the model learnt of this device: here, in its start, and of corpora of the device."""
        pool, parts = self.session.pool, self.session.learner.start.parts
        corpora = (corpus for corpus in self._learnt_corpora() if corpus.meta["device"] == pool.device)
        before = (learnt_digests(part.checkpoint.config) for part in parts)
        return sorted(set(pool_digests(pool, self.session.learn)).union(*before, *map(corpus_digests, corpora)))

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

    def _picks(self) -> tuple[Pick, ...]:
        """Return what judges, then what was learnt from in the order of picking."""
        session, pool, picks = self.session, self.session.pool, []
        for index in (*session.hold_out, *session.learn):
            entry, result = pool.entries[index], session.measurer.results[index]
            task, reason = pool.tasks[entry.task], session.reasons.get(index)
            row = asdict(reason) if reason else {}
            why = {key: row.get(key) for key in ("round", "diversity", "uncertainty", "total")}
            outcome = {"latency": None if math.isnan(result.latency) else result.latency, "error": result.error}
            part = "learn" if reason else "hold-out"
            picks.append(Pick(task.task_id, task.name, task.op, entry.key, part, **why, **outcome))
        return tuple(picks)

    def _task_counts(self) -> tuple[TaskCount, ...]:
        session, group = self.session, self.session.pool.group
        failed = [index for index, result in session.measurer.results.items() if result.error is not None]
        pool, learn, held, failures = (
            np.bincount(group[part], minlength=len(session.pool.tasks)).tolist()
            for part in (slice(None), session.learn, session.hold_out, failed)
        )
        return tuple(
            TaskCount(task.task_id, task.name, task.op, *counts)
            for task, *counts in zip(session.pool.tasks, pool, learn, held, failures, strict=True)
        )


def _joined(licences: Iterable[str]) -> str:
    """Return each licence once."""
    return ", ".join(dict.fromkeys(one for several in licences for one in several.split(", ")))


def local_card(facts: dict[str, Any], judgement: Judgement) -> str:
    """Return the model card of an adapted checkpoint; `facts` are its lineage, `data_licence`, name and version."""
    counts, guard = facts["measurements"], judgement.guard
    compared, corpora = (", ".join(f"`{name}`" for name in facts[key]) for key in ("compared", "source_licences"))
    start = f"`{facts['start']}`" + (f", chosen among {compared} by the first batch" if compared else "")
    start += f"; learnt too: {corpora}" if corpora else ""
    low, high = guard.interval
    given = "" if judgement.zero_shot is None else ", given the programs learnt from"
    rows = {
        "device": f"{facts['device']} ({facts['cpu_model']})",
        "programs for": target_text(facts["target"], facts["threads"]),
        "workload": facts["workload"],
        "started from": start,
        "method": f"{facts['method']}, {facts['strength']:.0%} of the way from the start to what was learnt",
        "sampler, budget": f"{facts['sampler']}, {facts['budget']}",
        "programs measured": f"{counts['programs']} of {counts['pool']} candidates, {counts['tasks']} tasks",
        "of these learnt from, held out, failed": f"{counts['learn']}, {counts['hold_out']}, {counts['failed']}",
        f"held-out pairwise accuracy, base{given}": f"{guard.base:.3f}",
        f"held-out pairwise accuracy, adapted{given}": f"{guard.adapted:.3f}",
        f"gain, {guard.level:.0%} interval": f"{guard.gain:+.3f} ({low:+.3f} to {high:+.3f})",
        f"held-out top-1 (top-5), base{given}": top_text(judgement.before),
        f"held-out top-1 (top-5), adapted{given}": top_text(judgement.after),
    }
    if judgement.zero_shot is not None:
        before, after = (judgement.zero_shot[when]["pairwise"] for when in ("before", "after"))
        rows["the same of base and adapted, given nothing"] = f"{before:.3f}, {after:.3f}"
    if judgement.context is not None and judgement.context.harms:
        rows["harmed by context: tune with `--update none`"] = str(judgement.context)
    rows["licence of the weights"] = facts["weights_licence"]
    rows["licence of what others measured and it learnt"] = facts["data_licence"]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""# {facts["name"]} {facts["version"]}

Adapted on this machine from `{facts["base"]}`; not published.

| | |
|---|---|
{table}

The hold-out was picked at random within each task and never learnt from: {guard.programs} valid programs and
{guard.pairs} pairs of {guard.tasks} tasks. It comes from the same tasks that the model was adapted to, so it says
nothing about other networks.
"""

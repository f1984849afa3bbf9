"""What an adapted checkpoint says of itself: its lineage, and its card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .job import AdaptJob
from .judge import Judgement, top_text
from .name import target_text
from .settings import Outcome
from .sources import corpus_name

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus


def lineage_of(job: AdaptJob, outcome: Outcome, counts: dict[str, int]) -> dict[str, Any]:
    """What the checkpoint was made from, JSON-serialisable: base, sources, measurements, method, gain and interval.

    Sources are those that had a part in it: checkpoints that were compared, and corpora that were learnt.
    """
    entry, guard, adapted = outcome.start.base.entry, outcome.judgement.guard, outcome.adapted
    learnt = learnt_corpora(job, outcome)
    return {
        "base": entry.id,
        "start": outcome.start.name,
        "compared": list(outcome.start.compared),
        "sources": [*(n for n in outcome.start.compared if n != entry.id), *map(corpus_name, learnt)],
        "method": adapted.method,
        "asked_method": job.settings.method,
        "strength": adapted.strength,
        "training": adapted.facts,
        "sampler": job.settings.sampler.name,
        "budget": job.settings.budget.text_for(counts["pool"]),
        "rounds": job.settings.rounds,
        "seed": job.settings.seed,
        "workload": job.workload,
        "device": job.local.device.name,
        "target": job.local.target,
        "threads": job.threads,
        "cpu_model": job.local.cpu_model,
        "measurements": counts,
        "gain": guard.gain,
        "interval": list(guard.interval),
        "level": guard.level,
        "weights_licence": _joined(one.entry.weights_licence for one in outcome.start.made_of),
        "source_licences": {corpus_name(corpus): corpus.meta.get("licence") for corpus in learnt},
    }


def learnt_corpora(job: AdaptJob, outcome: Outcome) -> list[Corpus]:
    """The corpora that the model has learnt from: a method may leave some out, and one knows none."""
    learnt = outcome.adapted.facts.get("sources", ())
    return [corpus for corpus in job.sources.corpora if corpus_name(corpus) in learnt]


def data_licence(job: AdaptJob, outcome: Outcome) -> str:
    """The licences of what others measured and the model learnt: of its start's programs, and of corpora."""
    started = [one.entry.data_licence for one in outcome.start.made_of]
    return _joined([*started, *(str(corpus.meta["licence"]) for corpus in learnt_corpora(job, outcome))])


def _joined(licences: Iterable[str]) -> str:
    """Each once."""
    return ", ".join(dict.fromkeys(one for several in licences for one in several.split(", ")))


def local_card(facts: dict[str, Any], judgement: Judgement) -> str:
    """The model card of an adapted checkpoint, as Markdown.

    Args:
        facts: its lineage (`lineage_of`), `data_licence`, name and version.
        judgement: the comparison on the hold-out.
    """
    counts, guard = facts["measurements"], judgement.guard
    compared, corpora = (", ".join(f"`{name}`" for name in facts[key]) for key in ("compared", "source_licences"))
    made_of = f"`{facts['start']}`" + (f", chosen among {compared} by the first batch" if compared else "")
    made_of += f"; learnt too: {corpora}" if corpora else ""
    return f"""# {facts["name"]} {facts["version"]}

Adapted on this machine from `{facts["base"]}`; not published.

| | |
|---|---|
| device | {facts["device"]} ({facts["cpu_model"]}) |
| programs for | {target_text(facts["target"], facts["threads"])} |
| workload | {facts["workload"]} |
| started from | {made_of} |
| method | {facts["method"]}, {facts["strength"]:.0%} of the way from the start to what was learnt |
| sampler, budget | {facts["sampler"]}, {facts["budget"]} |
| programs measured | {counts["programs"]} of {counts["pool"]} candidates, {counts["tasks"]} tasks |
| of these learnt from, held out, failed | {counts["learn"]}, {counts["hold_out"]}, {counts["failed"]} |
{_scores(judgement)}
| licence of the weights | {facts["weights_licence"]} |
| licence of what others measured and it learnt | {facts["data_licence"]} |

The hold-out was picked at random within each task and never learnt from: {guard.programs} valid programs and
{guard.pairs} pairs of {guard.tasks} tasks. It comes from the same tasks that the model was adapted to, so it says
nothing about other networks.
"""


def _scores(judgement: Judgement) -> str:
    """The rows of the table that tell of the hold-out."""
    guard, zero_shot, context = judgement.guard, judgement.zero_shot, judgement.context
    low, high = guard.interval
    how = "" if zero_shot is None else ", given the programs learnt from"
    rows = {
        f"held-out pairwise accuracy, base{how}": f"{guard.base:.3f}",
        f"held-out pairwise accuracy, adapted{how}": f"{guard.adapted:.3f}",
        f"gain, {guard.level:.0%} interval": f"{guard.gain:+.3f} ({low:+.3f} to {high:+.3f})",
        f"held-out top-1 (top-5), base{how}": top_text(judgement.before),
        f"held-out top-1 (top-5), adapted{how}": top_text(judgement.after),
    }
    if zero_shot is not None:
        before, after = (zero_shot[when]["pairwise"] for when in ("before", "after"))
        rows["the same of base and adapted, given nothing"] = f"{before:.3f}, {after:.3f}"
    if context is not None and context.harms:
        rows["harmed by context: tune with `--update none`"] = str(context)
    return "\n".join(f"| {what} | {value} |" for what, value in rows.items())

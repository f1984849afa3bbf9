"""Step: programs of real networks, measured on the device, or corpora that were measured before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.corpus import Corpus, check_corpus, split_tasks
from ...zoo.corpus.schema import META_FILE, PROGRAMS_FILE, TASKS_FILE, CorpusError
from .corpora import contents, corpus_folders
from .step import Done, Walk

if TYPE_CHECKING:
    from ..tuning.collect import CollectResult


class Collect:
    """What is learnt from. A collection that was stopped goes on, and measures nothing twice."""

    name = "collect"
    title = "measured programs"

    def inputs(self, walk: Walk) -> dict[str, Any]:
        """The device and what is measured on it, or the given corpora's contents."""
        settings = walk.settings
        if not settings.measures:
            return {"corpora": content(walk)}
        facts = {key: walk.found["device"][key] for key in ("device", "family")}
        plan = {key: getattr(settings, key) for key in ("device", "target", "threads", "programs", "seed")}
        licence = walk.found["facts"]["data_licence"]
        return {"on": facts, "networks": list(settings.networks), "licence": licence} | plan

    def run(self, walk: Walk) -> Done:
        """Measure, then see whether the corpora can be trusted."""
        folders, written = folders_of(walk), []
        if walk.settings.measures:
            found = _measure(walk, folders[0])
            walk.note(f"{found.programs} programs of {found.tasks} tasks ({found.failed} failed)")
            written = [folders[0] / name for name in (META_FILE, TASKS_FILE, PROGRAMS_FILE)]
        corpora = opened(walk)
        for corpus in corpora:
            _require_sound(corpus)
        tests = len(split_tasks(corpora[0]).test)
        walk.note(f"{tests} of {len(corpora[0].tasks)} tasks judge, the others teach")
        paths = [str(folder.resolve()) for folder in folders]
        return Done({"corpora": paths, "programs": corpora[0].meta["programs"]}, written)


def _measure(walk: Walk, folder: Path) -> CollectResult:
    from ..tuning.collect import collect

    settings = walk.settings
    return collect(
        ",".join(settings.networks),
        settings.programs,
        folder,
        device=settings.device,
        target=settings.target,
        linker=settings.linker,
        threads=settings.threads,
        seed=settings.seed,
        licence=walk.found["facts"]["data_licence"],
        progress=walk.progress,
        say=walk.note,
    )


def _require_sound(corpus: Corpus) -> None:
    wrong = [finding for finding in check_corpus(corpus) if not finding.ok]
    if wrong:
        raise CorpusError(
            f"{corpus.path}: {'; '.join(f'{finding.name}: {finding.message}' for finding in wrong)}",
            remedy="collect it again, or leave out what is wrong (`tchub corpus check` says more)",
            path=str(corpus.path),
        )


def folders_of(walk: Walk) -> list[Path]:
    """The corpora's folders, for the steps after this one; the first one judges."""
    return corpus_folders(walk.settings, walk.found["device"]["device"])


def content(walk: Walk) -> list[dict[str, str]]:
    """What is in the corpora, see `contents`."""
    return contents(folders_of(walk))


def opened(walk: Walk) -> list[Corpus]:
    """The corpora; the first one judges."""
    return [Corpus.open(folder) for folder in folders_of(walk)]

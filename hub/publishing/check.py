"""Whether a checkpoint may be published: one question after the other, the answers of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...zoo.errors import TchubError
from ..registry import Registry
from ..registry.files import CONFIG_FILE
from ..registry.index import Index
from .check_card import check_facts, check_licences, check_metadata, check_text
from .check_data import check_leak
from .check_files import check_device, check_files, check_name, check_version, check_weights
from .check_metrics import check_metrics, check_scores
from .findings import CheckFailedError, Finding, Report, failed, not_checked
from .subject import TOLERANCE, Subject, open_corpora

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus

__all__ = ["QUESTIONS", "TOLERANCE", "CheckFailedError", "Finding", "Report", "check"]

# In the order in which a reviewer asks; CONTRIBUTING.md has the same list.
QUESTIONS: dict[str, Callable[[Subject], Finding]] = {
    "files": check_files,
    "weights": check_weights,
    "name": check_name,
    "version": check_version,
    "device": check_device,
    "facts": check_facts,
    "card": check_text,
    "metadata": check_metadata,
    "licences": check_licences,
    "metrics": check_metrics,
    "scores": check_scores,
    "leak": check_leak,
}
# These need corpora, and minutes.
_EVALUATING = ("scores", "leak")


def check(
    path: Path | str,
    *,
    corpora: Sequence[Path | str | Corpus] = (),
    tolerance: float = TOLERANCE,
    evaluate: bool = True,
    index: Index | None = None,
    threads: int = 1,
    note: Callable[[str], None] = lambda _: None,
) -> Report:
    """Ask all `QUESTIONS` about a checkpoint's folder.

    Args:
        path: of the folder.
        corpora: that it learnt from and is judged by, in folders of the names that the config uses.
        tolerance: how far a score that is evaluated again may be from the published one.
        evaluate: whether the scores are evaluated again and the training is searched for test tasks; without, both
            questions stay open, and the report does not mind.
        index: the published checkpoints; the default index unless given.
        threads: to use for evaluating.
        note: told what is being done.

    Returns:
        A finding for every question; nothing that is wrong with the checkpoint is raised.

    Raises:
        CorpusError: one of the corpora cannot be opened.
        IndexFileError: the index cannot be read.
    """
    known = Registry.default().index if index is None else index
    subject = Subject(Path(path), known, open_corpora(corpora), tolerance, threads, note)
    return Report(tuple(_ask(name, subject, evaluate) for name in QUESTIONS), unchecked_allowed=not evaluate)


def _ask(name: str, subject: Subject, evaluate: bool) -> Finding:
    if name in _EVALUATING and not evaluate:
        return not_checked(name, "left out", "give the corpora, and leave out --without-evaluation")
    if name != "files" and not (subject.folder / CONFIG_FILE).is_file():
        return not_checked(name, f"there is no {CONFIG_FILE}", "give the folder of a checkpoint")
    try:
        return QUESTIONS[name](subject)
    except TchubError as error:
        return failed(name, error.message, error.remedy)
    except OSError as error:  # a file that another question misses too, or that may not be read
        return failed(name, f"{error.filename}: {error.strerror}", "give a folder whose files are all there to be read")

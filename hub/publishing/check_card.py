"""Questions about a checkpoint's card: is it complete, does the Hub read it, does it say what the files say."""

from __future__ import annotations

from huggingface_hub import ModelCard
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from yaml import YAMLError

from ...cards import MISSING, CorpusFacts, check_card, missing
from .findings import Finding, failed, passed
from .subject import Subject

_SHOWN = 4
_HEAD = ("license", "library_name", "pipeline_tag", "tags", "eval_results")
_RENDER = "write README.md again from config.json and metrics.json: tchub contribute does"


def check_facts(subject: Subject) -> Finding:
    """Everything that a card must tell is in the files."""
    lacking = missing(subject.card)
    if lacking:
        return failed("facts", f"not told: {_some(lacking)}", "add what is missing; tchub contribute asks for it")
    return passed("facts", "every fact that a card must tell is in config.json and metrics.json")


def check_text(subject: Subject) -> Finding:
    """README.md is what the files give, with nothing left to fill in."""
    gaps = [line.strip() for line in subject.text.splitlines() if MISSING in line]
    if gaps:
        return failed("card", f"{len(gaps)} facts are missing, first in: {gaps[0]}", _RENDER)
    differing = check_card(subject.text, subject.config, subject.metrics)
    if differing:
        return failed("card", f"{len(differing)} lines differ from the files, first: {differing[0]}", _RENDER)
    return passed("card", "README.md says what config.json and metrics.json say")


def check_metadata(subject: Subject) -> Finding:
    """The head of the card is one that the Hub reads: licence, library, task, and scores as a model-index."""
    try:
        data = ModelCard(subject.text).data
    except (ValueError, TypeError, KeyError, YAMLError) as error:
        return failed("metadata", f"the Hub cannot read the card's head: {' '.join(str(error).split())}", _RENDER)
    told = {key: getattr(data, key, None) for key in _HEAD}
    if lacking := [key for key, value in told.items() if not value]:
        return failed("metadata", f"the card's head lacks {', '.join(lacking)}", _RENDER)
    return passed("metadata", f"the Hub reads the card's head, with {len(told['eval_results'] or ())} scores")


def check_licences(subject: Subject) -> Finding:
    """An SPDX licence of the weights; of every corpus one, or the words that none was found."""
    weights, corpora = subject.card.config.lineage.weights_licence, subject.card.corpora
    problems = [] if is_spdx(weights) else [f"weights: {weights or 'none given'}"]
    problems += [f"{c.name}: {c.licence or 'none given'}" for c in corpora if not _is_told(c)]
    problems += [] if corpora else ["data: no corpus is named"]
    if problems:
        remedy = "give an SPDX identifier such as Apache-2.0 (https://spdx.org/licenses), for data also `none found`"
        return failed("licences", f"no licence: {_some(problems)}", remedy)
    told = ", ".join(dict.fromkeys(str(corpus.licence) for corpus in corpora))
    return passed("licences", f"weights {weights}; data {told}")


def is_spdx(text: str | None) -> bool:
    """Whether a text is a licence expression of SPDX identifiers."""
    try:
        return bool(canonicalize_license_expression(text or ""))
    except InvalidLicenseExpression:
        return False


def _is_told(corpus: CorpusFacts) -> bool:
    return corpus.unlicensed or is_spdx(corpus.licence)


def _some(items: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more

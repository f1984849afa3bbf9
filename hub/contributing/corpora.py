"""The corpora of a contribution: where they are now, and what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ...zoo.corpus import Corpus
from ...zoo.corpus.schema import META_FILE, PROGRAMS_FILE, TASKS_FILE, CorpusError
from ...zoo.plain_json import json_file
from ..registry.files import sha256_of
from .settings import Settings

FOLDER = "corpora"


def corpus_folders(settings: Settings, device: str) -> list[Path]:
    """The corpora's folders; the first one judges.

    Args:
        settings: whose paths are the newest: a state may be of another working directory.
        device: name of the device that is measured.
    """
    if settings.measures:
        return [settings.output / FOLDER / device]  # the card calls a corpus by its folder
    return list(settings.corpora)


def contents(folders: Sequence[Path]) -> list[dict[str, str]]:
    """All that a result depends on, wherever the folders are: names, and digests of facts, tasks and programs.

    Raises:
        CorpusError: a corpus is not there, or not whole.
    """
    return [_content(Corpus.open(folder)) for folder in folders]


def content_of_programs(folder: Path, programs: str) -> dict[str, str]:
    """The content of a corpus of which only the digest of the programs was noted; the rest is as it is now."""
    try:
        return contents([folder])[0] | {PROGRAMS_FILE: programs}
    except CorpusError:
        return {PROGRAMS_FILE: programs}


def _content(corpus: Corpus) -> dict[str, str]:
    facts = {key: value for key, value in corpus.meta.items() if key != "created"}
    files = {name: sha256_of(corpus.path / name) for name in (TASKS_FILE, PROGRAMS_FILE)}
    return {"name": corpus.path.resolve().name, META_FILE: hashlib.sha256(json_file(facts)).hexdigest()} | files

"""The check of a card's metadata that the Hub makes: licence ids, and the repositories that it names.

After https://huggingface.co/docs/hub/repositories-licenses and the model card's specification in hub-docs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .state import HubServer
from .wire import Answer, Request, as_json, route

LICENCES = frozenset((Path(__file__).parent / "licences.txt").read_text().split())
_HEAD = re.compile(r"\A\s*---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")


@route("POST", "/api/validate-yaml")
def validate(hub: HubServer, request: Request) -> Answer:
    """What is wrong with a card, before anything is uploaded."""
    content = request.json["content"]
    errors = check_card(content)
    warnings = [] if _HEAD.match(content) else [{"message": "empty or missing yaml metadata in repo card"}]
    return as_json({"errors": [{"message": e} for e in errors], "warnings": warnings}, 400 if errors else 200)


def check_card(content: str) -> list[str]:
    """One sentence for each thing that the Hub refuses."""
    head = _HEAD.match(content)
    if head is None:
        return []
    try:
        metadata = yaml.safe_load(head[1])
    except yaml.YAMLError as error:
        return [f"YAML metadata cannot be read: {error}"]
    return list(_wrong(metadata)) if isinstance(metadata, dict) else ["YAML metadata is not an object"]


def _wrong(metadata: dict[str, Any]) -> Iterator[str]:
    licence = metadata.get("license")
    if "license" in metadata and licence not in LICENCES:
        yield f'"license" must be one of the Hub\'s ids, not {licence!r}'
    if licence == "other" and not metadata.get("license_name"):
        yield '"license_name" is required when "license" is other'
    for key in ("datasets", "base_model"):
        named = metadata.get(key, [])
        named = [named] if isinstance(named, str) else named
        if not all(isinstance(name, str) and _REPO_ID.fullmatch(name) for name in named):
            yield f'"{key}" must name repositories of the Hub'

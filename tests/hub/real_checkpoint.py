"""A real, untrained TCL checkpoint and the environment of a user who has a zoo with it in a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tchub.hub.registry import Entry, describe
from tchub.zoo.devices import get_device
from tchub.zoo.models import Checkpoint, CheckpointConfig, create
from toy_checkpoints import write_index

NAME, VERSION = "tcl-epyc", "0.9.0"  # no version that ships: that one is found in the wheel


def make_checkpoint(**changes: Any) -> Checkpoint:
    """TCL with seeded weights, for the family epyc."""
    torch.manual_seed(0)
    model = create("tcl")
    config = CheckpointConfig(
        name=NAME,
        version=VERSION,
        arch="tcl",
        model=model.config.as_dict(),
        feature_schema="tcl-cpu",
        family="epyc",
        lineage={"weights_licence": "Apache-2.0"},
        training={"corpus": {"name": "toy", "device": "epyc", "licence": "CC0-1.0"}},
    )
    return Checkpoint(replace(config, **changes), model.eval(), get_device("epyc"))


def publish_real(root: Path) -> Entry:
    """Save it as a zoo has it, and describe it."""
    folder = root / NAME / VERSION
    make_checkpoint().save(folder)
    return describe(folder, NAME, VERSION, sources=[root.as_uri()])


def environment(tmp: Path, *entries: Entry) -> dict[str, str]:
    """An index with these entries, and empty stores."""
    return {
        "TCHUB_INDEX": str(write_index(tmp / "index.json", *entries)),
        "TCHUB_CACHE": str(tmp / "cache"),
        "TCHUB_HOME": str(tmp / "home"),
        "TCHUB_SOURCES": "",
        "HF_HUB_OFFLINE": "1",
    }


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Change fields of a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

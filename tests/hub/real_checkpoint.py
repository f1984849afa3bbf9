"""A real, untrained TCL checkpoint, and a user who has a zoo with it in a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_kit import use_zoo
from tchub.hub.registry import describe
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


def use_real(patch: pytest.MonkeyPatch, tmp: Path) -> None:
    """Save it as a zoo has it, and set that zoo, in a folder, and empty stores."""
    folder = tmp / "zoo" / NAME / VERSION
    make_checkpoint().save(folder)
    entry = describe(folder, NAME, VERSION, sources=[(tmp / "zoo").as_uri()])
    use_zoo(patch, tmp, write_index(tmp / "index.json", entry))


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Change fields of a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

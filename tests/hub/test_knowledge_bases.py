"""The knowledge bases in the wheel."""

from __future__ import annotations

import json

import pytest
from tchub import hub
from tchub.hub.registry import Index
from tchub.hub.registry.sources import bundled_root
from tchub.zoo.adapt.knowledge_base import learnt_devices

SHIPPED = [entry for entry in Index.default().entries if entry.is_knowledge_base]


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_a_base_in_the_wheel_tells_its_devices_and_knows_each(entry):
    assert entry.files["model.safetensors"].size <= 3 << 20
    metrics = json.loads((bundled_root() / entry.name / entry.version / "metrics.json").read_text())
    devices = learnt_devices(hub.load(entry.id).config)
    assert [row["corpus"] for row in metrics["devices"]] == [device.corpus for device in devices]
    assert len(devices) >= 4
    assert all(row["now"]["pairwise"] > row["random"]["pairwise"] for row in metrics["devices"])


def test_bases_of_both_kinds_are_in_the_wheel():
    assert {entry.family for entry in SHIPPED} == {"cpu", "gpu"}

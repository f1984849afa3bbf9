"""A refreshed index serves beside the wheel's, and never stops a command that could do without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from index_publisher import TODAY
from tchub import hub
from tchub.hub.registry import Index
from tchub.hub.registry.signed_file import write_keys
from tchub.hub.registry.snapshot import SNAPSHOT_FILE
from tchub.zoo.errors import TchubWarning


@pytest.fixture
def user(tmp_path, publisher, epyc, t4, monkeypatch) -> Path:
    """A user's environment: keys that are good on any day, a publisher's folder, and the wheel's index."""
    for name in ("TCHUB_INDEX", "TCHUB_SOURCES"):
        monkeypatch.delenv(name, raising=False)
    write_keys(tmp_path / "keys.json", publisher.keys)
    monkeypatch.setenv("TCHUB_TRUSTED_KEYS", str(tmp_path / "keys.json"))
    monkeypatch.setenv("TCHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tchub.hub.registry.trust.today", lambda: TODAY)
    monkeypatch.setattr(Index, "shipped", lambda: Index((epyc,), 1))
    publisher.publish(t4, serial=2, aliases={"tcl-turing": "tcl-t4"})
    return tmp_path


def test_a_refreshed_index_is_used_beside_the_wheels(user, publisher):
    assert [entry.name for entry in hub.list_checkpoints()] == ["tcl-epyc"]
    hub.refresh_index(publisher.root.as_uri())
    assert [entry.name for entry in hub.list_checkpoints()] == ["tcl-epyc", "tcl-t4"]
    with pytest.warns(TchubWarning, match="tcl-turing is called tcl-t4 now"):
        assert hub.resolve("tcl-turing").entry.name == "tcl-t4"


def test_a_refreshed_index_that_cannot_be_used_is_left_out_with_a_warning(user, publisher, cache):
    hub.refresh_index(publisher.root.as_uri())
    for damage in (lambda: (cache / SNAPSHOT_FILE).write_text("{"), (user / "keys.json").unlink):
        damage()
        with pytest.warns(TchubWarning, match="the refreshed index is left out: .*tchub index refresh"):
            assert [entry.name for entry in hub.list_checkpoints()] == ["tcl-epyc"]


def test_an_own_index_file_stands_in_place_of_both(user, publisher, monkeypatch):
    hub.refresh_index(publisher.root.as_uri())
    (user / "own.json").write_text(json.dumps({"format": 1, "checkpoints": []}))
    monkeypatch.setenv("TCHUB_INDEX", str(user / "own.json"))
    assert hub.list_checkpoints() == []

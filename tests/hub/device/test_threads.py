"""`--threads` is one option with one default, whatever the command; a model of other threads is told as such."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from tchub.hub import api
from tchub.hub.bundle.onsite.files import OnsiteError
from tchub.hub.bundle.onsite.worker import CpuBench
from tchub.hub.bundle.target import resolve_target
from tchub.hub.cli.adapt import adapt_command
from tchub.hub.cli.corpus import bundle_command, collect_command
from tchub.hub.cli.publish import contribute_command
from tchub.hub.cli.quickstart import quickstart_command
from tchub.hub.cli.tune import tune_command
from tchub.hub.device.device_choice import choose_device
from tchub.hub.device.host_facts import usable_cores
from tchub.hub.search.models import choose_model

COMMANDS = {
    "adapt": adapt_command,
    "bundle": bundle_command,
    "collect": collect_command,
    "contribute": contribute_command,
    "quickstart": quickstart_command,
    "tune": tune_command,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_measures_has_the_same_option(name: str) -> None:
    (option,) = [one for one in COMMANDS[name].params if one.name in ("threads", "cores")]
    assert isinstance(option, click.Option)
    assert option.opts == ["--threads"]
    assert not isinstance(option.default, int), "which `choose_device` fills in"
    assert "physical core" in str(option.help)


def test_the_default_is_the_physical_cores_of_this_machine() -> None:
    found = choose_device("local").facts
    assert found.cores == found.target["num-cores"] == usable_cores()
    assert resolve_target("local").threads == usable_cores()
    assert choose_device("local", 1).facts.target["num-cores"] == 1


def test_a_bundle_for_more_threads_than_the_machine_has_is_refused() -> None:
    with pytest.raises(OnsiteError, match=r"use 4096 threads.*build it with --threads"):
        CpuBench({"threads": 4096, "libraries": []})


@pytest.mark.parametrize("reasons", [(), ("tcl-epyc@1.0.0: of this family", "tcl-xeon@1.0.0: of another")])
def test_a_checkpoint_of_another_number_of_threads_says_so(
    monkeypatch: pytest.MonkeyPatch, reasons: tuple[str, ...]
) -> None:
    folder = Path(api.__file__).parents[1] / "zoo" / "checkpoints" / "tcl-epyc" / "1.0.0"
    base: Any = replace(api.choose_checkpoint(str(folder)), reasons=reasons)
    assert base.checkpoint.config.training["corpus"]["threads"] == 1
    monkeypatch.setattr(api, "choose_checkpoint", lambda _: base)
    assert choose_model("tcl-epyc", threads=1).reasons == reasons
    first, *others = choose_model("tcl-epyc", threads=2).reasons
    assert first.startswith(reasons[0] if reasons else "tcl-epyc@1.0.0 learnt")
    assert "learnt from programs of 1 thread, these have 2 threads" in first
    assert tuple(others) == reasons[1:]

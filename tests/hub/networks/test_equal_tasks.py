"""Networks that share tasks, tuned one after the other in one home: each begins with what the others measured."""

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_tuning import FakeMeasure, open_session
from tchub.hub.networks.alternatives import extract
from tchub.hub.networks.frontend.exported_file import from_exported
from tchub.hub.networks.tasks import TuningTask, task_id
from tchub.hub.tuning.session import MOST_RECORDS
from torch import nn

# What each network computes around the norm that all share; TVM names the norm's blocks after the variable before it.
NETWORKS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "post-norm": lambda net, x: net.norm(net.linear(x) + x),
    "pre-norm": lambda net, x: net.linear(net.norm(x)) + x,
    "norm-alone": lambda net, x: net.norm(x),
    "gated": lambda net, x: net.norm(torch.sigmoid(x) * x),
    "two-norms": lambda net, x: net.norm(torch.relu(net.norm(x))),
    "rolled": lambda net, x: net.norm(torch.cat([x[:, 8:], x[:, :8]], 1)),
}


class Block(nn.Module):
    """A network of `NETWORKS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.linear, self.norm = name, nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NETWORKS[self.name](self, x)


@pytest.fixture(scope="module")
def norms(target: Any) -> dict[str, TuningTask]:
    """The norm of each network, as a task."""
    found = {}
    for name in NETWORKS:
        exported = torch.export.export(Block(name).eval(), (torch.zeros(1, 16, 32),))
        tasks = extract(from_exported(exported, name), target)
        (found[name],) = (task for task in tasks if re.fullmatch(r"layer_norm\d*", task.name))
    return found


def test_equal_tasks_of_two_networks_are_equal_to_the_letter(norms: dict[str, TuningTask]) -> None:
    for one, other in combinations(norms.values(), 2):
        assert one.task_id == other.task_id == task_id(other.mod)
        assert one.mod.script() == other.mod.script()


def test_a_network_begins_with_what_those_before_it_have_measured(
    norms: dict[str, TuningTask], target: Any, tmp_path: Path
) -> None:
    """In this order: their tasks are equal to the letter."""
    done = 0
    for name in NETWORKS:
        settings = {"trials": 2, "trials_per_iter": 2, "untuned": False, "share": True}
        view = open_session(tmp_path / name, [norms[name]], target, FakeMeasure(), **settings).run()
        assert view.reused == done
        assert sum(program.strategy == "reused" for program in view.programs) == min(done, MOST_RECORDS)
        assert view.notes == []
        done += view.done
    assert done >= len(NETWORKS)

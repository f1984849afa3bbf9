"""`continual` from a plain checkpoint: what it knew of its own device is kept while sources are distilled into it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tchub.zoo.adapt import continual_method
from tchub.zoo.adapt.continual import ContinualConfig
from tchub.zoo.adapt.continual_method import Continual
from tchub.zoo.adapt.methods import Lesson, SourceData
from tchub.zoo.devices import get_device
from tchub.zoo.models import CostModel, Progressive, create
from tchub.zoo.training import RankingDataset, evaluate_model, train

WIDTH = 6
FAST = ContinualConfig(
    learn_epochs=4, distill_epochs=8, groups_per_batch=2, programs_per_group=8, average=0.0, learn_rate=0.01,
    distill_rate=0.01, distill_period=20,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def programs(device: int, sign: float = 1.0, seed: int = 0) -> RankingDataset:
    """A toy device, whose number is coded in the last row; a program's speed is its first column times a sign."""
    rng = np.random.default_rng([seed, device])
    group = np.repeat(np.arange(3), 24)
    x = rng.standard_normal((len(group), 2, WIDTH)).astype(np.float32)
    x[:, 0, -1], x[:, 1] = 0, 0
    x[:, 1, device] = 1
    latency = np.exp(-sign * x[:, 0, 0] - 5.0)
    return RankingDataset(x, latency, group, tuple(f"t{i}" for i in range(3)), np.ones(3))


@pytest.fixture(scope="module")
def checkpoint() -> CostModel:
    """A plain network that knows device 0."""
    torch.manual_seed(0)
    model = create("tcl", width=WIDTH, hardware=True, hidden=16, d_model=16, head=8)
    train(model, programs(0), None, replace(FAST, learn_epochs=20).learning())
    return model.eval()


def started(model: CostModel, known: np.ndarray | None) -> Progressive:
    """Where learning device 2 begins, when a source says the opposite of what the model has learnt."""
    source = SourceData("opposite", get_device("xeon"), programs(1, sign=-1.0))
    target = programs(2)
    lesson = Lesson(model, target, target.features, get_device("epyc"), (source,), known=known)
    made = Continual().start(lesson)
    assert isinstance(made, Progressive)
    return made


def test_the_order_on_its_own_device_is_kept_better_where_that_device_is_known(
    checkpoint: CostModel, monkeypatch: pytest.MonkeyPatch
):
    real = continual_method.add_device
    monkeypatch.setattr(continual_method, "add_device", lambda *a, **k: real(*a, config=FAST, **k))
    own = programs(0, seed=9)
    kept, lost = (started(checkpoint, known).base_model() for known in (own.features[:1], None))
    was, now, without = (evaluate_model(model, own)["pairwise"] for model in (checkpoint, kept, lost))
    assert was > 0.9
    assert now > without + 0.1
    assert now > was - 0.2


def test_every_device_of_an_averaged_start_is_known(checkpoint: CostModel):
    known = np.concatenate([programs(device).features[:1] for device in (0, 3)])
    target = programs(2)
    made = Continual().start(Lesson(checkpoint, target, target.features, get_device("epyc"), known=known))
    assert isinstance(made, Progressive)
    rows = made.known_devices()
    assert rows is not None
    assert sorted(rows.argmax(dim=1).tolist()) == [0, 3]


def test_a_source_that_taught_the_knowledge_base_little_is_not_learnt_again(
    checkpoint: CostModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    taught: list[str] = []

    def noted(base: Progressive, *_, folder: Path, **__) -> SimpleNamespace:
        taught.append(folder.name.split("-")[1])
        return SimpleNamespace(kb=base)

    monkeypatch.setattr(continual_method, "add_device", noted)
    target, gates = programs(2), {"shut": 0.02, "open": 0.8, "unknown": None}
    sources = tuple(SourceData(name, get_device("xeon"), programs(1), gate) for name, gate in gates.items())
    base = Progressive.around(checkpoint)
    Continual().start(Lesson(base, target, target.features, get_device("epyc"), sources, folder=tmp_path))
    assert sorted(taught) == ["open", "unknown"]

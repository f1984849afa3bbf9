"""Winograd's convolution computes what PyTorch's does, each way as tasks, and a run chooses by what it measures."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import compute
from tchub.hub.networks.alternatives import Alternative, extract, find_alternatives, further_weights, lower_known
from tchub.hub.networks.frontend.exported_file import from_torch
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.networks.transform.prepare import lower
from tchub.hub.networks.transform.winograd import ConvShape, convolutions
from tchub.hub.search.candidates import tune_context
from tchub.hub.search.choice import AlternativeChoice
from tchub.hub.search.scheduler import TaskProgress, next_round
from test_attention import TARGET, imported, tasks_of
from tvm.s_tir import meta_schedule as ms


class Residual(torch.nn.Module):
    """Convolutions with a batch norm, activations and a residual addition.

    14 rows are 4 tiles of 4, the last one cut off, 12 are 3, and 5 are 3 tiles of 2, the last one cut off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(32)
        self.second = torch.nn.Conv2d(32, 16, 3, padding=1)
        self.narrow = torch.nn.Conv2d(16, 16, 3)
        self.skipped = torch.nn.ModuleList(
            [torch.nn.Conv2d(16, 16, 3, stride=2), torch.nn.Conv2d(16, 16, 3, padding=1, groups=2)]
        )
        self.small = torch.nn.Conv2d(16, 24, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        x = torch.relu(self.second(y) + x)
        x = self.narrow(x)
        return torch.relu(self.small(self.skipped[0](self.skipped[1](x))))


@pytest.fixture(scope="module")
def network() -> tuple[torch.nn.Module, torch.Tensor, Any]:
    torch.manual_seed(0)
    module, x = Residual(), torch.randn(1, 16, 14, 14)
    return module, x, imported(module, x)


def test_it_finds_what_it_can_compute(network: tuple[Any, Any, Any]) -> None:
    """Of stride 1 and one group, where it takes fewer operations; more weights cost as operations do.

    How much is the machine's: of a few pixels both tiles are ways.
    """
    shapes = sorted((s.height, s.inputs, s.outputs, s.padding, s.tile) for s in convolutions(network[2]))
    around, nothing = (1, 1, 1, 1), (0, 0, 0, 0)
    large = [(14, 16, 16, nothing), (14, 16, 32, around), (14, 32, 16, around)]
    assert shapes == [(5, 16, 24, around, 2), *((*one, m) for one in large for m in (2, 4))]
    tiles = []
    for size in (7, 28, 56):
        graph = imported(torch.nn.Conv2d(8, 8, 3, padding=1), torch.randn(1, 8, size, size))
        tiles.append([shape.tile for shape in sorted(convolutions(graph))])
    assert tiles == [[2, 4], [4], [4]]
    one_pixel = imported(torch.nn.Conv2d(8, 8, 3, padding=1), torch.randn(1, 8, 1, 1))
    assert convolutions(one_pixel) == set()


def test_a_network_with_it_computes_the_same_and_fuses_what_follows(network: tuple[Any, Any, Any]) -> None:
    module, x, graph = network
    mod = lower(graph, convolutions(graph))
    expected = module(x).detach().numpy()
    assert np.abs(compute(mod, x)[0] - expected).max() < 1e-5 * np.abs(expected).max()
    names = {var.name_hint for var in mod.functions}
    assert sum("winograd_input" in name for name in names) == sum("winograd_output" in name for name in names) == 4
    assert any(name.startswith("fused_winograd_output") and "relu" in name for name in names)
    assert not any("relu" in name and "winograd" not in name for name in names)


@pytest.fixture
def scheduled(result_of: Any) -> Any:
    """A function: the one program of a transform's space, which computes what the task does."""

    def script(task: TuningTask) -> str:
        context = tune_context(task, TARGET, ms.search_strategy.ReplayTrace(), 0)
        (schedule,) = context.generate_design_space()
        text = schedule.mod.script()
        assert all(word in text for word in ("T.parallel", "T.vectorized", "T.unroll"))
        np.testing.assert_allclose(result_of(schedule.mod), result_of(task.mod), rtol=1e-5, atol=1e-4)
        return text

    return script


def test_every_task_of_it_has_a_program_that_is_right(network: tuple[Any, Any, Any], scheduled: Any) -> None:
    _, _, graph = network
    added, _ = find_alternatives(graph, tasks_of(lower(graph)), TARGET, "net")
    transforms = [task for task in added if "winograd" in task.name]
    assert len(transforms) == 2 * len(convolutions(graph))
    kinds = {(task.name.startswith("winograd_input"), task.mod.script().count("T.Select")): task for task in transforms}
    assert len(kinds) == 4, "there and back, of tiles of two sizes"
    for task in kinds.values():
        assert "T.Select" in scheduled(task)  # which row of the matrix it is, is known when the loops are unrolled


def test_a_network_may_grow_by_the_weights_of_the_smaller_tiles() -> None:
    graph = imported(torch.nn.Conv2d(16, 16, 3, padding=1), torch.randn(1, 16, 7, 7))
    direct = tasks_of(lower(graph))
    added, ways = find_alternatives(graph, direct, TARGET, "net")
    assert [way.shape.tile for way in ways] == [2, 4]
    assert further_weights([*direct, *added], ways) == pytest.approx(4 * (16 - 9) * 16 * 16, rel=0.05)
    assert further_weights(direct, []) == 0


def test_what_follows_may_be_read_more_than_once(scheduled: Any, network_of: Any) -> None:
    """By a gate and by what is gated, as in a recurrent cell of images."""

    def gated(conv: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = conv(x)
        gate = y.sigmoid()
        return (1 - gate) * y.relu() + gate * gate.tanh()

    graph = imported(network_of(gated, torch.nn.Conv2d(8, 16, 3, padding=1)), torch.randn(1, 8, 5, 5))
    (task,) = (task for task in tasks_of(lower(graph, convolutions(graph))) if "winograd_output" in task.name)
    assert "tanh" in task.name
    scheduled(task)


def test_a_reduction_stays_a_task_of_its_own(scheduled: Any) -> None:
    """The transform's tiles do not hold it."""
    module = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
    graph = imported(module, torch.randn(1, 8, 8, 8))
    transforms = [task for task in tasks_of(lower(graph, convolutions(graph))) if "winograd" in task.name]
    assert len(transforms) == 2
    for task in transforms:
        assert not any(name in task.name for name in ("pool", "mean", "reshape"))
        scheduled(task)


def test_a_corpus_and_adapting_have_the_tasks_of_both_ways(network: tuple[Any, Any, Any]) -> None:
    module, x, graph = network
    tasks = extract(from_torch(module, (x,)), TARGET)
    direct = {task.task_id for task in tasks_of(lower(graph))}
    added = [task for task in tasks if task.task_id not in direct]
    assert direct < {task.task_id for task in tasks}
    assert sum("winograd_output" in task.name for task in added) == len(convolutions(graph))
    assert all(task.weight > 0 and list(task.networks.values()) == [task.weight] for task in tasks)


def test_a_task_that_nobody_tuned_is_left_out(network: tuple[Any, Any, Any]) -> None:
    _, _, graph = network
    shapes = convolutions(graph)
    direct, one = ({t.task_id for t in tasks_of(lower(graph, wanted))} for wanted in (set(), {min(shapes)}))
    known = lower_known(graph, shapes, direct | one, TARGET)
    assert {task.task_id for task in tasks_of(known)} == one


SMALL, SHAPE = (ConvShape(1, 8, 8, 16, 16, (1, 1, 1, 1), tile) for tile in (2, 4))


def task(name: str, weight: int) -> TuningTask:
    return TuningTask(name, name, "conv2d", weight, None, 0.0)  # type: ignore[arg-type]


def choice(
    *best: float, bound: float = 0.0, trials: int = 64, untuned: dict[str, float] | None = None
) -> tuple[AlternativeChoice, list[TaskProgress]]:
    """A network of a convolution, called twice, and another task; the convolution's two ways."""
    progress = [TaskProgress(1.0, bound=bound, trials=trials, history=[one]) for one in best]
    tasks = [task("direct", 2), task("other", 1), task("transform", 0), task("product", 0)]
    ways = Alternative(SHAPE, {"direct": 2}, {"transform": 2, "product": 2})
    return AlternativeChoice(tasks, progress, [ways], untuned), progress


def test_the_faster_way_is_chosen_and_counts() -> None:
    one, progress = choice(5.0, 1.0, 1.0, 3.0)
    assert one.chosen() == {SHAPE}
    assert one.weights() == {"direct": 0, "other": 1, "transform": 2, "product": 2}
    assert [p.weight for p in progress] == [2, 1, 2, 2]
    assert one.weights({"direct": 4.0, "transform": 1.0}) == {"direct": 2, "other": 1, "transform": 0, "product": 0}
    assert one.chosen({"direct": 4.0, "transform": 1.0, "product": 2.5}) == {SHAPE}
    one, _ = choice(3.0, 1.0, 1.0, 3.0)
    assert one.chosen() == frozenset()
    assert one.weights() == {"direct": 2, "other": 1, "transform": 0, "product": 0}


def test_an_untuned_program_that_is_faster_than_all_measured_ones_decides() -> None:
    """It is what is compiled of its task."""
    assert choice(5.0, 1.0, 1.0, 3.0, untuned={"direct": 3.0, "product": 9.0})[0].chosen() == frozenset()
    assert choice(5.0, 1.0, 1.0, inf, untuned={"product": 3.0})[0].chosen() == {SHAPE}


@pytest.mark.parametrize(("small", "chosen"), [(1.5, SMALL), (2.5, SHAPE)])
def test_of_three_ways_one_is_chosen(small: float, chosen: ConvShape) -> None:
    """Two sizes of tiles compete with each other, and with the convolution: a way that cannot win is dropped."""
    tasks = [task("direct", 2), task("large", 0), task("small", 0)]
    progress = [TaskProgress(1.0, bound=1.4, trials=64, history=[one]) for one in (5.0, 2.0, small)]
    ways = [Alternative(SHAPE, {"direct": 2}, {"large": 2}), Alternative(SMALL, {"direct": 2}, {"small": 2})]
    one = AlternativeChoice(tasks, progress, ways)
    one.update()
    assert one.chosen() == {chosen}
    assert one.weights() == {"direct": 0, "large": 2 * (chosen == SHAPE), "small": 2 * (chosen == SMALL)}
    assert [p.open() for p in progress] == [False, chosen == SHAPE, chosen == SMALL]


def test_two_convolutions_that_replace_the_same_tasks_do_not_exclude_each_other() -> None:
    """Two that feed one addition: whichever is computed otherwise, both of their tasks change."""
    other = replace(SHAPE, height=12)
    tasks = [task("direct", 1), task("added", 1), task("first", 0), task("second", 0)]
    progress = [TaskProgress(1.0, trials=64, history=[one]) for one in (5.0, 5.0, 2.0, 2.0)]
    ways = [
        Alternative(SHAPE, {"direct": 1, "added": 1}, {"first": 1, "added": 1}),
        Alternative(other, {"direct": 1, "added": 1}, {"second": 1, "direct": 1}),
    ]
    assert AlternativeChoice(tasks, progress, ways).chosen() == {SHAPE, other}


@pytest.mark.parametrize(
    ("best", "trials", "still_open"),
    [
        ((5.0, 1.0, 0.1, 0.2), 64, [False, True, True, True]),
        ((5.0, 1.0, 1.0, 3.9), 8, [True] * 4),
        ((inf, inf, inf, inf), 0, [True] * 4),
    ],
    ids=["it cannot win", "after few trials", "before any"],
)
def test_tasks_of_a_way_are_dropped_once_it_cannot_win(
    best: tuple[float, ...], trials: int, still_open: list[bool]
) -> None:
    one, progress = choice(*best, bound=4.0 if trials == 64 else 0.0, trials=trials)
    one.update()
    assert [p.open() for p in progress] == still_open
    assert trials or [p.offer for p in progress] == [None, None, 0.0, 0.0]


def test_a_way_that_was_not_measured_waits_for_its_turn() -> None:
    """Its tasks offer what the network gains where they reach the roofline; the network's own come first."""
    one, progress = choice(5.0, 1.0, inf, inf, bound=1.0, trials=4)
    for waiting in progress[2:]:
        waiting.history, waiting.trials = [], 0
    one.update()
    assert [p.offer for p in progress] == [None, None, 3.0, 3.0]  # (2 * 5 - 2 * (1 + 1)) / 2 tasks
    assert [index for index, _ in next_round(progress, batch=8, room=32)][1:3] == [2, 3]
    progress[1].history, progress[1].trials = [], 0
    assert next_round(progress, batch=8, room=1)[0][0] == 1


def test_a_way_without_a_program_does_not_win() -> None:
    one, progress = choice(5.0, 1.0, 1.0, inf)
    progress[3].history = [inf] * 3
    one.update()
    assert one.chosen() == frozenset()
    assert [p.open() for p in progress] == [True, True, False, False]

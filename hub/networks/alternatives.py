"""Ways to compute operators, as tasks that compete: directly, by Winograd's algorithm, or several by one function."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import IRModule

from ..device.tile_registers import instructions_of
from . import LAYOUTS
from .frontend.network import Network
from .tasks import TuningTask, constant_bytes, extracted_tasks, merge, merged_variants, network_tasks
from .transform.fused_attention import attentions
from .transform.fused_depthwise import depthwise_convolutions
from .transform.prepare import OperatorShape, for_inference, lower
from .transform.winograd import ConvShape, convolutions


@dataclass(frozen=True)
class Alternative:
    """The operators of one shape, directly and another way: convolutions, attentions, or pairs of convolutions.

    Attributes:
        direct: calls, by task id, that the network makes only where they are computed directly.
        other: those that it makes only where they are computed by Winograd's algorithm, or by one function.
    """

    shape: OperatorShape
    direct: Mapping[str, int]
    other: Mapping[str, int]

    @property
    def operator(self) -> OperatorShape:
        """Return what the alternatives of one operator have in common: a convolution's size of tiles is left out."""
        return replace(self.shape, tile=0) if isinstance(self.shape, ConvShape) else self.shape


def find_shapes(graph: IRModule) -> list[OperatorShape]:
    """Return the operators of a graph that can be computed otherwise; a convolution once for each size of tiles."""
    return [*sorted(convolutions(graph)), *sorted(attentions(graph)), *sorted(depthwise_convolutions(graph))]


def find_alternatives(
    graph: IRModule,
    direct: Sequence[TuningTask],
    target: Any,
    network: str,
    shapes: Sequence[OperatorShape] | None = None,
) -> tuple[list[TuningTask], list[Alternative]]:
    """Return the tasks that the other ways add to a network, of weight 0, and what they stand for.

    Args:
        graph: as `prepare.for_inference` gives it.
        target: a `tvm.target.Target`.
        shapes: those to take of `find_shapes`; None for all.
    """
    own = Counter({task.task_id: task.weight for task in direct})
    known = {task.task_id: task for task in direct}
    added: list[TuningTask] = []
    alternatives = []
    for shape in find_shapes(graph) if shapes is None else shapes:
        tasks = network_tasks(lower(graph, {shape}), target, network, known)
        known |= {task.task_id: task for task in tasks}
        calls = Counter({task.task_id: task.weight for task in tasks})
        alternatives.append(Alternative(shape, own - calls, calls - own))
        added += [replace(task, weight=0, networks={network: 0}) for task in tasks if task.task_id not in own]
    return merge(added), alternatives


def further_weights(tasks: Sequence[TuningTask], alternatives: Sequence[Alternative]) -> int:
    """Return the bytes that the weights of a network grow by where each operator is computed another way.

    Of several ways, the one of the fewest counts. Winograd's weights are 16 or 36 numbers in the place of 9.

    Args:
        tasks: of the network and of its alternatives.
    """
    called = {name for one in alternatives for name in (*one.other, *one.direct)}
    sizes = {task.task_id: constant_bytes(task.mod) for task in tasks if task.task_id in called}
    growths: dict[OperatorShape, list[int]] = {}
    for one in alternatives:
        read, instead = (sum(sizes[name] * n for name, n in calls.items()) for calls in (one.other, one.direct))
        growths.setdefault(one.operator, []).append(max(0, read - instead))
    return sum(map(min, growths.values()))


def extract(network: Network, target: Any, layout: str = LAYOUTS[0], precision: str = "float32") -> list[TuningTask]:
    """Return the tasks of a network on a target, of all variants and each way, heaviest first.

    Args:
        target: a `tvm.target.Target`.
        layout: of the network's convolutions, one of `networks.LAYOUTS`.
        precision: see `prepare.for_inference`.

    Raises:
        NetworkLoadError: the network has no function to tune.
    """
    cpu = str(target.kind.name) == "llvm"

    def of_variant(variant: Network) -> list[TuningTask]:
        graph = for_inference(variant.imported(), layout, cpu=cpu, precision=precision, **instructions_of(target))
        tasks = network_tasks(lower(graph, cpu=cpu), target, variant.name)
        added, alternatives = find_alternatives(graph, tasks, target, variant.name) if cpu else ([], [])
        of_operators: dict[OperatorShape, Counter[str]] = {}
        for one in alternatives:  # the most that one of its ways makes
            of_operators[one.operator] = of_operators.get(one.operator, Counter()) | Counter(one.other)
        calls = sum(of_operators.values(), Counter[str]())
        counts = [(task, calls[task.task_id]) for task in added]
        return tasks + [replace(task, weight=count, networks={variant.name: count}) for task, count in counts]

    return merged_variants(map(of_variant, network.variants))


def lower_known(graph: IRModule, otherwise: Collection[OperatorShape], known: Collection[str], target: Any) -> IRModule:
    """Lower a graph with the operators of some shapes computed otherwise, as far as its tasks are known.

    What follows two convolutions becomes part of one of them, so that two shapes together may bring a task that
    neither brings alone; it was not tuned, and the second of them is then computed directly.
    """
    shapes: set[OperatorShape] = set()
    for some in (set(otherwise), *({shape} for shape in find_shapes(graph) if shape in otherwise)):
        mod = lower(graph, shapes | some)
        if all(identity in known for identity, _ in extracted_tasks(mod, target)):
            shapes |= some
        if shapes == set(otherwise):
            return mod
    return lower(graph, shapes)

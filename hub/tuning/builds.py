"""The builds of a network: untuned and compared with the original before anything is measured, and tuned at the end."""

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..device.device_choice import ChosenDevice
from ..networks import LAYOUTS
from ..networks.alternatives import Alternative, find_alternatives, find_shapes
from ..networks.errors import LatencyError, NetworkImportError, OutputMismatchError
from ..networks.fused_attention import AttentionShape
from ..networks.fused_depthwise import DepthwiseShape
from ..networks.latency import Comparison, Libraries, compare
from ..networks.library import build_library
from ..networks.network import Network, has_branches, refused
from ..networks.output_check import require
from ..networks.prepare import OperatorShape, for_inference, lower
from ..networks.signature import Signature
from ..networks.tasks import TuningTask
from ..networks.winograd import ConvShape
from .remote_latency import compare_card, compare_remote

Compare = Callable[["Network", Libraries], Comparison] | None
"""Builds libraries and runs them beside the original, e.g. on an RPC server; None to compare at the end alone."""
_WITHOUT: dict[type[OperatorShape], str] = {
    ConvShape: "convolutions are computed directly, not by Winograd's algorithm",
    AttentionShape: "attention is computed by three functions, not by one",
    DepthwiseShape: "a 1x1 and a depthwise convolution are computed by two functions, not by one",
}


@dataclass(frozen=True)
class FirstBuild:
    """A network at fixed shapes that TVM compiles, and whose untuned library is right.

    Attributes:
        mod: fused Relax, whose functions are the tasks.
        graph: what it was lowered from, which can be lowered otherwise too.
        layout: of its convolutions, see `networks.LAYOUTS`.
        comparison: of the untuned library with the original.
        notes: sentences for the user.
    """

    network: Network
    signature: Signature
    mod: Any
    graph: Any
    layout: str
    comparison: Comparison
    notes: tuple[str, ...] = ()

    @property
    def library_name(self) -> str:
        """Return the file name of its library."""
        return "".join(c if c.isalnum() or c in "-_." else "_" for c in self.network.name) + ".so"


def first_compare(device: ChosenDevice, threads: int, precision: str = "float32") -> Compare:
    """Return what runs an untuned library once beside the original: in a process here, on a card or an RPC server.

    A server that cannot run it is no end: its programs are measured all the same, and the report says why.
    """
    address = device.address
    if device.card is not None:
        return partial(compare_card, number=device.card, precision=precision)
    if address is None:
        return partial(compare, threads=threads, min_repeats=1, max_seconds=1.0)

    def remote(network: Network, libraries: Libraries) -> Comparison:
        try:
            return compare_remote(network, libraries, address, threads=threads)
        except LatencyError as error:
            return Comparison({}, {}, {"untuned": error.message})

    return remote


def first_build(
    network: Network, target: Any, layout: str, compare: Compare, linker: str | None, precision: str = "float32"
) -> FirstBuild:
    """Import, lower and compile a network, and compare the untuned library with the original.

    Where the network cannot be compiled with its convolutions channels-last, or is wrong then, its own layout is tried.

    Args:
        target: a `tvm.target.Target`.
        linker: see `build_library`.
        precision: see `prepare.for_inference`.

    Raises:
        NetworkImportError: TVM cannot import, lower or compile it; fields: network, operator.
        OutputMismatchError: what TVM imports computes something else than the original.
        LatencyError: the untuned library, or the original, does not run.
    """
    imported = network.imported()
    layouts = LAYOUTS if layout == LAYOUTS[0] else (layout,)
    branches = has_branches(imported)
    if branches:  # which TVM's FastMathTransform cannot call
        layouts = LAYOUTS[1:]
    first: NetworkImportError | OutputMismatchError | None = None
    for one in layouts:
        try:
            with refused(network.name, "compile", network.where):
                graph = for_inference(imported, one, cpu=str(target.kind.name) == "llvm", precision=precision)
            mod, comparison = _compared(network, graph, (), target, compare, linker)
        except (NetworkImportError, OutputMismatchError) as error:
            first = first or error
            continue
        reason = "the network branches by torch.cond" if branches else first and first.message
        notes = [] if one == layout else [f"convolutions keep the layout of the original: {reason}"]
        for check in (each for each in comparison.checks.values() if each.unchecked):
            uncounted = "" if check.checked else ", so the compiled network counts as not checked"
            notes.append(f"the output check says little: {'; '.join(check.unchecked)}{uncounted}")
        return FirstBuild(network, network.signature(), mod, graph, one, comparison, tuple(notes))
    assert first is not None
    raise first


def try_alternatives(
    first: FirstBuild,
    tasks: Sequence[TuningTask],
    target: Any,
    compare: Compare,
    linker: str | None,
    kinds: Sequence[type[OperatorShape]],
) -> tuple[list[TuningTask], list[Alternative], tuple[str, ...]]:
    """Return tasks and alternatives as `find_alternatives` does, of the kinds of which a network alone was right.

    For each of the others there is a sentence for the user, which says why.
    """
    right: list[OperatorShape] = []
    notes = []
    groups: dict[tuple[type[OperatorShape], int], list[OperatorShape]] = {}
    for shape in find_shapes(first.graph):
        # A network has each convolution once, so that each size of tiles has a network of its own.
        groups.setdefault((type(shape), shape.tile if isinstance(shape, ConvShape) else 0), []).append(shape)
    for (kind, _), shapes in groups.items():
        if kind not in kinds:
            continue
        try:
            if compare is not None:
                _compared(first.network, first.graph, shapes, target, compare, linker)
            right += shapes
        except (NetworkImportError, OutputMismatchError) as error:
            notes.append(f"{_WITHOUT[kind]}: {error.message}")
    return *find_alternatives(first.graph, tasks, target, first.network.name, right), tuple(dict.fromkeys(notes))


def _compared(
    network: Network,
    graph: Any,
    shapes: Collection[OperatorShape],
    target: Any,
    compare: Compare,
    linker: str | None,
) -> tuple[Any, Comparison]:
    """Return a network's tensor functions, and their comparison with the original, which is right."""
    with refused(network.name, "compile", network.where):
        mod = lower(graph, shapes, cpu=str(target.kind.name) == "llvm")
    if compare is None:
        return mod, Comparison({}, {})
    with tempfile.TemporaryDirectory(prefix="tchub-untuned-") as folder:

        def untuned() -> dict[str, Path]:
            path = Path(folder, "untuned.so")
            with refused(network.name, "compile", network.where):
                build_library(mod, target, None, path, linker)
            return {"untuned": path}

        comparison = compare(network, untuned)
    for check in comparison.checks.values():
        require(check, f"{network.name}, as TVM imports it,")
    return mod, comparison

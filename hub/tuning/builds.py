"""The builds of a network: untuned and compared with the original before anything is measured, and tuned at the end."""

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tvm

from ...zoo.files import StorageError
from ..device.device_choice import ChosenDevice
from ..device.pool import WorkerPool
from ..device.tile_registers import instructions_of
from ..networks import LAYOUTS
from ..networks.alternatives import find_shapes
from ..networks.errors import LatencyError, NetworkImportError, OutputMismatchError
from ..networks.frontend.network import Network, has_branches, refused
from ..networks.frontend.signature import Signature
from ..networks.latency import Comparison, Libraries, compare
from ..networks.library import build_library
from ..networks.output_check import require
from ..networks.tasks import weight_bytes
from ..networks.transform.fused_attention import AttentionShape
from ..networks.transform.fused_depthwise import DepthwiseShape
from ..networks.transform.prepare import OperatorShape, for_inference, lower
from ..networks.transform.relax_graph import joined
from ..networks.transform.tile_products import is_of_tiles
from ..networks.transform.winograd import ConvShape
from ..networks.weights import LARGE
from ..search.errors import TuningError
from .remote_latency import compare_card, compare_remote

Compare = Callable[["Network", Libraries], Comparison]
"""Builds libraries and runs them beside the original, e.g. on an RPC server."""
_WITHOUT: dict[type[OperatorShape], str] = {
    ConvShape: "convolutions are computed directly, not by Winograd's algorithm",
    AttentionShape: "attention is computed by three functions, not by one",
    DepthwiseShape: "a 1x1 and a depthwise convolution are computed by two functions, not by one",
}
# Bytes of weights from which on they are beside an untuned library: LLVM takes long to write them into it.
_BESIDE = 16 << 20


@dataclass(frozen=True)
class FirstBuild:
    """A network at fixed shapes that TVM compiles, and whose untuned library is right.

    Attributes:
        mod: fused Relax, whose functions are the tasks.
        graph: what it was lowered from, which can be lowered otherwise too.
        layout: of its convolutions, see `networks.LAYOUTS`.
        comparison: of the untuned library with the original.
        shapes: of the operators that may be computed otherwise.
        notes: sentences for the user.
    """

    network: Network
    signature: Signature
    mod: Any
    graph: Any
    layout: str
    comparison: Comparison
    shapes: tuple[OperatorShape, ...] = ()
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
        return partial(compare, threads=threads, min_repeats=1, max_seconds=1.0, precision=precision)

    def remote(network: Network, libraries: Libraries) -> Comparison:
        try:
            return compare_remote(network, libraries, address, threads=threads, precision=precision)
        except LatencyError as error:
            return Comparison({}, {}, {"untuned": error.message})

    return remote


def first_build(
    network: Network,
    target: Any,
    layout: str,
    compare: Compare | None,
    linker: str | None,
    precision: str = "float32",
    kinds: Collection[type[OperatorShape]] = (),
    builders: WorkerPool | None = None,
) -> FirstBuild:
    """Import, lower and compile a network, and compare the untuned library with the original.

    Where the network cannot be compiled with its convolutions channels-last, or is wrong then, its own layout is tried.

    Args:
        target: a `tvm.target.Target`.
        compare: None to compare at the end alone.
        linker, builders: see `build_library`.
        precision: see `prepare.for_inference`.
        kinds: of other ways to compute operators that may be taken; each is compared with the original, too.

    Raises:
        NetworkImportError: TVM cannot import, lower or compile it; fields: network, operator.
        OutputMismatchError: what TVM imports computes something else than the original.
        LatencyError: the untuned library, or the original, does not run.
        DeviceError, StorageError: the memory or the disk of this machine is full.
        TuningError: nothing of it is computed in the precision.
    """
    imported = network.imported()
    layouts = LAYOUTS if layout == LAYOUTS[0] and precision != "bfloat16" else (layout,)
    branches = has_branches(imported)
    if branches:  # which TVM's FastMathTransform cannot call
        layouts = LAYOUTS[1:]
    first: NetworkImportError | OutputMismatchError | None = None
    for one in layouts:
        try:
            with refused(network.name, "compile", network.where):
                cpu = str(target.kind.name) == "llvm"
                graph = for_inference(imported, one, cpu=cpu, precision=precision, **instructions_of(target))
            if precision == "bfloat16" and not _multiplies_halves(graph):
                raise TuningError(
                    f"no product of {network.name} is computed in bfloat16",
                    remedy="leave out --precision: products with weights and attention are, from 16 rows, terms and "
                    "columns on, without torch.cond and --layout as-imported",
                    network=network.name,
                )
            mod, comparison, shapes, wrong = _Checks(network, graph, target, compare, linker, builders).of_ways(kinds)
        except (NetworkImportError, OutputMismatchError) as error:
            first = first or error
            continue
        reason = "the network branches by torch.cond" if branches else first and first.message
        notes = [] if one == layout else [f"convolutions keep the layout of the original: {reason}"]
        for check in (each for each in comparison.checks.values() if each.unchecked):
            uncounted = "" if check.checked else ", so the compiled network counts as not checked"
            notes.append(f"the output check says little: {'; '.join(check.unchecked)}{uncounted}")
        if any(check.judged_by == "its own moves" for check in comparison.checks.values()):
            notes.append(
                "the output moves by more than usual with the last digits of the inputs, and is off by as much"
            )
        if any(check.judged_by == "other inputs" for check in comparison.checks.values()):
            notes.append("the output is equal on slightly other inputs: on its own, rounding decides an order in it")
        notes += wrong
        return FirstBuild(network, network.signature(imported), mod, graph, one, comparison, shapes, tuple(notes))
    assert first is not None
    raise first


def _multiplies_halves(graph: Any) -> bool:
    return any(
        isinstance(func, tvm.tirx.PrimFunc) and is_of_tiles(func, halves=True) for func in graph.functions.values()
    )


@dataclass(frozen=True)
class _Checks:
    """Untuned libraries of a graph beside the original."""

    network: Network
    graph: Any
    target: Any
    compare: Compare | None
    linker: str | None
    builders: WorkerPool | None

    def of_ways(
        self, kinds: Collection[type[OperatorShape]]
    ) -> tuple[Any, Comparison, tuple[OperatorShape, ...], list[str]]:
        """Return the tensor functions of the graph as it is and their comparison, which is right, and the other ways.

        Of the operators that can be computed another way, those whose networks are right, and for each other a
        sentence for the user, which says why.
        """
        groups: dict[tuple[type[OperatorShape], int], list[OperatorShape]] = {}
        for shape in find_shapes(self.graph) if kinds else ():
            if type(shape) in kinds:
                # A network has each convolution once, so that each size of tiles has a network of its own.
                groups.setdefault((type(shape), shape.tile if isinstance(shape, ConvShape) else 0), []).append(shape)
        ways = [(), *groups.values()]
        if self.compare is None:
            return self._lowered(()), Comparison({}, {}), tuple(shape for way in ways for shape in way), []
        try:
            mods = [self._lowered(way) for way in ways]
            own = sum(map(weight_bytes, mods)) - len(mods) * weight_bytes(mods[0])
            # All at once, since they have most functions in common, unless their own weights fill the memory.
            comparisons = self._compared(mods if own <= LARGE else mods[:1])
        except (NetworkImportError, LatencyError, StorageError):
            if not groups:
                raise
            # One of the ways may be what does not compile, or crashes.
            mods = [self._lowered(())]
            comparisons = self._compared(mods)
        self._require(comparisons[0])
        right: list[OperatorShape] = []
        notes = []
        for number, ((kind, _), shapes) in enumerate(groups.items(), 1):
            try:
                alone = len(comparisons) == 1
                self._require(self._compared([self._lowered(shapes)])[0] if alone else comparisons[number])
                right += shapes
            except (NetworkImportError, OutputMismatchError, LatencyError, StorageError) as error:
                notes.append(f"{_WITHOUT[kind]}: {error.message}")
        return mods[0], comparisons[0], tuple(right), list(dict.fromkeys(notes))

    def _lowered(self, shapes: Collection[OperatorShape]) -> Any:
        with refused(self.network.name, "compile", self.network.where):
            return lower(self.graph, shapes, cpu=str(self.target.kind.name) == "llvm")

    def _compared(self, mods: Sequence[Any]) -> list[Comparison]:
        """Return the comparison of each of some networks of tensor functions, built as one library."""
        assert self.compare is not None
        names = ["untuned", *(f"untuned/main_{number}" for number in range(1, len(mods)))]
        with tempfile.TemporaryDirectory(prefix="tchub-untuned-") as folder:

            def untuned() -> dict[str, Path]:
                path = Path(folder, "untuned.so")
                with refused(self.network.name, "compile", self.network.where):
                    build_library(joined(mods), self.target, None, path, self.linker, _BESIDE, self.builders)
                return dict.fromkeys(names, path)

            whole = self.compare(self.network, untuned)
        if len(mods) > 1 and not whole.checks:  # as of a server that went away
            raise LatencyError(f"the ways of {self.network.name} could not be compared together")
        checks = [{"untuned": whole.checks[name]} if name in whole.checks else {} for name in names]
        return [Comparison(check, whole.latencies, whole.errors) for check in checks]

    def _require(self, comparison: Comparison) -> None:
        for check in comparison.checks.values():
            require(check, f"{self.network.name}, as TVM imports it,")

"""A whole network for a card: kernels, weights and the order of launches in one archive, run by the driver alone.

TVM's runtime for cards is not needed: a network of fixed shapes is a sequence of launches, which become one CUDA graph.
The archive is a zip of `network.json` (the plan), a cubin for each function, and the weights.
"""

from __future__ import annotations

import ctypes
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.files import storing
from ...zoo.tvm_import import import_tensor_intrinsics
from .cubin_cache import CubinCache
from .cuda_compile import dtype_bytes, find_compiler, start_cuda
from .errors import DeviceError
from .host_facts import cores
from .onsite.cuda import CudaDriver, CudaLaunches
from .onsite.files import OnsiteError, ProgramError

if TYPE_CHECKING:
    from tvm import IRModule

PLAN, WEIGHTS = "network.json", "weights.bin"


def dlight_schedules(mod: IRModule, target: Any) -> IRModule:
    """Return a module whose functions that have no schedule yet have dlight's: a card runs none without threads."""
    from tvm.s_tir import dlight

    import_tensor_intrinsics(target.kind.name)  # which dlight's rule of matrix products would import in minutes
    rules = (dlight.gpu.Matmul, dlight.gpu.GEMV, dlight.gpu.Reduction, dlight.gpu.GeneralReduction, dlight.gpu.Fallback)
    with target:
        # It writes into the module that it is given.
        return dlight.ApplyDefaultSchedule(*(rule() for rule in rules))(mod.clone())  # pyright: ignore[reportCallIssue]


def build_network(mod: IRModule, target: Any, database: Any | None, path: Path) -> tuple[int, int]:
    """Compile a fused Relax module of fixed shapes for a card into an archive; written atomically.

    Args:
        target: a `tvm.target.Target` of CUDA.
        database: MetaSchedule's, or None for default schedules alone.

    Returns:
        its kernels' functions, and how many of them have a schedule of the database.

    Raises:
        ValueError: the network calls something that is no kernel.
        RuntimeError: the compiler does not take a function.
        StorageError: the archive cannot be written.
    """
    import tvm
    from tvm.relax import transform

    finishing = [transform.ToNonDataflow(), transform.RemovePurityChecking(), transform.DeadCodeElimination()]
    with target, nullcontext() if database is None else database, tvm.transform.PassContext(opt_level=3):
        tuning = [] if database is None else [transform.MetaScheduleApplyDatabase()]
        mod = tvm.transform.Sequential([transform.RewriteDataflowReshape(), *tuning, *finishing])(mod)
    kernels = {var.name_hint: f for var, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    tuned = sum(bool(f.attrs.get("tirx.is_scheduled", False)) for f in kernels.values())
    reader = _RelaxReader()
    plan = reader.plan(mod["main"])
    scheduled: Any = dlight_schedules(mod, target)
    facts = json.loads(str(target))
    with tempfile.TemporaryDirectory(prefix="tchub-cuda-") as folder, storing(path):
        images = [Path(folder, f"{number}.cubin") for number in range(len(reader.functions))]
        started, compiler, cache = [], find_compiler(), CubinCache.here()
        for name, image in zip(reader.functions, images, strict=True):  # in turn: the compiler takes longer
            main = tvm.IRModule({"main": scheduled[name].with_attr("global_symbol", "main")})
            started.append(start_cuda(main, facts, image, "cubin", compiler, cache))
        plan["functions"] = [launches for launches, _ in started]
        with ThreadPoolExecutor(len(cores())) as threads:
            list(threads.map(lambda one: one[1](), started))  # raises what one of them raised
        temporary = path.with_name(f"{path.stem}.part")
        with zipfile.ZipFile(temporary, "w") as archive:
            archive.writestr(PLAN, json.dumps(plan))
            archive.writestr(WEIGHTS, b"".join(reader.weights))
            for image in images:
                archive.write(image, image.name)
        temporary.replace(path)
    return len(kernels), tuned


class _RelaxReader:
    """Follows the tensors of a Relax function through its calls; a tensor is the number of its buffer."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.weights: list[bytes] = []
        self._sizes: list[int] = []
        self._values: dict[Any, Any] = {}
        self._constants: list[int] = []
        self._steps: list[tuple[int, list[int]]] = []

    def plan(self, main: Any) -> dict[str, Any]:
        """Return the plan but for its `functions`: see `CudaNetwork`."""
        for param in main.params:
            self._values[param] = self._new(param.ty)
        inputs = list(self._values.values())
        for block in main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._value(binding.value)
        result, types = _flat(self._value(main.body.body)), _tensor_types(main.body.body.ty)
        outputs = [
            [buffer, [int(extent) for extent in ty.shape], str(ty.dtype)]
            for buffer, ty in zip(result, types, strict=True)
        ]
        kept = {*inputs, *self._constants, *result}
        shared, sizes = self._shared(kept)
        return {
            "buffers": sizes,
            "inputs": [shared[buffer] for buffer in inputs],
            "constants": [shared[buffer] for buffer in self._constants],
            "steps": [[function, [shared[buffer] for buffer in args]] for function, args in self._steps],
            "outputs": [[shared[buffer], shape, dtype] for buffer, shape, dtype in outputs],
        }

    def _value(self, expr: Any) -> Any:
        from tvm import relax
        from tvm.ir import GlobalVar, Tuple, TupleGetItem
        from tvm.ir.expr import GenericConst

        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, Tuple):
            return [self._value(field) for field in expr.fields]
        if isinstance(expr, TupleGetItem):
            return self._value(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, GenericConst):
            data: Any = expr.value  # pyright: ignore[reportAttributeAccessIssue]
            self.weights.append(np.ascontiguousarray(data.numpy()).tobytes())
            self._constants.append(self._new(expr.ty))
            return self._constants[-1]
        name = str(getattr(getattr(expr, "op", None), "name", type(expr).__name__))
        if name == "relax.reshape":
            return self._value(expr.args[0])
        if name != "relax.call_tir" or len(expr.args) != 2 or not isinstance(expr.args[0], GlobalVar):
            raise ValueError(f"{name} is no kernel that a card could be given")
        function = expr.args[0].name_hint
        if function not in self.functions:
            self.functions.append(function)
        results = [self._new(ty) for ty in _tensor_types(expr.ty_args[0])]
        args = [*_flat(self._value(expr.args[1])), *results]
        self._steps.append((self.functions.index(function), args))
        return results if type(expr.ty_args[0]).__name__ == "TupleType" else results[0]

    def _new(self, ty: Any) -> int:
        self._sizes.append(math.prod(int(extent) for extent in ty.shape) * dtype_bytes(ty.dtype))
        return len(self._sizes) - 1

    def _shared(self, kept: set[int]) -> tuple[dict[int, int], list[int]]:
        """Let tensors of one size that are not needed at the same time share a buffer; return which, and the sizes."""
        last = {buffer: number for number, (_, args) in enumerate(self._steps) for buffer in args}
        shared: dict[int, int] = {}
        sizes: list[int] = []
        free: dict[int, list[int]] = {}

        def take(buffer: int) -> None:
            if buffer not in shared:
                size = self._sizes[buffer]
                if buffer in kept or not free.get(size):
                    sizes.append(size)
                    shared[buffer] = len(sizes) - 1
                else:
                    shared[buffer] = free[size].pop()

        for buffer in sorted(kept):
            take(buffer)
        for number, (_, args) in enumerate(self._steps):
            for buffer in args:
                take(buffer)
            for buffer in {one for one in args if one not in kept and last[one] == number}:
                free.setdefault(self._sizes[buffer], []).append(shared[buffer])
        return shared, sizes


def _flat(value: Any) -> list[int]:
    return [one for part in value for one in _flat(part)] if isinstance(value, list) else [value]


def _tensor_types(ty: Any) -> list[Any]:
    return [one for field in ty.fields for one in _tensor_types(field)] if hasattr(ty, "fields") else [ty]


class CudaNetwork(CudaLaunches):
    """A network on a card, its weights included; for the thread that made the driver.

    The archive's plan has `buffers` (bytes of each), which of them are `inputs`, `constants` (whose contents are the
    weights, in this order) and `outputs` (with shape and data type), and `functions` and `steps` as `CudaLaunches`.
    """

    _KEPT_GRAPHS = 8

    def __init__(self, driver: CudaDriver, path: Path | str) -> None:
        with zipfile.ZipFile(path) as archive:
            plan, weights = json.loads(archive.read(PLAN)), archive.read(WEIGHTS)
            images = [archive.read(f"{number}.cubin") for number in range(len(plan["functions"]))]
        super().__init__(driver, images, plan["functions"], plan["buffers"], plan["steps"])
        self._plan, start = plan, 0
        # Where the launches hold the address of each buffer, and graphs by the addresses that replaced them.
        self._holders = {own: [] for own in self._buffers}
        for _, values in self._launches:
            for value in (one for one in values if isinstance(one, ctypes.c_uint64)):
                self._holders.setdefault(value.value, []).append(value)
        self._graphs: dict[tuple[int, ...], Any] = {}
        written = {buffer for _, args in plan["steps"] for buffer in args}
        ends = [buffer for buffer, _, _ in plan["outputs"]]
        self._direct = [
            buffer in written and buffer not in plan["inputs"] and ends.index(buffer) == number
            for number, buffer in enumerate(ends)
        ]
        for buffer in plan["constants"]:
            size = plan["buffers"][buffer]
            self.write(buffer, np.frombuffer(weights, np.uint8, size, start))
            start += size

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run once on NumPy's arrays, contiguous and of the right bytes; return the outputs as such arrays."""
        import ml_dtypes  # noqa: F401 (numpy then knows bfloat16 by its name)

        for buffer, array in zip(self._plan["inputs"], inputs, strict=True):
            self.write(buffer, array)
        self._launch_all()
        return [self.read(buffer, np.empty(shape, np.dtype(dtype))) for buffer, shape, dtype in self._plan["outputs"]]

    def run_on(self, inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Run once on tensors of the card by their addresses, after what a stream holds and before what it gets next.

        The kernels read and write the tensors themselves; only an output that is an input, a constant or another output
        is copied there. Nothing is waited for. From the second call with the same addresses on, they are one graph.
        """
        driver, plan = self._driver, self._plan
        buffers = [buffer for buffer, _, _ in plan["outputs"]]
        ends = list(zip(buffers, outputs, self._direct, strict=True))
        direct = [(buffer, address) for buffer, address, one in ends if one]
        places = {self._buffers[b]: address for b, address in [*zip(plan["inputs"], inputs, strict=True), *direct]}
        copies = [
            (address, places.get(self._buffers[buffer], self._buffers[buffer]), self._sizes[buffer])
            for buffer, address, one in ends
            if not one
        ]
        key = tuple(places.values())
        ((before, after),) = driver.event_pairs(1)
        driver.call("cuEventRecord", before, stream)
        driver.call("cuStreamWaitEvent", driver.stream, before, 0)
        if self._graphs.get(key) is None:
            for own, address in places.items():
                for holder in self._holders[own]:
                    holder.value = address
            try:
                if key in self._graphs:
                    self._graphs[key] = self._captured()
                else:
                    while len(self._graphs) >= self._KEPT_GRAPHS:
                        if (graph := self._graphs.pop(next(iter(self._graphs)))) is not None:
                            driver.call("cuGraphExecDestroy", graph)
                    self._graphs[key] = None
                    self._launch_all()
            finally:
                for own in places:
                    for holder in self._holders[own]:
                        holder.value = own
        if self._graphs[key] is not None:
            driver.call("cuGraphLaunch", self._graphs[key], driver.stream)
        for address, source, size in copies:
            driver.call("cuMemcpyDtoDAsync_v2", address, source, size, driver.stream)
        driver.call("cuEventRecord", after, driver.stream)
        driver.call("cuStreamWaitEvent", stream, after, 0)

    @property
    def outputs(self) -> list[tuple[list[int], str]]:
        """Shape and data type of each output."""
        return [(shape, dtype) for _, shape, dtype in self._plan["outputs"]]


def card_for(path: Path, target: dict[str, Any], number: int = 0, *, context: bool = False) -> CudaDriver:
    """Return the card of this machine for a network; raises a DeviceError where there is none of its architecture."""
    remedy = "run it where such a card is free (`tchub doctor` shows it), or tune the network on this machine"
    try:
        driver = CudaDriver(number=number, context=context)
        arch = driver.facts()["arch"]
    except (OnsiteError, ProgramError) as error:
        raise DeviceError(f"{path} cannot be run on a card: {error}", remedy=remedy) from error
    if arch != target.get("arch"):
        raise DeviceError(f"{path} is for {target.get('arch')}, and this card is {arch}", remedy=remedy)
    return driver


class CardFunction:
    """A network of an archive as a function, for the thread that made it.

    A DeviceError says, when it is made and when it is called, that the card cannot be used, fails or lacks the memory.
    """

    _REMEDY = "see `nvidia-smi` for what else the card does, and load the network in a new process"

    def __init__(self, path: Path, target: dict[str, Any], number: int = 0) -> None:
        self._driver = card_for(path, target, number, context=True)
        try:
            self._network = CudaNetwork(self._driver, path)
        except ProgramError as error:
            raise DeviceError(f"{path} cannot be loaded: {error}", remedy=self._REMEDY) from error

    def __call__(self, *tensors: Any) -> list[Any]:
        """Run on TVM's tensors on the CPU, which are copied to the card, as the results are back."""
        import tvm

        arrays = [np.ascontiguousarray(one.numpy()) for one in tensors]
        return [tvm.runtime.tensor(x) for x in self._ran(lambda: self._network(arrays))]

    def on_card(self, tensors: Sequence[Any]) -> list[Any]:
        """Run on PyTorch's tensors on this card, contiguous, and return such; nothing is copied or waited for."""
        import torch

        device = tensors[0].device
        results = [
            torch.empty(shape, dtype=getattr(torch, name), device=device) for shape, name in self._network.outputs
        ]
        given, wanted = ([one.data_ptr() for one in some] for some in (tensors, results))
        stream = torch.cuda.current_stream(device).cuda_stream
        self._ran(lambda: self._network.run_on(given, wanted, stream))
        return results

    def _ran(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except ProgramError as error:
            raise DeviceError(f"the card failed: {error}", remedy=self._REMEDY) from error

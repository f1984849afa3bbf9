"""A tuned network as an object to call: `tuned = load_tuned("out/")`, then `y = tuned(x)`."""

import io
import json
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import ml_dtypes  # noqa: F401 (NumPy then knows bfloat16 by its name)
import numpy as np
import tvm
from tvm import relax

from ...zoo.errors import TchubWarning
from ...zoo.files import storing, write_atomically
from ..device.cuda_network import CardFunction, card_for
from ..device.errors import DeviceError
from ..device.extensions import OLD_CPU, missing_extensions
from ..device.host_facts import read_host_facts, usable_cpus
from ..device.jobs import open_library
from .errors import NetworkInputError, NetworkLoadError
from .frontend.signature import Signature, TensorSpec
from .latency import Latency, measure
from .manifest import Manifest, read_manifest
from .weights import read_weights, with_weights

_ALIGNMENT = 64  # bytes; compiled code reads whole vectors, so TVM takes no other memory


def _load(library: Path, sha256: str) -> Any:
    """Load the library of this sha256 by a path that no process has seen: the system would give an old one's again."""
    with tempfile.TemporaryDirectory(prefix="tchub-load-") as folder:
        path = Path(folder, library.name)
        try:
            path.hardlink_to(library)
        except OSError:  # the folder lies on another disk
            shutil.copyfile(library, path)
        return open_library(path, sha256)


class TunedNetwork:
    """A compiled network. Call it as the original: with the same arguments, of PyTorch or of NumPy.

    PyTorch tensors are passed and returned without a copy where they are contiguous, aligned to 64 bytes and of the
    type that the compiled code computes with; a result that is one of the arguments shares its memory. Results are
    PyTorch's if any argument is, else NumPy's; no gradients flow. Several Python threads may call it at once. A call
    runs on `threads` threads, or fewer by the environment variable TVM_NUM_THREADS. A network of a card takes tensors
    on the card and returns such, in the order of PyTorch's stream; those on the CPU are copied.

    Attributes:
        signatures: how it is called, one for each set of shapes for which it was compiled.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.name, self.folder = manifest.network, folder
        self.target, self.threads = manifest.target, manifest.threads
        self.signatures = tuple(library.signature for library in manifest.libraries)
        self._libraries = manifest.libraries
        self._on_card = self.target.get("kind") == "cuda"
        loaded = () if self._on_card else manifest.libraries
        self._modules: list[Any] = [_load(folder / library.file, library.sha256) for library in loaded]
        self._weights: list[list[Any]] = [read_weights(folder / one.file) if one.weights else [] for one in loaded]
        self._machines = threading.local()

    @property
    def signature(self) -> Signature:
        """The signature; the first, where there are several."""
        return self.signatures[0]

    @property
    def latency(self) -> dict[str, float]:
        """Median seconds a call by system as `tune` measured them; empty without the folder's `report.json`."""
        try:
            report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
            return {name: float(facts["median"]) for name, facts in report["latency"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"{self.folder / 'report.json'} cannot be read: {error}"
            raise NetworkLoadError(problem, remedy="remove it") from error

    def __repr__(self) -> str:
        forms = "; ".join(map(str, self.signatures))
        return f"TunedNetwork({self.name}: {forms}; {self.threads} thread{'s' * (self.threads > 1)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network.

        Raises:
            NetworkInputError: the arguments are not those of the original, or of another shape or data type.
        """
        number, tensors = self._match(lambda signature: signature.flatten(args, kwargs))
        return self.signatures[number].unflatten(self._run(number, tensors))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the network on tensors by the names of its signature's inputs.

        Its results have the names of the signature's outputs, without their nesting and constants.

        Raises:
            NetworkInputError: an input is missing, unexpected, or of another shape or data type.
        """
        number, tensors = self._match(lambda signature: signature.order(inputs))
        names = (spec.name for spec in self.signatures[number].outputs)
        return dict(zip(names, self._run(number, tensors), strict=True))

    def runner(self, inputs: Mapping[str, Any]) -> Callable[[], Any]:
        """Return the compiled function with its inputs set, for timing: the calling thread alone may call it."""
        number, tensors = self._match(lambda signature: signature.order(inputs))
        return partial(self._main(number), *map(_argument, tensors, self.signatures[number].inputs))

    def _match(self, read: Callable[[Signature], list[Any]]) -> tuple[int, list[Any]]:
        """Return the number of the library that was compiled for a call, and the tensors that `read` takes from it."""
        refused: list[NetworkInputError] = []
        for number, signature in enumerate(self.signatures):
            try:
                return number, read(signature)
            except NetworkInputError as error:
                refused.append(error)
        if len(refused) == 1:
            raise refused[0]
        raise NetworkInputError(
            f"{self.name} is compiled for {len(refused)} sets of shapes, and these arguments fit none: "
            + "; ".join(dict.fromkeys(error.message for error in refused)),
            remedy="give arguments of one of these shapes, or tune the network for this one too",
        ) from refused[0]

    def _run(self, number: int, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors of the result, PyTorch's if any argument is."""
        library, signature = self._libraries[number], self.signatures[number]
        if self._on_card and tensors and all(map(_is_card_tensor, tensors)):
            arguments = [
                _card_argument(x, spec, tensors[0].device) for x, spec in zip(tensors, signature.inputs, strict=True)
            ]
            results = self._main(number, tensors[0].device.index or 0).on_card(arguments)
            return [x.to(_torch_type(spec.dtype)) for x, spec in zip(results, signature.outputs, strict=True)]
        convert = _torch_result if any(map(_is_torch, tensors)) else _numpy_result
        result = self._main(number)(*map(_argument, tensors, signature.inputs))
        results = [result] if hasattr(result, "shape") else list(result)
        specs = enumerate(zip(results, signature.outputs, strict=True))
        return [convert(x, spec, i in library.constants) for i, (x, spec) in specs]

    def _main(self, number: int, card: int = 0) -> Any:
        """Return the compiled function in a machine of the calling thread: machines cannot be entered twice."""
        _set_threads(self.threads)
        functions: dict[Any, Any] = vars(self._machines)
        if self._on_card:
            if (number, card) not in functions:
                functions[number, card] = CardFunction(self.folder / self._libraries[number].file, self.target, card)
            return functions[number, card]
        if number not in functions:
            device: Any = tvm.cpu()
            main: Any = relax.VirtualMachine(self._modules[number], device)["main"]  # which keeps its machine
            functions[number] = with_weights(main, self._weights[number])
        return functions[number]


def load_tuned(folder: str | Path) -> TunedNetwork:
    """Load the network that `tune` compiled into an output folder.

    The folder may be copied to another machine with the same kind of CPU and the same version of TVM; `network.json`
    and the libraries that it names, with the weights beside them, are enough. PyTorch is not needed. TVM's threads are
    not bound to cores (the environment variable TVM_BIND_THREADS is set to 0 unless it has a value): TVM would bind the
    caller's thread too.

    Raises:
        NetworkLoadError: the folder holds no tuned network, it was changed, or another version of TVM compiled it.
        DeviceError: this CPU lacks instructions that the network was compiled for, or it is for a card, and this
            machine has none of its architecture.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)

    if manifest.tvm != tvm.__version__:
        raise NetworkLoadError(
            f"{folder} was compiled with TVM {manifest.tvm}, and this is TVM {tvm.__version__}",
            remedy=f"install TVM {manifest.tvm}, or tune the network again",
            path=str(folder),
        )
    if manifest.target.get("kind") == "cuda":
        card_for(folder, manifest.target)
    elif missing := missing_extensions(manifest.target, read_host_facts()):
        raise DeviceError(
            f"{folder} was compiled for a CPU with {', '.join(missing)}, which this CPU lacks",
            remedy=f"tune the network on this machine, or for a target that both have, e.g. --target {OLD_CPU}",
            target=manifest.target,
            missing=missing,
        )
    return TunedNetwork(folder, manifest)


def bench(tuned: TunedNetwork, inputs: Mapping[str, Any] | None = None, seconds: float = 5.0) -> list[Latency]:
    """Time the network, without the conversion of its inputs and outputs.

    Args:
        inputs: by name; None for random ones, for each set of shapes in turn.
        seconds: of timing for a set of shapes; five repeats are made however long they take.

    Raises:
        NetworkInputError: the inputs are not those of the network.
    """
    sets = [inputs] if inputs is not None else [random_arrays(signature) for signature in tuned.signatures]
    return [Latency(tuple(measure({"tuned": tuned.runner(one)}, seconds)["tuned"])) for one in sets]


_pool = threading.local()  # TVM keeps a pool of threads for each thread that calls it
_asked = os.environ.get("TVM_NUM_THREADS")


def _set_threads(threads: int) -> None:
    """Let the libraries that this thread calls run on so many threads."""
    if getattr(_pool, "threads", None) == threads:
        return

    os.environ.setdefault("TVM_BIND_THREADS", "0")
    if _asked is None:  # TVM reads it when the pool starts, and would start half of the logical CPUs
        os.environ["TVM_NUM_THREADS"] = str(max(threads, usable_cpus()))
    tvm.get_global_func("runtime.config_threadpool")(1, threads)  # 1: big cores, as TVM calls all of them
    running = tvm.get_global_func("runtime.NumThreads")()
    if running < threads:
        warnings.warn(
            f"the network runs on {running} of {threads} threads: TVM's threads had started before, or "
            "TVM_NUM_THREADS limits them",
            TchubWarning,
            stacklevel=4,
        )
    _pool.threads = threads


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_card_tensor(value: Any) -> bool:
    return _is_torch(value) and value.is_cuda


def _torch_type(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _card_argument(value: Any, spec: TensorSpec, device: Any) -> Any:
    """A PyTorch tensor on a card, contiguous and of the data type that the compiled function takes."""
    if value.device != device:
        raise NetworkInputError(
            f"{spec.name} is on {value.device}, and the first argument on {device}",
            remedy="move all arguments to one card", argument=spec.name,
        )  # fmt: skip
    return value.detach().to(_torch_type(spec.computed)).resolve_neg().contiguous()


def _argument(value: Any, spec: TensorSpec) -> Any:
    """Return an argument as TVM's tensor, of the data type that the compiled function takes."""
    if not _is_torch(value):
        return tvm.runtime.tensor(np.ascontiguousarray(value, dtype=np.dtype(spec.computed)).reshape(spec.shape))
    import torch

    if value.device.type != "cpu" or value.layout != torch.strided:
        raise NetworkInputError(
            f"{spec.name} is on {value.device}, in the layout {value.layout}, expected a dense tensor on the CPU",
            remedy="move it with .cpu(), and make it dense with .to_dense()",
            argument=spec.name,
        )
    tensor = value.detach() if value.requires_grad else value
    if spec.computed != spec.dtype:
        tensor = tensor.to(getattr(torch, spec.computed))
    if not tensor.is_contiguous() or tensor.is_neg():
        tensor = tensor.contiguous().resolve_neg()
    return tvm.runtime.from_dlpack(tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor)


def _torch_result(value: Any, spec: TensorSpec, constant: bool) -> Any:
    import torch

    tensor, dtype = torch.from_dlpack(value), getattr(torch, spec.dtype)
    return tensor if tensor.dtype is dtype and not constant else tensor.to(dtype, copy=constant)


def _numpy_result(value: Any, spec: TensorSpec, _constant: bool) -> Any:
    return value.numpy().astype(np.dtype(spec.dtype), copy=False)


def read_arrays(path: Path, signature: Signature) -> dict[str, Any]:
    """Read a network's inputs by name; nothing in the file is run.

    Args:
        path: of an `.npz` file whose arrays have the inputs' names, or none and the inputs' order; or of an `.npy`
            file, for a network with one input. Inputs of bfloat16, which NumPy lacks, are read from float32.

    Raises:
        NetworkInputError: the file cannot be read.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {"arr_0": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise NetworkInputError(
            f"{path} cannot be read: {error}",
            remedy="write it with numpy.savez(path, name=array) or numpy.save(path, array)",
            path=str(path),
        ) from error
    names = [spec.name for spec in signature.inputs]
    if set(arrays) == {f"arr_{i}" for i in range(len(names))}:  # as NumPy calls arrays without names
        arrays = {name: arrays[f"arr_{i}"] for i, name in enumerate(names)}
    for spec in signature.inputs:
        if spec.dtype == "bfloat16" and getattr(arrays.get(spec.name), "dtype", None) == np.float32:
            arrays[spec.name] = arrays[spec.name].astype(np.dtype(spec.dtype))
    return arrays


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to an `.npz` file, whole or not at all; bfloat16 as float32.

    Raises:
        StorageError: the file cannot be written.
    """
    plain = {name: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for name, a in arrays.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **plain)
    with storing(path):
        write_atomically(path, buffer.getvalue())


def random_arrays(signature: Signature) -> dict[str, Any]:
    """Make inputs of the right shapes: numbers of a normal distribution; zeros where integers may be indices; True."""
    rng = np.random.default_rng(0)

    def make(spec: TensorSpec) -> Any:
        dtype = np.dtype(spec.dtype)
        if dtype.kind in "iub":
            return np.full(spec.shape, spec.dtype == "bool", dtype)
        return np.asarray(rng.standard_normal(spec.shape)).astype(dtype)

    return {spec.name: make(spec) for spec in signature.inputs}

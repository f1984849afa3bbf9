"""A tuned network as an object to call: `tuned = load_tuned("out/")`, then `y = tuned(x)`."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...zoo.errors import TchubWarning
from ..device.errors import LocalTargetError
from ..device.host_facts import read_host_facts, usable_cpus
from ..device.local_target import missing_extensions
from .errors import NetworkFileError, NetworkInputError
from .manifest import Manifest, read_manifest
from .signature import Signature, TensorSpec

_ALIGNMENT = 64  # bytes; compiled code reads whole vectors, so TVM takes no other memory


class TunedNetwork:
    """A compiled network. Call it as the original: with the same arguments, of PyTorch or of NumPy.

    PyTorch tensors are passed and returned without a copy, except those that are not contiguous, are not aligned to 64
    bytes, or have another data type than the compiled code computes with. NumPy arrays are copied. Results are
    PyTorch's if any argument is, else NumPy's; no gradients flow. Threads may call it at the same time, each with its
    own state. A library runs on `threads` threads beside the caller's own; the environment variable TVM_NUM_THREADS
    limits them, if it is set before Python starts.

    Attributes:
        name: of the network.
        folder: from which it was loaded.
        signatures: how it is called, one for each set of shapes for which it was compiled.
        target: TVM target as a dictionary.
        threads: of a call.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        import tvm

        self.name, self.folder = manifest.network, folder
        self.target, self.threads = manifest.target, manifest.threads
        self.signatures = tuple(library.signature for library in manifest.libraries)
        self._libraries = manifest.libraries
        self._modules = [tvm.runtime.load_module(str(folder / library.file)) for library in manifest.libraries]
        self._machines = threading.local()

    @property
    def signature(self) -> Signature:
        """How it is called; the first, where there are several."""
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
            path = self.folder / "report.json"
            raise NetworkFileError(f"{path} cannot be read: {error}", remedy="remove it", path=str(path)) from error

    def __repr__(self) -> str:
        forms = "; ".join(map(str, self.signatures))
        return f"TunedNetwork({self.name}: {forms}; {self.threads} thread{'s' * (self.threads > 1)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network.

        Raises:
            NetworkInputError: the arguments are not those of the original, or of another shape or data type.
        """
        number, tensors = self._match(args, kwargs)
        library, signature = self._libraries[number], self.signatures[number]
        wants_torch = any(_is_torch(tensor) for tensor in tensors)
        arguments = [_argument(x, spec) for x, spec in zip(tensors, signature.inputs, strict=True)]
        result = self._main(number)(*arguments)
        found = [result] if hasattr(result, "shape") else list(result)
        convert = _torch_result if wants_torch else _numpy_result
        return signature.unflatten(
            [
                convert(x, spec, i in library.constants)
                for i, (x, spec) in enumerate(zip(found, signature.outputs, strict=True))
            ]
        )

    def _match(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, list[Any]]:
        """The library that was compiled for these arguments, and its tensors."""
        refused: list[NetworkInputError] = []
        for number, signature in enumerate(self.signatures):
            try:
                return number, signature.flatten(args, kwargs)
            except NetworkInputError as error:
                refused.append(error)
        if len(refused) == 1:
            raise refused[0]
        raise NetworkInputError(
            f"{self.name} is compiled for {len(refused)} sets of shapes, and these arguments fit none: "
            + "; ".join(dict.fromkeys(error.message for error in refused)),
            remedy="give arguments of one of these shapes, or tune the network for this one too",
        ) from refused[0]

    def _main(self, number: int) -> Any:
        """The compiled function, in a virtual machine of the calling thread: machines cannot be entered twice."""
        _set_threads(self.threads)
        machines: dict[int, Any] | None = getattr(self._machines, "started", None)
        if machines is None:
            machines = self._machines.started = {}
        if number not in machines:
            import tvm
            from tvm import relax

            module: Any = self._modules[number]
            device: Any = tvm.cpu()
            machines[number] = relax.VirtualMachine(module, device)
        return machines[number]["main"]


def load_tuned(folder: str | Path) -> TunedNetwork:
    """Load the network that `tune` compiled into an output folder.

    The folder may be copied to another machine with the same kind of CPU and the same version of TVM; `network.json`
    and the libraries that it names are enough. PyTorch is not needed. TVM's threads are not bound to cores (the
    environment variable TVM_BIND_THREADS is set to 0 unless it has a value): TVM would bind the caller's thread too.

    Raises:
        NetworkFileError: the folder holds no tuned network, it was changed, or another version of TVM compiled it.
        LocalTargetError: this CPU lacks instructions that the network was compiled for.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    import tvm

    if manifest.tvm != tvm.__version__:
        raise NetworkFileError(
            f"{folder} was compiled with TVM {manifest.tvm}, and this is TVM {tvm.__version__}",
            remedy=f"install TVM {manifest.tvm}, or tune the network again",
            path=str(folder),
        )
    if missing := missing_extensions(manifest.target, read_host_facts()):
        raise LocalTargetError(
            f"{folder} was compiled for a CPU with {', '.join(missing)}, which this CPU lacks",
            remedy="tune the network on this machine, or for a target that both have, e.g. --target x86-64-v3",
            target=manifest.target,
            missing=missing,
        )
    return TunedNetwork(folder, manifest)


_pool = threading.local()  # TVM keeps a pool of threads for each thread that calls it
_asked = os.environ.get("TVM_NUM_THREADS")


def _set_threads(threads: int) -> None:
    """Let the libraries that this thread calls run on so many threads."""
    if getattr(_pool, "threads", None) == threads:
        return
    import tvm

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


def _argument(value: Any, spec: TensorSpec) -> Any:
    """An argument as TVM's tensor, of the data type that the compiled function takes."""
    import tvm

    if not _is_torch(value):
        import numpy as np

        return tvm.runtime.tensor(np.ascontiguousarray(value, dtype=_numpy_type(spec.computed)).reshape(spec.shape))
    import torch

    if value.device.type != "cpu" or value.layout != torch.strided:
        raise NetworkInputError(
            f"{spec.name} is on {value.device}, in the layout {value.layout}, expected a dense tensor on the CPU",
            remedy="move it with .cpu(), and make it dense with .to_dense()",
            argument=spec.name,
        )
    tensor = value.detach().to(getattr(torch, spec.computed)).contiguous().resolve_conj().resolve_neg()
    return tvm.runtime.from_dlpack(tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor)


def _torch_result(value: Any, spec: TensorSpec, constant: bool) -> Any:
    import torch

    tensor = torch.from_dlpack(value)
    return tensor.to(getattr(torch, spec.dtype), copy=constant)


def _numpy_result(value: Any, spec: TensorSpec, _constant: bool) -> Any:
    return value.numpy().astype(_numpy_type(spec.dtype), copy=False)


def _numpy_type(name: str) -> Any:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # bfloat16, which NumPy lacks; TVM needs the package too

        return np.dtype(getattr(ml_dtypes, name))

"""Weights of a large network: on disk while it is tuned, then in a file beside its library as further arguments.

TVM writes a network's constants into its library, for which it copies all of them four times in memory, and three
times when the library is loaded. Where they are large they are tensors of a `.safetensors` file instead, which are
read one by one.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...zoo.files import storing
from .errors import NetworkLoadError
from .transform.relax_graph import is_network

# Bytes of weights from which on they are on disk while a network is tuned, and beside its library: LLVM takes 20 ms for
# each MiB of a library. Bytes of one that is worth an argument, or a file while it is tuned.
LARGE, _BESIDE, _WORTH_AN_ARGUMENT, _WORTH_A_FILE = 512 << 20, 128 << 20, 64 << 10, 1 << 20
_TYPES = {"bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32"}

# What ends the name of a tensor whose numbers of 16 bits are those of bfloat16.
_HALF = "-bfloat16"


def weights_on_disk(exported: Any) -> Any:
    """Move the weights of a large program, which nobody else has, from memory into files without a name; return it.

    The system reads them as they are needed, and has the memory for TVM's copies of them and for the process that
    compares. They stay where the folder of temporary files has no room for them and for the two files of that process.
    """
    import torch  # which a tuned network does without

    same: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}  # of a weight that has several names
    for tensor in exported.state_dict.values():
        if tensor.is_contiguous() and tensor.nbytes >= _WORTH_A_FILE:
            same.setdefault((tensor.data_ptr(), tensor.dtype), []).append(tensor)
    size, room = sum(one.nbytes for one, *_ in same.values()), shutil.disk_usage(tempfile.gettempdir()).free
    if size < LARGE or room < 3 * size or not hasattr(os, "posix_fallocate"):
        return exported
    for tensors in same.values():
        one = max(tensors, key=lambda tensor: tensor.nbytes)
        try:
            with tempfile.NamedTemporaryFile(prefix="tchub-weights-") as file:
                os.posix_fallocate(file.fileno(), 0, one.nbytes)
                stored = torch.from_file(file.name, shared=True, size=one.numel(), dtype=one.dtype)
        except (OSError, RuntimeError):  # no room after all, or no memory mapping there
            break
        stored.copy_(one.detach().reshape(-1))
        for tensor in tensors:
            tensor.data = stored[: tensor.numel()].view(tensor.shape)
    return exported


def weights_file(library: Path) -> Path:
    """Return the path of the weights of a library that takes them as arguments, e.g. `net.so.safetensors`."""
    return library.with_name(f"{library.name}.safetensors")


def lift_weights(mod: IRModule, large: int | None = None) -> tuple[IRModule, list[np.ndarray]]:
    """Return a Relax module whose networks take large constants as arguments, behind their inputs, and the constants.

    Each network, `main` and those that `relax_graph.joined` put beside it, takes all of them. A module with less than
    `large` bytes of constants, None for 128 MiB, is returned as it is.
    """
    lifter = _Lifter(mod)
    bodies = {var: lifter.of_network(mod[var]) for var in mod.get_global_vars() if is_network(var)}
    weights = [array for array, _ in lifter.lifted.values()]
    if sum(array.nbytes for array in weights) < (_BESIDE if large is None else large):
        return mod, []
    mod = mod.clone()
    for var, (body, variables) in bodies.items():
        main: Any = mod[var]
        given = [variables[key] if key in variables else lifter.variable(key) for key in lifter.lifted]
        mod[var] = relax.Function([*main.params, *given], body, main.ret_ty, main.is_pure, main.attrs)
    return mod, weights


@mutator
class _Lifter(PyExprMutator):
    """Replace large constants by variables; a weight that is used twice, as an embedding may be, becomes one."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.lifted: dict[tuple[Any, ...], tuple[np.ndarray, Any]] = {}
        self._variables: dict[tuple[Any, ...], Any] = {}

    def of_network(self, function: Any) -> tuple[Any, dict[tuple[Any, ...], Any]]:
        """Return the body of a function with variables, and these by their keys in `lifted`."""
        self._variables = {}
        return self.visit_expr(function.body), self._variables

    def variable(self, key: tuple[Any, ...]) -> Any:
        """Return a new variable for a constant."""
        return relax.Var(f"weight_{list(self.lifted).index(key)}", self.lifted[key][1])

    def visit_generic_const_(self, constant: Any) -> Any:
        tensor = constant.value
        if not hasattr(tensor, "numpy") or str(tensor.dtype) not in _TYPES:
            return constant
        array = _array(tensor)
        if array.nbytes < _WORTH_AN_ARGUMENT:
            return constant
        key = (array.ctypes.data, array.shape, array.dtype)
        self.lifted.setdefault(key, (array, constant.ty))
        if key not in self._variables:
            self._variables[key] = self.variable(key)
        return self._variables[key]


def _array(tensor: Any) -> np.ndarray:
    """Return a constant's own memory as an array."""
    if str(tensor.dtype) != "bfloat16":
        return np.from_dlpack(tensor)
    from ml_dtypes import bfloat16

    return np.from_dlpack(tensor._create_view(tensor.shape, "uint16")).view(bfloat16)


def write_weights(path: Path, weights: Sequence[np.ndarray]) -> None:
    """Write weights, named by their numbers, whole or not at all; where there are none, remove an older file.

    Those of bfloat16 are written as their bits, see `_HALF`.

    Raises:
        StorageError: the file cannot be written.
    """
    with storing(path):
        if not weights:
            path.unlink(missing_ok=True)
            return
        partial = path.with_name(f".{path.name}.part")
        try:
            partial.touch()
            mode = partial.stat().st_mode  # which the umask lets; safetensors' files are for their owner alone
            # The library has no name for bfloat16 in NumPy: they are saved as their bits.
            halved = [array.dtype.name == "bfloat16" for array in weights]
            plain = [array.view(np.uint16) if half else array for array, half in zip(weights, halved, strict=True)]
            save_file(
                {f"{n:05}{_HALF * half}": x for n, (x, half) in enumerate(zip(plain, halved, strict=True))}, partial
            )
            partial.chmod(mode)
            partial.replace(path)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        finally:
            partial.unlink(missing_ok=True)


def read_weights(library: Path, device: Any = None) -> list[Any]:
    """Return the weights that a library takes, as TVM's tensors in their order; none where it holds them itself.

    Args:
        device: TVM's, to which they are copied; None for this CPU.

    Raises:
        NetworkLoadError: the file is damaged.
    """
    if not (path := weights_file(library)).is_file():
        return []
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = ((name, tvm.runtime.tensor(file.get_tensor(name), device)) for name in sorted(file.keys()))
            return [x._create_view(x.shape, "bfloat16") if name.endswith(_HALF) else x for name, x in arrays]
    except SafetensorError as error:
        remedy = "copy the whole output folder again, or tune the network again"
        raise NetworkLoadError(f"{path} cannot be read: {error}", remedy=remedy, path=str(path)) from error


def with_weights(main: Callable[..., Any], weights: Sequence[Any]) -> Callable[..., Any]:
    """Return a compiled function that takes a network's inputs alone."""
    return (lambda *inputs: main(*inputs, *weights)) if weights else main

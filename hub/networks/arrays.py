"""Inputs and outputs of a network in files: `.npz` with a name for each array, `.npy` with one array."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from ...zoo.files import storing, write_atomically
from .errors import NetworkInputError
from .signature import Signature


def read_arrays(path: Path, signature: Signature) -> dict[str, Any]:
    """Read a network's inputs; nothing in the file is run.

    Args:
        path: of an `.npz` file whose arrays have the inputs' names, or have no names and stand in the inputs' order;
            or of an `.npy` file, for a network with one input. NumPy has no bfloat16: such inputs are read from
            float32.
        signature: of the network.

    Returns:
        NumPy arrays by the inputs' names; those with other names stay under their own.

    Raises:
        NetworkInputError: the file cannot be read.
    """
    import numpy as np

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
            arrays[spec.name] = arrays[spec.name].astype(numpy_type(spec.dtype))
    return arrays


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to an `.npz` file, whole or not at all; bfloat16 as float32.

    Raises:
        StorageError: the file cannot be written.
    """
    import numpy as np

    plain = {name: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for name, a in arrays.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **plain)
    with storing(path):
        write_atomically(path, buffer.getvalue())


def random_arrays(signature: Signature, seed: int = 0) -> dict[str, Any]:
    """Make inputs of the right shapes: numbers of a normal distribution; zeros where integers may be indices; True."""
    import numpy as np

    rng = np.random.default_rng(seed)
    found = {}
    for spec in signature.inputs:
        dtype = numpy_type(spec.dtype)
        if spec.dtype == "bool" or dtype.kind in "iu":
            found[spec.name] = np.full(spec.shape, spec.dtype == "bool", dtype)
        else:
            found[spec.name] = np.asarray(rng.standard_normal(spec.shape)).astype(dtype)
    return found


def numpy_type(name: str) -> Any:
    """Return NumPy's data type of this name, e.g. `float32` or `bfloat16`."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # bfloat16, which NumPy lacks; TVM needs the package too

        return np.dtype(getattr(ml_dtypes, name))

"""The shared libraries that a CPU bundle needs where TVM is not installed: two files, for machines like this one."""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import RuntimeFilesError
from .onsite.faults import OnsiteError
from .onsite.tvm_runtime import find_libraries


def copy_runtime(folder: Path) -> list[Path]:
    """Copy TVM's ffi and runtime libraries of this installation into a folder.

    Returns:
        the copies.

    Raises:
        RuntimeFilesError: they are not installed, or cannot be written.
    """
    try:
        sources = [Path(path) for path in find_libraries(None)]
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy2(source, folder / source.name)) for source in sources]
    except OnsiteError as error:
        raise RuntimeFilesError(str(error), remedy="install tchub with TVM: see `tchub doctor`") from error
    except OSError as error:
        raise RuntimeFilesError(
            f"cannot copy TVM's runtime to {folder}: {error}", remedy="choose another folder", path=str(folder)
        ) from error

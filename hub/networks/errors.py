"""Errors of opening, importing, compiling, checking and calling a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...zoo.errors import TchubError, last_line


class NetworkLoadError(TchubError):
    """No network, file or layout has this name; nothing of it can be tuned; or a tuned network's folder is damaged."""


class NetworkImportError(TchubError):
    """PyTorch could not export the network, or TVM could not import it."""


class OutputMismatchError(TchubError):
    """The compiled network computes something else than PyTorch does."""


class LatencyError(TchubError):
    """The end-to-end latency could not be measured."""


class NetworkInputError(TchubError):
    """The arguments of a call are not those that the compiled network takes."""


def file_error(path: Path, problem: str, remedy: str = "export it again", **fields: object) -> NetworkImportError:
    """Return the error of a file that holds no network."""
    return NetworkImportError(f"{path} {problem}", remedy=remedy, path=str(path), **fields)


_AGAIN = "export it again with the installed versions of PyTorch, transformers and ONNX"


@contextmanager
def reading(path: Path, problem: str = "cannot be read", remedy: str = _AGAIN) -> Iterator[None]:
    """Turn whatever a library raises inside, on a damaged or strange file, into a NetworkImportError of the file."""
    try:
        yield
    except TchubError:
        raise
    except Exception as error:
        raise file_error(path, f"{problem}: {last_line(error)}", remedy) from error

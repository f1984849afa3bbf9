"""Errors of opening, importing, compiling and checking a network."""

from __future__ import annotations

from ...zoo.errors import TchubError


class UnknownNetworkError(TchubError):
    """No network, operator, suite or file has this name."""


class NetworkImportError(TchubError):
    """PyTorch could not export the network, or TVM could not import it."""


class NoTaskError(TchubError):
    """The network holds nothing that can be tuned."""


class OutputMismatchError(TchubError):
    """The compiled network computes something else than PyTorch does."""


class LatencyError(TchubError):
    """The end-to-end latency could not be measured."""


class NetworkInputError(TchubError):
    """The arguments of a call are not those that the compiled network takes."""


class NetworkFileError(TchubError):
    """A folder of a tuned network lacks a file, or holds one that is damaged or foreign."""

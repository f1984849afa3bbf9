"""What can go wrong between a network and its tuned programs."""

from __future__ import annotations

from ...zoo.errors import TchubError


class UnknownNetworkError(TchubError):
    """No network, operator, suite or file has this name."""


class NetworkImportError(TchubError):
    """PyTorch could not export the network, or TVM could not import it."""


class NoTaskError(TchubError):
    """The network holds nothing that can be tuned."""


class NoCandidateError(TchubError):
    """A task has no valid program on this target."""

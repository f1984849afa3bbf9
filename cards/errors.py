"""What can be wrong with a model card."""

from __future__ import annotations

from ..zoo.errors import TchubError


class CardError(TchubError):
    """The config or the metrics do not have the form that a card is made from. Field: `field`."""

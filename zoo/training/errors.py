"""Errors of recipes, training sets and training runs."""

from ..errors import TchubError


class TrainingError(TchubError):
    """A run cannot go on: its arrays, saved state or start do not fit, or its loss diverged; fields vary."""

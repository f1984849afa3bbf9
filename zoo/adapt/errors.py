"""Errors of choosing programs, learning from them and keeping a knowledge base."""

from ..errors import TchubError


class AdaptError(TchubError):
    """A budget, sampler, method, model or corpus that cannot be used for this adaptation."""


class LabelError(AdaptError):
    """The measurements cannot teach or judge a ranking: NaN, not positive, all equal, or too few."""

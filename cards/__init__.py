"""Model cards: schema, templates, and every published card as a file.

The numbers of a card come from a checkpoint's config.json and metrics.json; `check_card` reports any that do not.
"""

from .metrics import METRICS_FORMAT, SCORES, TITLES, CardError, CardMetrics, ScoreLine, read_metrics
from .plots import Plot, draw, plots_of
from .render import MISSING, check_card, render_card
from .schema import CardData, CorpusFacts, missing

__all__ = [
    "METRICS_FORMAT",
    "MISSING",
    "SCORES",
    "TITLES",
    "CardData",
    "CardError",
    "CardMetrics",
    "CorpusFacts",
    "Plot",
    "ScoreLine",
    "check_card",
    "draw",
    "missing",
    "plots_of",
    "read_metrics",
    "render_card",
]

"""Model cards: schema, template, and every published card as a file.

A card's numbers come from a checkpoint's config.json and metrics.json; `check_card` finds those that do not.
"""

from .errors import CardError
from .render import MISSING, check_card, render_card
from .schema import CardData, Corpus, Evaluation, Scores

__all__ = ["MISSING", "CardData", "CardError", "Corpus", "Evaluation", "Scores", "check_card", "render_card"]

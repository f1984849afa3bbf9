"""Model cards: schema, template, and every published card as a file.

A card's numbers come from a checkpoint's config.json and metrics.json; `check_card` finds those that do not.
"""

from .data import MEASURED, TRANSFERRED, Corpus, Origin, origin
from .errors import CardError
from .evaluation import Evaluation, FewShot
from .plots import draw
from .render import MISSING, check_card, render_card
from .required import missing
from .schema import CardData, Training
from .scores import Scores
from .transfer import Transfer

__all__ = [
    "MEASURED",
    "MISSING",
    "TRANSFERRED",
    "CardData",
    "CardError",
    "Corpus",
    "Evaluation",
    "FewShot",
    "Origin",
    "Scores",
    "Training",
    "Transfer",
    "check_card",
    "draw",
    "missing",
    "origin",
    "render_card",
]

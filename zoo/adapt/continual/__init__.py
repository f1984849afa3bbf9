"""Continual knowledge distillation: one knowledge base that learns device after device (papers: TCL, section 6).

`add_device` teaches a base (`zoo.models.Progressive`) a further device in two phases: `learn` trains its column on the
device's programs, with the base frozen; `distill` trains the base on them and on what the column says, held back
where weights matter to earlier devices. `sources` says from whom a device should learn, and in which order; `change`
whether a base that did ranks other programs worse.
"""

from .change import Change, measure_change
from .config import PAPER, PAPER_EPOCHS, ContinualConfig
from .device import AddedDevice, add_device, start_base
from .distill import Distilled, GateSummary, distill, gate
from .fisher import fisher_average, fisher_diagonal, remember
from .learn import learn
from .sources import Source, SourceRules, choose_sources, rank_agreement

__all__ = [
    "PAPER",
    "PAPER_EPOCHS",
    "AddedDevice",
    "Change",
    "ContinualConfig",
    "Distilled",
    "GateSummary",
    "Source",
    "SourceRules",
    "add_device",
    "choose_sources",
    "distill",
    "fisher_average",
    "fisher_diagonal",
    "gate",
    "learn",
    "measure_change",
    "rank_agreement",
    "remember",
    "start_base",
]

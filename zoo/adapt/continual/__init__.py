"""Continual knowledge distillation: one knowledge base that learns device after device (papers: TCL, section 6).

`add_device` runs the two phases that learn a device, and `grow_base` adds corpora to a checkpoint with lineage, scores
on all devices so far and resume. Needs torch.
"""

from .config import ContinualConfig, DistillConfig
from .device import add_device, learning_order, start_base
from .knowledge_base import grow_base
from .phases import fisher_diagonal

__all__ = [
    "ContinualConfig",
    "DistillConfig",
    "add_device",
    "fisher_diagonal",
    "grow_base",
    "learning_order",
    "start_base",
]

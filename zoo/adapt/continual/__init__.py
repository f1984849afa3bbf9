"""Continual knowledge distillation: one knowledge base that learns device after device (papers: TCL, section 6).

`phases` are the two trainings that learn a device, `add_device` runs both, `grow_base` adds corpora to a checkpoint
with lineage, scores on all devices so far and resume, and `method` adapts with a knowledge base. Needs torch.
"""

from .config import ContinualConfig, DistillConfig
from .device import add_device, learning_order, start_base
from .knowledge_base import grow_base
from .phases import fisher_diagonal, learn

__all__ = [
    "ContinualConfig",
    "DistillConfig",
    "add_device",
    "fisher_diagonal",
    "grow_base",
    "learn",
    "learning_order",
    "start_base",
]

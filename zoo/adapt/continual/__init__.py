"""Continual knowledge distillation: one knowledge base that learns device after device (papers: TCL, section 6).

`phases` are the two trainings that learn a device, `add_device` runs both, `grow_base` adds corpora to a checkpoint
with lineage, scores on all devices so far and resume, and `method` adapts with a knowledge base. Needs torch.
"""

from .config import PAPER, PAPER_EPOCHS, ContinualConfig, DistillConfig
from .curriculum import DeviceRecord, learnt_devices
from .device import AccuracyChange, DeviceResult, add_device, learning_order, measure_change, start_base
from .knowledge_base import KnowledgeBase, grow_base
from .phases import distill, fisher_average, fisher_diagonal, gate, learn, remember

__all__ = [
    "PAPER",
    "PAPER_EPOCHS",
    "AccuracyChange",
    "ContinualConfig",
    "DeviceRecord",
    "DeviceResult",
    "DistillConfig",
    "KnowledgeBase",
    "add_device",
    "distill",
    "fisher_average",
    "fisher_diagonal",
    "gate",
    "grow_base",
    "learn",
    "learning_order",
    "learnt_devices",
    "measure_change",
    "remember",
    "start_base",
]

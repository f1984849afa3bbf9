"""Knowledge bases that travel: one checkpoint that learns corpus after corpus, and tells what it has learnt.

`zoo.adapt.continual` is how a base learns a device. Here are the corpora, the tasks kept apart, the lineage, the
scores on every device so far, and runs that go on after a kill. Needs torch.
"""

from .begin import Beginning
from .errors import KnowledgeBaseError, LearntAlreadyError, NotAKnowledgeBaseError, NotLearntError
from .facts import LearntDevice, learnt_devices
from .grow import Grown, Told, grow_base
from .settings import DistillSettings

__all__ = [
    "Beginning",
    "DistillSettings",
    "Grown",
    "KnowledgeBaseError",
    "LearntAlreadyError",
    "LearntDevice",
    "NotAKnowledgeBaseError",
    "NotLearntError",
    "Told",
    "grow_base",
    "learnt_devices",
]

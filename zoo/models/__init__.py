"""Cost models: one file an architecture or its family, one registry, and checkpoints that hold no code.

`create` makes a model, `Checkpoint.load` reads one that was audited first. Every file here is imported, so that a new
architecture is one file that registers its class, and one recipe.
"""

from importlib import import_module
from pkgutil import iter_modules

from .base import CostModel, ModelConfig
from .checkpoint import Checkpoint
from .config import CheckpointConfig
from .context import ContextModel
from .ensemble import Ensemble, register_ensembles
from .errors import CheckpointError, CorruptCheckpointError, ModelConfigError
from .progressive import ProgressiveNetwork, register_knowledge_bases
from .registry import create, get_architecture, list_architectures
from .tilenet import TileNet
from .trees import XGBoostRanker

for _file in iter_modules(__path__):
    import_module(f".{_file.name}", __name__)
register_knowledge_bases()
register_ensembles()

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointError",
    "ContextModel",
    "CorruptCheckpointError",
    "CostModel",
    "Ensemble",
    "ModelConfig",
    "ModelConfigError",
    "ProgressiveNetwork",
    "TileNet",
    "XGBoostRanker",
    "create",
    "get_architecture",
    "list_architectures",
]

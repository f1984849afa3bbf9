"""Cost models: one file an architecture, one registry, and checkpoints that hold no code.

`create` makes a model, `Checkpoint.load` reads one that was audited first.
"""

from . import atformer as _atformer  # noqa: F401  (each registers itself)
from . import lightgbm_ranker as _lightgbm_ranker  # noqa: F401
from . import lstm as _lstm  # noqa: F401
from . import tabnet as _tabnet  # noqa: F401
from . import tcl as _tcl  # noqa: F401
from . import tenset_mlp as _tenset_mlp  # noqa: F401
from . import tilenet as _tilenet  # noqa: F401
from . import tlp as _tlp  # noqa: F401
from . import xgboost_ranker as _xgboost_ranker  # noqa: F401
from .base import CostModel, ModelConfig
from .checkpoint import Checkpoint, CheckpointConfig
from .committee import Committee, register_committees
from .errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    FeatureSchemaError,
    ModelConfigError,
    NewerFormatError,
    NotFittedError,
    UnknownArchitectureError,
)
from .informed import ContextModel
from .progressive import Progressive, register_knowledge_bases
from .registry import (
    Architecture,
    create,
    get_architecture,
    list_architectures,
    list_committees,
    list_knowledge_bases,
    make_config,
)
from .scan import selective_scan
from .tilenet import TileNet
from .trees import TreeModel

register_knowledge_bases()
register_committees()

__all__ = [
    "Architecture",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointError",
    "CheckpointNotFoundError",
    "Committee",
    "ContextModel",
    "CorruptCheckpointError",
    "CostModel",
    "FeatureSchemaError",
    "ModelConfig",
    "ModelConfigError",
    "NewerFormatError",
    "NotFittedError",
    "Progressive",
    "TileNet",
    "TreeModel",
    "UnknownArchitectureError",
    "create",
    "get_architecture",
    "list_architectures",
    "list_committees",
    "list_knowledge_bases",
    "make_config",
    "selective_scan",
]

"""What a user touches: the client that fetches, checks, adapts and plugs cost models into TVM.

Names are imported when first used, so that `import tchub.hub` needs neither torch nor TVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation.adapt import adapt
    from .adaptation.config import AdaptConfig
    from .api import list_checkpoints, load, pull, refresh_index, resolve
    from .device.detect import detect_local
    from .networks.tuned import load_tuned
    from .publishing.check import check
    from .publishing.contribute import contribute
    from .publishing.contribute_facts import CardFacts, ContributionConfig
    from .publishing.publish import PublishConfig, publish
    from .records.database import database
    from .registry.pretrained import PretrainedModel
    from .search.cost_model import tvm_cost_model
    from .search.scheduler import task_scheduler
    from .search.strategy import search_strategy
    from .tuning.collect import collect
    from .tuning.config import TuneConfig
    from .tuning.tune import tune

_HOME = {
    "list_checkpoints": ".api",
    "pull": ".api",
    "load": ".api",
    "refresh_index": ".api",
    "resolve": ".api",
    "adapt": ".adaptation.adapt",
    "AdaptConfig": ".adaptation.config",
    "tune": ".tuning.tune",
    "TuneConfig": ".tuning.config",
    "load_tuned": ".networks.tuned",
    "tvm_cost_model": ".search.cost_model",
    "search_strategy": ".search.strategy",
    "task_scheduler": ".search.scheduler",
    "database": ".records.database",
    "collect": ".tuning.collect",
    "detect_local": ".device.detect",
    "check": ".publishing.check",
    "publish": ".publishing.publish",
    "PublishConfig": ".publishing.publish",
    "contribute": ".publishing.contribute",
    "ContributionConfig": ".publishing.contribute_facts",
    "CardFacts": ".publishing.contribute_facts",
    "PretrainedModel": ".registry.pretrained",
}

__all__ = [
    "AdaptConfig",
    "CardFacts",
    "ContributionConfig",
    "PretrainedModel",
    "PublishConfig",
    "TuneConfig",
    "adapt",
    "check",
    "collect",
    "contribute",
    "database",
    "detect_local",
    "list_checkpoints",
    "load",
    "load_tuned",
    "publish",
    "pull",
    "refresh_index",
    "resolve",
    "search_strategy",
    "task_scheduler",
    "tune",
    "tvm_cost_model",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    # Kept: the next use costs nothing.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

"""What a user touches: the client that fetches, checks, adapts and plugs cost models into TVM.

Names are imported when first used, so that `import tchub.hub` needs neither torch nor TVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation.adapt import adapt as adapt
    from .adaptation.config import AdaptConfig as AdaptConfig
    from .api import list_checkpoints as list_checkpoints
    from .api import load as load
    from .api import pull as pull
    from .api import resolve as resolve
    from .device.detect import detect_local as detect_local
    from .networks.tuned import load_tuned as load_tuned
    from .publishing.check import check as check
    from .publishing.contribute import ContributionConfig as ContributionConfig
    from .publishing.contribute import contribute as contribute
    from .publishing.contribute_facts import CardFacts as CardFacts
    from .publishing.publish import PublishConfig as PublishConfig
    from .publishing.publish import publish as publish
    from .records.database import database as database
    from .registry.pretrained import PretrainedModel as PretrainedModel
    from .registry.trust import refresh_index as refresh_index
    from .search.cost_model import tvm_cost_model as tvm_cost_model
    from .search.engines import search_strategy as search_strategy
    from .search.scheduler import task_scheduler as task_scheduler
    from .search.schedules import ScheduleDatabase as ScheduleDatabase
    from .tuning.collect import collect as collect
    from .tuning.config import TuneConfig as TuneConfig
    from .tuning.tune import tune as tune

_MODULES = {
    "adaptation.adapt": ["adapt"],
    "adaptation.config": ["AdaptConfig"],
    "api": ["list_checkpoints", "load", "pull", "resolve"],
    "device.detect": ["detect_local"],
    "networks.tuned": ["load_tuned"],
    "publishing.check": ["check"],
    "publishing.contribute": ["ContributionConfig", "contribute"],
    "publishing.contribute_facts": ["CardFacts"],
    "publishing.publish": ["PublishConfig", "publish"],
    "records.database": ["database"],
    "registry.pretrained": ["PretrainedModel"],
    "registry.trust": ["refresh_index"],
    "search.cost_model": ["tvm_cost_model"],
    "search.engines": ["search_strategy"],
    "search.scheduler": ["task_scheduler"],
    "search.schedules": ["ScheduleDatabase"],
    "tuning.collect": ["collect"],
    "tuning.config": ["TuneConfig"],
    "tuning.tune": ["tune"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    # Kept: the next use costs nothing.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

"""What a user touches: the client that fetches, checks, adapts and plugs cost models into TVM.

Names are imported when first used, so that `import tchub.hub` needs neither torch nor TVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import list_checkpoints, load, pull
    from .device.detect import detect_local
    from .tuning.adapt import adapt
    from .tuning.collect import collect
    from .tuning.cost_model import tvm_cost_model
    from .tuning.tune import tune

_HOME = {
    "list_checkpoints": ".api",
    "pull": ".api",
    "load": ".api",
    "adapt": ".tuning.adapt",
    "tune": ".tuning.tune",
    "tvm_cost_model": ".tuning.cost_model",
    "collect": ".tuning.collect",
    "detect_local": ".device.detect",
}

__all__ = ["adapt", "collect", "detect_local", "list_checkpoints", "load", "pull", "tune", "tvm_cost_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    # Kept: the next use costs nothing.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

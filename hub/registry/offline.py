"""Is the network ruled out by the environment?"""

from __future__ import annotations

import os

VARIABLES = ("TCHUB_OFFLINE", "HF_HUB_OFFLINE")
_TRUE = ("1", "ON", "YES", "TRUE")  # as huggingface_hub reads its own


def network_ruled_out() -> bool:
    """Whether TCHUB_OFFLINE or HF_HUB_OFFLINE is set."""
    return any(os.environ.get(name, "").upper() in _TRUE for name in VARIABLES)

"""Stock TVM's workers at their best: PyTorch is hidden from them.

A new worker of stock TVM 0.27 spends 15 s or more on its tensor intrinsics, which are made by a parser that looks
through every loaded module; and stock starts new workers for every batch that it builds. Where PyTorch is installed,
TVM's import loads it, and the workers, which do not need it, take some five seconds longer still: what that costs
is told apart.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def without_pytorch() -> Iterator[None]:
    """Processes that are started inside cannot import PyTorch."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="tchub-bench-") as folder:
        Path(folder, "torch.py").write_text("raise ImportError('hidden from this process')\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *([before] if before else [])])
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before

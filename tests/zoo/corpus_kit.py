"""What the tests of corpora share."""

from __future__ import annotations

META = {
    "device": "test-cpu",
    "family": "epyc",
    "cpu_model": "Test CPU",
    "target": {"kind": "llvm", "num-cores": 1},
    "tvm_version": "0.27.0",
    "licence": "CC0-1.0",
    "command": "tchub collect",
}

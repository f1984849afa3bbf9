"""The scope in which two latencies may be compared; that of whole corpora is in `zoo.corpus.schema`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..device.detect import LocalDevice


@dataclass(frozen=True)
class MeasurementScope:
    """Everything that must be equal before two latencies may be compared.

    Attributes:
        device: name of a device of the zoo, or of the one at hand.
        cpu_model: as the operating system names it.
        target: the TVM target as text, the same for two targets that mean the same.
        threads: of a program.
        tvm_version: of the TVM that compiled the programs.
        weights: see `TimingConfig`.
    """

    device: str
    cpu_model: str
    target: str
    threads: int
    tvm_version: str
    weights: int = 0

    @classmethod
    def of(cls, device: str, cpu_model: str, target: Any, threads: int, weights: int = 0) -> MeasurementScope:
        """Return the scope of measurements with the installed TVM for a target, which may be a dictionary or a tag."""
        import tvm

        return cls(device, cpu_model, str(tvm.target.Target(target)), threads, str(tvm.__version__), weights)

    @classmethod
    def of_device(cls, device: LocalDevice, weights: int = 0) -> MeasurementScope:
        """Return the scope of programs for a device's own target and threads."""
        return cls.of(device.device.name, device.cpu_model, device.target, device.cores, weights)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; without weights it is that of the scopes before there were any."""
        return {name: value for name, value in asdict(self).items() if name != "weights" or value}

    @property
    def key(self) -> str:
        """16 hex digits of the scope."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

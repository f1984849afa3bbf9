"""Feature schemas: the input contract that a checkpoint is bound to, by name and version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ..primitives import PrimitiveSequence
from .encoder import Encoder
from .errors import DeviceKindError, FeatureSourceError, UnknownSchemaError
from .rows import CPU, GPU
from .statements import STATEMENT_ROWS, STATEMENT_WIDTH

if TYPE_CHECKING:
    from ..devices import Device


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """What a matrix of a program looks like.

    Attributes:
        name: e.g. `tcl-cpu`.
        kind: `cpu` or `gpu`; picks the row layout (see `rows`).
        rows: rows in all, the hardware row included.
        width: columns.
        hardware: whether the last row describes the device (TCL table 1).
        version: raised whenever the meaning of a column changes; a checkpoint names it.
        source: what a row describes: `primitives`, or `statements` (see `statements`), which `extract` cannot make.
    """

    name: str
    kind: str
    rows: int
    width: int
    hardware: bool
    version: int = 1
    source: str = "primitives"

    @property
    def primitives(self) -> int:
        """Rows for primitives; longer sequences are cropped to this many."""
        return self.rows - self.hardware

    def extract(self, sequences: Sequence[PrimitiveSequence], device: Device | None = None) -> np.ndarray:
        """Matrices of the programs, float32 of shape (N, rows, width).

        Rows of padding are zero. The hardware row is zero without a device, and the schemas without
        one ignore the device, so that a model can be asked about programs alone.

        Raises:
            DeviceKindError: the device is not of the schema's kind.
            FeatureSourceError: the schema is one of statements, which a sequence does not tell.
        """
        if self.source != "primitives":
            raise FeatureSourceError(
                f"the schema {self.name} describes {self.source}, which need a lowered program",
                remedy="Make them by tchub.zoo.replay.store.statement_features and statement_matrices.",
                schema=self.name,
                source=self.source,
            )
        if device is not None and device.kind != self.kind:
            raise DeviceKindError(
                f"the schema {self.name} describes programs for a {self.kind.upper()}, "
                f"but {device.name} is a {device.kind.upper()}",
                remedy=f"Use a checkpoint and a device of one kind, e.g. the schema "
                f"{self.name.replace(self.kind, device.kind)}.",
                schema=self.name,
                device=device.name,
            )
        matrices = np.zeros((len(sequences), self.rows, self.width), np.float32)
        matrices[:, : self.primitives] = _encoder(self.kind).matrices(sequences, self.primitives)
        if self.hardware and device is not None:
            matrices[:, -1] = device.hardware_row(self.width)
        return matrices


SCHEMAS: dict[str, FeatureSchema] = {
    schema.name: schema
    for schema in (
        FeatureSchema("tcl-cpu", "cpu", 26, 22, hardware=True),
        FeatureSchema("tcl-gpu", "gpu", 41, 20, hardware=True),
        FeatureSchema("tlp-cpu", "cpu", 25, 22, hardware=False),
        FeatureSchema("tlp-gpu", "gpu", 40, 20, hardware=False),
        FeatureSchema("statements-cpu", "cpu", STATEMENT_ROWS, STATEMENT_WIDTH, hardware=False, source="statements"),
        FeatureSchema("statements-gpu", "gpu", STATEMENT_ROWS, STATEMENT_WIDTH, hardware=False, source="statements"),
    )
}


def get_schema(name: str) -> FeatureSchema:
    """The schema of that name.

    Raises:
        UnknownSchemaError: there is none.
    """
    if name not in SCHEMAS:
        raise UnknownSchemaError(
            f"no feature schema is called {name!r}",
            remedy=f"Use one of {', '.join(SCHEMAS)}; a newer checkpoint may need a newer tchub.",
            name=name,
            known=list(SCHEMAS),
        )
    return SCHEMAS[name]


@cache
def _encoder(kind: str) -> Encoder:
    return Encoder(CPU if kind == "cpu" else GPU)

"""Feature schemas: the input contract that a checkpoint is bound to, by name and version.

What makes the matrices is imported when the first one is made: the names alone are asked for far more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import TchubError
from .columns import PROGRAM_COLUMNS, STATEMENT_ROWS, STATEMENT_WIDTH

if TYPE_CHECKING:
    import numpy as np

    from ..devices import Device
    from ..primitives import PrimitiveSequence


class DeviceKindError(TchubError):
    """A CPU schema was given a GPU, or the other way round. Fields: `schema`, `device`."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """The layout of a program's matrix.

    Attributes:
        name: e.g. `tcl-cpu`.
        kind: `cpu` or `gpu`; picks the row layout (see `rows`).
        rows: rows in all, the hardware row included.
        width: columns.
        hardware: whether the last row describes the device (TCL table 1); of a `nest`, the end of its one row.
        version: raised whenever the meaning of a column changes; a checkpoint names it.
        source: what a row describes: `primitives`, the whole `nest` (see `nest_columns`), or `statements` (see
            `statements`), which `extract` cannot make.
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
        """Return the number of rows for primitives; longer sequences are cropped to this many."""
        return self.rows - self.hardware

    def extract(self, sequences: Sequence[PrimitiveSequence], device: Device | None = None) -> np.ndarray:
        """Return the matrices of the programs, float32 of shape (N, rows, width).

        Rows of padding are zero. The hardware row is zero without a device, and the schemas without
        one ignore the device, so that a model can be asked about programs alone.

        Raises:
            DeviceKindError: the device is not of the schema's kind.
            TchubError: the schema is one of statements, which need a lowered program.
        """
        import numpy as np

        if self.source == "statements":
            raise TchubError(
                f"the schema {self.name} describes {self.source}, which need a lowered program",
                remedy="Make them by tchub.zoo.corpus.replay.statements.statement_features and statement_matrices.",
            )
        if device is not None and device.kind != self.kind:
            raise DeviceKindError(
                f"the schema {self.name} describes programs for a {self.kind.upper()}, "
                f"but {device.name} is a {device.kind.upper()}",
                remedy=f"Use a checkpoint and a device of one kind, e.g. the schema "
                f"{self.name.replace(self.kind, device.kind)}.",
            )
        matrices = np.zeros((len(sequences), self.rows, self.width), np.float32)
        if self.source == "nest":
            from .nest_columns import encoder

            matrices[:, 0, :PROGRAM_COLUMNS] = encoder(self.kind).rows(sequences, compute_units(device))
            if device is not None:
                matrices[:, 0, PROGRAM_COLUMNS:] = device.hardware_row()
            return matrices
        from .rows import encoder

        matrices[:, : self.primitives] = encoder(self.kind).matrices(sequences, self.primitives)
        if self.hardware and device is not None:
            matrices[:, -1] = device.hardware_row()
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
        FeatureSchema("nest-cpu", "cpu", 1, PROGRAM_COLUMNS + 22, hardware=True, source="nest"),
        FeatureSchema("nest-gpu", "gpu", 1, PROGRAM_COLUMNS + 20, hardware=True, source="nest"),
    )
}


def get_schema(name: str) -> FeatureSchema:
    """Return the schema of that name.

    Raises:
        TchubError: there is none.
    """
    if name not in SCHEMAS:
        raise TchubError(
            f"no feature schema is called {name!r}",
            remedy=f"Use one of {', '.join(SCHEMAS)}; a newer checkpoint may need a newer tchub.",
            known=list(SCHEMAS),
        )
    return SCHEMAS[name]


def compute_units(device: Device | None) -> float:
    """Return the multiprocessors of a GPU (taken for 64 cores each), cores of a CPU; 0 without a device."""
    numbers = device.spec.values() if device else {}
    return (numbers["cuda_cores"] or 0) / 64 if "cuda_cores" in numbers else float(numbers.get("cores") or 0)

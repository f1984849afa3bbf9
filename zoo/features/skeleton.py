"""A design space's matrices without its sequences: what all candidates share is worked out once.

The candidates of a design space are one list of primitives whose numbers wait for the sampled decisions. Which
numbers those are, and where they go in a matrix, is known before the first candidate; a batch of candidates is
then a table of integers, and a few array operations make its matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..primitives import PrimitiveSequence
from ..primitives.late import Decision, Late
from .late_numbers import LateNumbers
from .nest import outline, shape_of
from .nest_columns import PROGRAM_COLUMNS, Plan
from .row_skeleton import RowSkeleton
from .rows import CPU, GPU
from .schema import FeatureSchema, compute_units

if TYPE_CHECKING:
    from ..devices import Device
    from ..primitives.template import Template


class Skeleton:
    """Matrices of a template's candidates, the very ones that the schema extracts from their sequences.

    Args:
        template: the design space.
        schema: any but one of statements.
        device: fills the hardware row or columns; None leaves them zero.

    Raises:
        DeviceKindError: the device is not of the schema's kind.
        FeatureSourceError: the schema is one of statements.
    """

    def __init__(self, template: Template, schema: FeatureSchema, device: Device | None = None) -> None:
        self.template, self.schema, self.device = template, schema, device
        self._base = schema.extract([PrimitiveSequence(())], device)[0]
        self._fill = self._nest() if schema.source == "nest" else self._rows()

    def features(self, decisions: Sequence[Sequence[Decision]]) -> np.ndarray:
        """Matrices of candidates, float32 of shape (N, rows, width).

        Args:
            decisions: of each candidate what its i-th sampling instruction answered, as for `Template.fill`.

        Raises:
            TraceFormatError: a decision is not what its instruction may answer.
        """
        out = np.empty((len(decisions), *self._base.shape), np.float32)
        out[:] = self._base
        if not len(decisions) or (self._fill is not None and self._fill(decisions, out)):
            return out
        return self.schema.extract([self.template.fill(d) for d in decisions], self.device)

    def _nest(self) -> Callable[[Sequence[Sequence[Decision]], np.ndarray], bool] | None:
        """What writes the columns of the loop nest; None where the decisions move loops, not only sizes."""
        told = [shape_of(draft) for draft in self.template.drafts]
        if any(isinstance(place, Late) for (_, places, _, _), _ in told for place in places):
            return None
        plan, units = Plan(outline(tuple(shape for shape, _ in told))), compute_units(self.device)
        numbers = [number for _, values in told for number in values]
        places = [i for i, number in enumerate(numbers) if isinstance(number, Late)]
        known = np.array([0 if isinstance(number, Late) else number for number in numbers], np.int64)
        late = LateNumbers([number for number in numbers if isinstance(number, Late)])

        def fill(decisions: Sequence[Sequence[Decision]], out: np.ndarray) -> bool:
            values = np.repeat(known[None], len(decisions), axis=0)
            values[:, places] = late.values(decisions)
            out[:, 0, :PROGRAM_COLUMNS] = plan.columns(values, units)
            return True

        return fill

    def _rows(self) -> Callable[[Sequence[Sequence[Decision]], np.ndarray], bool]:
        return RowSkeleton(self.template.drafts, CPU if self.schema.kind == "cpu" else GPU, self.schema.primitives).fill

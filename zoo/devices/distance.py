"""How near two devices are: which checkpoint fits this device, and why another does not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .spec import Device

SAME_DEVICE, SAME_FAMILY, SAME_ISA_AND_VENDOR, SAME_ISA, OTHER, INCOMPATIBLE = range(6)


@dataclass(frozen=True, order=True)
class Distance:
    """Ordered: the smaller, the nearer.

    Attributes:
        rank: 0 same device, 1 same family, 2 same instruction set and vendor, 3 same instruction set,
            4 other of the same kind, 5 a CPU against a GPU, which never fit.
        gap: how far the spec sheets are apart: root mean square of the differences of log2(1 + x) over
            the numbers that both know; so 1 means a factor of two. It decides within a rank.
        reason: in words.
    """

    rank: int
    gap: float
    reason: str = field(compare=False)

    @property
    def compatible(self) -> bool:
        """Whether a model for one may be used on the other at all."""
        return self.rank < INCOMPATIBLE


def distance(a: Device, b: Device) -> Distance:
    """The distance of two devices; symmetric, and rank 0 with gap 0 for a device and itself."""
    if a.kind != b.kind:
        return Distance(INCOMPATIBLE, math.inf, f"{a.name} is a {a.kind}, {b.name} is a {b.kind}")
    gap = _gap(a, b)
    apart = f"spec sheets {2**gap:.2g}x apart"
    if a.name == b.name:
        return Distance(SAME_DEVICE, gap, f"the same device, {a.name}")
    if a.family == b.family:
        return Distance(SAME_FAMILY, gap, f"the same family, {a.family} ({a.name} and {b.name}), {apart}")
    if a.isa == b.isa and a.vendor == b.vendor:
        return Distance(SAME_ISA_AND_VENDOR, gap, f"both {a.vendor} {a.isa}, another family ({b.family}), {apart}")
    if a.isa == b.isa:
        return Distance(SAME_ISA, gap, f"both {a.isa}, another vendor ({a.vendor} and {b.vendor}), {apart}")
    return Distance(OTHER, gap, f"another instruction set ({a.isa} and {b.isa}), {apart}")


def _gap(a: Device, b: Device) -> float:
    ours, theirs = a.spec.values(), b.spec.values()
    steps = [
        math.log2(1 + x) - math.log2(1 + y)
        for name in ours
        if (x := ours[name]) is not None and (y := theirs[name]) is not None
    ]
    return math.sqrt(sum(s * s for s in steps) / len(steps)) if steps else math.inf

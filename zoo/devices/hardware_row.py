"""The hardware row: a spec sheet as the last row of a feature matrix (TCL section 5.1, table 1).

TCL's matrices are 26x22 on CPU and 41x20 on GPU: 25x22 and 40x20 of schedule primitives, and one row of
hardware. The paper gives neither order nor scale of that row; fixed here as:

CPU, width 22
    0-10   the eleven numbers in the order of table 1
    11-21  for each of them, 1 where it is known, 0 where it is not

GPU, width 20
    0-11   the twelve numbers in the order of table 1
    12-19  known markers of base, boost and memory clock, FP64, FP32, FP16, INT8 and INT4
           (cores, memory size, bus width and bandwidth are always published: a sheet without is refused)

A number x becomes log2(1 + x / unit) / scale, about 0 to 3 over the hardware of the last ten years; an
unknown number becomes 0. The row is never all zero, so that it is never taken for padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import TchubError

if TYPE_CHECKING:
    import numpy as np

# name -> (unit, scale) of log2(1 + x / unit) / scale
CPU_SCALES: dict[str, tuple[float, float]] = {
    "cores": (1, 3),
    "threads": (1, 3),
    "turbo_ghz": (1, 1),
    "boost_ghz": (1, 1),
    "l1_kib": (8, 1),
    "l2_kib": (64, 1.5),
    "l3_mib": (1, 3),
    "memory_channels": (1, 1.25),
    "memory_capacity_gib": (16, 3),
    "memory_bandwidth_gbs": (8, 2),
    "simd_bytes": (8, 1),
}
GPU_SCALES: dict[str, tuple[float, float]] = {
    "cuda_cores": (256, 2),
    "base_mhz": (500, 1),
    "boost_mhz": (500, 1),
    "memory_clock_mhz": (500, 1.5),
    "memory_gib": (4, 2),
    "memory_bus_bits": (64, 2.25),
    "memory_bandwidth_gbs": (100, 2),
    "fp64_tflops": (0.1, 3),
    "fp32_tflops": (1, 2),
    "fp16_tflops": (4, 2.5),
    "int8_tops": (8, 2.5),
    "int4_tops": (16, 2.5),
}
GPU_ALWAYS_KNOWN = ("cuda_cores", "memory_gib", "memory_bus_bits", "memory_bandwidth_gbs")

ROW_WIDTHS = {"cpu": 22, "gpu": 20}


def hardware_row(kind: str, values: Mapping[str, float | None], width: int, device: str) -> np.ndarray:
    """Return the row of one spec sheet: float32, shape (width,), laid out as the module says.

    Args:
        kind: "cpu" or "gpu"; values: the numbers of the sheet by name.
        device: its name, for the error.

    Raises:
        TchubError: another width than this kind's, or a GPU sheet lacks a number that has no marker.
    """
    import numpy as np

    expected = ROW_WIDTHS[kind]
    if width != expected:
        raise TchubError(
            f"{device} is a {kind}: its hardware row is {expected} wide, not {width}",
            remedy=f"use a {kind} feature schema, or a device of the other kind",
            expected=expected,
        )
    scales = CPU_SCALES if kind == "cpu" else GPU_SCALES
    unmarked = () if kind == "cpu" else GPU_ALWAYS_KNOWN
    if missing := [name for name in unmarked if values[name] is None]:
        raise TchubError(f"{device}: the spec sheet lacks {', '.join(missing)}", device=device)
    numbers = [np.log2(1 + (values[name] or 0.0) / unit) / scale for name, (unit, scale) in scales.items()]
    markers = [float(values[name] is not None) for name in scales if name not in unmarked]
    return np.asarray([*map(float, numbers), *markers], dtype=np.float32)

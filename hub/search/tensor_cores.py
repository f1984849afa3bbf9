"""Precisions by device, and design spaces of float16 on NVIDIA cards: MetaSchedule's rules for tensor cores.

TVM has them for float16 alone, accumulated in float16 or float32: by WMMA (sm_70 and later), and by MMA with `ldmatrix`
and a software pipeline that `cp.async` fills (sm_80 and later). It has none for bfloat16 and TF32.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tvm.ir.transform import Sequential
from tvm.ir.utils import derived_object
from tvm.s_tir import ScheduleError, transform
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.postproc import PyPostproc
from tvm.s_tir.meta_schedule.schedule_rule import PyScheduleRule
from tvm.target import Target

from ..device.cuda_compile import ASYNC_COPY, TENSOR_CORES, compute_capability
from ..device.tile_registers import has_tiles
from .errors import TuningError

if TYPE_CHECKING:
    from tvm import IRModule

PRECISIONS = ("float32", "float16", "bfloat16")
_RULES = "cuda-tensorcore"


def check_precision(precision: str, target: Mapping[str, Any], device: str) -> None:
    """Raise a TuningError unless a device of this target computes matrix products in the precision.

    Args:
        device: its name, for the message.
    """
    if precision == "float32":
        return
    is_card = target["kind"] == "cuda"
    if precision not in PRECISIONS:
        problem = f"{precision!r} is no precision that programs are searched in"
        remedy = "choose float32, float16 on a card's tensor cores, or bfloat16 on a CPU with AMX"
    elif precision == "bfloat16" and is_card:
        problem = f"{precision} is for CPUs with AMX, and programs would run on {device}, a card"
        remedy = "choose float16: TVM has no tensor-core instruction for bfloat16 and TF32"
    elif precision == "bfloat16":
        if has_tiles(Target(dict(target))):
            return
        problem = f"{precision} is for CPUs with AMX, which {device} lacks"
        remedy = "leave out --precision: Intel's Xeons have AMX from Sapphire Rapids on"
    elif not is_card:
        problem = f"{precision} is for NVIDIA cards with tensor cores, and programs would run on {device}, a CPU"
        remedy = "leave out --precision, or measure on a card with --device cuda"
    elif (capability := compute_capability(target)) < TENSOR_CORES:
        problem = f"{device} (sm_{capability}) has no tensor cores, which {precision} is for"
        remedy = "leave out --precision: its ordinary cores compute in float32; sm_70 (V100) and later have them"
    else:
        return
    raise TuningError(problem, remedy=remedy, precision=precision)


def space_generator(mod: IRModule, target: Any) -> Any:
    """Return MetaSchedule's space generator for a task, for tensor cores where it has float16 and the card has them."""
    capability = compute_capability(target.attrs) if target.kind.name == "cuda" else 0
    args = ms.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True)
    if capability < TENSOR_CORES or not any(str(getattr(arg, "dtype", "")) == "float16" for arg in args):
        return "post-order-apply"
    custom, wmma, mma, *scalar = ms.schedule_rule.ScheduleRule.create(_RULES)
    tilings = [wmma, mma] if capability >= ASYNC_COPY else [wmma]
    tensor: Any = TensorCoreTiling(tilings)
    check: Any = PermutedLayoutCheck()
    return ms.space_generator.PostOrderApply(
        sch_rules=[custom, tensor, *scalar],
        postprocs=[*ms.postproc.Postproc.create(_RULES), check],
        mutator_probs=ms.mutator.Mutator.create(_RULES),
    )


@derived_object
class TensorCoreTiling(PyScheduleRule):
    """Tile a block by each of several rules; TVM's own list tries the second where the first gives nothing."""

    def __init__(self, tilings: list[Any]) -> None:
        super().__init__()
        self._tilings = tilings

    def _initialize_with_tune_context(self, context: Any) -> None:
        for tiling in self._tilings:
            tiling._initialize_with_tune_context(context)

    def apply(self, sch: Any, block: Any) -> list[Any]:
        """Return the schedules of all rules; the schedule as it is where no tensor-core instruction fits."""
        before = len(sch.trace.insts)
        tiled: list[Any] = []
        for tiling in self._tilings:
            with suppress(ScheduleError):  # a loop lacks the factor that the rule then splits it by
                tiled += tiling.apply(sch.copy(), block)
        return [one for one in tiled if len(one.trace.insts) > before and _is_divisible(one)] or [sch]

    def clone(self) -> TensorCoreTiling:
        """Return a copy."""
        return TensorCoreTiling([tiling.clone() for tiling in self._tilings])


def _is_divisible(schedule: Any) -> bool:
    """Return whether each loop has the factor that its partitioned tile needs: TVM then writes -1 as the outermost."""
    decisions = schedule.trace.decisions
    tiles = [decisions[inst] for inst in schedule.trace.insts if inst.kind.name == "SamplePartitionedTile"]
    return all(int(tile[0]) > 0 for tile in tiles)


@derived_object
class PermutedLayoutCheck(PyPostproc):
    """Refuse programs whose tiles in shared memory `ldmatrix` cannot read: TVM finds that out when it lowers them."""

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, sch: Any) -> bool:
        """Return whether the program can be lowered up to the layout of its shared memory."""
        if not any(inst.kind.name == "ReadAt" for inst in sch.trace.insts):
            return True
        try:
            Sequential(
                [
                    transform.LowerInitBlock(), transform.PlanAndUpdateBufferAllocationLocation(),
                    transform.ConvertBlocksToOpaque(), transform.LiftThreadBinding(),
                    transform.CompactBufferAllocation(), transform.LowerAutoCopy(), transform.UnifyThreadBinding(),
                    transform.LowerMatchBuffer(), transform.InjectPermutedLayout(),
                ]
            )(sch.mod)  # fmt: skip
        except Exception:  # TVM raises errors of every class for a program that it cannot lower
            return False
        return True

    def clone(self) -> PermutedLayoutCheck:
        """Return a copy."""
        return PermutedLayoutCheck()

"""AutoTVM's records as schedules of TVM 0.27: the template's primitives as steps of a graph of stages.

`tchub.zoo.primitives.from_autotvm` reads what a template does with its knobs; here each primitive becomes the
step of the same meaning, and the replay of Ansor's steps does the rest. Double buffers are left out: they change no
loop. Packed weights (`dense_pack.x86`) are read in their plain order. Layouts blocked by channels and Winograd are
not known here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from ...errors import last_line
from ...primitives import Primitive, TraceFormatError, from_autotvm
from ...primitives.ansor import PARALLEL, UNROLL, VECTORIZE
from ...primitives.problem import problem
from .ansor import replay
from .operators import ReplayError, UnscheduledTask, make_workload, problem_tensors

TEMPLATES = (
    *("batch_matmul.cuda", "batch_matmul.x86", "dense_nopack.x86", "dense_pack.x86"),
    *("dense_large_batch.cuda", "dense_large_batch.gpu", "dense_small_batch.cuda", "dense_small_batch.gpu"),
    *("conv2d_nchw.cuda", "depthwise_conv2d_nchw.cuda"),
)
"""The templates that can be replayed."""
_KINDS = {"Parallel": PARALLEL, "Vectorize": VECTORIZE, "Unroll": UNROLL}
_LOOP_KINDS = {"Split", "Fuse", "Reorder", "Bind", *_KINDS}


def replay_knobs(workload_key: str, entity: Sequence[Any]) -> Any:
    """Return the `tvm.s_tir.Schedule` of an AutoTVM record.

    Args:
        workload_key: JSON `[template, args]`.
        entity: the knobs `[[name, kind, value], ...]`.

    Raises:
        ReplayError: a template that is not known, knobs that do not fit it, or a step that TVM refuses.
    """
    task = _template_workload(workload_key)
    template, args = json.loads(workload_key)
    try:
        sequence = from_autotvm(template, args, entity)
    except TraceFormatError as error:
        raise ReplayError("wrong-shape", error.message) from error
    return replay(task, _Steps(task).convert(sequence.primitives))


@lru_cache(256)
def _template_workload(workload_key: str) -> UnscheduledTask:
    try:
        template, args = msgspec.json.decode(workload_key, type=tuple[str, list[Any]])
        if template not in TEMPLATES:
            remedy = f"only these templates can be replayed: {', '.join(TEMPLATES)}"
            raise ReplayError("unknown-workload", f"the template {template} is not known", remedy=remedy)
        task = problem(template, args)
    except (ValueError, RecursionError, TraceFormatError) as error:
        raise ReplayError("unknown-workload", f"no template and its arguments: {last_line(error)}") from error
    if task is None or task.dtype != "float32":
        raise ReplayError("unknown-workload", f"no float32 operator: {workload_key[:120]}")
    return make_workload(problem_tensors(task))


@dataclass(eq=False, slots=True)
class _Stage:
    """A stage; for each of its loops the split step that made it, its place among the parts, and their extents."""

    loops: list[tuple[list[Any], int, Sequence[int]] | None]
    rank: int
    attached: bool = False


class _Steps:
    """Primitives as steps: blocks have numbers that stay, stages have places that shift."""

    def __init__(self, task: UnscheduledTask) -> None:
        self.steps: list[list[Any]] = []
        self.order = [_Stage([None] * len(info.shape + info.reduced), len(info.shape)) for info in task.stages]
        stages = list(zip(self.order, task.stages, strict=True))
        inputs = [stage for stage, info in stages if info.placeholder]
        computed = [stage for stage, info in stages if not info.placeholder]
        self.pad, self.product = computed[0], computed[-1]
        # What the product reads: of a convolution, the padded data.
        self.reads = [self.pad if len(computed) > 1 else inputs[0], inputs[1]]
        self.blocks: list[_Stage] = []
        self.inlined: list[_Stage] = []

    def convert(self, primitives: Sequence[Primitive]) -> list[list[Any]]:
        """Return the steps of all primitives."""
        for primitive in primitives:
            kind, (block, *numbers), names = primitive.kind, primitive.numbers, primitive.names
            named = [name == "@pad_temp" for name in names if name.startswith("@")]
            self.blocks += [self.pad if pad else self.product for pad in sorted(named, reverse=True)]
            stage = self.blocks[block]
            change = self._change_loops if kind in _LOOP_KINDS else self._change_graph
            change(kind, stage, self.order.index(stage), numbers, names)
        # Last, as Ansor does it: what is inlined has no block that a copy could be made of.
        return self.steps + [["CI", self.order.index(stage)] for stage in self.inlined]

    def _change_loops(self, kind: str, stage: _Stage, at: int, numbers: list[int], names: Sequence[str]) -> None:
        match kind:
            case "Split":
                loop, extent, *factors = numbers
                step = ["SP", at, loop, extent, factors[1:], 1]
                self.steps.append(step)
                stage.loops[loop : loop + 1] = [(step, part, factors) for part in range(len(factors))]
            case "Fuse":
                self.steps.append(["FU", at, numbers])
                stage.loops[numbers[0] : numbers[-1] + 1] = [None]
            case "Reorder":
                order = list(range(len(stage.loops)))
                for position, loop in zip(sorted(numbers), numbers, strict=True):
                    order[position] = loop
                self.steps.append(["RE", at, order])
                stage.loops = [stage.loops[loop] for loop in order]
            case "Bind":
                self.steps.append(["AN", at, numbers[0], names[0]])
                if stage.attached and (origin := stage.loops[numbers[0]]):
                    # Of a stage that is moved only the threads' number is sure: it must not shrink with what is left.
                    step, part, factors = origin
                    step[4:] = [list(factors[1:]), 1, 1] if part else [list(factors[:-1]), 0, 1]
            case "Unroll" if numbers[1] >= 0:
                text = f"auto_unroll_max_step${numbers[1]}" + ("$implicit" if "implicit" in names else "")
                self.steps.append(["PR", at, numbers[0], text])
            case _:
                self.steps.append(["AN", at, numbers[0], _KINDS[kind]])

    def _change_graph(self, kind: str, stage: _Stage, at: int, numbers: list[int], names: Sequence[str]) -> None:
        match kind:
            case "ComputeInline":
                self.inlined.append(stage)
            case "ComputeAt":
                location, target = numbers
                stage.attached = True
                self.steps.append(["CA", at, self.order.index(self.blocks[target]), location])
            case "CacheWrite":
                self.steps.append(["CHW", at, names[0]])
                self._add(at + 1, _Stage([None] * stage.rank, stage.rank))
            case "CacheRead":
                source = self.reads[numbers[0]]
                at_source = self.order.index(source)
                self.steps.append(["CHR", at_source, names[0], [at]])
                self.reads[numbers[0]] = self._add(at_source + 1, _Stage([None] * source.rank, source.rank))
            case "RFactor":
                self.steps.append(["RF", at, *numbers])
                self._add(at, _Stage([None] * len(stage.loops), stage.rank + 1))
                stage.loops = [None] * (stage.rank + 1)
            case "Annotate":
                pass
            case _:
                raise ReplayError("unknown-step", f"no template is expected to use {kind}")

    def _add(self, at: int, stage: _Stage) -> _Stage:
        self.order.insert(at, stage)
        self.blocks.append(stage)
        return stage

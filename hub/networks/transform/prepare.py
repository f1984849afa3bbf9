"""An imported network made ready for inference and for tuning: batch norms folded, convolutions channels-last.

What the import leaves open decides more than any schedule does. A batch norm that stands alone is a task of its own
and a pass over memory; and MetaSchedule vectorises the innermost loop, which for channels-first images of 7 or 14
columns is shorter than a vector register, while channels-last gives it the channels.

Exponentials and error functions become polynomials, as in PyTorch's own kernels: TVM calls libm for them, element by
element. They are right to the accuracy of float32: tests/hub/networks/transform/test_prepare.py holds them to 4e-7,
relative.
"""

from collections.abc import Collection, Sequence
from functools import cache
from math import prod
from typing import Any

import tvm
from tvm import IRModule, tirx
from tvm.ir import Call
from tvm.ir.transform import Sequential
from tvm.relax import backend, transform
from tvm.relax.analysis import has_reshape_pattern
from tvm.s_tir import Schedule
from tvm.sym import detect_linear_equation
from tvm.target import Target
from tvm.tirx import IterVar
from tvm_ffi import structural_map

from ....zoo.tile_instructions import Factors
from ...device.candidate import WEIGHTS
from ...device.statements import call_name, reads
from .. import LAYOUTS
from .attention import join_projections, pad_attention
from .batch_norms import fold_batch_norms
from .block_products import block_products
from .bounds import bounded_indices
from .channel_reductions import channel_reduction, mark_reduction, whole_reduction
from .code_tables import code_tables, elementwise_tables
from .column_padding import pad_columns
from .default_schedules import SPACES_OF_TILES
from .dynamic_ranges import dynamic_ranges
from .elementwise import blocks_in, elementwise, inline_beside_sums, is_of_blocks, mark_elementwise
from .exponentials import sigmoids
from .fold import fold_arrays, fold_operators, scales_as_parameters, without_subnormals
from .fused_attention import AttentionShape, attention, fuse_attention
from .fused_depthwise import DepthwiseShape, expanded_depthwise, fuse_depthwise
from .half_storage import half_storage
from .parallel_convolutions import join_parallel_convolutions
from .recurrence import recurrences
from .relax_graph import kernel_pass
from .reshapes import elementwise_first
from .row_padding import pad_rows, pointwise_products
from .simplify import channels_first_only, legal_operators, settled_choices, simplify
from .softmax import by_lanes, softmax
from .stored_codes import stored_codes
from .tile_attention import tile_attentions
from .tile_products import is_of_tiles, tile_products
from .whole_products import shifted_bounds, whole_products
from .winograd import ConvShape, winograd, winograd_input, winograd_output

OperatorShape = ConvShape | AttentionShape | DepthwiseShape
"""An operator that can be computed otherwise."""


def for_inference(
    mod: IRModule,
    layout: str = LAYOUTS[0],
    *,
    cpu: bool = True,
    lanes: int = 16,
    of_bytes: Sequence[Factors] = (),
    pairs: bool = False,
    tables: bool = False,
    precision: str = "float32",
) -> IRModule:
    """Return an imported Relax module with its operators as they are run.

    Args:
        mod: high-level Relax, weights as constants.
        layout: one of `networks.LAYOUTS`. Inputs and outputs of the network keep the layout that they had.
        cpu: compute 1x1 convolutions as products, and use the design spaces that `register_rules` makes known.
        lanes: numbers of a CPU's vector register, of which products get whole ones: 16 with AVX-512.
        of_bytes: the factors by which the CPU multiplies numbers of 8 bits, as a quantised network's products are
            computed then; see `tile_registers.byte_factors`.
        pairs: the CPU adds up products of pairs of numbers of 16 bits, as those of recurrent layers with quantised
            weights become, and of a few rows with weights of 4 or 8 bits.
        tables: the CPU looks up codes of 8 bits at once, by which quantised networks have their activations then.
        precision: `float16`: matrix products and convolutions read float16 and add up in float32; what stands between
            them is stored in float16, and softmax, norms, inputs and outputs stay in float32. `bfloat16`: those with
            weights, and attention's, on a CPU's tile registers.
    """
    mixed = [transform.ToMixedPrecision()] if precision == "float16" else []
    half = precision == "bfloat16"
    steps = _inference_passes(cpu, lanes, mixed, of_bytes, half, tables) if layout == LAYOUTS[0] else mixed
    layers = [recurrences(cpu, lanes, pairs), *([block_products(lanes)] if cpu and pairs else [])]
    return _run([legal_operators(), bounded_indices(), *layers, *steps, without_subnormals()], mod)


def lower(graph: IRModule, otherwise: Collection[OperatorShape] = (), *, cpu: bool = True) -> IRModule:
    """Lower what `for_inference` gives to fused TIR functions, the tasks.

    Args:
        otherwise: convolutions to compute by Winograd's algorithm, and attentions and pairs of a 1x1 and a depthwise
            convolution to compute by one function each.
    """
    convolutions = [shape for shape in otherwise if isinstance(shape, ConvShape)]
    attentions = [shape for shape in otherwise if isinstance(shape, AttentionShape)]
    pairs = [shape for shape in otherwise if isinstance(shape, DepthwiseShape)]
    fused = [fuse_attention(attentions)] * bool(attentions) + [fuse_depthwise(pairs)] * bool(pairs)
    dead = [transform.DeadCodeElimination()] * bool(fused)
    return _run([winograd(convolutions), *fused, *dead, *_tensor_functions(cpu)], graph)


@cache
def register_rules() -> None:
    """Make the rules of functions with design spaces of their own known to MetaSchedule, on CPUs.

    They are needed wherever design spaces are generated, and nowhere else.
    """
    own = (
        winograd_input, winograd_output, elementwise, channel_reduction, whole_reduction, softmax, attention,
        expanded_depthwise,
    )  # fmt: skip
    for name, space in ({f"tchub.{one.__name__}": one for one in own} | SPACES_OF_TILES).items():
        tvm.register_global_func(f"s_tir.meta_schedule.cpu.{name}", space, override=True)


def _run(passes: list[Any], mod: IRModule) -> IRModule:
    # Dispatch passes ask for a target; those of CPUs lower alike for all of them.
    with Target.current(allow_none=True) or Target("llvm"):
        return Sequential(passes)(mod)


def _tensor_functions(cpu: bool) -> list[Any]:
    """Return the passes from Relax operators to fused TIR functions, those that Relax's own pipelines run."""
    return [
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        elementwise_tables(),
        fold_operators(),
        transform.FuseOps(),
        transform.FuseTIR(),
        *([kernel_pass("TchubVectorisedRounding", _vectorised_rounding)] if cpu else []),
        half_storage(),
        *([own_spaces()] if cpu else []),
        transform.AttachAttrLayoutFreeBuffers(),  # weights may be stored as a schedule likes to read them
        kernel_pass("TchubKeepWeights", _keep_weights),
    ]


def own_spaces() -> Any:
    """Return a pass that names the design spaces of functions which MetaSchedule would schedule badly, or not at all.

    Reshapes, which cost nothing, and kernels that are written by hand stay as they are.
    """

    def marked(func: Any) -> Any:
        if not is_of_blocks(func) or has_reshape_pattern(func):
            return None
        schedule: Any = Schedule(IRModule({"main": func}))
        with_sums = any(block.init is not None for block in blocks_in(func))
        steps = (inline_beside_sums, mark_reduction) if with_sums else (mark_elementwise,)
        changes = [step(schedule) for step in steps]
        return schedule.mod["main"] if any(changes) else None

    return kernel_pass("TchubOwnSpaces", marked)


def _vectorised_rounding(function: Any) -> Any:
    """Round by an operator that TVM vectorises: on CPUs it rounds as the one that `LegalizeOps` takes, half to even."""

    def rewrite(call: Any) -> Any:
        return tirx.round(call.args[0]) if call_name(call) == "tirx.nearbyint" else call

    return function.with_body(structural_map(function.body, (Call, rewrite)))


def _keep_weights(function: Any) -> Any:
    """Let weights be stored as they are that TVM would permute wrongly for a schedule.

    Where a schedule splits a reversed axis, as a transposed convolution reads it, TVM rounds the index of the permuted
    weights the wrong way, and the program reads beside them. And it permutes weights as the last block reads them that
    takes them up: a bias whose sums are then split has a block for each part, whose index leaves the others out.
    """
    free = function.attrs.get(WEIGHTS, ()) if function.attrs else ()
    parameters = [(n, function.params[int(n)]) for n in free]
    kept = [n for n, one in parameters if not _reads_backwards(function, one) and _reads_whole(function, one)]
    return function.with_attr(WEIGHTS, kept) if len(kept) < len(free) else None


def _reads_whole(function: Any, parameter: Any) -> bool:
    """Return whether each block that reads a parameter reads all of it, and so on with what is computed of it alike.

    Kernels that are written by hand do not say what they read.
    """
    blocks = blocks_in(function)
    if not any(region.source.same_as(parameter) for block in blocks for region in block.reads):
        return False
    pending = [parameter]
    while pending:
        source = pending.pop()
        for block, region in [
            (b, region.region) for b in blocks for region in b.reads if region.source.same_as(source)
        ]:
            axes = [axis for axis in block.iter_vars if any(reads(index.min, axis.var) for index in region)]
            extents = [axis.dom.extent for axis in axes] + [index.extent for index in region]
            if prod(map(int, extents)) < prod(map(int, source.shape)):
                return False
            if len(block.writes) == 1 and all(axis.iter_type == IterVar.DataPar for axis in block.iter_vars):
                pending.append(block.writes[0].source)
    return True


def _reads_backwards(function: Any, parameter: Any) -> bool:
    """Return whether an index by which a tensor function reads a parameter falls as one of its loops goes on."""
    blocks = blocks_in(function)
    indices = [
        (index.min, [axis.var for axis in block.iter_vars])
        for block in blocks
        for region in block.reads
        if region.source.same_as(parameter)
        for index in region.region
    ]
    factors = [factor for index in indices for factor in detect_linear_equation(*index)[:-1]]
    return any(int(factor) < 0 for factor in factors)


@tvm.transform.module_pass(opt_level=0, name="ElementwiseWithTiles")
def _elementwise_with_tiles(mod: Any, _context: Any) -> Any:
    """Let what is computed element by element follow products of tiles; a network without any stays as it is."""
    functions = [one for one in mod.functions.values() if isinstance(one, tirx.PrimFunc)]
    return elementwise_first()(mod) if any(map(is_of_tiles, functions)) else mod


def _inference_passes(
    cpu: bool, lanes: int, mixed: list[Any], of_bytes: Sequence[Factors], half: bool, tables: bool
) -> list[Any]:
    constants = fold_arrays(), transform.CanonicalizeBindings()  # constants in the places of what is bound to them
    widened = [tile_products(halves=half, of_bytes=of_bytes), _elementwise_with_tiles] if of_bytes or half else []
    widened += [] if half else [pad_columns(lanes)]
    narrow = [*constants, stored_codes(), transform.DeadCodeElimination()] if of_bytes else []
    products = *constants, *widened, transform.DeadCodeElimination(), *narrow, *([code_tables()] if tables else [])
    whole = *constants, whole_products(of_bytes), transform.CanonicalizeBindings(), shifted_bounds()
    return [
        transform.FoldBatchnormToConv2D(),
        fold_batch_norms(),
        transform.DecomposeOpsForInference(),
        simplify(),
        transform.DeadCodeElimination(),
        channels_first_only(),
        transform.CanonicalizeBindings(),
        scales_as_parameters(),
        fold_arrays(),
        transform.CanonicalizeBindings(),  # constants in the places of the variables that are bound to them
        fold_operators(),
        transform.CanonicalizeBindings(),
        settled_choices(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),  # of batch norms' statistics, which hold their sums
        join_parallel_convolutions(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
        transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}),
        transform.CanonicalizeBindings(),
        *([pointwise_products(), transform.CanonicalizeBindings()] if cpu else []),
        elementwise_first(),
        transform.DeadCodeElimination(),
        transform.EliminateCommonSubexpr(),  # reshapes of one tensor, whose products are joined
        join_projections(),
        *(whole if cpu and not mixed else []),
        *([tile_attentions(), transform.EliminateCommonSubexpr()] if half else []),
        pad_attention(),
        *([pad_rows(), transform.EliminateCommonSubexpr()] if cpu and not half else []),
        transform.DeadCodeElimination(),
        *([*products, sigmoids(), by_lanes(), dynamic_ranges(), transform.DeadCodeElimination()] if cpu else []),
        *mixed,
        transform.FastMathTransform(),
        fold_arrays(),
        transform.CanonicalizeBindings(),
        fold_operators(),
    ]

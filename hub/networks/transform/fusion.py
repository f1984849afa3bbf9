"""Operator fusion by dynamic programming, GTCO's DPOF (Bai et al. 2024, section IV-B): kernels of the least time.

TVM's `FuseOps` merges whatever it may, one operator after the other. Here every kernel that may be made has a time in
seconds, and those of the least sum are chosen. A kernel is an operator whose result is stored and some of those before
it; a cheap one of these may belong to several kernels, and is then computed in each. The chosen kernels become
functions of the kind that `FuseOps` makes, with the same names and the same order of parameters:

    rates = MachineRates(flops=1.1e11, cache_bandwidth=9e10)
    passes = [LegalizeOps(), AnnotateTIROpPattern(), FoldConstant(), fuse_by_time(rates), FuseTIR()]
    mod = tvm.ir.transform.Sequential(passes)(mod)

On ViT, BERT, DETR's encoder and ResNet-50 they are those of `FuseOps`, which therefore stays; `docs/benchmarks.md` has
a network where they differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import IRModule, relax
from tvm.ir import GlobalVar
from tvm.ir.transform import module_pass
from tvm.relax.transform import FuseOps

from .operator_graph import GraphOperator, MachineRates, OperatorGraph, positions_of

# Sets of results that are left to be computed, at one operator, beyond which the search is a beam.
BEAM = 256
# Seconds in which times are added up, so that equal ones are equal.
_TICK = 1e-12


@dataclass(frozen=True)
class Partition:
    """The kernels that a dataflow block is computed by.

    Attributes:
        stages: positions of the operators of each kernel, in their order; the last one's result is stored.
        seconds: of all kernels, as predicted.
        is_exact: no other kernels take less time, by the same prediction; else a beam was searched.
    """

    stages: tuple[tuple[int, ...], ...]
    seconds: float
    is_exact: bool


def fuse_by_time(rates: MachineRates | None = None) -> Any:
    """Return a pass that fuses operators in place of `FuseOps`, by the predicted time of kernels.

    It comes after `AnnotateTIROpPattern` and before `FuseTIR`. A kernel has one result. It consists of at most one
    product or reduction, of elementwise operators before it, and of elementwise operators after it, of a product's
    size; or of no reduction, and then elements may move. Of all such kernels those of the least time are found. Where
    more than `MOST_STAGES` end in one operator, or more than `BEAM` sets of results are left to be computed, the
    smallest kernels and the cheapest sets are kept: a beam, and `FuseOps` decides where it predicts less time. A module
    with shapes that are not known, or with functions of several results, is left to `FuseOps`.

    Args:
        rates: of the machine; e.g. FLOP/s and bandwidth of `search.roofline.measure_roofline`.
    """
    known = rates or MachineRates()

    @module_pass(opt_level=0, name="TchubFuseByTime")
    def run(mod: IRModule, _: Any) -> IRModule:
        blocks = graphs(mod)
        partitions = [partition(graph, known) for graph in blocks if graph.is_static]
        if len(partitions) < len(blocks):
            return FuseOps()(mod)
        if not all(one.is_exact for one in partitions):
            greedy = FuseOps()(mod)
            if predicted_seconds(greedy, known) < sum(one.seconds for one in partitions):
                return greedy
        builder: Any = relax.BlockBuilder(mod)
        rewritten = {
            graph.block: _with_functions(graph, one, builder) for graph, one in zip(blocks, partitions, strict=True)
        }
        for var, function in mod.functions_items():
            if _is_plain(function):
                body = relax.SeqExpr([rewritten.get(one, one) for one in function.body.blocks], function.body.body)
                rest = (function.ret_ty, function.is_pure, function.attrs)
                builder.update_func(var, relax.Function(function.params, body, *rest))
        return builder.get()

    return run


def graphs(mod: IRModule) -> list[OperatorGraph]:
    """Return the graph of each dataflow block of a module's functions, less those that were fused before."""
    functions: list[Any] = [function for _, function in mod.functions_items() if _is_plain(function)]
    blocks = [block for function in functions for block in function.body.blocks]
    return [OperatorGraph(mod, block) for block in blocks if isinstance(block, relax.DataflowBlock)]


def predicted_seconds(mod: IRModule, rates: MachineRates) -> float:
    """Return the time of a module that `FuseOps` or `fuse_by_time` has fused, by the prediction of the latter."""
    seconds, known = 0.0, dict[Any, float]()
    for graph in graphs(mod):
        for at, one in enumerate(graph.operators):
            callee = getattr(one.binding.value, "op", None)
            if not isinstance(callee, GlobalVar):
                seconds += graph.seconds(1 << at, rates)
                continue
            if callee not in known:
                function: Any = mod[callee]
                fused = OperatorGraph(mod, function.body.blocks[0])
                known[callee] = fused.seconds((1 << len(fused.operators)) - 1, rates)
            seconds += known[callee]
    return seconds


def _is_plain(function: Any) -> bool:
    attrs = function.attrs or {}
    return isinstance(function, relax.Function) and not attrs.get("Primitive") and not attrs.get("Codegen")


# The search ---------------------------------------------------------------------------------------------------


class _Reached(NamedTuple):
    """The least time to come to a set of results, what decides between equal times, and the last step."""

    ticks: int
    preference: int
    before: int
    stage: int


def partition(graph: OperatorGraph, rates: MachineRates) -> Partition:
    """Return the kernels of the least time (equation 2 and algorithm 1 of the paper).

    A state is the set of results that are still to be computed. Its last one, by the order of the block, is computed
    by each kernel that ends in it, and what this one reads joins the set: dp[V] is the least time to come to a set V,
    and the chosen kernels are found backwards. Sets of one result, between the layers of a network, are met by all
    choices before them, so that the states of a long network are as many as of its layers one by one.
    """
    start, is_exact = graph.needed, True
    reached: list[dict[int, _Reached]] = [{} for _ in range(start.bit_length() + 1)]
    reached[-1][start] = _Reached(0, 0, 0, 0)
    for last in range(start.bit_length() - 1, -1, -1):
        states = reached[last + 1]
        if len(states) > BEAM:
            is_exact = False
            states = reached[last + 1] = dict(sorted(states.items(), key=lambda item: item[1][:2])[:BEAM])
        stages, are_all = graph.stages(last) if states else ([], True)
        is_exact &= are_all
        priced = [
            (graph.inputs(stage), round(graph.seconds(stage, rates) / _TICK), graph.preference(stage), stage)
            for stage in stages
        ]
        for state, before in states.items():
            for read, ticks, preference, stage in priced:
                rest = state & ~(1 << last) | read
                entry = _Reached(before.ticks + ticks, before.preference + preference, state, stage)
                known = reached[rest.bit_length()].get(rest)
                if known is None or entry[:2] < known[:2]:
                    reached[rest.bit_length()][rest] = entry
    chosen, state, seconds = [], 0, reached[0][0].ticks * _TICK
    while state != start:
        _, _, state, stage = reached[state.bit_length()][state]
        chosen.append(tuple(positions_of(stage)))
    return Partition(tuple(chosen), seconds, is_exact)


# The functions ---------------------------------------------------------------------------------------------------


def _with_functions(graph: OperatorGraph, kernels: Partition, builder: Any) -> Any:
    """Return a dataflow block that calls a function for each kernel of several operators; others stay."""
    bindings = []
    for stage in sorted(kernels.stages, key=lambda one: one[-1]):
        binding = graph.operators[stage[-1]].binding
        if len(stage) > 1:
            binding = relax.VarBinding(binding.var, _fused([graph.operators[at] for at in stage], builder))
        bindings.append(binding)
    return relax.DataflowBlock(bindings)


def _fused(stage: Sequence[GraphOperator], builder: Any) -> Any:
    """Return a call of a primitive function of some operators, which is added to the module."""
    parameters: dict[Any, Any] = {}
    inside: dict[Any, Any] = {}
    bindings, constants = [], 0
    for one in stage:
        for argument in one.arguments:
            if argument not in parameters and argument not in inside:
                name = argument.name if isinstance(argument, relax.Var) else f"param_{constants}"
                constants += not isinstance(argument, relax.Var)
                parameters[argument] = relax.Var(name, argument.ty)
        value, var, is_last = one.binding.value, one.binding.var, one is stage[-1]
        known = parameters | inside
        call = relax.Call(
            value.op, [value.args[0], relax.Tuple([known[argument] for argument in one.arguments])], value.attrs,
            value.ty_args,
        )  # fmt: skip
        inside[var] = (relax.Var if is_last else relax.DataflowVar)(var.name, var.ty)
        bindings.append(relax.VarBinding(inside[var], call))
    result = inside[stage[-1].binding.var]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    function = relax.Function(list(parameters.values()), body, result.ty).with_attr("Primitive", True)
    names = [one.binding.value.args[0].name_hint for one in stage]
    return relax.Call(builder.add_func(function, "_".join(["fused", *names])), list(parameters))

"""Tensors between kernels on tile registers in bfloat16: half of what a network writes to memory and reads again.

A product rounds what it reads to bfloat16 anyway. So where all that read a tensor are products, or only combine
elements as a residual addition does, or take maxima, the kernel of the product that computes it rounds it, and they
read that. What another function computes, a norm say, is rounded where all that read it are products. Sums and what the
network returns stay in float32.
"""

from math import prod
from typing import Any

from tvm import IRModule, relax, tirx
from tvm.ir import TensorLoad
from tvm.ir.transform import module_pass
from tvm.relax.analysis import has_reshape_pattern
from tvm.s_tir.stmt import TensorRegion
from tvm.tirx import BufferStore, Cast, Max, reinterpret
from tvm_ffi import structural_equal, structural_map

from ...device.statements import nodes_in
from .elementwise import blocks_in, is_of_blocks
from .relax_graph import bound_values, is_network, operator_name, static_shape
from .tile_products import TYPE, is_of_tiles, rounded

# Numbers below which a tensor stays in the caches.
_LEAST = 1 << 13
_FACTORS = ("uint16", "uint32")  # of what a function with products of tiles computes from factors alone


def half_storage() -> Any:
    """Return a pass that stores tensors between tensor functions in bfloat16; for those with products of tiles."""

    @module_pass(opt_level=0, name="TchubHalfStorage")
    def run(mod: IRModule, _: Any) -> IRModule:
        kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
        tiles = {var for var, func in kernels.items() if is_of_tiles(func, halves=True)}
        if not tiles:
            return mod
        halving = _Halving(relax.BlockBuilder(mod.clone()), kernels, tiles)
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and is_network(var):
                halving.builder.update_func(var, halving.of_network(func))
        return halving.builder.get()

    return run


class _Halving:
    """The networks of a module, with tensors between their functions in bfloat16.

    Args:
        builder: of the module.
        kernels: the tensor functions; tiles: those with a product of tiles.
    """

    def __init__(self, builder: Any, kernels: dict[Any, Any], tiles: set[Any]) -> None:
        self.builder, self.kernels, self.tiles = builder, kernels, tiles
        self.views = {var for var, func in kernels.items() if has_reshape_pattern(func)}
        self.elementwise = {var for var, func in kernels.items() if _is_elementwise(func)} - self.views - tiles
        self.once = {var for var, func in kernels.items() if _writes_once(func)} - self.views - tiles
        self.rounded = {var: _rounded(kernels[var]) for var in tiles}
        self.made: dict[Any, Any] = {}  # functions by the one that each is of, and the parameters in bfloat16

    def of_network(self, func: Any) -> Any:
        """Return a network that has its tensors so."""
        values = bound_values(func)
        halved = self._halved(func, values)
        stored: dict[Any, Any] = {}
        blocks = []
        for block in func.body.blocks:
            bindings = []
            for binding in block.bindings:
                value, target = values[binding.var], binding.var
                args = list(value.args[1]) if _callee(value) in self.kernels else []
                read = [arg in halved for arg in args]
                args = [stored.get(arg, arg) for arg in args]
                if any(read) or target in halved:
                    ty = value.ty
                    if target in halved:
                        ty = relax.TensorType(list(value.ty.shape), TYPE)
                        stored[target] = type(target)(f"{target.name}_{TYPE}", ty)
                    function = self._function(_callee(value), (*read, target in halved))
                    call: Any = relax.call_tir
                    bindings.append(relax.VarBinding(stored.get(target, target), call(function, args, ty)))
                else:
                    bindings.append(binding)
            blocks.append(type(block)(bindings))
        body = relax.SeqExpr(blocks, func.body.body)
        return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)

    def _halved(self, func: Any, values: dict[Any, Any]) -> set[Any]:
        """Return the variables of a network that may be stored in bfloat16.

        Products of tiles write them, and nothing reads them that needs float32; or others do, where all that read them
        are products that round them. What only has another shape is one of them with what it is of.
        """
        writers = self.tiles | self.views | self.once
        large = {var for var, value in values.items() if _callee(value) in writers and _is_large(var)}
        combined = {var for var in large if _callee(values[var]) in self.once}
        for var, value in values.items():
            if _callee(value) in self.views and not combined.isdisjoint(relax.analysis.free_vars(value)):
                combined.add(var)
        read = {var for value in values.values() for var in relax.analysis.free_vars(value)}
        returned = set(relax.analysis.free_vars(func.body.body))
        for var in [var for var in returned if isinstance(values.get(var), relax.Tuple)]:
            returned |= set(relax.analysis.free_vars(values[var]))
        halved = large & read - returned
        before: set[Any] = set()
        while before != halved:
            before = set(halved)
            for var, value in values.items():
                others, callee = set(relax.analysis.free_vars(value)), _callee(value)
                if callee in self.views and not (others and others <= halved):
                    halved.discard(var)
                reads = callee in self.tiles | self.elementwise or (callee in self.views and var in halved)
                if var in returned or not reads:
                    halved -= others
                elif callee not in self.views:
                    rounded = self.rounded.get(callee, set())
                    halved -= {arg for n, arg in enumerate(value.args[1]) if n not in rounded} & combined
        return halved

    def _function(self, var: Any, half: tuple[bool, ...]) -> Any:
        """Return the function that reads, or writes, some of its parameters in bfloat16."""
        if (var, half) not in self.made:
            self.made[var, half] = self.builder.add_func(of_halves(self.kernels[var], half), var.name_hint)
        return self.made[var, half]


def _rounded(func: Any) -> set[int]:
    """Return the numbers of the parameters that a function with products of tiles reads as factors alone."""
    blocks = [block for block in blocks_in(func) if block.writes]
    other = [block for block in blocks if str(block.writes[0].source.dtype) not in _FACTORS]
    read = [region.source for block in other for region in block.reads]
    return {n for n, param in enumerate(func.params) if not any(param.same_as(one) for one in read)}


def of_halves(func: Any, half: tuple[bool, ...]) -> Any:
    """Return a tensor function some of whose parameters are of bfloat16; it computes in float32."""
    pairs = zip(func.params, half, strict=True)
    halves = {param: tirx.decl_buffer(param.ty.shape, TYPE, param.name) for param, one in pairs if one}

    def load(one: Any) -> Any:
        return tirx.BufferLoad(halves[one.source], one.indices).astype("float32") if one.source in halves else one

    def store(one: Any) -> Any:
        if one.buffer not in halves:
            return one
        moved = isinstance(one.value, Cast) and str(getattr(one.value.value.ty, "dtype", "")) == TYPE
        return BufferStore(halves[one.buffer], one.value.value if moved else one.value.astype(TYPE), one.indices)

    def region(one: Any) -> Any:
        return tirx.BufferRegion(halves[one.source], one.region) if one.source in halves else one

    def bits(one: Any) -> Any:
        loads = nodes_in(one, TensorLoad) if str(one.ty.dtype) == "uint16" else []
        halved = [x for x in loads if any(x.source.same_as(buffer) for buffer in halves.values())]
        # What is rounded already has the bits that it is rounded to.
        exact = bool(halved) and structural_equal(one, rounded(halved[0].astype("float32")))
        return reinterpret("uint16", halved[0]) if exact else one

    body = structural_map(func.body, [(TensorLoad, load), (BufferStore, store), (TensorRegion, region)])
    body = structural_map(body, (Cast, bits))
    return tirx.PrimFunc([halves.get(param, param) for param in func.params], body, func.ret_type, func.attrs)


def _callee(value: Any) -> Any:
    """Return the tensor function of one result that a value is a call of; None for another value."""
    is_call = isinstance(value, relax.Call) and operator_name(value) == "call_tir" and len(value.args) == 2
    return value.args[0] if is_call and isinstance(value.ty, relax.TensorType) else None


def _is_large(var: Any) -> bool:
    """Return whether a value is a large tensor of float32; a comparison may be what follows a product in its kernel."""
    shape = static_shape(var)
    return bool(shape) and str(var.ty.dtype) == "float32" and prod(shape) >= _LEAST


def _is_elementwise(func: Any) -> bool:
    """Return whether a function has no sums, and no kernel that is written by hand; maxima are exact in any type."""
    return is_of_blocks(func) and all(block.init is None or _is_maximum(block.body) for block in blocks_in(func))


def _writes_once(func: Any) -> bool:
    """Return whether a function writes its result at last, and no part of a sum or a maximum before."""
    writing = [block for block in blocks_in(func) for region in block.writes if region.source.same_as(func.params[-1])]
    return is_of_blocks(func) and bool(writing) and all(block.init is None for block in writing)


def _is_maximum(stmt: Any) -> bool:
    return isinstance(stmt, BufferStore) and isinstance(stmt.value, Max)

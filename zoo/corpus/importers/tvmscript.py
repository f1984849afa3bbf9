"""TVMScript from a file, read as data.

TVM's parser evaluates the expressions of a script as Python, with Python's built-in functions in reach. So before it
sees a script that came from elsewhere, every part of it is looked at: only loops, blocks, buffers and arithmetic of
TVM's own namespace may occur.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm import IRModule

# A fused operator takes 20 KB.
_MAX_CHARACTERS, _MAX_NODES = 1 << 20, 100_000
_PARTS = """
Module ClassDef FunctionDef arguments arg Expr Assign AnnAssign For With withitem If Pass Return Name Load Store
Attribute Call keyword Constant Tuple List Dict Subscript Slice BinOp Add Sub Mult Div FloorDiv Mod UnaryOp USub Not
Compare Eq NotEq Lt LtE Gt GtE BoolOp And Or IfExp
"""
# What a program may take from `T`: no call of anything that is not TVM's own arithmetic.
_WORDS = """
prim_func func_attr Buffer handle match_buffer alloc_buffer sblock_alloc_buffer decl_buffer block sblock block_attr
sblock_attr where init reads writes axis axis.spatial axis.reduce axis.scan axis.opaque axis.remap axis.S axis.R serial
parallel vectorized unroll thread_binding grid evaluate Cast cast Select if_then_else let min max And Or Not floordiv
floormod truncdiv truncmod ceildiv shift_left shift_right bitwise_and bitwise_or bitwise_xor bitwise_not exp exp2 exp10
log log2 log10 log1p erf tanh sigmoid sqrt rsqrt sin cos tan sinh cosh asin acos atan atan2 abs fabs floor ceil round
nearbyint trunc pow power fmod isnan isinf isfinite min_value max_value infinity likely Var var reinterpret
"""
_TYPES = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)} | {"bool", "bfloat16"}
_KINDS, _TIR = frozenset(_PARTS.split()), _TYPES.union(_WORDS.split())
_MODULE = frozenset({"ir_module", "module_attrs"})


def read_script(text: str) -> IRModule:
    """Return the module of a script.

    Raises:
        ValueError: it is none, or holds more than a program needs.
    """
    import tvm

    check_script(text)
    try:
        module = tvm.script.from_source(text)
    except Exception as error:  # of the parser's own classes, which share no base
        raise ValueError(f"TVM cannot read the script: {str(error)[-200:]}") from error
    return module if isinstance(module, tvm.IRModule) else tvm.IRModule({"main": module})


def check_script(text: object) -> None:
    """Raise ValueError where a script could do more than describe a program."""
    if not isinstance(text, str) or len(text) > _MAX_CHARACTERS:
        raise ValueError("the script is not a text of at most 1 MiB")
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the script is not one ({error})") from error
    if len(nodes) > _MAX_NODES:
        raise ValueError("the script is too long")
    named = {"T", "I"} | {node.arg for node in nodes if isinstance(node, ast.arg)}
    named |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        _check(node, named)


def _check(node: ast.AST, named: set[str]) -> None:
    if type(node).__name__ not in _KINDS:
        raise ValueError(f"the script holds {type(node).__name__}")
    if isinstance(node, ast.Name) and node.id not in named:
        raise ValueError(f"the script uses the name {node.id!r:.60}, which is none of its own")
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in ("T", "I"):
        raise ValueError(f"the script gives {node.id} another meaning")
    if isinstance(node, ast.Attribute):
        root, _, name = ast.unparse(node).partition(".")
        known = {"T": _TIR, "I": _MODULE}.get(root, frozenset({"data"}))  # of its own buffers only their data
        if name not in known:
            raise ValueError(f"the script uses {root[:60]}.{name[:60]}")
    if isinstance(node, ast.BinOp) and any(_is_repeatable(side) for side in (node.left, node.right)):
        raise ValueError("the script computes with texts or lists")


def _is_repeatable(node: ast.expr) -> bool:
    number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return isinstance(node, ast.List | ast.Tuple | ast.Constant) and not number

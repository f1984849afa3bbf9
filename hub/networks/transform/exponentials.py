"""Powers of e as polynomials, which are vectorised: for a sigmoid TVM calls libm, element by element.

They are right to the accuracy of float32; tests/hub/networks/transform/test_prepare.py holds them to 4e-7, relative.
"""

from math import e, log, log2
from typing import Any

from tvm import relax, te
from tvm.ir import Op
from tvm.tirx import const, reinterpret

from .relax_graph import call_pass

# 2 ** f for f from -0.5 to 0.5, the constant first, to 8e-8.
_POWERS = (1.00000007, 0.693146967, 0.240221197, 0.0555071334, 0.00967554117, 0.00132764519)
LEAST_EXPONENT = -126.0
# Exponents of e whose powers are normal numbers; and log(2) as a number of few bits, and the rest.
_LEAST, _MOST = -87.3, 88.3
_LOG_2 = (0.693359375, log(2) - 0.693359375)
FAST_SIGMOID = "fast_sigmoid"
# A quotient of polynomials is tanh to the accuracy of float32 between these bounds, as Eigen and TVM have it.
_TANH_BOUND = 9.0
_TANH_ODD = (
    *(4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08),
    *(-8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16),
)
_TANH_EVEN = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)


def sigmoids() -> Any:
    """Return a pass that computes sigmoids of float32 by a polynomial."""
    sigmoid, silu = Op.get("relax.sigmoid"), Op.get("relax.nn.silu")
    multiply: Any = relax.op.multiply

    def rewrite(builder: Any, call: Any) -> Any:
        if call.op not in (sigmoid, silu) or str(call.ty.dtype) != "float32":
            return call
        result = builder.call_te(fast_sigmoid, call.args[0], primfunc_name_hint=FAST_SIGMOID)
        return multiply(call.args[0], builder.emit(result)) if call.op == silu else result

    return call_pass("TchubSigmoids", rewrite)


def fast_sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e ** -x) of a tensor."""

    def element(*i: Any) -> Any:
        return const(1.0, "float32") / (const(1.0, "float32") + power_of_e(-x(*i)))

    return te.compute(x.shape, element, name=FAST_SIGMOID)


def power_of_e(x: Any) -> Any:
    """Return e ** x of an expression, for x from -87.3 to 88.3; the nearest of these counts for others."""
    x = te.min(te.max(x, const(_LEAST, "float32")), const(_MOST, "float32"))
    whole = te.floor(x * const(log2(e), "float32") + const(0.5, "float32"))
    for part in _LOG_2:
        x = x - whole * const(part, "float32")
    return _power(whole, x * const(log2(e), "float32"))


def power_of_two(x: Any, least: float = LEAST_EXPONENT) -> Any:
    """Return 2 ** x of an expression, for x of at most 0; what is less than `least` counts as that."""
    x = te.max(x, const(least, "float32"))
    whole = te.floor(x + const(0.5, "float32"))
    return _power(whole, x - whole)


def _power(whole: Any, rest: Any) -> Any:
    """Return 2 ** (whole + rest), for a rest from -0.5 to 0.5: its polynomial, with the whole added to its exponent."""
    bits = reinterpret("int32", polynomial(rest, _POWERS)) + (whole.astype("int32") << 23)
    return reinterpret("float32", bits)


def tanh(x: Any) -> Any:
    """Return tanh(x) of an expression."""
    # Of a number and NaN the second one counts.
    x = te.max(const(-_TANH_BOUND, "float32"), te.min(const(_TANH_BOUND, "float32"), x))
    return x * polynomial(x * x, _TANH_ODD) / polynomial(x * x, _TANH_EVEN)


def polynomial(x: Any, factors: tuple[float, ...]) -> Any:
    """Return a polynomial by its factors, the constant first."""
    result = const(factors[-1], "float32")
    for factor in factors[-2::-1]:
        result = result * x + const(factor, "float32")
    return result

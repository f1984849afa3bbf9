"""The computation of a task in one text for all frameworks: the key by which tasks of different corpora are joined.

The text names the operator and its sizes; it leaves out what does not make another problem to tune: layout,
data type, padding, and what is fused behind the operator. Leaving padding out errs on the safe side: two
convolutions that differ in it alone never stand on both sides of a split.
"""

import re
from collections.abc import Sequence

from ..primitives.problem import Matmul, Problem

_IMAGE = r"n(?P<n>\d+)c(?P<c>\d+)h(?P<h>\d+)w(?P<w>\d+)"
_WINDOW = r"r(?P<r>\d+x\d+)-s(?P<s>\d+x\d+)"
# The reverse of the functions below: a text's form, and a sentence for it.
_SENTENCES = (
    (
        rf"conv2d-{_IMAGE}-k(?P<k>\d+){_WINDOW}-g(?P<g>\d+)",
        "convolution of {n}x{c}x{h}x{w} in {g} groups, {k} filters of {r}, stride {s}",
    ),
    (rf"conv2d-{_IMAGE}-k(?P<k>\d+){_WINDOW}", "convolution of {n}x{c}x{h}x{w}, {k} filters of {r}, stride {s}"),
    (rf"depthwise-{_IMAGE}-{_WINDOW}", "depthwise convolution of {n}x{c}x{h}x{w}, filters of {r}, stride {s}"),
    (r"matmul-b1m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)", "matrix product, {m}x{k} by {k}x{n}"),
    (r"matmul-b(?P<b>\d+)m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)", "{b} matrix products, {m}x{k} by {k}x{n}"),
    (rf"(?P<kind>avg|max)pool-{_IMAGE}-{_WINDOW}", "{kind} pooling of {n}x{c}x{h}x{w}, window of {r}, stride {s}"),
    (r"reduction-(?P<shape>[\dx]+)-over(?P<axes>[\d.]+)", "reduction of {shape} over axes {axes}"),
    (r"elementwise-(?P<shape>[\dx]+)", "elementwise on {shape}"),
)

# Every text with a stride.
_STRIDED = re.compile(
    r"(?P<head>(?P<kind>conv2d|depthwise|avgpool|maxpool)-n\d+c\d+h(?P<h>\d+)w(?P<w>\d+)-(?:k\d+)?"
    r"r(?P<rh>\d+)x(?P<rw>\d+))-s(?P<sh>\d+)x(?P<sw>\d+)(?P<tail>(?:-g\d+)?)"
)


Pair = tuple[int, int]


def conv2d(n: int, c: int, h: int, w: int, k: int, kernel: Pair, stride: Pair, groups: int = 1) -> str:
    """Return the text of a convolution of n images of c channels, h x w pixels, by k filters."""
    text = f"conv2d-n{n}c{c}h{h}w{w}-k{k}r{kernel[0]}x{kernel[1]}-s{stride[0]}x{stride[1]}"
    return text if groups == 1 else f"{text}-g{groups}"


def windowed(kind: str, n: int, c: int, h: int, w: int, kernel: Pair, stride: Pair) -> str:
    """Return the text of a pooling (`maxpool`, `avgpool`), or a `depthwise` convolution with one filter a channel."""
    return f"{kind}-n{n}c{c}h{h}w{w}-r{kernel[0]}x{kernel[1]}-s{stride[0]}x{stride[1]}"


def matmul(m: int, n: int, k: int, batch: int = 1) -> str:
    """Return the text of a product of (batch) x m x k and k x n."""
    return f"matmul-b{batch}m{m}n{n}k{k}"


def reduction(shape: Sequence[int], axes: Sequence[int]) -> str:
    """Return the text of a reduction of a tensor over some of its axes."""
    return f"reduction-{'x'.join(map(str, shape))}-over{'.'.join(map(str, axes))}"


def elementwise(shape: Sequence[int]) -> str:
    """Return the text of an elementwise function of a tensor."""
    return f"elementwise-{'x'.join(map(str, shape))}"


def of_problem(problem: Problem) -> tuple[str, str]:
    """Return the operator class and the computation of a convolution or a matrix product."""
    if isinstance(problem, Matmul):
        op = "matmul" if problem.dense else "batch_matmul"
        return op, matmul(problem.m, problem.n, problem.k, problem.batch)
    op, data = "depthwise" if problem.depthwise else "conv2d", (problem.n, problem.c, problem.h, problem.w)
    if problem.depthwise and problem.k == problem.c:
        return op, windowed(op, *data, problem.kernel, problem.stride)
    return op, conv2d(*data, problem.k, problem.kernel, problem.stride, problem.c if problem.depthwise else 1)


def unknown(text: str) -> str:
    """Return the text of what is known by its framework's name alone (a hash of its graph, a fused subgraph)."""
    return f"other-{text}"


def normal(text: str) -> str:
    """Return the spelling by which computations are compared: a stride that moves nothing has one spelling.

    A window as large as the image stands still, and front ends write 1 or its own size for that. Here poolings have
    its size and convolutions 1. Windows that move thanks to padding, which no text has, are thereby joined too.
    """
    match = _STRIDED.fullmatch(text)
    if match is None:
        return text
    size, window, stride = ([int(match[name + axis]) for axis in "hw"] for name in ("", "r", "s"))
    still = window if match["kind"].endswith("pool") else (1, 1)
    strides = [own if r < extent else one for extent, r, own, one in zip(size, window, stride, still, strict=True)]
    return f"{match['head']}-s{strides[0]}x{strides[1]}{match['tail']}"


def in_words(text: str) -> str | None:
    """Return a computation's text for people; None for one that is known by a name alone, see `unknown`."""
    for form, sentence in _SENTENCES:
        if match := re.fullmatch(form, text):
            return sentence.format(**{name: value.replace(".", ", ") for name, value in match.groupdict().items()})
    return None

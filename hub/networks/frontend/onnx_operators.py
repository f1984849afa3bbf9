"""ONNX operators that TVM's importer lacks, or computes otherwise than ONNX Runtime does, in others that it has."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .onnx_graph import FEW, attributes_of

# Numbers of the largest constant that an operator becomes.
_MOST = 1 << 24
# How TVM finds the pixels that a resized one is made of: by coordinates, and of the nearest one by rounding too.
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDED = (("half_pixel", "round_prefer_floor"), ("asymmetric", "floor"))
_FLOATS = (1, 10, 11, 16)  # ONNX's numbers of float32, float16, float64 and bfloat16
_UNKNOWN = np.ones(1)  # in place of an input that is no constant


def _resized(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Resize by a matrix for each axis, which is what ONNX Runtime makes of a unit matrix, or take the nearest pixels.

    None where TVM does so rightly: rows and columns of channels-first images, by whole factors or to given sizes.
    """
    from onnx import helper

    facts, x, old = attributes_of(node), inputs[0], graph.dims(inputs[0])
    number = 1 if len(inputs) == 2 else 2  # of the factors; sizes come behind them
    # Of opset 11, factors are an empty tensor where sizes are given.
    held = [name and graph.values.get(name, _UNKNOWN).size for name in inputs]
    given = next((at for at in (number, number + 1) if at < len(inputs) and held[at]), None)
    mode, coordinates = (facts.get(name, b"").decode() for name in ("mode", "coordinate_transformation_mode"))
    stretched = facts.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    if old is None or given is None or inputs[given] not in graph.values or not stretched:
        return None
    beside = given > number and inputs[number]  # an empty tensor, which TVM takes for a second way to say the size
    if coordinates[:2] == "tf":  # of a region, the input before
        return [graph.op("Resize", *inputs[:number], "", inputs[given], **facts)] if beside else None
    values = graph.values[inputs[given]]
    changes = dict(zip((axis % len(old) for axis in facts.pop("axes", range(len(old)))), values, strict=True))
    sizes = {axis: int(by) if given > number else int(np.floor(old[axis] * by)) for axis, by in changes.items()}
    changed = [axis for axis, by in changes.items() if sizes[axis] != old[axis] or (given == number and by != 1)]
    exact = given > number or all(old[axis] * changes[axis] == sizes[axis] for axis in changed)
    whole = all(sizes[axis] % old[axis] == 0 for axis in changed)
    rounded = coordinates or "half_pixel", facts.get("nearest_mode", b"round_prefer_floor").decode()
    nearest = mode in ("", "nearest")
    if (
        number == 2 and "axes" not in attributes_of(node) and min(changed, default=2) >= 2 and 3 <= len(old) <= 5
        and exact and rounded[0] in _COORDINATES and (not nearest or (whole and rounded in _ROUNDED))
        and not facts.get("antialias") and not facts.get("exclude_outside")
    ):  # fmt: skip
        return [graph.op("Resize", x, *[""] * number, inputs[given], **attributes_of(node))] if beside else None
    if any(old[axis] * max(old[axis], sizes[axis]) > _MOST for axis in changed):
        return None
    for axis in changed:
        by = np.ones(4, values.dtype) if given == number else np.array([1, old[axis], 1, 1])
        by[3] = changes[axis]
        names = ["x", *["none"] * (given - 1), "by"]
        known = {"x": np.eye(old[axis], dtype=np.float32)[None, :, None], "by": by.astype(values.dtype)}
        known |= {"none": np.zeros(0, np.float32)} if given > 1 else {}
        axis_node = helper.make_node(node.op_type, names, ["y"], **facts)
        results = run(axis_node, names, known, graph.opset, graph.version, _MOST)
        if results is None:
            return None
        weights = results[0].reshape(old[axis], sizes[axis])
        if nearest:
            x = graph.op("Gather", x, graph.constant(weights.argmax(0)), axis=axis)
            continue
        order = list(range(len(old)))
        order[axis], order[-1] = order[-1], order[axis]
        x = graph.op("MatMul", graph.op("Transpose", x, perm=order), graph.constant(weights))
        x = graph.op("Transpose", x, perm=order)
    return [x]


def _one_hot(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Give the depth as a number, not as a tensor of one, and the result the type of the two values."""
    from onnx.helper import np_dtype_to_tensor_dtype

    depth, values = map(graph.values.get, inputs[1:])
    if depth is None or values is None:
        return None
    result = graph.op("OneHot", inputs[0], graph.constant(depth.reshape(())), inputs[2], **attributes_of(node))
    return [graph.op("Cast", result, to=np_dtype_to_tensor_dtype(values.dtype))]


def _aligned(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Shift the boxes by half a pixel of the image that is read: TVM shifts them by one of the boxes' own image."""
    facts = attributes_of(node)
    scale = facts.get("spatial_scale", 1.0)
    centred = facts.get("coordinate_transformation_mode", b"half_pixel") == b"half_pixel" and graph.opset >= 16
    if not centred or scale == 1.0:
        return None
    boxes = graph.op("Add", inputs[1], graph.constant(np.float32(0.5 - 0.5 / scale)))
    return [graph.op("RoiAlign", inputs[0], boxes, inputs[2], **facts)]


def _normalized(graph: Any, node: Any, inputs: list[str]) -> list[str]:
    """Divide by a norm along an axis; what is zero throughout stays so."""
    facts = attributes_of(node)
    norm = reduced(graph, f"ReduceL{facts.get('p', 2)}", inputs[0], [facts.get("axis", -1)])
    return [graph.op("Div", inputs[0], graph.op("Max", norm, graph.constant(np.finfo("float32").tiny)))]


def _chosen(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Give the numbers of the rows that a known condition chooses: TVM takes all rows as many as there may be."""
    condition, axis = graph.values.get(inputs[1]), attributes_of(node).get("axis")
    if condition is None:
        return None
    x = inputs[0] if axis is not None else graph.reshaped(inputs[0], [-1])
    if (dims := graph.dims(inputs[0])) is None:
        return None
    rows = np.flatnonzero(condition[: prod(dims) if axis is None else dims[axis]])
    return [graph.op("Gather", x, graph.constant(rows), axis=axis or 0)]


def _kept(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Leave dropout out, which gives what it is given; in training mode it stays, and is refused."""
    training = graph.values.get(inputs[2]) if len(inputs) > 2 and inputs[2] else False
    if training is None or training:
        return None
    dims = graph.dims(inputs[0]) if len(node.output) > 1 else []
    if dims is None or prod(dims) > _MOST:  # a file may ask for any number
        return None
    return [inputs[0], graph.constant(np.ones(dims, bool))]


def _listed(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Give the new axes as a list where they are one number, as PyTorch's exporter writes them for grouped heads."""
    axes = graph.values.get(inputs[1]) if len(inputs) == 2 else None
    if axes is None or axes.ndim:
        return None
    return [graph.op("Unsqueeze", inputs[0], graph.constant(axes.reshape(1)))]


def _averaged(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Normalise rows by operators that give their mean and inverse deviation too, where these are results."""
    facts, dims = attributes_of(node), graph.dims(inputs[0])
    if sum(map(bool, node.output)) == 1 or dims is None:
        return None
    axes = list(range(facts.get("axis", -1) % len(dims), len(dims)))
    average, inverse, result = _normal(graph, inputs[0], lambda x: reduced(graph, "ReduceMean", x, axes), facts)
    result = graph.op("Mul", result, inputs[1])
    if inputs[2:] and inputs[2]:
        result = graph.op("Add", result, inputs[2])
    return [result, average, inverse]


def _grouped(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Normalise groups of channels, the mean first: TVM subtracts the squares of two large numbers."""
    facts, dims = attributes_of(node), graph.dims(inputs[0])
    if dims is None or len(dims) < 3:
        return None
    samples, channels, groups, pixels = dims[0], dims[1], facts["num_groups"], [1] * (len(dims) - 2)

    def mean(x: str) -> str:
        x = graph.reshaped(reduced(graph, "ReduceMean", x, list(range(2, len(dims)))), [samples, groups, -1])
        each = graph.constant(np.array([samples, groups, channels // groups]))
        return graph.reshaped(
            graph.op("Expand", reduced(graph, "ReduceMean", x, [2]), each), [samples, channels, *pixels]
        )

    *_, result = _normal(graph, inputs[0], mean, facts)
    scale, shift = (graph.reshaped(x, [1, channels, *pixels]) for x in inputs[1:])
    return [graph.op("Add", graph.op("Mul", result, scale), shift)]


def reduced(graph: Any, kind: str, x: str, axes: list[int]) -> str:
    """Add a reduction, whose axes are an input from some opset on."""
    listed = graph.opset < (13 if kind == "ReduceSum" else 18)
    return graph.op(kind, x, axes=axes) if listed else graph.op(kind, x, graph.constant(np.array(axes)))


def _normal(graph: Any, x: str, mean: Callable[[str], str], facts: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the mean, the inverse deviation, and what has mean 0 and deviation 1."""
    average = mean(x)
    centred = graph.op("Sub", x, average)
    least = graph.op("CastLike", graph.constant(np.float32(facts.get("epsilon", 1e-5))), x)
    square = graph.op("Add", mean(graph.op("Mul", centred, centred)), least)
    inverse = graph.op("Reciprocal", graph.op("Sqrt", square))
    return average, inverse, graph.op("Mul", centred, inverse)


def _powered(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Replace a small whole exponent by products, and give another one the base's type: TVM refuses mixed types."""
    exponent, (base, other) = graph.values.get(inputs[1]), map(graph.dtype, inputs)
    if exponent is not None and exponent.dtype.kind in "iu" and exponent.size == 1 and 2 <= exponent.item() <= 4:
        x = inputs[0]
        for _ in range(int(exponent.item()) - 1):
            x = graph.op("Mul", x, inputs[0])
        return [x]
    if base not in _FLOATS or not other or other == base:
        return None
    return [graph.op("Pow", inputs[0], graph.op("Cast", inputs[1], to=base))]


def _infinite(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Detect infinities of one sign."""
    facts, dtype = attributes_of(node), graph.dtype(inputs[0])
    positive, negative = (facts.get(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if (positive and negative) or dtype not in _FLOATS:
        return None
    bound = graph.op("Cast", graph.constant(np.float32(0 if positive or negative else np.inf)), to=dtype)
    beyond = graph.op("Less" if negative else "Greater", inputs[0], bound)
    return [graph.op("And", graph.op("IsInf", inputs[0]), beyond)]


def _padded(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Give a transposed convolution the padding that its output's size, or `auto_pad`, comes to."""
    facts, dims, weight = attributes_of(node), graph.dims(inputs[0]), graph.dims(inputs[1])
    asked, kind = facts.pop("output_shape", None), facts.pop("auto_pad", b"NOTSET").decode()
    if dims is None or weight is None or not (asked or kind[:4] == "SAME"):
        return None
    axes = len(dims) - 2
    strides, dilations = (facts.get(name, [1] * axes) for name in ("strides", "dilations"))
    more = [*facts.get("output_padding", [0] * axes)]
    sizes = list(asked[-axes:]) if asked else [size * step for size, step in zip(dims[2:], strides, strict=True)]
    begins, ends = [], []
    for axis, size in enumerate(sizes):
        reach = dilations[axis] * (weight[2 + axis] - 1) + 1
        total = strides[axis] * (dims[2 + axis] - 1) + more[axis] + reach - size
        if total < 0:
            more[axis], total = more[axis] - total, 0
        begins.append(total // 2 if kind == "SAME_UPPER" else total - total // 2)
        ends.append(total - begins[-1])
    return [graph.op("ConvTranspose", *inputs, **facts | {"pads": begins + ends, "output_padding": more})]


def _columns(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Add up columns where blocks overlap, by a transposed convolution that puts each number where it belongs."""
    facts, dims = attributes_of(node), graph.dims(inputs[0])
    image, block = (graph.values.get(name) for name in inputs[1:])
    if dims is None or image is None or block is None:
        return None
    axes, size = len(block), prod(map(int, block))
    pads, dilations, strides = (
        facts.get("pads", [0] * 2 * axes),
        *(facts.get(name, [1] * axes) for name in ("dilations", "strides")),
    )
    channels = dims[1] // size
    if axes > 3 or channels * size * size > _MOST:
        return None
    # Blocks along each axis, and the pixels behind the last one, which no block has.
    left = [image[i] + pads[i] + pads[axes + i] - dilations[i] * (block[i] - 1) - 1 for i in range(axes)]
    blocks = [int(many // strides[i]) + 1 for i, many in enumerate(left)]
    behind = [int(many % strides[i]) for i, many in enumerate(left)]
    x = graph.reshaped(inputs[0], [dims[0], dims[1], *blocks])
    unit = np.tile(np.eye(size, dtype=np.float32).reshape(size, 1, *block), (channels, *[1] * (axes + 1)))
    facts = {"strides": strides, "dilations": dilations, "group": channels}
    x = graph.op("ConvTranspose", x, graph.constant(unit), **facts)
    first, last = [-pad for pad in pads[:axes]], [more - pad for more, pad in zip(behind, pads[axes:], strict=True)]
    return [graph.op("Pad", x, graph.constant(np.array([0, 0, *first, 0, 0, *last])))]


def _reversed(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Read the first steps of each sequence from the last to the first, and the others as they are."""
    facts, dims = attributes_of(node), graph.dims(inputs[0])
    if dims is None or prod(dims) > _MOST or graph.opset < 11:
        return None
    time, batch = (facts.get(name, axis) % len(dims) for name, axis in (("time_axis", 0), ("batch_axis", 1)))
    of_batch, of_time = ([-1 if one == axis else 1 for one in range(len(dims))] for axis in (batch, time))
    steps = np.arange(dims[time]).reshape(of_time)
    if (known := graph.values.get(inputs[1])) is not None:
        lengths = known.reshape(of_batch)
        order = graph.constant(np.broadcast_to(np.where(steps < lengths, lengths - 1 - steps, steps), dims).copy())
    else:
        lengths, steps = graph.reshaped(inputs[1], of_batch), graph.constant(steps)
        back = graph.op("Sub", graph.op("Sub", lengths, graph.constant(np.int64(1))), steps)
        order = graph.op("Where", graph.op("Less", steps, lengths), back, steps)
        order = graph.op("Expand", order, graph.constant(np.array(dims)))
    return [graph.op("GatherElements", inputs[0], order, axis=time)]


def _waves(rows: int, columns: int, length: int, numbers: int, inverse: bool = False) -> np.ndarray:
    """Return the matrix of Fourier's transform: rows of samples, of one or two numbers, to pairs of numbers."""
    angles = (1 if inverse else -1) * 2 * np.pi / length * (np.outer(np.arange(rows), np.arange(columns)) % length)
    scale = (np.arange(rows) < length)[:, None] / (length if inverse else 1)  # samples behind the length do not count
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    parts = [np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:numbers]
    return np.stack(parts, 1).reshape(rows * numbers, columns * 2).astype(np.float32)


def _transformed(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Compute Fourier's transform along an axis as a product with a matrix."""
    facts, dims = attributes_of(node), graph.dims(inputs[0])
    length, axis = [graph.values.get(name, _UNKNOWN) if name else None for name in [*inputs[1:], "", ""][:2]]
    if dims is None or length is _UNKNOWN or axis is _UNKNOWN:
        return None
    at = int(axis.item()) if axis is not None else facts.get("axis", 1 if graph.opset < 20 else -2)
    at, numbers = at % len(dims), dims[-1]
    size = dims[at] if length is None else int(length.item())
    onesided, inverse = facts.get("onesided", 0), facts.get("inverse", 0)
    columns = size // 2 + 1 if onesided else size
    if (onesided and inverse) or size < 1 or numbers > 2 or dims[at] * numbers * columns * 2 > _MOST:
        return None
    order = [*(i for i in range(len(dims) - 1) if i != at), at, len(dims) - 1]
    others = [dims[i] for i in order[:-2]]
    x = graph.op("Transpose", inputs[0], perm=order)
    x = graph.reshaped(x, [*others, dims[at] * numbers])
    x = graph.op("MatMul", x, graph.constant(_waves(dims[at], columns, size, numbers, bool(inverse))))
    x = graph.reshaped(x, [*others, columns, 2])
    return [graph.op("Transpose", x, perm=[order.index(i) for i in range(len(dims))])]


def _spectrogram(graph: Any, node: Any, inputs: list[str]) -> list[str] | None:
    """Compute Fourier's transform of overlapping frames of a signal as a product with a matrix."""
    dims = graph.dims(inputs[0])
    step, *frame = [graph.values.get(name, _UNKNOWN) for name in inputs[1:] if name]
    if dims is None or step is _UNKNOWN or not frame or any(one is _UNKNOWN for one in frame):
        return None
    window = frame[0] if frame[0].ndim else None
    size = len(window) if window is not None else int(frame[0].item())
    numbers = dims[2] if len(dims) == 3 else 1
    columns = size // 2 + 1 if attributes_of(node).get("onesided", 1) else size
    by = int(step.item())
    if by < 1 or size < 1:
        return None
    frames = (dims[1] - size) // by + 1
    if numbers > 2 or size * max(frames, numbers * columns * 2) > _MOST or frames < 1:
        return None
    samples = by * np.arange(frames)[:, None] + np.arange(size)
    x = graph.op("Gather", inputs[0], graph.constant(samples), axis=1)
    x = graph.reshaped(x, [dims[0], frames, size * numbers])
    factors = np.repeat(np.ones(size) if window is None else window, numbers)[:, None]
    waves = (_waves(size, columns, size, numbers) * factors).astype(np.float32)
    x = graph.op("MatMul", x, graph.constant(waves))
    return [graph.reshaped(x, [dims[0], frames, columns, 2])]


RULES: dict[str, Callable[[Any, Any, list[str]], list[str] | None]] = {
    "Resize": _resized, "Upsample": _resized, "OneHot": _one_hot, "RoiAlign": _aligned, "LpNormalization": _normalized,
    "Dropout": _kept, "Unsqueeze": _listed, "LayerNormalization": _averaged, "ConvTranspose": _padded,
    "Col2Im": _columns, "ReverseSequence": _reversed, "DFT": _transformed, "STFT": _spectrogram,
    "Pow": _powered, "GroupNormalization": _grouped, "IsInf": _infinite,
    "Compress": _chosen,
}  # fmt: skip
"""By the operator, what writes a node in another way to a `_Fold`; None leaves it as it is."""

# Operators with results of unknown size, which are no larger than what they read.
_NO_LARGER = frozenset(("Compress", "NonZero", "Unique"))


def _is_small(output: Any, most: int) -> bool:
    """Return whether ONNX infers the size of an output, and that it has few elements: a file may ask for any number."""
    tensor = output.type.tensor_type
    known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    return known and prod(dim.dim_value for dim in tensor.shape.dim) <= most


def run(
    node: Any, inputs: Sequence[str], known: Mapping[str, np.ndarray], opset: int, version: int, most: int = FEW
) -> list[np.ndarray] | None:
    """Compute a node with ONNX Runtime; None where it cannot, or where its outputs are many numbers, or no tensors."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    runtime: Any = onnxruntime  # of which pyright knows half
    for attribute in node.attribute:
        if attribute.HasField("g") or attribute.graphs or prod(attribute.t.dims) > FEW:
            return None
    if node.op_type == "Constant":
        value, name = helper.get_attribute_value(node.attribute[0]), node.attribute[0].name
        if name == "value":
            return [numpy_helper.to_array(value)]
        kind = {"f": "float32", "i": "int64"}.get(name.removeprefix("value_")[:1])
        return None if kind is None or name[:6] != "value_" else [np.array(value, kind)]
    one = onnx.NodeProto()
    one.CopyFrom(node)
    one.input[:] = inputs
    graph = helper.make_graph(
        [one], "one", [], [onnx.ValueInfoProto(name=name) for name in node.output if name],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output
        if node.op_type not in _NO_LARGER and not all(_is_small(output, most) for output in inferred):
            return None
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results: list[Any] = session.run(None, {})
    except Exception:  # of its own many kinds: the node stays as it is, and TVM's importer judges it
        return None
    results_by_name = dict(zip((name for name in node.output if name), results, strict=True))
    arrays = [results_by_name.get(name, np.zeros(0)) for name in node.output]
    return arrays if all(isinstance(x, np.ndarray) and x.size <= most for x in arrays) else None

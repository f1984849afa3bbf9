"""What a module computes is told from its loops and indices, whatever its blocks are called."""

import pytest
from tchub.zoo.corpus.computation import normal
from tchub.zoo.corpus.tir import class_of_computation, computation_of_module, operator_class, product_flops
from tvm import IRModule, te, topi


def module_of(*tensors):
    return IRModule({"main": te.create_prim_func(list(tensors))})


def conv(c=8, k=16, h=14, r=3, stride=1, padding=1, groups=1):
    data, weight = te.placeholder((2, c, h, h)), te.placeholder((k, c // groups, r, r))
    if groups == 1:
        return module_of(data, weight, topi.nn.conv2d(data, weight, stride, padding, 1, "NCHW", "OIHW"))
    return module_of(data, weight, topi.nn.group_conv2d_nchw(data, weight, stride, padding, 1, groups))


@pytest.mark.parametrize(
    ("sizes", "computation"),
    [
        ({}, "conv2d-n2c8h14w14-k16r3x3-s1x1"),
        ({"padding": 0}, "conv2d-n2c8h14w14-k16r3x3-s1x1"),
        ({"stride": 2}, "conv2d-n2c8h14w14-k16r3x3-s2x2"),
        ({"r": 1, "padding": 0}, "conv2d-n2c8h14w14-k16r1x1-s1x1"),
        ({"groups": 4}, "conv2d-n2c8h14w14-k16r3x3-s1x1-g4"),
        ({"groups": 8, "k": 8}, "depthwise-n2c8h14w14-r3x3-s1x1"),
    ],
)
def test_convolutions(sizes, computation):
    assert computation_of_module(conv(**sizes)) == computation


def test_what_is_fused_behind_an_operator_does_not_matter():
    a, b = te.placeholder((32, 48)), te.placeholder((16, 48))
    dense = topi.nn.dense(a, b)
    assert computation_of_module(module_of(a, b, dense)) == "matmul-b1m32n16k48"
    assert computation_of_module(module_of(a, b, topi.nn.relu(dense))) == "matmul-b1m32n16k48"


def test_poolings_reductions_and_elementwise_functions():
    data = te.placeholder((1, 8, 16, 16))
    for kind in ("max", "avg"):
        pooled = topi.nn.pool2d(data, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], kind, layout="NCHW")
        assert computation_of_module(module_of(data, pooled)) == f"{kind}pool-n1c8h16w16-r3x3-s2x2"
    assert computation_of_module(module_of(data, topi.sum(data, axis=[2, 3]))) == "reduction-1x8x16x16-over2.3"
    assert computation_of_module(module_of(data, topi.nn.relu(data))) == "elementwise-1x8x16x16"


def test_a_global_pooling_is_one_computation_whatever_stride_it_is_written_with():
    data = te.placeholder((1, 64, 7, 7))
    pooled = [topi.nn.pool2d(data, [7, 7], [s, s], [1, 1], [0] * 4, "avg", layout="NCHW") for s in (1, 2)]
    adaptive = topi.nn.adaptive_pool(data, [1, 1], "avg")
    spelled = {computation_of_module(module_of(data, out)) for out in (*pooled, adaptive)}
    assert len(spelled) > 1
    assert set(map(normal, spelled)) == {"avgpool-n1c64h7w7-r7x7-s7x7"}


@pytest.mark.parametrize(
    ("text", "compared_as"),
    [
        ("conv2d-n1c8h3w3-k16r3x3-s3x3-g2", "conv2d-n1c8h3w3-k16r3x3-s1x1-g2"),
        ("depthwise-n1c8h7w14-r7x7-s2x2", "depthwise-n1c8h7w14-r7x7-s1x2"),
        ("maxpool-n1c8h16w16-r3x3-s2x2", "maxpool-n1c8h16w16-r3x3-s2x2"),
        ("matmul-b1m4n8k16", "matmul-b1m4n8k16"),
    ],
)
def test_a_stride_is_left_out_of_comparisons_where_the_window_fills_the_image(text, compared_as):
    assert normal(text) == compared_as


def test_what_has_no_name_is_known_by_its_hash():
    data, wide = te.placeholder((4, 16)), te.placeholder((4, 32))
    one = computation_of_module(module_of(data, topi.nn.softmax(data)))
    assert one.startswith("other-")
    assert one == computation_of_module(module_of(data, topi.nn.softmax(data)))
    assert one != computation_of_module(module_of(wide, topi.nn.softmax(wide)))


def test_the_class_of_an_operator_is_that_of_what_is_computed():
    assert operator_class(conv()) == "conv2d"
    assert operator_class(conv(groups=4)) == "conv2d"
    assert operator_class(conv(groups=8, k=8)) == operator_class(conv(groups=8, k=16)) == "depthwise"
    assert operator_class(conv(c=1)) == "conv2d"  # though it sums over one channel, as a depthwise one does
    assert class_of_computation("conv2d-n1c64h56w56-k64r3x3-s1x1") == "conv2d"


def test_the_class_of_an_operator_without_a_name_is_told_by_its_blocks():
    rows, sound, one_channel = te.placeholder((4, 16)), te.placeholder((1, 8, 32)), te.placeholder((1, 1, 32))
    filters, one = te.placeholder((8, 1, 3)), te.placeholder((8, 1, 3))
    assert operator_class(module_of(rows, topi.nn.softmax(rows))) == "softmax"
    each = topi.nn.group_conv1d_ncw(sound, filters, 1, 1, 1, 8)
    assert operator_class(module_of(sound, filters, each)) == "depthwise"
    all_of_one = topi.nn.conv1d_ncw(one_channel, one, 1, 1, 1)
    assert operator_class(module_of(one_channel, one, all_of_one)) == "conv2d"


def test_a_module_of_unknown_sizes_has_no_named_computation():
    n = te.var("n")
    data = te.placeholder((n, 16))
    rows = module_of(data, te.compute((n, 16), lambda i, j: data[i, j] + 1.0))
    assert computation_of_module(rows).startswith("other-")
    assert operator_class(rows) == "elementwise"


def test_operations_of_products_count_and_those_of_other_reductions_do_not():
    assert product_flops(conv()) == 2 * (2 * 16 * 14 * 14) * (8 * 3 * 3)
    a, b = te.placeholder((32, 48)), te.placeholder((16, 48))
    assert product_flops(module_of(a, b, topi.nn.relu(topi.nn.dense(a, b)))) == 2 * 32 * 16 * 48
    assert product_flops(module_of(a, topi.sum(a, axis=1))) == product_flops(module_of(a, topi.nn.relu(a))) == 0

"""TFLite models against LiteRT: operators in float and in 8 bits, real models' forms, files that are damaged."""

import numpy as np
import pytest

import weft
from tests.frontends.tflite.writer import model
from weft.core.errors import ArgumentError, FrontendError
from weft.frontends.tflite import load
from weft.graph.interpreter import interpret_graph


def letter(kind):
    return lambda number: (kind, number)


b, i, f, t = map(letter, "bif?")
"""Options by the letters of `struct`."""

IMAGE = (1, 6, 5, 4)
random = np.random.default_rng(0)


def weights(*shape):
    return random.normal(size=shape).astype("f") * 0.3


def whole(*numbers):
    return np.array(numbers, "i4")


CONV = {0: b(0), 1: i(1), 2: i(2), 3: b(1), 4: i(1), 5: i(1)}
CASES = [
    # name, number of its options' union, options, shapes of inputs or constants, shape of the result
    ("CONV_2D", 1, CONV, [IMAGE, weights(8, 3, 3, 4), weights(8)], (1, 3, 5, 8)),
    ("CONV_2D", 1, {0: b(1), 1: i(1), 2: i(1), 3: b(3), 4: i(2), 5: i(1)},
     [IMAGE, weights(8, 3, 2, 4), weights(8)], (1, 4, 3, 8)),
    ("DEPTHWISE_CONV_2D", 2, {0: b(0), 1: i(2), 2: i(2), 3: i(2), 4: b(0), 5: i(1), 6: i(1)},
     [IMAGE, weights(1, 3, 3, 8), weights(8)], (1, 3, 3, 8)),
    ("FULLY_CONNECTED", 8, {0: b(1), 2: t(False)}, [(2, 12), weights(5, 12), weights(5)], (2, 5)),
    ("AVERAGE_POOL_2D", 5, {0: b(0), 1: i(2), 2: i(2), 3: i(3), 4: i(3)}, [IMAGE], (1, 3, 3, 4)),
    ("MAX_POOL_2D", 5, {0: b(1), 1: i(2), 2: i(2), 3: i(2), 4: i(2)}, [IMAGE], (1, 3, 2, 4)),
    ("TRANSPOSE_CONV", 49, {0: b(0), 1: i(2), 2: i(2)}, [whole(1, 12, 10, 3), weights(3, 3, 3, 4), IMAGE],
     (1, 12, 10, 3)),
    ("ADD", 11, {0: b(1)}, [IMAGE, IMAGE], IMAGE),
    ("MUL", 21, {0: b(0)}, [IMAGE, (1, 1, 1, 4)], IMAGE),
    ("SUB", 28, {0: b(0)}, [IMAGE, IMAGE], IMAGE),
    ("MEAN", 27, {0: t(True)}, [IMAGE, whole(1, 2)], (1, 1, 1, 4)),
    ("SOFTMAX", 9, {0: f(1.0)}, [(2, 7)], (2, 7)),
    ("LOGISTIC", 0, None, [IMAGE], IMAGE),
    ("TANH", 0, None, [IMAGE], IMAGE),
    ("RELU6", 0, None, [IMAGE], IMAGE),
    ("HARD_SWISH", 0, None, [IMAGE], IMAGE),
    ("LEAKY_RELU", 75, {0: f(0.2)}, [IMAGE], IMAGE),
    ("RESIZE_BILINEAR", 15, {2: t(False), 3: t(True)}, [IMAGE, whole(9, 10)], (1, 9, 10, 4)),
    ("RESIZE_BILINEAR", 15, {2: t(True), 3: t(False)}, [IMAGE, whole(11, 9)], (1, 11, 9, 4)),
    ("RESIZE_NEAREST_NEIGHBOR", 74, {0: t(False), 1: t(True)}, [IMAGE, whole(12, 10)], (1, 12, 10, 4)),
    ("RESIZE_NEAREST_NEIGHBOR", 74, {0: t(False), 1: t(False)}, [IMAGE, whole(9, 4)], (1, 9, 4, 4)),
    ("CONCATENATION", 10, {0: i(3)}, [IMAGE, IMAGE], (1, 6, 5, 8)),
    ("PAD", 22, {}, [IMAGE, whole(0, 0, 1, 2, 0, 1, 0, 0).reshape(4, 2)], (1, 9, 6, 4)),
    ("RESHAPE", 17, None, [IMAGE, whole(5, -1)], (5, 24)),
    ("TRANSPOSE", 26, {}, [IMAGE, whole(0, 3, 1, 2)], (1, 4, 6, 5)),
    ("STRIDED_SLICE", 32, {0: i(2), 1: i(0), 2: i(0), 3: i(0), 4: i(8)},
     [IMAGE, whole(0, 9, 1, -1), whole(1, -1, 5, 0), whole(1, 2, 2, 1)], (1, 3, 2)),
    ("SLICE", 48, {}, [IMAGE, whole(0, 1, 2, 0), whole(1, -1, 2, 3)], (1, 5, 2, 3)),
    ("DEPTH_TO_SPACE", 94, {0: i(2)}, [IMAGE], (1, 12, 10, 1)),
    ("SPACE_TO_DEPTH", 19, {0: i(2)}, [(1, 6, 4, 2)], (1, 3, 2, 8)),
    ("SPACE_TO_BATCH_ND", 25, {}, [IMAGE, whole(2, 2), whole(0, 0, 1, 0).reshape(2, 2)], (4, 3, 3, 4)),
    ("BATCH_TO_SPACE_ND", 24, {}, [(4, 3, 3, 2), whole(2, 2), whole(0, 1, 1, 0).reshape(2, 2)], (1, 5, 5, 2)),
    ("BATCH_MATMUL", 101, {1: t(True)}, [(2, 3, 4), (2, 5, 4)], (2, 3, 5)),
    ("PACK", 59, {0: i(2), 1: i(1)}, [(2, 3), (2, 3)], (2, 2, 3)),
    ("GATHER", 23, {0: i(1)}, [(2, 5), whole(4, 0, 2)], (2, 3)),
    ("SUM", 27, {0: t(False)}, [IMAGE, whole(3)], (1, 6, 5)),
    ("REDUCE_MAX", 27, {0: t(False)}, [IMAGE, whole(1)], (1, 5, 4)),
    ("MAXIMUM", 39, {}, [IMAGE, IMAGE], IMAGE),
    ("PRELU", 0, None, [IMAGE, weights(1, 1, 4)], IMAGE),
    ("SQUARED_DIFFERENCE", 76, {}, [IMAGE, IMAGE], IMAGE),
    ("L2_NORMALIZATION", 12, {0: b(0)}, [(3, 8)], (3, 8)),
    ("GELU", 116, {0: t(False)}, [IMAGE], IMAGE),
    ("REVERSE_V2", 81, {}, [IMAGE, whole(2)], IMAGE),
    ("TILE", 51, {}, [(2, 3), whole(2, 2)], (4, 6)),
    ("CUMSUM", 102, {0: t(True)}, [(2, 5), whole(1).reshape(())], (2, 5)),
    ("MIRROR_PAD", 77, {0: b(0)}, [(3, 4), whole(1, 2, 0, 1).reshape(2, 2)], (6, 5)),
    ("EXP", 33, {}, [IMAGE], IMAGE), ("ELU", 0, None, [IMAGE], IMAGE), ("ABS", 78, {}, [IMAGE], IMAGE),
    ("NEG", 42, {}, [IMAGE], IMAGE), ("FLOOR", 0, None, [IMAGE], IMAGE), ("RSQRT", 0, None, [(1, 4)], (1, 4)),
    ("DIV", 29, {0: b(0)}, [IMAGE, (1, 1, 1, 4)], IMAGE), ("LOG_SOFTMAX", 36, {}, [(2, 7)], (2, 7)),
    ("POW", 56, {}, [(1, 4), (1, 4)], (1, 4)), ("MINIMUM", 39, {}, [IMAGE, IMAGE], IMAGE),
    ("EXPAND_DIMS", 52, {}, [(2, 3), whole(1).reshape(())], (2, 1, 3)),
]  # fmt: skip
FLOAT_ONLY = {
    "TRANSPOSE_CONV", "SPACE_TO_DEPTH", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "L2_NORMALIZATION", "GELU", "CUMSUM",
    "MIRROR_PAD", "EXP", "ELU", "ABS", "NEG", "FLOOR", "RSQRT", "DIV", "LOG_SOFTMAX", "POW", "SQUARED_DIFFERENCE",
    "BATCH_MATMUL", "PRELU", "SUM", "REVERSE_V2",
}  # fmt: skip
"""What LiteRT has in float only, or whose forms in 8 bits are not tried here."""
SAME_SCALE = {
    "MAX_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "CONCATENATION", "PAD", "RESHAPE", "TRANSPOSE",
    "STRIDED_SLICE", "SLICE", "DEPTH_TO_SPACE", "PACK", "GATHER", "REDUCE_MAX", "AVERAGE_POOL_2D", "MAXIMUM", "MINIMUM",
    "TILE", "EXPAND_DIMS",
}  # fmt: skip
FIXED = {"SOFTMAX": (1 / 256, -128), "LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
"""Scales of results that TFLite prescribes."""


def float_model(case):
    name, union, options, operands, result = case
    tensors, inputs = [], []
    for one in operands:
        if isinstance(one, tuple):
            inputs.append(len(tensors))
            tensors.append((one, "float32", None, None, 0))
        else:
            tensors.append((one.shape, one.dtype.name, one, None, 0))
    tensors.append((result, "float32", None, None, 0))
    operators = [(name, list(range(len(operands))), [len(operands)], options)]
    return model(tensors, operators, inputs, [len(operands)], {name: union}), [tensors[at][0] for at in inputs]


def quantized_model(case):
    """Inputs of scale 1 / 50, weights of a scale for each channel, a bias of 32 bits."""
    name, union, options, operands, result = case
    tensors, inputs, scale, zero = [], [], 1 / 50, 3
    weighed = name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
    scales = None
    for at, one in enumerate(operands):
        if isinstance(one, tuple):
            inputs.append(len(tensors))
            tensors.append((one, "int8", None, scale, zero))
        elif weighed and at == 1:
            axes = (0, 1, 2) if name == "DEPTHWISE_CONV_2D" else tuple(range(1, one.ndim))
            keep = name != "FULLY_CONNECTED"
            scales = np.abs(one).max(axes if keep else None, keepdims=True) / 127
            tensors.append((one.shape, "int8", np.round(one / scales).astype("i1"), scales.reshape(-1), 0))
        elif weighed and at == 2:
            sums = scales.reshape(-1) * scale
            tensors.append((one.shape, "int32", np.round(one / sums).astype("i4"), sums, 0))
        else:
            tensors.append((one.shape, one.dtype.name, one, None, 0))
    out = (scale, zero) if name in SAME_SCALE else FIXED.get(name, (1 / 20, -10))
    tensors.append((result, "int8", None, *out))
    operators = [(name, list(range(len(operands))), [len(operands)], options)]
    return model(tensors, operators, inputs, [len(operands)], {name: union}), [tensors[at][0] for at in inputs]


def by_litert(data, arrays):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    runner = interpreter.Interpreter(model_content=data)
    runner.allocate_tensors()
    for detail, array in zip(runner.get_input_details(), arrays):
        runner.set_tensor(detail["index"], array)
    runner.invoke()
    return [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]


def by_weft(data, arrays):
    return [np.asarray(one) for one in interpret_graph(load(data).graph, arrays)]


def check(case, run, quantized):
    data, shapes = (quantized_model if quantized else float_model)(case)
    draw = np.random.default_rng(1)
    if quantized:
        arrays = [draw.integers(-128, 128, shape).astype("i1") for shape in shapes]
    else:
        positive = case[0] in ("POW", "RSQRT")
        signs = [1 if positive else draw.choice([-1, 1], shape) for shape in shapes]
        arrays = [(draw.uniform(0.1, 3, shape) * sign).astype("f") for shape, sign in zip(shapes, signs)]
    wanted, found = by_litert(data, arrays), run(data, arrays)
    for one, other in zip(wanted, found, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        if quantized:
            assert np.abs(one.astype(int) - other.astype(int)).max() <= 1
        else:
            np.testing.assert_allclose(other, one, 2e-5, 2e-5)


def name_of(case):
    return case[0].lower()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_float_operators_compute_what_litert_does(case):
    check(case, by_weft, False)


@pytest.mark.parametrize("case", [one for one in CASES if one[0] not in FLOAT_ONLY], ids=name_of)
def test_quantized_operators_are_right_to_one_step(case):
    check(case, by_weft, True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_compiled_operators_compute_what_litert_does(case):
    def compiled(data, arrays):
        made = weft.compile(data)(*arrays)
        return list(made) if isinstance(made, tuple) else [made]

    check(case, compiled, False)
    if case[0] not in FLOAT_ONLY:
        check(case, compiled, True)


def small():
    """A quantized network: a convolution, pooling, a dense layer, a softmax."""
    tensors = [
        (IMAGE, "int8", None, 1 / 50, 3),
        ((8, 3, 3, 4), "int8", random.integers(-127, 128, (8, 3, 3, 4)).astype("i1"), np.full(8, 0.003), 0),
        ((8,), "int32", random.integers(-500, 500, 8).astype("i4"), np.full(8, 0.003 / 50), 0),
        ((1, 6, 5, 8), "int8", None, 1 / 40, -128), ((1, 3, 2, 8), "int8", None, 1 / 40, -128),
        ((3, 48), "int8", random.integers(-127, 128, (3, 48)).astype("i1"), 0.002, 0),
        ((3,), "int32", random.integers(-500, 500, 3).astype("i4"), 0.002 / 40, 0),
        ((1, 3), "int8", None, 1 / 10, 0), ((1, 3), "int8", None, 1 / 256, -128),
    ]  # fmt: skip
    operators = [
        ("CONV_2D", [0, 1, 2], [3], {0: b(0), 1: i(1), 2: i(1), 3: b(1), 4: i(1), 5: i(1)}),
        ("MAX_POOL_2D", [3], [4], {0: b(1), 1: i(2), 2: i(2), 3: i(2), 4: i(2)}),
        ("FULLY_CONNECTED", [4, 5, 6], [7], {0: b(0)}), ("SOFTMAX", [7], [8], {0: f(1.0)}),
    ]  # fmt: skip
    union = {"CONV_2D": 1, "MAX_POOL_2D": 5, "FULLY_CONNECTED": 8, "SOFTMAX": 9}
    return model(tensors, operators, [0], [8], union)


def test_a_quantized_network_compiles_to_integer_products(tmp_path):
    data = small()
    (tmp_path / "small.tflite").write_bytes(data)
    compiled = weft.compile(tmp_path / "small.tflite")
    x = np.random.default_rng(2).integers(-128, 128, IMAGE).astype("i1")
    wanted, found = by_litert(data, [x])[0], compiled(x)
    assert found.dtype == np.int8 and np.abs(wanted.astype(int) - found.astype(int)).max() <= 1
    from weft.compiler.passes import optimize

    made = {node.op for node in optimize(load(data).graph, {}, {}).nodes}
    assert {"ConvInteger", "MatMulInteger"} <= made


def test_complex_numbers_are_pairs_where_they_are_only_taken_apart():
    """A spectrum: a transform, without the axis that it had for rows, and what may be asked of complex numbers."""
    readers = ("COMPLEX_ABS", "REAL", "IMAG", "CAST")
    tensors = [((2, 1, 16), "float32", None, None, 0), ((2,), "int32", whole(1, 16), None, 0)]
    tensors += [((2, 1, 9), "complex64", None, None, 0), ((2, 9), "complex64", None, None, 0)]
    tensors += [((2, 9), "float32", None, None, 0)] * len(readers)
    operators = [("RFFT2D", [0, 1], [2], None), ("SQUEEZE", [2], [3], {0: np.array([-2], "i4")})]
    operators += [(name, [3], [4 + at], None) for at, name in enumerate(readers)]
    made = model(tensors, operators, [0], [4, 5, 6, 7], {"SQUEEZE": 30})
    x = np.random.default_rng(3).normal(size=(2, 1, 16)).astype("f")
    spectrum = np.fft.rfft(x[:, 0])
    for one, other in zip(by_weft(made, [x]), (np.abs(spectrum), spectrum.real, spectrum.imag, spectrum.real)):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)
    for one, other in zip(by_weft(made, [x]), by_litert(made, [x]), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)
    operators[-1] = ("ADD", [3, 3], [7], {0: b(0)})
    with pytest.raises(FrontendError, match="ADD: complex numbers"):
        load(model(tensors, operators, [0], [7], {"SQUEEZE": 30, "ADD": 11}))


def test_what_is_not_known_is_listed_at_once():
    tensors = [((2, 3), "float32", None, None, 0)] * 3
    data = model(tensors, [("SVDF", [0], [1], None), ("RNN", [1], [2], None)], [0], [2], {})
    with pytest.raises(FrontendError, match="(?s)SVDF is not known; used in t1.*RNN is not known"):
        weft.compile(data)


def test_damaged_files_are_refused():
    data = small()
    for size in (0, 3, 9, 60, len(data) // 2, len(data) - 40):
        with pytest.raises(FrontendError):
            load(data[:size])
    draw = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(data)
        for at in draw.integers(8, len(data), 4):
            damaged[at] = draw.integers(256)
        try:
            load(bytes(damaged))
        except weft.WeftError:
            pass
    with pytest.raises(FrontendError, match="there is no file"):
        weft.compile("nothing.tflite")
    with pytest.raises(ArgumentError, match="cannot be"):
        load(data, {"t0": (2, 6, 5, 4)})

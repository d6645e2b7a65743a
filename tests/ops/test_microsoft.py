"""The operators of com.microsoft against ONNX Runtime, whose they are."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import weft
from tests.ops.nodes import numbers, run_node
from weft.frontends.onnx import load
from weft.graph.ir import GraphError

onnxruntime = pytest.importorskip("onnxruntime")
DOMAIN = "com.microsoft"


def reference(op, arrays, outputs, attributes, domain=DOMAIN):
    names = ["" if a is None else f"in{i}" for i, a in enumerate(arrays)]
    given = [(n, a) for n, a in zip(names, arrays) if n]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs if name]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos, results), opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(given))


def check(op, *arrays, outputs=1, compiled=True, tolerance=1e-4, domain=DOMAIN, **attributes):
    build = compiled is not None
    wanted = reference(op, arrays, [f"out{i}" for i in range(outputs)], attributes, domain)
    host, made = run_node(op, *arrays, outputs=outputs, domain=domain, build=build, **attributes)
    assert not build or (made is not None) == compiled
    for results in [host] if made is None else [host, made]:
        for got, want in zip(results, wanted):
            assert got.dtype == want.dtype and got.shape == want.shape
            # Quantized results may differ by one where a number falls between two.
            limit = 1 if want.dtype.kind in "iu" else tolerance
            np.testing.assert_allclose(got.astype("float64"), want.astype("float64"), rtol=tolerance, atol=limit)


def number(value, dtype="float32"):
    return np.array(value, dtype)


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu"])
def test_gelu(op):
    check(op, numbers(2, 3, 8))


@pytest.mark.parametrize("op", ["BiasGelu", "FastGelu"])
def test_gelu_with_bias(op):
    check(op, numbers(2, 3, 8), numbers(8, seed=1))


@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(bias):
    x, skip = numbers(2, 3, 8), numbers(2, 3, 8, seed=1)
    gamma, beta, added = (numbers(8, seed=i) for i in (2, 3, 4))
    check("SkipLayerNormalization", x, skip, gamma, beta, *([added] if bias else []), epsilon=1e-5)
    check("SkipSimplifiedLayerNormalization", x, skip, gamma, *([added] if bias else []), epsilon=1e-5)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_layer_normalization_gives_the_sum(op):
    """As optimized decoders have it: the second and third output left out, the fourth read."""
    x, skip, gamma = numbers(2, 3, 8), numbers(2, 3, 8, seed=1), numbers(8, seed=2)
    arrays, outputs = {"x": x, "skip": skip, "gamma": gamma}, ["y", "", "", "total"]
    node = helper.make_node(op, list(arrays), outputs, domain=DOMAIN, epsilon=1e-5)
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, a.shape) for name, a in arrays.items()]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs if name]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(helper.make_graph([node], "g", infos, results), opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(weft.compile(model).run(None, arrays), session.run(None, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    host, made = run_node(op, x, skip, gamma, outputs=4, domain=DOMAIN, build=True, epsilon=1e-5)
    total = (x + skip).astype("float64")
    centre = total.mean(-1, keepdims=True) * (op == "SkipLayerNormalization")
    deviation = np.sqrt(((total - centre) ** 2).mean(-1, keepdims=True) + 1e-5)
    for results in (host, made):
        np.testing.assert_allclose(results[1], total.mean(-1, keepdims=True), atol=1e-5)
        np.testing.assert_allclose(results[2], 1 / deviation, rtol=1e-4)


def test_simplified_layer_normalization():
    check("SimplifiedLayerNormalization", numbers(2, 3, 8), numbers(8, seed=1), domain="", axis=-1, epsilon=1e-5)


@pytest.mark.parametrize("segments", [False, True])
def test_embed_layer_normalization(segments):
    ids, parts = number([[1, 2, 3], [4, 0, 2]], "int32"), number([[0, 0, 1], [1, 0, 1]], "int32")
    tables = [numbers(6, 8), numbers(4, 8, seed=1), numbers(2, 8, seed=2)]
    norms, mask = [numbers(8, seed=3), numbers(8, seed=4)], number([[1, 1, 0], [1, 1, 1]], "int32")
    second = [parts, tables[2]] if segments else [None, None]
    check("EmbedLayerNormalization", ids, second[0], tables[0], tables[1], second[1], *norms, mask, outputs=2)


def test_fused_layers_of_halves_round_once():
    """The answer is that of float32, rounded at the end: the steps inside are not rounded."""
    ids, tables = number([[1, 2, 3], [4, 0, 2]], "int32"), [numbers(6, 32), numbers(4, 32, seed=1)]
    x, skip, bias = numbers(2, 9, 32), 3 * numbers(2, 9, 32, seed=5), numbers(32, seed=6)
    scales = [numbers(32, seed=3), numbers(32, seed=4)]
    cases = {
        "SkipLayerNormalization": [x, skip, *scales, bias],
        "SkipSimplifiedLayerNormalization": [x, skip, scales[0], bias],
        "EmbedLayerNormalization": [ids, None, *tables, None, *scales],
    }
    for op, given in cases.items():
        halves = [a.astype("float16") if a is not None and a.dtype.kind == "f" else a for a in given]
        wide = [a.astype("float32") if a is not None and a.dtype.kind == "f" else a for a in halves]
        outputs = ["y", "mask"][: 1 + op.startswith("Embed")]
        want = reference(op, wide, outputs, {"epsilon": 1e-5})[0].astype("float16")
        for results in run_node(op, *halves, outputs=len(outputs), domain=DOMAIN, build=True, epsilon=1e-5):
            far = np.abs(results[0].astype("float64") - want.astype("float64")) > 0
            assert results[0].dtype == np.float16 and far.mean() < 0.01, op  # a tie between two halves may turn


@pytest.mark.parametrize(
    "activation,values", [("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4])]
)
def test_fused_conv(activation, values):
    options = {"activation": activation, "pads": [1, 1, 1, 1], **({"activation_params": values} if values else {})}
    check("FusedConv", numbers(1, 3, 5, 5), numbers(4, 3, 3, 3, seed=1), numbers(4, seed=2), **options)


def test_fused_conv_with_residual():
    arrays = [numbers(1, 3, 5, 5), numbers(4, 3, 1, 1, seed=1), numbers(4, seed=2), numbers(1, 4, 5, 5, seed=3)]
    check("FusedConv", *arrays, activation="Relu")


def test_fused_products():
    check("FusedMatMul", numbers(2, 4, 3), numbers(2, 5, 4, seed=1), transA=1, transB=1, alpha=0.5)
    options = {"activation": "LeakyRelu", "activation_alpha": 0.1}
    check("FusedGemm", numbers(3, 4), numbers(4, 5, seed=1), numbers(5, seed=2), **options)


QUANTIZED = [number(0.02), number(120, "uint8")]
RESULT = [number(0.05), number(100, "uint8")]


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_qlinear_of_two(op):
    x, y = numbers(2, 3, 4, dtype="uint8"), numbers(3, 4, seed=1, dtype="uint8")
    check(op, x, *QUANTIZED, y, number(0.03), number(130, "uint8"), *RESULT)


@pytest.mark.parametrize("op,options", [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1})])
def test_qlinear_of_one(op, options):
    check(op, numbers(2, 3, 4, dtype="uint8"), *QUANTIZED, number(1 / 256), number(10, "uint8"), **options)


@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_pools(last):
    x = numbers(1, 4, 6, 6, dtype="uint8")
    check("QLinearGlobalAveragePool", x, *QUANTIZED, *RESULT, channels_last=last)
    options = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    check("QLinearAveragePool", x, *QUANTIZED, *RESULT, channels_last=last, **options)


def test_qlinear_concat():
    x, y = numbers(2, 3, dtype="uint8"), numbers(2, 4, seed=1, dtype="uint8")
    check("QLinearConcat", *RESULT, x, *QUANTIZED, y, number(0.03), number(130, "uint8"), axis=1)


def test_products_of_eight_bits():
    a, b = numbers(3, 8, dtype="uint8"), numbers(8, 5, seed=1, dtype="int8")
    zeros, bias = [number(128, "uint8"), number(3, "int8")], numbers(5, seed=2)
    check("MatMulIntegerToFloat", a, b, number(0.02), number(0.01), *zeros, bias)
    check("MatMulIntegerToFloat", a, b, number(0.02), np.abs(numbers(5, seed=3)))
    check("DynamicQuantizeMatMul", numbers(2, 3, 8), b, number(0.01), zeros[1], bias, tolerance=2e-3)


def test_quantized_gemm():
    a, b = numbers(3, 8, dtype="uint8"), numbers(5, 8, seed=1, dtype="int8")
    ends = [number(0.02), number(128, "uint8"), b, number(0.01), number(0, "int8"), numbers(5, seed=2, dtype="int32")]
    check("QGemm", a, *ends, transB=1)
    check("QGemm", a, *ends, number(0.3), number(90, "uint8"), transB=1, alpha=0.5)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "lengths", "keys", "pairs"])
def test_attention(causal, mask):
    x, w, bias = numbers(2, 5, 8), numbers(8, 24, seed=1), numbers(24, seed=2)
    keys = number([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], "int32")
    pairs = np.repeat(keys[:, None], 5, axis=1)
    given = {"none": None, "lengths": number([4, 3], "int32"), "keys": keys, "pairs": pairs}
    build = None if causal != (mask in ("none", "keys")) else True  # half of them: compiling takes a second
    check("Attention", x, w, bias, given[mask], num_heads=2, unidirectional=causal, compiled=build)


def test_attention_with_the_past():
    x, w, bias, past = numbers(2, 1, 8), numbers(8, 24, seed=1), numbers(24, seed=2), numbers(2, 2, 2, 3, 4, seed=3)
    check("Attention", x, w, bias, None, past, outputs=2, num_heads=2)


def test_quantized_attention():
    x, w, bias = numbers(2, 5, 8, dtype="uint8"), numbers(8, 24, seed=1, dtype="int8"), numbers(24, seed=2)
    zeros = [number(128, "uint8"), number(2, "int8")]
    check("QAttention", x, w, bias, number(0.01), number(0.01), None, *zeros, num_heads=2, tolerance=1e-3)


def test_multi_head_attention():
    q, k, v, bias = numbers(2, 3, 8), numbers(2, 5, 8, seed=1), numbers(2, 5, 8, seed=2), numbers(24, seed=3)
    check("MultiHeadAttention", q, k, v, num_heads=2, compiled=None)
    check("MultiHeadAttention", q, k, v, bias, None, numbers(2, 2, 3, 5, seed=4), num_heads=2)


def test_multi_head_attention_of_one_query():
    """It sees every key, causal or not; lengths of sequences and a bias of scores come together."""
    q, k, v = numbers(2, 1, 8), numbers(2, 2, 5, 4, seed=1), numbers(2, 2, 5, 4, seed=2)
    added, lengths = numbers(1, 2, 1, 5, seed=3), number([3, 5], "int32")
    check("MultiHeadAttention", q, k, v, None, lengths, added, num_heads=2, unidirectional=1, compiled=None)


@pytest.mark.parametrize("places", [number([2], "int64"), number([[0, 1, 2], [3, 1, 0]], "int64")])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(places, interleaved):
    cosines, sines = numbers(6, 2, seed=1), numbers(6, 2, seed=2)
    check("RotaryEmbedding", numbers(2, 3, 8), places, cosines, sines, interleaved=interleaved)


def test_refuses_what_it_does_not_know():
    with pytest.raises(GraphError, match="do_rotary"):
        run_node("Attention", numbers(2, 5, 8), numbers(8, 24), numbers(24), domain=DOMAIN, num_heads=2, do_rotary=1)
    with pytest.raises(GraphError, match="Gelu"):
        run_node("FusedConv", numbers(1, 3, 5, 5), numbers(4, 3, 3, 3), domain=DOMAIN, activation="Gelu")


@pytest.mark.parametrize("bits,zeros", [(4, "none"), (4, "packed"), (4, "plain"), (2, "packed"), (8, "none")])
def test_matmul_of_few_bits(bits, zeros):
    inner, features, block = 40, 6, 16
    blocks = 3
    codes = numbers(features, blocks, block * bits // 8, dtype="uint8")
    scales = np.abs(numbers(features, blocks, seed=1)) * 0.1
    packed = numbers(features, -(-blocks * bits // 8), seed=2, dtype="uint8")
    plain = np.abs(numbers(features, blocks, seed=3)) * 8
    options = {"K": inner, "N": features, "bits": bits, "block_size": block}
    given = {"none": [], "packed": [packed], "plain": [plain]}[zeros]
    check("MatMulNBits", numbers(2, 3, inner), codes, scales, *given, tolerance=1e-3, **options)


def test_matmul_of_few_bits_hardly_rounds_the_other_operand():
    """accuracy_level allows that, and ONNX Runtime does it: the answer here is near that of the level that does not."""
    x, codes = numbers(3, 64), numbers(6, 2, 16, dtype="uint8")
    scales, options = np.abs(numbers(6, 2, seed=1)), {"K": 64, "N": 6, "bits": 4, "block_size": 32}
    want = reference("MatMulNBits", [x, codes, scales], ["y"], {**options, "accuracy_level": 1})[0]
    for made in run_node("MatMulNBits", x, codes, scales, domain=DOMAIN, accuracy_level=4, **options):
        np.testing.assert_allclose(made[0], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamic_quantize_lstm(direction):
    count = 2 if direction == "bidirectional" else 1
    x = numbers(4, 1, 6)
    w, r = numbers(count, 6, 20, seed=1, dtype="int8"), numbers(count, 5, 20, seed=2, dtype="int8")
    scales, zeros = np.full(count, 0.01, "float32"), np.zeros(count, "int8")
    arrays = [x, w, r, numbers(count, 40, seed=3), None, None, None, None, scales, zeros, scales, zeros]
    options = {"hidden_size": 5, "direction": direction, "tolerance": 1e-3}
    check("DynamicQuantizeLSTM", *arrays, outputs=3, compiled=False, **options)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gather_of_quantized_blocks(bits, zeros):
    rng = np.random.default_rng(bits)
    data = rng.integers(0, 256, (6, 32 * bits // 8)).astype("uint8")
    scales = rng.uniform(0.1, 1, (6, 2)).astype("float32")
    points = [rng.integers(0, 256, (6, 2 * bits // 8)).astype("uint8")] if zeros else []
    options = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": bits}
    check("GatherBlockQuantized", data, number([[1, 5, 0], [3, 3, 2]], "int64"), scales, *points, **options)


@pytest.mark.parametrize("scale", [1 / 256, 0.0043, 0.02])
def test_quantized_softmax_rounds_to_the_nearest_step(scale):
    """ONNX Runtime's kernel divides by a whole number of steps, and is a step off for scales such as 0.0043."""
    x, ends = numbers(5, 7, 16, dtype="uint8"), [number(0.03), number(5, "uint8"), number(scale), number(3, "uint8")]
    power = np.exp((x.astype("float64") - x.max(-1, keepdims=True)) * float(ends[0]))
    want = power / power.sum(-1, keepdims=True) / float(ends[2]) + 3
    for made in run_node("QLinearSoftmax", x, *ends, domain=DOMAIN, axis=-1, opset=13):
        assert np.abs(made[0] - want).max() < 0.501  # float32 may turn a tie


@pytest.mark.parametrize("opset", [12, 13])
def test_quantized_softmax_of_old_models(opset):
    x = numbers(3, 5, 8, dtype="uint8")
    ends = [number(0.03), number(5, "uint8"), number(1 / 256), number(0, "uint8")]
    check("QLinearSoftmax", x, *ends, axis=1, opset=opset)


@pytest.mark.parametrize("last", [0, 1])
def test_quantized_convolution(last):
    """The importer makes ONNX's own of it, which the passes over quantized graphs know."""
    rng = np.random.default_rng(1)
    x, w = rng.integers(0, 256, (1, 5, 6, 3)).astype("uint8"), rng.integers(-9, 9, (4, 3, 3, 3)).astype("int8")
    ends = [number(0.02), number(120, "uint8"), w, number(0.01), number(0, "int8"), number(0.05), number(99, "uint8")]
    arrays = [x if last else x.transpose(0, 3, 1, 2), *ends, rng.integers(-99, 99, 4).astype("int32")]
    options = {"pads": [1, 1, 1, 1], "strides": [2, 1], "kernel_shape": [3, 3], "channels_last": last}
    want = reference("QLinearConv", arrays, ["y"], options)[0]
    constants = [numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(arrays[1:])]
    node = helper.make_node("QLinearConv", ["x", *[c.name for c in constants]], ["y"], domain=DOMAIN, **options)
    infos = [
        helper.make_tensor_value_info(n, onnx.TensorProto.UINT8, s) for n, s in (("x", arrays[0].shape), ("y", None))
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    assert ("QLinearConv", "") in [(node.op, node.domain) for node in load(model).nodes]
    np.testing.assert_allclose(weft.compile(model).run(None, {"x": arrays[0]})[0].astype(int), want, atol=1)


def test_max_pool_with_channels_last():
    x = np.random.default_rng(1).integers(0, 256, (1, 5, 6, 3)).astype("uint8")
    check("NhwcMaxPool", x, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])

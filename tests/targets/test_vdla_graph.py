"""Quantized models on the accelerator: bit for bit what the graph means, and the rest compiled for the processor."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401  (fills the table of operators)
from benchmarks.vdla import LAYERS, convolution
from hardware.vdla.simulate import Verilated
from weft import te
from weft.cli.main import main
from weft.cli.to_onnx import to_onnx
from weft.compiler.device.runner import DeviceRunner
from weft.core.errors import TargetError
from weft.explore.kernels import kernel_data
from weft.explore.stages import kernels
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import Compute, Evaluate, Infer, find_operator
from weft.graph.passes.history import watching
from weft.graph.passes.infer import infer
from weft.models.builder import Builder
from weft.models.vision import mobilenet_v1, mobilenet_v2, resnet18
from weft.quantization import quantize
from weft.targets.registry import find_target
from weft.targets.vdla import config_of, lower
from weft.targets.vdla import operator as packed
from weft.targets.vdla.isa import Config
from weft.targets.vdla.program import Image, VdlaDevice, generate
from weft.targets.vdla.schedule import schedule, sketch_of

SMALL = "vdla:inp=256,wgt=128,acc=256,latency=20"


def feeds_for(graph, count=2):
    (given,) = graph.inputs
    rngs = map(np.random.default_rng, range(count))
    return [{given.name: rng.standard_normal(given.tensor.static).astype("float32")} for rng in rngs]


def residual_block(channels=16, more=32):
    """Two blocks as ResNet has them, the second with a convolution beside it, and a dense layer."""
    from weft.models.vision import _basic

    b = Builder("block", 0)
    x = b.relu(b.conv(b.input("x", (1, 3, 6, 6)), 3, channels, 3, 1, 1))
    x = _basic(b, x, channels, channels, 1)
    x = _basic(b, x, channels, more, 2)
    x = b.relu(b.conv(x, more, more, 1))
    return b.finish(b.linear(b.pooled(x), more, 10))


def on_accelerator(module):
    """The operators that run on the device, and those that do not."""
    (one,) = module.specializations
    assert isinstance(one.runner, DeviceRunner) and not one.host_nodes
    rest = [
        node for step in one.lowered.program.steps if hasattr(step, "executor") for node in step.executor.graph.nodes
    ]
    return [node.op for launch in one.launches for node in launch.nodes], [node.op for node in rest]


@pytest.mark.parametrize("activations", ["int8", "uint8"])
def test_a_residual_network_is_exact(activations):
    """All products, the first layer's of three channels as well. Zero points keep the windows on the processor."""
    graph = residual_block()
    feeds = feeds_for(graph)
    small = quantize(graph, feeds, activations=activations, scales="powers_of_two")
    module = weft.compile(small, target=SMALL)
    there, rest = on_accelerator(module)
    for feed in feeds:
        np.testing.assert_array_equal(module.run(None, feed)[0], interpret_graph(small, feed)[0])
    if activations == "int8":
        assert there == ["PackedConv"] * 8 and "ConvInteger" not in rest
        # the input's, and that of the means; the others are shifts on the accelerator
        assert rest.count("QuantizeLinear") == 2
    else:
        assert "PackedConv" in there and "ConvInteger" in rest


def test_scales_that_are_no_powers_of_two_leave_the_arithmetic_to_the_processor():
    graph = residual_block()
    feeds = feeds_for(graph)
    small = quantize(graph, feeds, activations="int8")
    module = weft.compile(small, target=SMALL)
    there, rest = on_accelerator(module)
    assert there == ["PackedConv"] * 8 and rest.count("QuantizeLinear") > 4
    native = weft.compile(small, target="native")
    for feed in feeds:
        np.testing.assert_array_equal(module.run(None, feed)[0], native.run(None, feed)[0])


def test_onnx_convolutions_of_bytes():
    """QLinearConv with scales that are powers of two: all of it on the accelerator, halves rounded to even."""
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (1, 16, 5, 5)).astype(np.int8)
    arrays = [np.float32(0.5), np.int8(0), rng.integers(-9, 10, (16, 16, 3, 3)).astype(np.int8),
              np.exp2(rng.integers(-4, 0, 16)).astype(np.float32), np.zeros(16, np.int8), np.float32(32), np.int8(3),
              rng.integers(-999, 1000, 16).astype(np.int32)]  # fmt: skip
    known = {Value(f"v{i}", TensorType(str(a.dtype), np.shape(a))): np.asarray(a) for i, a in enumerate(arrays)}
    given = Value("x", TensorType("int8", x.shape))
    node = Node("QLinearConv", [given, *known], [Value("y", None)], {"pads": [1] * 4, "kernel_shape": [3, 3]})
    graph = infer(Graph("bytes", [given], node.outputs, [node], known))
    module = weft.compile(graph, target=SMALL)
    there, rest = on_accelerator(module)
    assert there == ["PackedConv"] and not {"QuantizeLinear", "ConvInteger"} & set(rest)
    expected = interpret_graph(graph, {"x": x})[0]
    np.testing.assert_array_equal(module.run(None, {"x": x})[0], expected)
    assert np.unique(expected).size > 40


def test_what_only_looks_like_a_requantization():
    """A residual that is broadcast, and sums that are cut to whole numbers on the way: the processor's, and right."""
    rng = np.random.default_rng(0)
    b = Builder("looks", 0)
    x, r = b.input("x", (1, 16, 5, 5), "int8"), b.input("r", (1, 16, 1, 1), "int8")
    half, zero = b.constant(np.float32(0.5)), b.constant(np.int8(0))
    w = b.constant(rng.integers(-9, 10, (16, 16, 3, 3)).astype(np.int8))
    sums = b.node("Cast", b.node("ConvInteger", x, w), to=1)
    wide = b.node("Add", b.node("Mul", sums, half), b.node("DequantizeLinear", r, half, zero))
    cut = b.node("Cast", b.node("Cast", b.node("Mul", sums, half), to=6), to=1)
    unit = b.constant(np.float32(16))
    graph = infer(b.finish(b.node("QuantizeLinear", wide, unit, zero), b.node("QuantizeLinear", cut, unit, zero)))
    feeds = {"x": rng.integers(-128, 128, (1, 16, 5, 5)).astype(np.int8), "r": rng.integers(-128, 128, (1, 16, 1, 1))}
    feeds["r"] = feeds["r"].astype(np.int8)
    module = weft.compile(graph, target=SMALL)
    there, rest = on_accelerator(module)
    assert there == ["PackedConv"] and rest.count("QuantizeLinear") == 2
    for made, expected in zip(module.run(None, feeds), interpret_graph(graph, feeds)):
        np.testing.assert_array_equal(made, expected)


def test_products_of_a_batch_of_matrices_stay_right():
    """Unsigned bytes become signed ones, which each matrix of a batch would have to make up for: the processor's."""
    rng = np.random.default_rng(0)
    b = Builder("batch", 0)
    levels = b.node("QuantizeLinear", b.input("x", (16, 4, 16)), b.constant(np.float32(0.5)), b.constant(np.uint8(7)))
    batch = b.node("MatMulInteger", levels, b.constant(rng.integers(-9, 10, (16, 16, 16)).astype(np.int8)))
    weight = b.constant(rng.integers(-9, 10, (16, 16)).astype(np.int8))
    graph = infer(b.finish(batch, b.node("MatMulInteger", b.input("r", (4, 16), "int8"), weight)))
    feeds = {
        "x": rng.standard_normal((16, 4, 16)).astype(np.float32),
        "r": rng.integers(-9, 10, (4, 16)).astype(np.int8),
    }
    module = weft.compile(graph, target=SMALL)
    assert on_accelerator(module)[0] == ["PackedConv"]
    for made, expected in zip(module.run(None, feeds), interpret_graph(graph, feeds)):
        np.testing.assert_array_equal(made, expected)


def test_dense_layers_on_a_batch_of_rows():
    """As transformers have them: rows of all sequences together, and the result of one as the next one's blocks."""
    rng = np.random.default_rng(0)
    b = Builder("rows", 0)
    x, zero = b.input("x", (2, 5, 24), "int8"), b.constant(np.int8(0))
    weights = [b.constant(rng.integers(-20, 21, shape).astype(np.int8)) for shape in ((24, 40), (40, 24))]
    hidden = b.node("Relu", b.node("Cast", b.node("MatMulInteger", x, weights[0]), to=1))
    hidden = b.node("QuantizeLinear", hidden, b.constant(np.float32(32)), zero)
    out = b.node("Cast", b.node("MatMulInteger", hidden, weights[1]), to=1)
    out = b.node("Add", out, b.node("DequantizeLinear", x, b.constant(np.float32(64)), zero))
    graph = infer(b.finish(b.node("QuantizeLinear", out, b.constant(np.float32(128)), zero)))
    feeds = {"x": rng.integers(-128, 128, (2, 5, 24)).astype(np.int8)}
    module = weft.compile(graph, target=SMALL)
    there, rest = on_accelerator(module)
    assert there == ["PackedConv"] * 2 and "QuantizeLinear" not in rest
    np.testing.assert_array_equal(module.run(None, feeds)[0], interpret_graph(graph, feeds)[0])


def test_a_profile_tells_what_ran_where_and_a_file_keeps_it(tmp_path):
    graph = residual_block()
    feeds = feeds_for(graph, 1)
    module = weft.compile(quantize(graph, feeds, activations="int8", scales="powers_of_two"), target=SMALL)
    made = module.profile(feeds[0], seconds=0.01)
    kinds = {kernel.kind for kernel in made.kernels}
    assert kinds == {"kernel", "native"} and sum(kernel.kind == "kernel" for kernel in made.kernels) == 8
    assert "(native)" in repr(made)
    assert "on native: " in module.report()
    module.save(tmp_path / "block.weft")
    again = weft.load(tmp_path / "block.weft")
    np.testing.assert_array_equal(again.run(None, feeds[0])[0], module.run(None, feeds[0])[0])


def test_what_the_processor_compiles_is_shown_as_the_processors(tmp_path, monkeypatch, capsys):
    """`weft explore` and `weft inspect`, of a model that was compiled now and of one from the cache."""
    b = Builder("shown", 0)
    levels = b.node("QuantizeLinear", b.input("x", (1, 16, 4, 4)), b.constant(np.float32(0.5)), b.constant(np.int8(0)))
    weight = b.constant(np.random.default_rng(0).integers(-9, 10, (16, 16, 1, 1)).astype(np.int8))
    graph = infer(b.finish(b.node("Sigmoid", b.node("Cast", b.node("ConvInteger", levels, weight), to=1))))
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        module = weft.compile(graph, target=SMALL)
        module.run(None, feeds_for(graph, 1)[0])
        shown = {one.launch.nodes[0].op: one.target.name for one in kernels(module)}
        assert shown["PackedConv"] == SMALL and {shown[op] for op in shown if op != "PackedConv"} == {"native"}
    with watching() as history:
        history_of = weft.compile(graph, target=f"{SMALL},tokens=8")
    assert "offload" in [run.name for run in history.runs]
    history_of.run(None, feeds_for(graph, 1)[0])
    texts = {one.launch.nodes[0].op: [code["name"] for code in kernel_data(one)["code"]] for one in kernels(history_of)}
    assert texts["PackedConv"] == ["Lowered loops", "STREAM"] and ["Assembly"] in [
        names[-1:] for names in texts.values()
    ]
    path = tmp_path / "shown.onnx"
    path.write_bytes(to_onnx(graph).SerializeToString())
    assert main(["inspect", str(path), "--target", SMALL, "--stage", "stream"]) == 0
    assert "gemm uop_end=1" in capsys.readouterr().out


def packed_node(rng, block=16):
    """A random PackedConv: shapes, window, and which of its inputs it has."""
    c, f, kernel, stride = (int(rng.integers(1, most)) for most in (4, 4, 4, 3))
    size, pads = int(rng.integers(kernel, 8)), [int(one) for one in rng.integers(0, 2, 4)]
    x = rng.integers(-128, 128, (int(rng.integers(1, 3)), c, size, size, block)).astype(np.int8)
    w = rng.integers(-128, 128, (f, c, kernel, kernel, block, block)).astype(np.int8)
    attributes = {"pads": pads, "strides": [stride, stride]}
    arrays = [x, w]
    if rng.random() < 0.8:
        same = rng.random() < 0.5
        numbers = lambda least, most: (
            np.full((f, block), rng.integers(least, most)) if same else rng.integers(least, most, (f, block))
        ).astype(np.int32)
        out = [(size + pads[d] + pads[d + 2] - kernel) // stride + 1 for d in range(2)]
        scaled, beside = rng.random() < 0.3, rng.random() < 0.5
        residual = rng.integers(-128, 128, (len(x), f, *out, block)).astype(rng.choice([np.int8, np.int32]))
        arrays += [numbers(-(1 << 14), 1 << 14), numbers(1, 12), numbers(1 << 14, 1 << 20) if scaled else None]
        arrays += [numbers(1, 4) if rng.random() < 0.3 else None]
        arrays += [residual, numbers(1, 1 << 9)] if beside else []
        attributes |= {
            "low": int(rng.choice([-128, 0])),
            "zero": int(rng.choice([0, -3])),
            "high": int(rng.choice([127, 60])),
        }
    while arrays[-1] is None:
        arrays.pop()
    return arrays, attributes


def check_packed(seed, target):
    rng = np.random.default_rng(seed)
    arrays, attributes = packed_node(rng)
    values = [None if a is None else Value(f"v{i}", TensorType(str(a.dtype), a.shape)) for i, a in enumerate(arrays)]
    known = {v: a for i, (v, a) in enumerate(zip(values, arrays)) if v is not None and i not in (0, 6)}
    given = {v: a for i, (v, a) in enumerate(zip(values, arrays)) if v is not None and i in (0, 6)}
    node = Node(packed.NAME, values, [Value("y", None)], attributes, domain=packed.DOMAIN)
    graph = infer(Graph("packed", list(given), node.outputs, [node], known))
    expected = find_operator(packed.NAME, packed.DOMAIN).evaluate(Evaluate(graph.nodes[0]), *arrays)
    module = weft.compile(graph, target=target)
    there, rest = on_accelerator(module)
    if there:  # what does not fit into small memories is the processor's
        assert not rest
    np.testing.assert_array_equal(module.run(None, {v.name: a for v, a in given.items()})[0], expected, f"seed {seed}")
    return bool(there)


def test_packed_convolutions_that_make_no_sense():
    rng = np.random.default_rng(1)
    x, w = (rng.integers(0, 9, shape).astype(np.int8) for shape in ((1, 2, 3, 3, 16), (1, 2, 1, 1, 16, 16)))
    bias = np.zeros((1, 16), np.int32)
    wide = np.zeros((1, 2, 5, 1, 16, 16), np.int8)
    for arrays, text, attributes in [
        ([x, w, bias], "a bias goes with a shift", {}),
        ([x, w[:, :1]], "c", {}),
        ([x, wide], "larger than the image", {}),
        ([x, w], "strides two from 1 on", {"strides": [0, 1]}),
        ([x, w], "four numbers from 0", {"pads": [-1, 0, 0, 0]}),
    ]:
        values = [Value(f"v{i}", TensorType(str(a.dtype), a.shape)) for i, a in enumerate(arrays)]
        node = Node(packed.NAME, values, [Value("y", None)], attributes, domain=packed.DOMAIN)
        with pytest.raises(GraphError, match=text):
            infer(Graph("packed", values, node.outputs, [node], {}))


def test_a_single_image_is_no_loop():
    """A layer of a graph has the tilings of the same layer as a tensor expression: a batch of one takes none away."""
    layer, target = LAYERS[4], find_target("vdla")
    shapes = [(1, 8, 28, 28, 16), (8, 8, 3, 3, 16, 16)]
    types = [TensorType("int8", shape) for shape in shapes]
    values = [Value(f"v{i}", kind) for i, kind in enumerate(types)]
    node = Node(packed.NAME, values, [Value("y", None)], {"pads": [1] * 4}, domain=packed.DOMAIN)
    spec = find_operator(packed.NAME, packed.DOMAIN)
    tensors = [te.placeholder(shape, dtype="int8", name=f"v{i}") for i, shape in enumerate(shapes)]
    made = spec.compute(Compute(node, types, spec.infer(Infer(node, types, [None, None])), [None, None]), *tensors)
    plain, _ = convolution(layer)
    found = [sketch_of(s, "sums", target) for s in (te.create_schedule(made.op), plain)]
    counts = [int(one.legal(one.columns()).sum()) for one in found]
    assert counts[0] >= counts[1] > 100
    assert next(found[0].distinct())["threads"] == 2


def test_packed_convolutions():
    assert sum(check_packed(seed, SMALL) for seed in range(8)) > 5


def tensor_program(seed, target):
    """A random PackedConv as a stream with its data in DRAM, and NumPy's answer; None where it does not fit."""
    rng = np.random.default_rng(seed)
    arrays, attributes = packed_node(rng)
    spec, machine = find_operator(packed.NAME, packed.DOMAIN), find_target(target)
    types = [None if a is None else TensorType(str(a.dtype), a.shape) for a in arrays]
    node = Node(packed.NAME, [Value(f"v{i}", kind) for i, kind in enumerate(types)], [Value("y", None)], attributes)
    outputs = spec.infer(Infer(node, types, arrays))
    tensors = [
        None if a is None else te.placeholder(a.shape, dtype=str(a.dtype), name=f"v{i}") for i, a in enumerate(arrays)
    ]
    made = spec.compute(Compute(node, types, outputs, arrays), *tensors)
    s = te.create_schedule(made.op)
    schedule(s, machine, [], trials=1)
    try:
        program = generate(lower(s.func, machine), machine)
    except TargetError:
        return None
    image = Image(
        program.source, {one.name: one.bytes for one in program.parameters}, config_of(target.partition(":")[2])
    )
    for one in program.parameters:
        if one.name.startswith("v"):
            data = np.ascontiguousarray(arrays[int(one.name[1:])])
            image.memory(one.name, data.nbytes)[...] = data.reshape(-1).view(np.uint8)
    name = next(one.name for one in program.parameters if not one.name.startswith("v"))
    return image, name, spec.evaluate(Evaluate(node), *arrays)


def check_program(seed, target, execute):
    found = tensor_program(seed, target)
    if found is None:
        return False
    image, name, expected = found
    result = execute(image)
    assert result.errors == 0
    made = image.memory(name, expected.nbytes).view(expected.dtype).reshape(expected.shape)
    np.testing.assert_array_equal(made, expected, f"seed {seed}")
    return True


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_tensor_programs():
    """2,000 random tensor programs, from the expression to the model's DRAM."""
    count, seed = 0, 0
    while count < 2_000:
        count, seed = count + check_program(seed, SMALL, Image.run), seed + 1
    assert seed < 2_600


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not shutil.which("verilator"), reason="no verilator: the system's package has it")
def test_tensor_programs_on_the_rtl(tmp_path):
    """100 of them on the RTL, with the model's cycles."""
    pytest.importorskip("amaranth.hdl", reason="pip install 'weft-compiler[hardware]'")
    rtl = Verilated(replace(config_of(SMALL.partition(":")[2]), dram=1 << 14), tmp_path)

    def execute(image):
        model = image.run(effects=False)
        made = rtl.run_image(image)
        assert made.cycles == model.cycles
        return made

    count, seed = 0, 0
    while count < 100:
        count, seed = count + check_program(seed, SMALL, execute), seed + 1
    rtl.close()


MODELS = {"resnet18": (resnet18, 21), "mobilenet_v1": (mobilenet_v1, 15), "mobilenet_v2": (mobilenet_v2, 36)}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MODELS)
def test_models_are_exact(name):
    """Whole models; depthwise convolutions are the processor's."""
    make, products = MODELS[name]
    graph = make()
    feeds = feeds_for(graph)
    small = quantize(graph, feeds, activations="int8", scales="powers_of_two", method="minmax")
    module = weft.compile(small, target="vdla")
    there, _ = on_accelerator(module)
    assert len(there) == products
    expected = weft.compile(small, target="native").run(None, feeds[0])[0]
    np.testing.assert_array_equal(module.run(None, feeds[0])[0], expected)
    assert np.unique(expected).size > 500


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not shutil.which("verilator"), reason="no verilator: the system's package has it")
def test_resnet_on_the_rtl(tmp_path, monkeypatch):
    """One inference of ResNet-18 in Verilator: the answer of the int8 reference, and the model's cycles."""
    pytest.importorskip("amaranth.hdl", reason="pip install 'weft-compiler[hardware]'")
    graph = resnet18()
    feeds = feeds_for(graph)
    small = quantize(graph, feeds, activations="int8", scales="powers_of_two", method="minmax")
    module = weft.compile(small, target="vdla")
    rtl, cycles = Verilated(Config(dram=1 << 18), tmp_path), []

    def execute(device, image):
        model = image.run(effects=False)
        made = rtl.run_image(image)
        cycles.append((made.cycles, model.cycles))
        return made

    monkeypatch.setattr(VdlaDevice, "execute", execute)
    made = module.run(None, feeds[0])[0]
    rtl.close()
    np.testing.assert_array_equal(made, weft.compile(small, target="native").run(None, feeds[0])[0])
    assert len(cycles) == 21 and all(rtl_cycles == model_cycles for rtl_cycles, model_cycles in cycles)

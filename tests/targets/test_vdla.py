"""The accelerator as a target: packed products from tensor expressions to streams, exact, with latency hidden."""

import numpy as np
import pytest

import weft
from benchmarks.vdla import Layer, arguments, compiled, convolution, image_of
from hardware.vdla.check import check
from weft import te
from weft.core.errors import TargetError
from weft.models.builder import Builder
from weft.plan.planner import picking
from weft.targets.registry import find_target, manifest_of
from weft.targets.vdla import config_of
from weft.targets.vdla.isa import CLOCK
from weft.targets.vdla.program import cycles, device
from weft.targets.vdla.schedule import TRIALS, Product, Tiling, accelerate, sketch_of
from weft.targets.vdla.stream import rectangle

TARGET = manifest_of("vdla")
LAYERS = [
    Layer("3x3", 8, 32, 32, 3, 1), Layer("strided", 8, 32, 64, 3, 2), Layer("1x1", 8, 64, 32, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
@pytest.mark.parametrize("target", ["vdla", "vdla:block=8,inp=256,wgt=128,acc=256,latency=20"])
def test_convolutions_are_exact_and_their_streams_right(layer, target):
    """From the expression to DRAM: NumPy's answer, no problem that the checker finds, and both threads at work."""
    program = compiled(layer, target, trials=2)
    image, expected = image_of(layer, program, target)
    assert not check(image.model.copy(), image.stream).problems
    assert image.run().errors == 0
    made = image.memory("narrow", expected.nbytes).view(np.int8).reshape(expected.shape)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_layers(seed):
    """Any size, stride, kernel, machine and number of threads: exact, and no problem in the stream."""
    rng = np.random.default_rng(seed)
    block, kernel, stride = int(rng.choice([8, 16, 32])), int(rng.choice([1, 3, 5])), int(rng.choice([1, 2]))
    size = int(rng.integers(2, 9)) * stride
    layer = Layer("random", size, block * int(rng.integers(2, 5)), block * int(rng.integers(1, 5)), kernel, stride)
    sizes = {"block": block, "latency": int(rng.integers(0, 150)), "word_cycles": int(rng.integers(1, 4))}
    sizes |= {name: 1 << int(rng.integers(7, 11)) for name in ("inp", "wgt", "acc")}
    target = "vdla:" + ",".join(f"{name}={value}" for name, value in sizes.items())
    try:
        program = compiled(layer, target, threads=int(rng.integers(1, 3)), trials=2)
    except TargetError as error:
        pytest.skip(f"it does not fit: {error}")
    image, expected = image_of(layer, program, target)
    assert not check(image.model.copy(), image.stream).problems
    assert image.run().errors == 0
    made = image.memory("narrow", expected.nbytes).view(np.int8).reshape(expected.shape)
    np.testing.assert_array_equal(made, expected)


def check_tilings(layer, block, count, seed):
    """Points of a sketch, whatever they cost: up to four threads that share any loop, weights in parts, all orders."""
    target = f"vdla:block={block},inp=512,wgt=64,acc=512"
    machine, config = find_target(target), config_of(target.partition(":")[2])
    s, _ = convolution(layer, block)
    sketch = sketch_of(s, "sums", machine, (1, 2, 3, 4))
    columns = sketch.columns()
    for at in np.random.default_rng(seed).permutation(np.flatnonzero(sketch.legal(columns)))[:count]:
        point, made = sketch.point(columns, int(at)), s.copy()
        accelerate(made, "sums", Product(s, "sums", config).tiling(point), config)
        image, expected = image_of(layer, TARGET.device.generate(TARGET.lower(made.func, machine), machine), target)
        assert not check(image.model.copy(), image.stream).problems, point
        assert image.run().errors == 0
        found = image.memory("narrow", expected.nbytes).view(np.int8).reshape(expected.shape)
        np.testing.assert_array_equal(found, expected, str(point))


def test_tilings_are_exact():
    check_tilings(Layer("strided", 6, 32, 48, 1, 2), 16, 6, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_many_tilings_are_exact(seed):
    block, kernel, stride = (8, 16, 32)[seed % 3], (3, 1)[seed % 2], (1, 2)[seed // 2 % 2]
    check_tilings(Layer("any", 6 + seed % 4 * stride, block * 3, block * 6, kernel, stride), block, 8, seed)


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_one_block_of_channels_takes_whole_tiles(kernel):
    """Its sums begin at zero before all products of a tile, not before those of each pixel."""
    layer = Layer("first", 8, 16, 16, kernel, 1)
    program = compiled(layer, trials=1)
    assert program.source.count("\ngemm") <= 2 * program.source.count("\nstore") + 2
    image, expected = image_of(layer, program)
    assert image.run().errors == 0
    np.testing.assert_array_equal(
        image.memory("narrow", expected.nbytes).view(np.int8).reshape(expected.shape), expected
    )


def test_virtual_threads_hide_latency():
    """The same tiles by one thread and by two."""
    layer, spent = Layer("deep", 8, 128, 32, 3, 1), {}
    target = find_target("vdla:latency=200")
    for threads in (1, 2):
        s, _ = convolution(layer)
        accelerate(s, "sums", Tiling((1, 8, 8), 1, (0, 1, 2), threads), config_of("latency=200"))
        program = TARGET.device.generate(TARGET.lower(s.func, target), target)
        spent[threads] = cycles(program, config_of("latency=200"))
    assert spent[2] < 0.85 * spent[1]


def test_the_planner_picks_by_cycles():
    """A sketch like any other: its best points in the order of the model's cycles, and a pick that others may make."""
    target = find_target("vdla")
    s, _ = convolution(LAYERS[0])
    sketch = sketch_of(s.copy(), "sums", target)
    ranked = list(sketch.ranked())
    assert len(ranked) == TRIALS and ranked == sorted(ranked, key=lambda one: one[1])
    s.plan(target)
    assert [one.point for one in s.tried if one.point] == [ranked[0][0]]
    program = TARGET.device.generate(TARGET.lower(s.func, target), target)
    assert cycles(program, config_of("")) == round(ranked[0][1] * CLOCK)
    other, _ = convolution(LAYERS[0])
    with picking(lambda unit, sketches: [(one, ranked[-1][0], 0.0) for one in sketches]):
        other.plan(target)
    assert [one.point for one in other.tried if one.point] == [ranked[-1][0]]


def test_a_built_function_runs_on_the_device():
    s, args = convolution(LAYERS[0])
    target = find_target("vdla")
    TARGET.schedule(s, target, [])
    built = weft.build(s, args, target="vdla")
    assert built.built.source.startswith(".uop") and "pop_prev" in built.built.source
    given, expected = arguments(LAYERS[0])
    made = np.zeros_like(expected)
    built(*given, made)
    np.testing.assert_array_equal(made, expected)
    assert device(config_of("")).result.gemm > 0


def product(rows, deep, out, dtype="int8"):
    x = te.placeholder((rows, deep, 16), dtype=dtype, name="x")
    w = te.placeholder((out, deep, 16, 16), dtype=dtype, name="w")
    d, k = te.reduce_axis(deep, name="d"), te.reduce_axis(16, name="k")
    wide = "int32" if dtype == "int8" else dtype
    y = te.compute(
        (rows, out, 16),
        lambda i, f, o: te.sum(x[i, d, k].astype(wide) * w[f, d, o, k].astype(wide), axis=[d, k]),
        name="y",
    )
    return te.create_schedule(y.op), [x, w, y]


@pytest.mark.parametrize("rows, deep, out", [(1, 2, 2), (4, 3, 2), (6, 5, 4)])
def test_products_give_their_sums(rows, deep, out):
    s, args = product(rows, deep, out)
    TARGET.schedule(s, find_target("vdla"), [])
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((rows, deep, 16), (out, deep, 16, 16)))
    y = np.zeros((rows, out, 16), np.int32)
    weft.build(s, args, target="vdla")(x, w, y)
    np.testing.assert_array_equal(y, np.einsum("idk,fdok->ifo", x.astype(np.int32), w.astype(np.int32)))


def test_what_the_machine_cannot_do_is_refused():
    s, args = product(2, 2, 2, "float32")
    TARGET.schedule(s, find_target("vdla"), [])
    with pytest.raises(TargetError):
        weft.build(s, args, target="vdla")
    with pytest.raises(TargetError, match="no packed product"):
        Product(s, "y", config_of(""))
    for sizes, reason in {"block=12": "power of two", "bloc=8": "is not one of block, inp", "latency=-1": "a number",
                          "word_cycles=0": "from 1 to 255", "latency": "such as latency=128"}.items():  # fmt: skip
        with pytest.raises(TargetError, match=f"does not describe an accelerator: .*{reason}"):
            find_target(f"vdla:{sizes}")


def test_operands_that_do_not_lie_together_are_refused():
    """Weights with the lanes of a matrix the other way round: no transfer turns them, so there is no stream."""
    x, w = te.placeholder((4, 2, 16), dtype="int8", name="x"), te.placeholder((2, 2, 16, 16), dtype="int8", name="w")
    d, k = te.reduce_axis(2, name="d"), te.reduce_axis(16, name="k")
    turned = te.compute((2, 2, 16, 16), lambda f, d, o, k: w[f, d, k, o], name="turned")
    y = te.compute(
        (4, 2, 16),
        lambda i, f, o: te.sum(x[i, d, k].astype("int32") * turned[f, d, o, k].astype("int32"), axis=[d, k]),
        name="y",
    )
    s = te.create_schedule(y.op)
    with pytest.raises(TargetError, match="do not lie together"):
        accelerate(s, "y", Tiling((2, 1), 1, (0, 1)), config_of(""))
        weft.build(s, [x, w, y], target="vdla")


def test_sums_that_are_needed_again_are_not_overwritten():
    """scaled = sums + 1 in place, and then sums once more."""
    s, (x, w, y) = product(4, 2, 2)
    more = te.compute(y.shape, lambda *at: y[at] + 1, name="more")
    both = te.compute(y.shape, lambda *at: more[at] * y[at], name="both")
    out = te.compute(y.shape, lambda *at: te.minimum(te.maximum(both[at], -128), 127).astype("int8"), name="out")
    s = te.create_schedule(out.op)
    with pytest.raises(TargetError, match="read again|overwritten"):
        accelerate(s, "y", Tiling((2, 1), 1, (0, 1)), config_of(""))
        weft.build(s, [x, w, out], target="vdla")


def test_the_processor_compiles_what_is_refused():
    """A float model has nothing for the accelerator: all of it is one native program, and nothing is interpreted."""
    b = Builder("model")
    graph = b.finish(b.relu(b.dense(b.input("x", (4, 8)), 8, 3)))
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    module = weft.compile(graph, target="vdla")
    made = module.run(None, {"x": x})[0]
    np.testing.assert_allclose(made, weft.compile(graph).run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)
    (one,) = module.specializations
    assert not one.host_nodes and not one.launches and "on native" in module.report()


def test_rectangles():
    """Padding around data becomes one transfer; what is no rectangle becomes none."""
    inside = np.zeros((4, 5), bool)
    inside[1:3, 1:4] = True
    dram = np.arange(4)[:, None] * 10 + np.arange(5)
    found = rectangle(1, np.arange(20) + 7, dram.ravel(), inside.ravel())
    assert found == {
        "sram": 7, "dram": 11, "rows": 2, "columns": 3, "stride": 10,
        "pad_top": 1, "pad_bottom": 1, "pad_left": 1, "pad_right": 1,
    }  # fmt: skip
    inside[0, 0] = True
    assert rectangle(1, np.arange(20), dram.ravel(), inside.ravel()) is None
    assert rectangle(1, np.arange(20) * 2, dram.ravel(), inside.ravel()) is None

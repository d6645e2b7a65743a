"""Values in blocks of channels whose heights and widths are open: the programs of another machine, interpreted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graphs import random_inputs
from weft.compiler.kernels.build import Kernel, KernelCompiler
from weft.compiler.lowering.items import Launch, View, items_in_layouts
from weft.compiler.passes import for_target, optimize
from weft.compiler.sizes.open_sizes import settle_shapes
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, TensorType, Value
from weft.graph.passes.fuse import fuse
from weft.graph.passes.infer import infer
from weft.graph.shapes import tidy, typical
from weft.loop.interpreter import interpret
from weft.models.builder import Builder
from weft.targets.registry import find_target

AVX512 = "x86_64-unknown-linux-gnu,cpu=skylake-avx512,cores=2"


class Planner(KernelCompiler):
    """Schedules programs and makes no code."""

    def _generated(self, func, label, size):
        return Kernel(func.name, label, func)


class Planned:
    """The kernels of a graph whose sizes are open, for any machine."""

    def __init__(self, graph: Graph, sizes: dict[str, int], target: str = AVX512) -> None:
        machine = find_target(target)
        compiler = Planner(machine)
        made = for_target(optimize(graph, {}, {}), machine, None, sizes)
        compiler.typical = {var: sizes[name] for name, var in made.symbols.items()}
        compiler.whole, compiler.sizes = made, set(made.symbols.values())
        self.graph = settle_shapes(made)
        self.items = items_in_layouts(self.graph, fuse(self.graph), compiler)
        self.layouts = compiler.layouts
        self.tried = [t for item in self.items if isinstance(item, Launch) for t in item.kernel.tried]
        compiler.close()

    def run(self, inputs):
        """The outputs, by the interpreter of programs; borders hold what nobody may read before it is written."""
        now = dict(zip(self.graph.inputs, inputs))
        sizes = {
            dim: size
            for value, array in now.items()
            for dim, size in zip(value.tensor.dims, array.shape)
            if isinstance(dim, Var)
        }
        for item in self.items:
            if isinstance(item, View):
                now[item.output] = now[item.source].reshape(typical(item.output.tensor.dims, sizes))
                continue
            assert isinstance(item, Launch)
            arrays = []
            for one in item.arguments:
                if isinstance(one, tuple):
                    arrays.append(np.ascontiguousarray(one[1].view(self.graph.constants[one[0]])))
                elif one in self.graph.constants:
                    arrays.append(self.graph.constants[one])
                else:
                    if one not in now:
                        kind = self.layouts[one].stored(one.tensor) if one in self.layouts else one.tensor
                        now[one] = np.full(typical(kind.dims, sizes), np.nan, kind.numpy)
                    arrays.append(now[one])
            func = item.kernel.scheduled
            params = [p for p in func.params if hasattr(p, "shape")]
            given = dict(zip(func.size_vars, typical(item.sizes, sizes), strict=True))
            shapes = [typical(map(tidy, p.shape), given) if p.shape else [-1] for p in params]
            shaped = [a.reshape(shape) for a, shape in zip(arrays, shapes, strict=True)]
            interpret(func, *shaped, check=False, sizes={var.name: size for var, size in given.items()})
        return [now[value] for value in self.graph.outputs]


def image(build, channels=3, batch=1) -> Graph:
    """What a function makes of an image of any size."""
    b = Builder("image")
    x = Value("x", TensorType("float32", (batch, channels, Var("h"), Var("w"))))
    b.inputs.append(x)
    return infer(b.finish(build(b, x)))


def strided(b, x):
    x = b.relu(b.conv(x, 3, 16, 3, 2, 1, bias=True))
    return b.conv(b.relu(b.conv(x, 16, 32, 3, 2, 1, bias=True)), 32, 16, 1, 1, 0, bias=True)


def pooled(b, x):
    x = b.relu(b.conv(x, 3, 32, 3, 1, 1, bias=True))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = b.conv(x, 32, 32, 3, 1, 1, groups=32, bias=True)
    x = b.node("Sigmoid", b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1))
    return b.conv(x, 32, 16, 1, 1, 0, bias=True)


def joined(b, x):
    x = b.relu(b.conv(x, 3, 16, 3, 1, 1, bias=True))
    down = b.relu(b.conv(x, 16, 32, 3, 2, 1, bias=True))
    scales = b.constant(np.array([1, 1, 2, 2], "float32"))
    up = b.node("Resize", down, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                nearest_mode="floor")  # fmt: skip
    return b.conv(b.node("Concat", b.node("Add", up, b.conv(x, 16, 32, 1, 1, 0)), x, axis=1), 48, 16, 3, 1, 1)


def turned(b, x):
    x = b.relu(b.conv(x, 3, 32, 3, 2, 1, bias=True))
    x = b.relu(b.conv(x, 32, 32, 3, 1, 1, bias=True))
    return b.relu(b.conv(x, 32, 32, 3, 1, 1, bias=True))


CASES = {
    "strides": (strided, {"h": 24, "w": 40}, [(1, 1), (3, 7), (17, 30), (24, 41)]),
    "pooling": (pooled, {"h": 12, "w": 20}, [(2, 2), (7, 5), (9, 22)]),
    "sums of what was resized": (joined, {"h": 16, "w": 16}, [(2, 4), (6, 18)]),
    "Winograd's": (turned, {"h": 40, "w": 60}, [(1, 2), (11, 31)]),
}


@pytest.mark.parametrize("name", ["strides", *(pytest.param(n, marks=pytest.mark.slow) for n in list(CASES)[1:])])
def test_blocks_of_channels_are_right_for_every_size(name):
    build, sizes, tried = CASES[name]
    graph = image(build)
    planned = Planned(graph, sizes)
    assert planned.layouts and all(t for t in planned.tried if t.name == "typical sizes")
    for h, w in tried:
        inputs = random_inputs(graph, 1, {"h": h, "w": w})
        wanted = interpret_graph(graph, inputs)
        made = planned.run(inputs)
        np.testing.assert_allclose(made[0], wanted[0], rtol=1e-3, atol=1e-4)

"""The steps of which random graphs are made: each takes a value made before, and adds an operator or a few.

Where a rounding error could decide (a comparison, a position, a quantized number) a step takes only values that are
exact: small multiples of 1/8, and sums and products of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
CHANNELS = (1, 2, 3, 4, 8, 16, 17, 32)
MOST_ELEMENTS = 1 << 15
LARGE = 1e4


@dataclass(frozen=True)
class Made:
    """A value: its shape, how large its elements may be, and whether they are exact."""

    name: str
    shape: tuple[int, ...]
    most: float
    exact: bool

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)


@dataclass
class Maker:
    """A graph under construction. `wide`: in float64."""

    wide: bool = False
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[Made] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    values: list[Made] = field(default_factory=list)

    @property
    def kind(self) -> int:
        """The element type."""
        return int(TensorProto.DOUBLE if self.wide else TensorProto.FLOAT)

    def floats(self, array: Any) -> np.ndarray:
        """Numbers that float32 holds, in the graph's type."""
        return np.asarray(array, np.float32).astype(np.float64 if self.wide else np.float32)

    def constant(self, array: Any) -> str:
        """A constant's name; whole numbers and truth values keep their type."""
        array = np.asarray(array)
        name = f"c{len(self.constants)}"
        self.constants[name] = self.floats(array) if array.dtype.kind == "f" else array
        return name

    def weights(self, chance: random.Random, *shape: int) -> str:
        """A constant of small numbers."""
        rng = np.random.default_rng(chance.getrandbits(32))
        scale = 1 / math.sqrt(max(1, math.prod(shape[1:]) if len(shape) > 1 else 1))
        return self.constant((rng.uniform(-1, 1, shape) * scale).astype(np.float32))

    def input(self, chance: random.Random, shape: tuple[int, ...]) -> Made:
        """A new input: small multiples of 1/8."""
        rng = np.random.default_rng(chance.getrandbits(32))
        made = Made(f"x{len(self.inputs)}", shape, 2.0, True)
        self.feeds[made.name] = self.floats(rng.integers(-16, 17, shape) / 8)
        self.inputs.append(made)
        self.values.append(made)
        return made

    def node(self, operator: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """A node's outputs."""
        names = [f"v{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, f"n{len(self.nodes)}", **attributes))
        return names

    def add(self, operator: str, inputs: Sequence[Any], shape: Sequence[int], most: float, exact: bool = False,
            **attributes: Any) -> Made:  # fmt: skip
        """A node with one output that later steps may take."""
        (name,) = self.node(operator, [i.name if isinstance(i, Made) else i for i in inputs], **attributes)
        return self.keep(name, shape, most, exact)

    def keep(self, name: str, shape: Sequence[int], most: float, exact: bool = False) -> Made:
        """Offers a value to later steps; one that may be large is brought back."""
        made = Made(name, tuple(int(s) for s in shape), most, exact and most <= LARGE)
        if most > LARGE:
            (name,) = self.node("Tanh", [name])
            made = Made(name, made.shape, 1.0, False)
        self.values.append(made)
        return made

    def pick(self, chance: random.Random, test: Callable[[Made], bool] = lambda value: True) -> Made | None:
        """A value made before, most often a late one."""
        found = [value for value in self.values if test(value)]
        return None if not found else found[-1] if chance.random() < 0.5 else chance.choice(found)


Step = Callable[[Maker, random.Random], Any]


def _unary(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance)
    assert x is not None
    op = chance.choice("Relu Neg Abs Tanh Sigmoid Erf Softplus Sqrt Exp LeakyRelu HardSwish Elu Selu HardSigmoid "
                       "Softsign Sin Cos Mish Gelu Reciprocal Log".split())  # fmt: skip
    if op in ("Relu", "Neg", "Abs"):
        g.add(op, [x], x.shape, x.most, x.exact)
    elif op == "Exp":
        g.add(
            "Exp", [g.add("Clip", [x, g.constant(np.float32(-3)), g.constant(np.float32(3))], x.shape, 3)], x.shape, 21
        )
    elif op in ("Sqrt", "Log", "Reciprocal"):
        y = g.add(
            "Add", [g.add("Abs", [x], x.shape, x.most, x.exact), g.constant(np.float32(0.5))], x.shape, x.most + 1
        )
        g.add(op, [y], x.shape, max(2.0, math.sqrt(x.most + 1)))
    else:
        g.add(op, [x], x.shape, max(1.0, 2 * x.most))


def _binary(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance)
    assert x is not None
    op = chance.choice(["Add", "Sub", "Mul", "Max", "Min"])
    other = g.pick(chance, lambda v: _broadcast(v.shape, x.shape) is not None)
    if other is None or chance.random() < 0.4:
        tail = chance.randint(0, x.rank)
        shape = tuple(chance.choice((d, d, 1)) for d in x.shape[x.rank - tail :])
        rng = np.random.default_rng(chance.getrandbits(32))
        name = g.constant((rng.integers(-16, 17, shape) / 8).astype(np.float32))
        other = Made(name, shape, 2.0, True)
    shape = _broadcast(other.shape, x.shape) or x.shape
    if math.prod(shape) > MOST_ELEMENTS:
        return
    most = {"Add": x.most + other.most, "Sub": x.most + other.most, "Mul": x.most * other.most}.get(
        op, max(x.most, other.most)
    )
    pair = [x, other] if chance.random() < 0.5 else [other, x]
    # A product of exact numbers has more bits than either; a few of them are still exact.
    g.add(op, pair, shape, most, x.exact and other.exact and most <= 256)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return tuple(np.broadcast_shapes(a, b))
    except ValueError:
        return None


def _divide(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance)
    assert x is not None
    g.add("Div", [x, g.constant(np.float32(chance.choice((2.0, 3.0, 0.5, 7.0))))], x.shape, 2 * x.most)


def _matmul(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 2 and v.shape[-1] > 0)
    if x is None:
        return
    k, n = x.shape[-1], chance.choice(CHANNELS)
    if chance.random() < 0.3:
        other = g.pick(chance, lambda v: v.rank == x.rank and v.shape[-1] == k and v.shape[:-2] == x.shape[:-2])
        if other is not None:
            order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
            turned = g.add(
                "Transpose", [other], (*other.shape[:-2], k, other.shape[-2]), other.most, other.exact, perm=order
            )
            g.add("MatMul", [x, turned], (*x.shape[:-1], other.shape[-2]), k * x.most * other.most)
            return
    if x.rank == 2 and chance.random() < 0.4:
        turned = chance.choice((0, 1))
        weight = g.weights(chance, *((n, k) if turned else (k, n)))
        inputs = [x, weight] + ([g.weights(chance, n)] if chance.random() < 0.7 else [])
        g.add("Gemm", inputs, (x.shape[0], n), 2 + k * x.most, transB=turned, alpha=chance.choice((1.0, 0.5)))
        return
    made = g.add("MatMul", [x, g.weights(chance, k, n)], (*x.shape[:-1], n), k * x.most)
    if chance.random() < 0.5:
        g.add("Add", [made, g.weights(chance, n)], made.shape, made.most + 1)


def _convolution(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank in (3, 4) and min(v.shape) > 0 and min(v.shape[2:]) >= 3)
    if x is None:
        return
    channels, spatial = x.shape[1], x.shape[2:]
    group = chance.choice([d for d in (1, 1, 2, channels) if channels % d == 0])
    out = group * chance.choice((1, 2, 3, 8, 16)) if group < channels else channels * chance.choice((1, 1, 2))
    kernel = [chance.choice((1, 3, 3, 2, min(5, s))) for s in spatial]
    strides = [chance.choice((1, 1, 2)) for _ in spatial]
    dilations = [chance.choice((1, 1, 1, 2)) if k * 2 - 1 <= s else 1 for k, s in zip(kernel, spatial)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    pads = [chance.choice((0, 1, (r - 1) // 2)) if r > 1 else 0 for r in reach]
    if any(s + 2 * p < r for s, p, r in zip(spatial, pads, reach)):
        return
    places = [(s + 2 * p - r) // t + 1 for s, p, r, t in zip(spatial, pads, reach, strides)]
    if math.prod((x.shape[0], out, *places)) > MOST_ELEMENTS:
        return
    inputs = [x, g.weights(chance, out, channels // group, *kernel)]
    inputs += [g.weights(chance, out)] if chance.random() < 0.6 else []
    most = 2 + x.most * math.sqrt(channels * math.prod(kernel))
    window = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": [*pads, *pads]}
    made = g.add("Conv", inputs, (x.shape[0], out, *places), most, **window, group=group)
    if chance.random() < 0.3:
        four = [
            g.constant(np.abs(np.random.default_rng(7 + n).uniform(0.5, 1.5, out)).astype(np.float32)) for n in range(4)
        ]
        made = g.add("BatchNormalization", [made, *four], made.shape, 2 * made.most + 3)
    if chance.random() < 0.5:
        g.add("Relu", [made], made.shape, made.most)


def _transposed(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank in (3, 4) and min(v.shape) > 0 and math.prod(v.shape) < 2000)
    if x is None:
        return
    out, spatial = chance.choice((1, 2, 3, 8)), x.shape[2:]
    kernel, strides = [chance.choice((1, 2, 3)) for _ in spatial], [chance.choice((1, 2)) for _ in spatial]
    places = [(s - 1) * t + k for s, t, k in zip(spatial, strides, kernel)]
    g.add("ConvTranspose", [x, g.weights(chance, x.shape[1], out, *kernel)], (x.shape[0], out, *places),
          x.most * x.shape[1] * 4, strides=strides, kernel_shape=kernel)  # fmt: skip


def _pool(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank in (3, 4) and min(v.shape) > 0)
    if x is None:
        return
    spatial = x.shape[2:]
    if chance.random() < 0.25:
        op = chance.choice(("GlobalAveragePool", "GlobalMaxPool"))
        g.add(op, [x], (*x.shape[:2], *[1] * len(spatial)), x.most, op == "GlobalMaxPool" and x.exact)
        return
    kernel = [chance.choice([k for k in (1, 2, 3) if k <= s]) for s in spatial]
    strides = [chance.choice((1, 2)) for _ in spatial]
    pads = [chance.choice((0, (k - 1) // 2)) for k in kernel]
    places = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip(spatial, pads, kernel, strides)]
    op = chance.choice(("MaxPool", "AveragePool"))
    g.add(op, [x], (*x.shape[:2], *places), x.most, op == "MaxPool" and x.exact,
          kernel_shape=kernel, strides=strides, pads=[*pads, *pads])  # fmt: skip


def _normalize(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 2 and min(v.shape) > 0)
    if x is None:
        return
    if x.rank >= 3 and math.prod(x.shape[2:]) > 1 and chance.random() < 0.5:
        scale, bias = g.weights(chance, x.shape[1]), g.weights(chance, x.shape[1])
        g.add("InstanceNormalization", [x, scale, bias], x.shape, 30.0, epsilon=1e-2)
    elif x.shape[-1] > 1:
        g.add("LayerNormalization", [x, g.weights(chance, x.shape[-1])], x.shape, 30.0, axis=-1, epsilon=1e-2)


def _reduce(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 1 and min(v.shape) > 0)
    if x is None:
        return
    op = chance.choice(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"))
    axes = sorted(chance.sample(range(x.rank), chance.randint(1, x.rank)))
    keep = chance.choice((0, 1))
    count = math.prod(x.shape[a] for a in axes)
    shape = [1 if d in axes else s for d, s in enumerate(x.shape) if keep or d not in axes]
    most = {"ReduceSum": count * x.most, "ReduceSumSquare": count * x.most**2, "ReduceL2": count * x.most}.get(
        op, x.most
    )
    exact = x.exact and (op in ("ReduceMax", "ReduceMin") or op == "ReduceSum" and most < 256)
    signed = [a - x.rank if chance.random() < 0.3 else a for a in axes]
    g.add(op, [x, g.constant(np.array(signed, np.int64))], shape, most, exact, keepdims=keep)


def _softmax(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 1 and min(v.shape) > 0)
    if x is not None:
        op = chance.choice(("Softmax", "Softmax", "LogSoftmax"))
        g.add(op, [x], x.shape, 1.0 if op == "Softmax" else 2 * x.most + 10, axis=chance.randrange(-x.rank, x.rank))


def _transpose(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 2)
    if x is not None:
        order = chance.sample(range(x.rank), x.rank)
        g.add("Transpose", [x], [x.shape[d] for d in order], x.most, x.exact, perm=order)


def _reshape(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance)
    assert x is not None
    size = math.prod(x.shape)
    shape: list[int] = []
    for _ in range(chance.randint(0, 3)):
        shape.append(chance.choice([d for d in (1, 2, 3, 4, 8, 16) if size % d == 0] or [1]))
        size //= shape[-1]
    shape.append(size)
    chance.shuffle(shape)
    if chance.random() < 0.3 and x.rank:
        flat = chance.randint(0, x.rank)
        g.add("Flatten", [x], (math.prod(x.shape[:flat]), math.prod(x.shape[flat:])), x.most, x.exact, axis=flat)
        return
    said = list(shape)
    if chance.random() < 0.5 and 0 not in shape:
        said[chance.randrange(len(said))] = -1
    g.add("Reshape", [x, g.constant(np.array(said, np.int64))], shape, x.most, x.exact)


def _axes(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank <= 4)
    if x is None:
        return
    if 1 in x.shape and chance.random() < 0.6:
        at = x.shape.index(1)
        shape = [s for d, s in enumerate(x.shape) if d != at]
        g.add("Squeeze", [x, g.constant(np.array([at], np.int64))], shape, x.most, x.exact)
        return
    at = chance.randint(0, x.rank)
    g.add("Unsqueeze", [x, g.constant(np.array([at], np.int64))], [*x.shape[:at], 1, *x.shape[at:]], x.most, x.exact)


def _concat(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 1)
    if x is None:
        return
    axis = chance.randrange(x.rank)
    rest = [s for d, s in enumerate(x.shape) if d != axis]
    others = [v for v in g.values if v.rank == x.rank and [s for d, s in enumerate(v.shape) if d != axis] == rest]
    chosen = [x, *(chance.choice(others) for _ in range(chance.randint(1, 2)))]
    shape = [sum(v.shape[axis] for v in chosen) if d == axis else s for d, s in enumerate(x.shape)]
    if math.prod(shape) <= MOST_ELEMENTS:
        g.add("Concat", chosen, shape, max(v.most for v in chosen), all(v.exact for v in chosen), axis=axis)


def _split(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 1 and max(v.shape) >= 2)
    if x is None:
        return
    axis = chance.choice([d for d, s in enumerate(x.shape) if s >= 2])
    first = chance.randint(1, x.shape[axis] - 1)
    sizes = [first, x.shape[axis] - first]
    names = g.node("Split", [x.name, g.constant(np.array(sizes, np.int64))], 2, axis=axis)
    for name, size in zip(names, sizes):
        g.keep(name, [size if d == axis else s for d, s in enumerate(x.shape)], x.most, x.exact)


def _slice(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 1 and min(v.shape) > 0)
    if x is None:
        return
    axes = chance.sample(range(x.rank), chance.randint(1, x.rank))
    starts, ends, steps, shape = [], [], [], list(x.shape)
    for axis in axes:
        size, step = x.shape[axis], chance.choice((1, 1, 2, -1, -2, 3))
        start, end = chance.randint(-size - 2, size + 2), chance.randint(-size - 2, size + 2)
        shape[axis] = len(range(size)[start:end:step])
        starts.append(start), ends.append(end), steps.append(step)
    if min(shape) > 0:
        given = [g.constant(np.array(part, np.int64)) for part in (starts, ends, axes, steps)]
        g.add("Slice", [x, *given], shape, x.most, x.exact)


def _gather(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 1 and min(v.shape) > 0)
    if x is None:
        return
    axis = chance.randrange(x.rank)
    size = x.shape[axis]
    way = chance.choice(("Gather", "GatherElements", "ScatterElements", "GatherND"))
    rng = np.random.default_rng(chance.getrandbits(32))
    if way == "Gather":
        shape = tuple(chance.choice((1, 2, 3, 5)) for _ in range(chance.randint(0, 2)))
        index = g.constant(rng.integers(-size, size, shape).astype(chance.choice(("int64", "int32"))))
        g.add("Gather", [x, index], (*x.shape[:axis], *shape, *x.shape[axis + 1 :]), x.most, x.exact, axis=axis)
    elif way == "GatherElements":
        shape = tuple(chance.randint(1, 4) if d == axis else s for d, s in enumerate(x.shape))
        g.add(way, [x, g.constant(rng.integers(-size, size, shape))], shape, x.most, x.exact, axis=axis)
    elif way == "ScatterElements":
        count = chance.randint(1, size)
        shape = tuple(count if d == axis else s for d, s in enumerate(x.shape))
        index = np.argsort(rng.random((*shape[:axis], size, *shape[axis + 1 :])), axis).take(range(count), axis)
        updates = g.constant((rng.integers(-16, 17, shape) / 8).astype(np.float32))
        g.add(way, [x, g.constant(index.astype(np.int64)), updates], x.shape, max(2, x.most), x.exact, axis=axis,
              reduction=chance.choice(("none", "none", "max", "add")))  # fmt: skip
    else:
        depth = chance.randint(1, x.rank)
        index = np.stack([rng.integers(0, s, (3,)) for s in x.shape[:depth]], -1)
        g.add(way, [x, g.constant(index.astype(np.int64))], (3, *x.shape[depth:]), x.most, x.exact)


def _where(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.exact)
    y = g.pick(chance, lambda v: x is not None and v.shape == x.shape)
    if x is None or y is None:
        return
    op = chance.choice(("Greater", "Less", "GreaterOrEqual", "Equal"))
    (test,) = g.node(op, [x.name, g.constant(np.float32(chance.choice((0, 0.5, -1))))])
    other = g.constant(np.float32(0.25))
    g.add("Where", [test, y, other], y.shape, max(0.25, y.most), y.exact)


def _round(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.exact)
    if x is not None:
        way = chance.choice(("Floor", "Ceil", "Round", "Cast", "Sign"))
        if way == "Cast":
            (whole,) = g.node("Cast", [x.name], to=chance.choice((TensorProto.INT32, TensorProto.INT64)))
            g.add("Cast", [whole], x.shape, x.most + 1, True, to=g.kind)
        else:
            g.add(way, [x], x.shape, x.most + 1, True)


def _quantize(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.exact)
    if x is None or g.wide:
        return
    kind = chance.choice((np.int8, np.uint8))
    scale, zero = (
        g.constant(np.float32(chance.choice((0.125, 0.25, 1.0)))),
        g.constant(np.array(chance.choice((0, 3)), kind)),
    )
    (small,) = g.node("QuantizeLinear", [x.name, scale, zero])
    g.add("DequantizeLinear", [small, scale, zero], x.shape, 300.0, True)


def _position(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.exact and v.rank >= 1 and min(v.shape) > 0)
    if x is None:
        return
    axis = chance.randrange(x.rank)
    if chance.random() < 0.5:
        (at,) = g.node(chance.choice(("ArgMax", "ArgMin")), [x.name], axis=axis, keepdims=1)
        g.add(
            "Cast", [at], [1 if d == axis else s for d, s in enumerate(x.shape)], float(x.shape[axis]), True, to=g.kind
        )
        return
    count = chance.randint(1, x.shape[axis])
    names = g.node(
        "TopK", [x.name, g.constant(np.array([count], np.int64))], 2, axis=axis, largest=chance.choice((0, 1))
    )
    g.keep(names[0], [count if d == axis else s for d, s in enumerate(x.shape)], x.most, True)


def _spread(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank >= 1 and min(v.shape) > 0)
    if x is None:
        return
    way = chance.choice(("Pad", "Tile", "Expand", "CumSum", "Resize"))
    if way == "Pad":
        before, after = ([chance.choice((0, 0, 1, 2)) for _ in x.shape] for _ in range(2))
        mode = chance.choice(("constant", "edge", "reflect"))
        if mode == "reflect":
            before, after = ([min(p, s - 1) for p, s in zip(part, x.shape)] for part in (before, after))
        shape = [s + a + b for s, a, b in zip(x.shape, before, after)]
        g.add("Pad", [x, g.constant(np.array([*before, *after], np.int64))], shape, x.most, x.exact, mode=mode)
    elif way == "Tile":
        times = [chance.choice((1, 1, 2)) for _ in x.shape]
        shape = [s * t for s, t in zip(x.shape, times)]
        if math.prod(shape) <= MOST_ELEMENTS:
            g.add("Tile", [x, g.constant(np.array(times, np.int64))], shape, x.most, x.exact)
    elif way == "Expand":
        shape = [chance.choice((2, *x.shape[:1])), *[s if s > 1 else chance.choice((1, 3)) for s in x.shape]]
        if math.prod(shape) <= MOST_ELEMENTS:
            g.add("Expand", [x, g.constant(np.array(shape, np.int64))], shape, x.most, x.exact)
    elif way == "CumSum":
        axis = chance.randrange(x.rank)
        g.add("CumSum", [x, g.constant(np.array(axis, np.int64))], x.shape, x.most * x.shape[axis],
              exclusive=chance.choice((0, 1)), reverse=chance.choice((0, 1)))  # fmt: skip
    elif x.rank == 4 and math.prod(x.shape) * 4 <= MOST_ELEMENTS:
        mode = chance.choice(("nearest", "linear"))
        sizes = g.constant(np.array([1.0, 1.0, 2.0, 2.0], np.float32))
        if g.wide:
            g.constants[sizes] = g.constants[sizes].astype(np.float32)
        g.add("Resize", [x, "", sizes], (*x.shape[:2], *(2 * s for s in x.shape[2:])), x.most, mode=mode,
              coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip


def _recurrent(g: Maker, chance: random.Random) -> None:
    x = g.pick(chance, lambda v: v.rank == 3 and 0 < v.shape[0] <= 9 and min(v.shape) > 0)
    if x is None:
        return
    steps, batch, width = x.shape
    hidden = chance.choice((1, 3, 4, 8))
    op, gates = chance.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    inputs = [x.name, g.weights(chance, 1, gates * hidden, width), g.weights(chance, 1, gates * hidden, hidden)]
    if chance.random() < 0.6:
        inputs.append(g.weights(chance, 1, 2 * gates * hidden))
    more = {"linear_before_reset": 1} if op == "GRU" and chance.random() < 0.5 else {}
    names = g.node(op, inputs, 2, hidden_size=hidden, direction=chance.choice(("forward", "reverse")), **more)
    g.keep(names[0], (steps, 1, batch, hidden), 1.0)
    g.keep(names[1], (1, batch, hidden), 1.0)


def _choice(g: Maker, chance: random.Random) -> None:
    """An If on an exact number; both branches read a value from around them."""
    x, y = g.pick(chance, lambda v: v.exact and min(v.shape, default=1) > 0), g.pick(chance)
    if x is None or y is None:
        return
    (most,) = g.node("ReduceMax", [x.name], keepdims=0)
    (test,) = g.node("Greater", [most, g.constant(np.float32(chance.choice((0, 1, 5))))])
    branches = {}
    for key, op in (("then_branch", "Neg"), ("else_branch", "Relu")):
        inner = f"{key}{len(g.nodes)}"
        out = helper.make_tensor_value_info(inner, g.kind, y.shape)
        branches[key] = helper.make_graph([helper.make_node(op, [y.name], [inner])], key, [], [out])
    g.add("If", [test], y.shape, y.most, y.exact, **branches)


STEPS: dict[str, Step] = {
    "unary": _unary, "binary": _binary, "divide": _divide, "matmul": _matmul, "convolution": _convolution,
    "transposed": _transposed, "pool": _pool, "normalize": _normalize, "reduce": _reduce, "softmax": _softmax,
    "transpose": _transpose, "reshape": _reshape, "axes": _axes, "concat": _concat, "split": _split, "slice": _slice,
    "gather": _gather, "where": _where, "round": _round, "quantize": _quantize, "position": _position,
    "spread": _spread, "recurrent": _recurrent, "choice": _choice,
}  # fmt: skip
OFTEN = {"unary": 4, "binary": 6, "matmul": 3, "convolution": 5, "reduce": 2}
WEIGHTED = [name for name in STEPS for _ in range(OFTEN.get(name, 1))]

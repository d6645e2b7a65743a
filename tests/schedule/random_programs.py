"""Random te programs over tiny arrays, drawn from any source of choices (Hypothesis, or a seeded Random)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.schedule.intrinsics import TENSORIZED
from weft import te
from weft.expr.nodes import const, int_value
from weft.expr.visit import free_vars
from weft.loop.ir import Func
from weft.schedule.schedule import Schedule

DTYPES = ("float32", "int32", "int8", "uint8", "float16", "bfloat16", "int64", "bool")
SIZES = (1, 2, 3, 4, 5, 7, 8)


class Source:
    """Where choices come from; this one is a seeded Random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return self.random.choice(list(options))

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high."""
        return self.random.randint(low, high)

    def chance(self, percent: int) -> bool:
        """True in so many cases of a hundred."""
        return self.number(1, 100) <= percent


class HypothesisSource(Source):
    """Choices drawn by Hypothesis, which can then make a failing example smaller."""

    def __init__(self, data: Any) -> None:
        from hypothesis import strategies  # only here: seeded choices do without it

        self.data, self.strategies = data, strategies

    def pick(self, options: Sequence[Any]) -> Any:
        return self.data.draw(self.strategies.sampled_from(list(options)))

    def number(self, low: int, high: int) -> int:
        return self.data.draw(self.strategies.integers(low, high))


# ------------------------------------------------------------------------------------------------------- programs


@dataclass
class Program:
    """A te program: its outputs' operations, and what its symbolic size is when it runs."""

    outputs: list[Any]
    size: int
    kinds: list[str] = field(default_factory=list)

    def schedule(self) -> Schedule:
        """A fresh schedule."""
        return te.create_schedule([t.op for t in self.outputs])


class Maker:
    """Builds one program, stage by stage."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.n = te.var("n")
        self.symbolic = source.chance(25)
        self.size = source.pick((1, 3, 4, 6, 9, 2, 7, 5))
        self.tensors: list[Any] = []
        self.kinds: list[str] = []
        self.count = 0

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def extent(self) -> Any:
        if self.symbolic and self.source.chance(40):
            return self.n
        return self.source.pick(SIZES)

    def placeholder(self, shape: Sequence[Any], dtype: str) -> Any:
        made = te.placeholder(tuple(shape), dtype, name=self.name("A"))
        self.tensors.append(made)
        return made

    def add(self, kind: str, tensor: Any) -> Any:
        self.kinds.append(kind)
        self.tensors.append(tensor)
        return tensor

    def recent(self) -> Any:
        """A tensor, most often the newest."""
        return self.tensors[-1] if self.source.chance(70) else self.source.pick(self.tensors)

    # ---------------------------------------------------------------------------------------------- kinds of stage

    def unary(self, x: Any) -> Any:
        kind, source = x.dtype, self.source
        if kind.is_bool:
            return te.not_(x)
        one = (
            const(source.number(1, 3), kind) if not kind.is_float else const(float(source.pick((0.5, 1.5, 2.0))), kind)
        )
        choices: list[Callable[[], Any]] = [
            lambda: x + one,
            lambda: x * one,
            lambda: te.maximum(x, one),
            lambda: te.if_then_else(x < one, one, x),
            lambda: x - one,
        ]
        if kind.is_integer:
            choices += [lambda: x // one, lambda: x % (one + const(1, kind)), lambda: x ^ one]
        return source.pick(choices)()

    def combine(self, a: Any, b: Any) -> Any:
        kind = a.dtype
        if b.dtype is not kind:
            b = te.not_equal(b, const(0, b.dtype)) if kind.is_bool else b.astype(kind)
        if kind.is_bool:
            return self.source.pick((lambda: a & b, lambda: a | b, lambda: a ^ b))()
        return self.source.pick((lambda: a + b, lambda: a * b, lambda: te.minimum(a, b), lambda: a - b))()

    def elementwise(self) -> None:
        a = self.recent()
        others = [t for t in self.tensors if _broadcasts(t, a)]
        if others and self.source.chance(60):
            b = self.source.pick(others)
            self.add("elementwise", te.elementwise(self.combine, a, b, name=self.name("E")))
        else:
            self.add("elementwise", te.elementwise(self.unary, a, name=self.name("E")))

    def transpose(self) -> None:
        a = self.recent()
        if len(a.shape) < 2:
            return self.elementwise()
        order = list(range(len(a.shape)))
        order = order[1:] + order[:1] if self.source.chance(50) else order[::-1]
        shape = [a.shape[d] for d in order]

        def body(*i: Any) -> Any:
            at: list[Any] = [None] * len(order)
            for position, d in enumerate(order):
                at[d] = i[position]
            return self.unary(a[tuple(at)])

        self.add("transpose", te.compute(shape, body, name=self.name("T")))

    def reread(self) -> None:
        """Strided, reversed, shifted or reshaped reads of the first dimension."""
        a = self.recent()
        if not a.shape:
            return self.elementwise()
        m = a.shape[0]
        fixed = int_value(m)
        way = self.source.pick(("reverse", "strided", "stencil", "flatten", "repeat"))
        rest = a.shape[1:]
        if way == "flatten" and len(a.shape) >= 2:
            width = a.shape[1]
            made = te.compute(
                (m * width, *a.shape[2:]), lambda f, *r: a[(f // width, f % width, *r)], name=self.name("F")
            )
        elif way == "strided" and fixed is not None and fixed > 1:
            made = te.compute((-(-fixed // 2), *rest), lambda i, *r: a[(i * 2, *r)], name=self.name("S"))
        elif way == "stencil" and fixed is not None and fixed > 1:
            made = te.compute(
                (fixed - 1, *rest), lambda i, *r: self.combine(a[(i, *r)], a[(i + 1, *r)]), name=self.name("W")
            )
        elif way == "repeat":
            made = te.compute((m * 2, *rest), lambda i, *r: self.unary(a[(i // 2, *r)]), name=self.name("R"))
        else:
            made = te.compute(a.shape, lambda i, *r: a[(m - 1 - i, *r)], name=self.name("V"))
        self.add(way, made)

    def pad(self) -> None:
        a = self.recent()
        if not a.shape:
            return self.elementwise()
        m, rest = a.shape[0], a.shape[1:]
        zero = const(0, a.dtype) if not a.dtype.is_bool else const(False, "bool")
        made = te.compute(
            (m + 2, *rest),
            lambda i, *r: te.if_then_else(te.all(i >= 1, i < m + 1), a[(i - 1, *r)], zero),
            name=self.name("P"),
        )
        self.add("pad", made)

    def convolution(self) -> None:
        """A window along the last dimension, over a padded input."""
        a = self.recent()
        if not a.shape or a.dtype.is_bool:
            return self.elementwise()
        m, lead = a.shape[-1], a.shape[:-1]
        zero = const(0, a.dtype)
        padded = te.compute(
            (*lead, m + 2),
            lambda *i: te.if_then_else(te.all(i[-1] >= 1, i[-1] < m + 1), a[(*i[:-1], i[-1] - 1)], zero),
            name=self.name("P"),
        )
        weight = self.placeholder((3,), a.dtype)
        r = te.reduce_axis(3, self.name("r"))
        made = te.compute(
            a.shape, lambda *i: te.sum(padded[(*i[:-1], i[-1] + r)] * weight[r], axis=r), name=self.name("C")
        )
        self.tensors.append(padded)
        self.add("convolution", made)

    def reduction(self) -> None:
        a = self.recent()
        if not a.shape:
            return self.elementwise()
        count = self.source.number(1, min(2, len(a.shape)))
        first = self.source.number(0, len(a.shape) - count)
        axes = [te.reduce_axis(a.shape[first + d], self.name("k")) for d in range(count)]
        shape = (*a.shape[:first], *a.shape[first + count :])

        def read(i: Sequence[Any]) -> Any:
            return a[(*i[:first], *axes, *i[first:])]

        if a.dtype.is_bool:
            reduce = self.source.pick((te.any, te.all))
        else:
            reduce = self.source.pick((te.sum, te.max, te.min, te.prod, te.sum))
        if self.source.chance(20) and not a.dtype.is_bool:
            made = te.compute(shape, lambda *i: reduce(read(i), axis=axes, where=axes[0] % 2 < 1), name=self.name("R"))
        else:
            made = te.compute(shape, lambda *i: reduce(read(i), axis=axes), name=self.name("R"))
        self.add("reduction", made)

    def matmul(self) -> None:
        a = self.recent()
        if len(a.shape) != 2 or a.dtype.is_bool:
            return self.reduction()
        b = self.placeholder((a.shape[1], self.extent()), a.dtype)
        k = te.reduce_axis(a.shape[1], self.name("k"))
        if self.source.chance(30) and a.dtype.name in ("int8", "uint8"):
            made = te.compute(
                (a.shape[0], b.shape[1]),
                lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k),
                name=self.name("M"),
            )
        else:
            made = te.compute(
                (a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=self.name("M")
            )
        self.add("matmul", made)

    def argmax(self) -> None:
        a = self.recent()
        if not a.shape or a.dtype.is_bool:
            return self.reduction()
        k = te.reduce_axis(a.shape[-1], self.name("k"))
        # Of equal values the one with the lesser index wins, so that the order of the reduction does not matter.
        best = te.comm_reducer(
            lambda x, y: (
                te.if_then_else(te.any(x[1] > y[1], te.all(te.equal(x[1], y[1]), x[0] < y[0])), x[0], y[0]),
                te.if_then_else(te.any(x[1] > y[1], te.all(te.equal(x[1], y[1]), x[0] < y[0])), x[1], y[1]),
            ),
            lambda t0, t1: (1000, t1.min),
            name="argmax",
        )
        first, second = te.compute(
            a.shape[:-1], lambda *i: best((k.var.astype("int64"), a[(*i, k)]), axis=k), name=self.name("X")
        )
        self.add("argmax", self.source.pick((first, second)))

    def pair(self) -> None:
        """One operation with two results."""
        a = self.recent()
        first, second = te.compute(a.shape, lambda *i: (self.unary(a[i]), self.unary(a[i])), name=self.name("D"))
        self.tensors.append(first)
        self.add("pair", second)

    def scan(self) -> None:
        a = self.recent()
        if not a.shape or a.dtype.is_bool or (int_value(a.shape[0]) or 0) < 2:
            return self.elementwise()
        state = te.placeholder(a.shape, a.dtype, name=self.name("state"))
        first = te.compute((1, *a.shape[1:]), lambda t, *r: a[(t, *r)], name=self.name("I"))
        earlier = te.compute(a.shape, lambda t, *r: self.unary(state[(t - 1, *r)]), name=self.name("P"))
        before = earlier if self.source.chance(50) else None
        update = te.compute(
            a.shape,
            lambda t, *r: (state[(t - 1, *r)] if before is None else before[(t, *r)]) + a[(t, *r)],
            name=self.name("U"),
        )
        self.add("scan", te.scan(first, update, state, name=self.name("scan")))


STAGES = ("elementwise", "elementwise", "transpose", "reread", "pad", "convolution", "reduction", "reduction", "matmul",
          "matmul", "argmax", "pair", "scan")  # fmt: skip


def _broadcasts(a: Any, b: Any) -> bool:
    try:
        te.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    sixteen = {"float16", "bfloat16"}
    return not (a.dtype is not b.dtype and a.dtype.name in sixteen and b.dtype.name in sixteen)


def draw_program(source: Source) -> Program:
    """A program of one to four stages over tiny arrays."""
    maker = Maker(source)
    dtype = source.pick(DTYPES)
    rank = source.pick((1, 2, 2, 2, 3))
    if source.chance(25):  # something for the tensor intrinsics
        dtype = source.pick(TENSORIZED)
        a = maker.placeholder([source.pick((2, 4, 8)) for _ in range(2)], dtype)
        if source.chance(70):
            b = maker.placeholder([a.shape[1], source.pick((2, 4))], dtype)
            k = te.reduce_axis(a.shape[1], "k")
            made = te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="M")
        else:
            made = te.compute(a.shape, lambda i, j: a[i, j] + const(1, dtype), name="M")
        maker.add("matmul", made)
    else:
        maker.placeholder([maker.extent() for _ in range(rank)], dtype)
    if source.chance(30):
        maker.placeholder([maker.extent() for _ in range(source.number(0, 2))], source.pick((dtype, dtype, "int32")))
    for _ in range(source.number(1 if not maker.kinds else 0, 4)):
        getattr(maker, source.pick(STAGES))()
    made = [t for t in maker.tensors if isinstance(t.op, te.compute.__globals__["ComputeOp"]) or t.op.inputs]
    outputs = [made[-1]]
    if source.chance(25) and made[0].op is not made[-1].op and not _before_scan(made):
        outputs.append(made[0])
    return Program(outputs, maker.size, maker.kinds)


def _before_scan(tensors: Sequence[Any]) -> bool:
    return any(type(t.op).__name__ == "ScanOp" for t in tensors)


def arguments_of(func: Func, size: int, seed: int) -> list[np.ndarray]:
    """Arrays for the parameters, the same ones for the same seed: values so small that most sums of them are exact."""
    rng = np.random.default_rng(seed)
    arrays = []
    for buffer, shape in zip(func.buffers, shapes_of(func, size)):
        kind = buffer.dtype
        if kind.is_bool:
            arrays.append(np.asarray(rng.integers(0, 2, shape)).astype(bool))
        elif kind.is_float:
            arrays.append(np.asarray(rng.integers(-2, 3, shape) / 2.0).astype(kind.numpy))
        else:
            arrays.append(np.asarray(rng.integers(0 if kind.kind == "uint" else -6, 7, shape)).astype(kind.numpy))
    return arrays


def shapes_of(func: Func, size: int) -> list[tuple[int, ...]]:
    """The shapes of the parameters, where every open size is `size`."""
    return [tuple(_size(s, size) for s in buffer.shape) for buffer in func.buffers]


def _size(e: Any, n: int) -> int:
    from weft.expr.evaluate import evaluate

    return int(evaluate(e, dict.fromkeys(free_vars(e), n)))

"""Random expressions over variables with random ranges, and points inside those ranges."""

import random

from hypothesis import strategies as st

from weft.core.dtypes import dtype
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    And,
    Broadcast,
    Cast,
    Const,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    const,
    index_expr,
)  # fmt: skip

seeds = st.integers(0, 2**48)
_DIVISORS = (1, 2, 3, 4, 4, 5, 7, 8, 8, 16, 32, 32, 64, 6, 12, -3, -4)
_FACTORS = (1, 2, 3, 4, 8, 16, 32, 64, -1, -2, 5, 7, 12)


class Scene:
    """Variables with ranges: loops inside one another (some of symbolic extent), sizes, and one variable unknown."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ranges = Ranges()
        self.n, self.m, self.free = Var("n"), Var("m"), Var("free")
        self.ranges = self.ranges.with_size(self.n).with_size(self.m)
        self.loops = []
        for name in "ijkl"[: rng.randint(1, 4)]:
            var = Var(name)
            self.loops.append((var, self._extent()))
            self.ranges = self.ranges.with_loop(*self.loops[-1])
        self.variables = [var for var, _ in self.loops] * 3 + [self.n, self.m, self.free]

    def _extent(self):
        n, m = self.n, self.m
        outer = self.loops[-1][0] if self.loops else n
        chance = self.rng.random()
        if chance < 0.65:
            return self.rng.choice((1, 2, 3, 4, 5, 7, 8, 16, 32, 33))
        return self.rng.choice(
            (n, m, n * 4, (n + 3) // 4, n * m, Min(n, index_expr(8)), n + 1, n - 2, outer + 1, n - outer, n // 2 + 1,
             Min(n - outer * 4, index_expr(4)))
        )  # fmt: skip

    def point(self):
        """Values of the variables inside the ranges, or None where none was found."""
        from weft.expr.evaluate import evaluate

        for _ in range(20):
            env = {self.n: self.rng.choice((0, 1, 2, 3, 4, 5, 7, 8, 13, 40)), self.m: self.rng.randint(0, 9)}
            env[self.free] = self.rng.randint(-70, 70)
            for var, extent in self.loops:
                size = extent if isinstance(extent, int) else evaluate(extent, env)
                if size < 1:
                    break
                env[var] = self.rng.choice((0, size - 1, self.rng.randrange(size)))
            else:
                return env
        return None

    def index(self, depth: int):
        """A random int64 expression, built without folding."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.1:
            return rng.choice(self.variables) if rng.random() < 0.75 else index_expr(rng.randint(-40, 40))
        kind = rng.choice((Add, Add, Add, Sub, Mul, Mul, FloorDiv, FloorMod, FloorDiv, FloorMod, Min, Max, "more"))
        if kind == "more":
            kind = rng.choice((Select, TruncDiv, TruncMod, Cast, "symbolic", "product"))
        a = self.index(depth - 1)
        if kind is Mul:
            return Mul(a, index_expr(rng.choice(_FACTORS)))
        if kind in (FloorDiv, FloorMod, TruncDiv, TruncMod):
            return kind(a, index_expr(rng.choice(_DIVISORS)))
        if kind == "symbolic":
            return rng.choice((FloorDiv, FloorMod))(a, Max(rng.choice((self.n, self.m)), index_expr(1)))
        if kind == "product":
            return Mul(a, self.index(1))
        if kind is Select:
            return Select(self.condition(1), a, self.index(depth - 1))
        if kind is Cast:
            return Cast(dtype("int64"), Cast(dtype(rng.choice(("int8", "int32", "uint8", "uint64"))), a))
        return kind(a, self.index(depth - 1))

    def condition(self, depth: int):
        """A random bool expression."""
        rng = self.rng
        if depth > 0 and rng.random() < 0.4:
            kind = rng.choice((And, Or, Not))
            return (
                Not(self.condition(depth - 1))
                if kind is Not
                else kind(self.condition(depth - 1), self.condition(depth - 1))
            )
        kind = rng.choice((LT, LT, LE, LE, EQ, NE))
        a = self.index(rng.randint(1, 3))
        b = rng.choice((self.n, self.m, index_expr(rng.randint(-40, 200)), self.index(1), self.index(2)))
        return kind(a, b) if rng.random() < 0.7 else kind(b, a)

    def vector(self, depth: int, lanes: int):
        """A random vector of int64."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            if rng.random() < 0.4:
                return Broadcast(self.index(1), lanes)
            stride = index_expr(rng.choice((0, 1, 1, 2, 4, -1, 8))) if rng.random() < 0.8 else self.n
            return Ramp(self.index(rng.randint(0, 1)), stride, lanes)
        kind = rng.choice((Add, Add, Sub, Mul, FloorDiv, FloorMod, Min, Max))
        a = self.vector(depth - 1, lanes)
        if kind is Mul:
            return Mul(a, Broadcast(index_expr(rng.choice(_FACTORS)), lanes))
        if kind in (FloorDiv, FloorMod):
            return kind(a, Broadcast(index_expr(rng.choice(_DIVISORS)), lanes))
        return kind(a, self.vector(depth - 1, lanes))


def narrow(rng: random.Random, kind, variables, depth: int):
    """A random expression of an integer type that wraps."""
    if depth == 0 or rng.random() < 0.1:
        if rng.random() < 0.6:
            return rng.choice(variables)
        values = (0, 1, 2, 3, 5, kind.max, kind.min, rng.randint(kind.min, kind.max))
        return const(max(kind.min, min(kind.max, rng.choice(values))), kind)
    node = rng.choice((Add, Sub, Mul, Mul, FloorDiv, FloorMod, TruncDiv, TruncMod, Min, Max, Select, Cast))
    a = narrow(rng, kind, variables, depth - 1)
    if node in (FloorDiv, FloorMod, TruncDiv, TruncMod):
        return node(a, Const(rng.choice([d for d in (1, 2, 3, 4, 7, -1, -2) if kind.min <= d <= kind.max]), kind))
    b = narrow(rng, kind, variables, depth - 1)
    if node is Select:
        return Select(rng.choice((LT, LE, EQ, NE))(a, b), b, narrow(rng, kind, variables, depth - 1))
    if node is Cast:
        return Cast(kind, Cast(dtype(rng.choice(("int8", "int16", "int64", "uint8", "uint32", "int4", "bool"))), a))
    return node(a, b)

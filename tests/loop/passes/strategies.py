"""Random small lowered programs, and the question every pass must answer: does the program still mean the same?

A program has one or two nests over a domain of one or two dimensions; each dimension is one loop or is split (with a
tail test where the factor does not divide). Every statement at a point of the domain touches the outputs only at that
point, so that any loop over the domain may be vectorized, unrolled or parallel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from tests.loop.structural import funcs_equal
from weft.core.dtypes import FLOAT32, INDEX
from weft.expr.nodes import (
    Buffer,
    Call,
    Cast,
    Expr,
    Load,
    Select,
    Var,
    add,
    const,
    equal,
    floordiv,
    floormod,
    index_expr,
    less,
    less_equal,
    logical_and,
    logical_not,
    maximum,
    minimum,
    mul,
    sub,
)
from weft.loop.interpreter import interpret
from weft.loop.ir import Allocate, For, Func, If, Let, Stmt, Store, seq
from weft.loop.parser import parse_func
from weft.loop.verifier import verify

SIDE = 16
"""Extent of each side of the input, so that every index of a program of these is in bounds."""


def run(func: Func, seed: int = 0) -> list[np.ndarray]:
    """The buffers of a program after it ran on random small integers (exact in every float type)."""
    generator = np.random.default_rng(seed)
    arrays = []
    for buffer in func.buffers:
        shape = [int(extent.value) for extent in buffer.shape]
        if buffer.dtype.is_float or buffer.dtype.name == "int32":
            arrays.append(generator.integers(-3, 4, shape).astype(buffer.dtype.numpy))
        else:
            arrays.append(generator.integers(0, 100, shape).astype(buffer.dtype.numpy))
    interpret(func, *arrays)
    return arrays


def same_meaning(before: Func, after: Func) -> None:
    """Fails unless both programs obey the rules and leave the same in every buffer."""
    verify(before)
    verify(after)
    for old, new in zip(run(before), run(after)):
        np.testing.assert_array_equal(old, new, err_msg=f"before:\n{before}\nafter:\n{after}")


def expect(func: Func, text: str) -> None:
    """Fails unless a program is, up to names, the one that the text describes."""
    wanted = parse_func(text)
    assert funcs_equal(func, wanted), f"got:\n{func}\nwanted:\n{wanted}"


# ------------------------------------------------------------------------------------------------------ the strategy


class _Builder:
    """Draws one program."""

    def __init__(self, draw: Callable, kinds: tuple[str, ...]) -> None:
        self.draw = draw
        self.kinds = kinds
        self.source = Buffer("A", FLOAT32, (SIDE, SIDE))
        self.outputs = [Buffer("C", FLOAT32, (SIDE, SIDE)), Buffer("D", FLOAT32, (SIDE, SIDE))]
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def pick(self, *choices):
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def value(self, point: list[Expr], inner: list[Var], depth: int = 2) -> Expr:
        """A float expression of a point and the variables of inner loops (each below 4)."""
        kind = self.pick("load", "load", "own", "constant", "index", "arithmetic", "select", "pad") if depth else "load"
        if kind == "constant":
            return const(self.number(-2, 2), FLOAT32)
        if kind == "index":
            return Cast(FLOAT32, self.index(point, inner))
        if kind == "own":
            return Load(self.pick(*self.outputs), point)
        if kind == "arithmetic":
            a, b = self.value(point, inner, depth - 1), self.value(point, inner, depth - 1)
            return self.pick(add, sub, mul, maximum, minimum)(a, b)
        if kind == "select":
            a, b = self.value(point, inner, depth - 1), self.value(point, inner, depth - 1)
            return Select(self.condition(point, inner), a, b)
        if kind == "pad":
            shift = self.number(1, 2)
            moved = add(point[0], inner[0]) if inner else point[0]
            inside = logical_and(
                less_equal(index_expr(shift), moved), less(moved, index_expr(self.number(shift + 1, SIDE)))
            )
            return Select(inside, Load(self.source, (sub(moved, index_expr(shift)), point[1])), const(0, FLOAT32))
        return Load(self.source, (self.index(point[:1], inner), self.index(point[1:], inner)))

    def index(self, point: list[Expr], inner: list[Var]) -> Expr:
        """An index in 0..15 (a coordinate of a point is below 9)."""
        base = self.pick(*point)
        shape = self.pick("plain", "inner", "shift", "divide", "remainder")
        if shape == "inner" and inner:
            return add(base, self.pick(*inner))
        if shape == "shift":
            return add(base, index_expr(self.number(0, 3)))
        if shape == "divide":
            return floordiv(add(base, index_expr(1)), index_expr(self.number(2, 4)))
        if shape == "remainder":
            return floormod(mul(base, index_expr(3)), index_expr(self.number(2, 5)))
        return base

    def condition(self, point: list[Expr], inner: list[Var]) -> Expr:
        kind = self.pick("below", "above", "parity", "data", "both", "not")
        base = self.pick(*point, *inner)
        if kind == "below":
            return less(base, index_expr(self.number(0, 9)))
        if kind == "above":
            return less_equal(index_expr(self.number(0, 4)), add(base, self.pick(*point)))
        if kind == "parity":
            return equal(floormod(base, index_expr(2)), index_expr(0))
        if kind == "data":
            return less(Load(self.source, point), const(1, FLOAT32))
        if kind == "both":
            return logical_and(less(base, index_expr(self.number(0, 9))), less_equal(index_expr(1), self.pick(*point)))
        return logical_not(less(base, index_expr(self.number(0, 9))))

    def statement(self, point: list[Expr], inner: list[Var], depth: int) -> Stmt:
        kind = self.pick("store", "store", "if", "let", "reduce", "temporary", "two") if depth else "store"
        if kind == "if":
            otherwise = self.statement(point, inner, depth - 1) if self.pick(True, False) else None
            return If(self.condition(point, inner), self.statement(point, inner, depth - 1), otherwise)
        if kind == "let":
            var = Var(self.name("t"), FLOAT32)
            value = Call("exp", (minimum(self.value(point, inner, 1), const(1, FLOAT32)),), FLOAT32)
            target = self.pick(*self.outputs)
            return Let(var, value, Store(target, point, add(self.value(point, inner), var)))
        if kind == "reduce" and len(inner) < 2:
            var = Var(self.name("k"))
            body = self.statement(point, [*inner, var], depth - 1)
            target = self.pick(*self.outputs)
            update = Store(target, point, add(Load(target, point), self.value(point, [*inner, var])))
            return For(var, self.number(1, 4), seq(update, body), self.pick("serial", "serial", "unrolled"))
        if kind == "temporary":
            buffer = Buffer(self.name("T"), FLOAT32, (2, 3))
            place = (index_expr(self.number(0, 1)), index_expr(self.number(0, 2)))
            first = Store(buffer, place, self.value(point, inner))
            use = Store(self.pick(*self.outputs), point, mul(Load(buffer, place), self.value(point, inner, 1)))
            return Allocate(buffer, seq(first, use))
        if kind == "two":
            return seq(self.statement(point, inner, depth - 1), self.statement(point, inner, depth - 1))
        return Store(self.pick(*self.outputs), point, self.value(point, inner))

    def loop(self, extent: int, body: Stmt, var: Var) -> Stmt:
        return For(var, extent, body, self.pick(*self.kinds))

    def nest(self) -> Stmt:
        sizes = [self.number(1, 9), self.number(1, 9)]
        loops: list[tuple[Var, int]] = []
        point: list[Expr] = []
        guards: list[Expr] = []
        for size, stem in zip(sizes, "yx"):
            if self.pick(True, False):
                factor = self.number(2, 5)
                outer, inner = Var(self.name(stem + "o")), Var(self.name(stem + "i"))
                loops += [(outer, -(-size // factor)), (inner, factor)]
                point.append(add(mul(outer, index_expr(factor)), inner))
                if size % factor:
                    guards.append(less(point[-1], index_expr(size)))
            else:
                var = Var(self.name(stem))
                loops.append((var, size))
                point.append(var)
        body = self.statement(point, [], 2)
        if guards:
            body = If(logical_and(*guards), body)
        for var, extent in reversed(self.draw(st.permutations(loops))):
            body = self.loop(extent, body, var)
        return body

    def func(self) -> Func:
        body = seq(*[self.nest() for _ in range(self.number(1, 2))])
        return Func("program", [self.source, *self.outputs], body)


@st.composite
def programs(draw, kinds: tuple[str, ...] = ("serial", "serial", "unrolled", "vectorized", "parallel")) -> Func:
    """A random lowered program, verified."""
    func = _Builder(draw, kinds).func()
    verify(func)
    return func


__all__ = ["INDEX", "expect", "programs", "run", "same_meaning"]

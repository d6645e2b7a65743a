"""The primitive that gives every product of two operands one form, whatever it was written as: matrix_form.

A matrix product, a batched one, a convolution in any number of dimensions, an einsum: each multiplies two operands and
sums over axes that both have. Axes that only one operand has become one axis (x or y), the axes that are summed become
one (k), those that the result shares with both operands become one (b). The operands become stages of their own, so
that a schedule can fetch them, tile by tile, into another memory; the sum is C[b, y, x] += X[b, k, x] * Y[b, k, y].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.core.dtypes import DType
from weft.core.errors import ScheduleError
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    Add,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Mul,
    Select,
    Var,
    add,
    cast,
    const,
    floordiv,
    floormod,
    index_expr,
    int_value,
    is_true,
    less,
    logical_and,
    mul,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import substitute, uses_any
from weft.loop.ir import Axis, Block, For, Func, Stmt, Store, seq
from weft.loop.regions import block_regions
from weft.loop.tree import block_of, block_path, blocks_in, replace_last, taken_names, unique_name
from weft.schedule.primitives.loops import LARGEST_FACTOR
from weft.schedule.primitives.operand import as_var
from weft.schedule.registry import Result, primitive


@dataclass(frozen=True)
class MatrixAxes:
    """The axes of a product by their part in it, outermost first, and the two operands."""

    batch: tuple[Axis, ...]
    x: tuple[Axis, ...]
    y: tuple[Axis, ...]
    k: tuple[Axis, ...]
    x_operand: Expr
    y_operand: Expr

    def size(self, part: str) -> int:
        """The product of the extents of a part: "batch", "x", "y" or "k"."""
        return math.prod(int_value(axis.extent) or 1 for axis in getattr(self, part))

    def exchanged(self) -> MatrixAxes:
        """The same product with x for y, and y for x."""
        return replace(self, x=self.y, y=self.x, x_operand=self.y_operand, y_operand=self.x_operand)


def matrix_axes(block: Block) -> MatrixAxes | None:
    """A block's axes as those of a matrix product; None where it is none. x is what lies together in the result."""
    body = block.body
    if not isinstance(body, Store) or body.predicate is not None or not is_true(block.predicate):
        return None
    operands = _operands(body)
    if operands is None or any(int_value(axis.extent) is None for axis in block.axes) or not _starts_at_zero(block):
        return None
    if any(axis.kind == "ordered" for axis in block.axes) or not all(isinstance(i, Var) for i in body.indices):
        return None
    spatial = [axis for axis in block.axes if axis.kind == "spatial"]
    if {axis.var for axis in spatial} != set(body.indices) or len(body.indices) != len(spatial):
        return None
    k = tuple(axis for axis in block.axes if axis.kind == "reduce")
    first, second = operands
    uses = {axis.var: (uses_any(first, {axis.var}), uses_any(second, {axis.var})) for axis in spatial}
    only_first = tuple(axis for axis in spatial if uses[axis.var] == (True, False))
    only_second = tuple(axis for axis in spatial if uses[axis.var] == (False, True))
    batch = tuple(axis for axis in spatial if axis not in only_first and axis not in only_second)
    long = [axis for axis in spatial if int_value(axis.extent) != 1]
    if long and long[-1] in only_second:
        return MatrixAxes(batch, only_second, only_first, k, second, first)
    return MatrixAxes(batch, only_first, only_second, k, first, second)


def _operands(body: Store) -> tuple[Expr, Expr] | None:
    """The two factors of a sum of products."""
    value = body.value
    if not isinstance(value, Add):
        return None
    old = Load(body.buffer, body.indices)
    product = value.b if structural_equal(value.a, old) else value.a if structural_equal(value.b, old) else None
    if not isinstance(product, Mul):
        return None
    return product.a, product.b


def _starts_at_zero(block: Block) -> bool:
    init = block.init
    return isinstance(init, Store) and isinstance(init.value, Const) and init.value.value == 0


@primitive(str, Sequence[int], Sequence[int], int, Sequence[int], bool, bool)
def matrix_form(
    func: Func, block: str, pads: Sequence[int], order: Sequence[int], parts: int = 1,
    k_last: Sequence[int] = (0, 0), in_turn: bool = False, exchanged: bool = False,
) -> Result:  # fmt: skip
    """A product as stages X, Y (the operands), the sum of their products, and the copy to where the result belongs.

    rewrite: for n, co, oh, ow, ci, kh, kw: C[n, co, oh, ow] += A[n, ci, oh + kh, ow + kw] * W[co, ci, kh, kw]
             ->  C_x[0, k, x] = A[x // hw, k // 9, …]     C_y[0, k, y] = W[y, k // 9, …]
                 C_sum[0, y, x] += C_x[0, k, x] * C_y[0, k, y]      C[n, co, oh, ow] = C_sum[0, co, …]

    `pads` rounds the extents of x, y and k up to multiples; what is beyond reads as zero. `order` is the order in which
    the reduction axes make k (their numbers, outermost first). `parts` cuts k into that many sums of their own, which
    the copy adds up; with `in_turn` they take turns, each for a stretch of the third pad, instead of a range each.
    k_last (1 or 0 for X and Y) stores an operand as [b, x, k]. `exchanged`: what lies together in the result is y.
    Hands back the names of the stages X, Y and the sum.
    """
    path = block_path(func, block, "matrix_form")
    found = block_of(path)
    axes = matrix_axes(found)
    if axes is None:
        raise ScheduleError("matrix_form", block, "it is no sum of products of two operands, from zero")
    if len(pads) != 3 or len(k_last) != 2 or not all(1 <= n <= LARGEST_FACTOR for n in (*pads, parts)):
        raise ScheduleError("matrix_form", block, "give three multiples for x, y and k, and parts, from 1 up")
    if sorted(order) != list(range(len(axes.k))):
        raise ScheduleError("matrix_form", block, f"order names each of the {len(axes.k)} reduction axes once")
    axes = axes.exchanged() if exchanged else axes
    outermost = next((place for place, s in enumerate(path) if isinstance(s, For)), len(path) - 1)
    if any(isinstance(s, For) and s.kind != "serial" for s in path) or len(blocks_in(path[outermost])) != 1:
        raise ScheduleError("matrix_form", block, "its loops were marked, or hold other blocks: use it first")
    made = _Form(func, found, axes, list(pads), [axes.k[i] for i in order], parts, [bool(v) for v in k_last])
    made.turn = pads[2] if in_turn else 0
    stmts, buffers, names = made.stages()
    new = replace_last(func, path[: outermost + 1], seq(*stmts))
    new = new.replace(allocations=[*func.allocations, *buffers])
    return Result(new, names, made.loops)


class _Form:
    """Builds the stages."""

    def __init__(
        self, func: Func, block: Block, axes: MatrixAxes, pads: list[int], k: list[Axis], parts: int, k_last: list[bool]
    ) -> None:
        self.block, self.axes, self.k, self.parts, self.k_last = block, axes, k, parts, k_last
        self.taken = taken_names(func)
        self.turn = 0
        self.sizes = {"b": axes.size("batch"), "x": axes.size("x"), "y": axes.size("y"), "k": axes.size("k")}
        self.padded = {
            "b": self.sizes["b"],
            **{key: -(-self.sizes[key] // pad) * pad for key, pad in zip(("x", "y"), pads)},
            "k": -(-self.sizes["k"] // (pads[2] * parts)) * pads[2] * parts,
        }
        self.loops: dict[str, list[str | None]] = {}
        store = block.body
        assert isinstance(store, Store)
        self.store = store

    def stages(self) -> tuple[list[Stmt], list[Buffer], list[str]]:
        """The statements in order, the new buffers, and the names of the three stages."""
        name = self.block.name
        x_buffer, x_nest = self._operand(f"{name}_x", self.axes.x_operand, "x", self.axes.x, self.k_last[0])
        y_buffer, y_nest = self._operand(f"{name}_y", self.axes.y_operand, "y", self.axes.y, self.k_last[1])
        total, sum_nest = self._sum(f"{name}_sum", x_buffer, y_buffer)
        out = self._out(total)
        return [x_nest, y_nest, sum_nest, out], [x_buffer, y_buffer, total], [x_buffer.name, y_buffer.name, total.name]

    def _nest(self, name: str, axes: list[Axis], body: Stmt, init: Stmt | None = None) -> Stmt:
        """A block with a loop for each axis."""
        loops = [Var(unique_name(axis.var.name, self.taken)) for axis in axes]
        reads, writes = block_regions(body, init)
        nest: Stmt = Block(name, axes, loops, reads, writes, body, init, origin=self.block.origin)
        for loop, axis in zip(reversed(loops), reversed(axes)):
            nest = For(loop, axis.extent, nest)
        self.loops[name] = [loop.name for loop in loops]
        return nest

    def _operand(self, name: str, value: Expr, part: str, own: tuple[Axis, ...], k_last: bool) -> tuple[Buffer, Stmt]:
        """An operand as a stage of its own; zero beyond its edges."""
        stored = stored_operand(value)
        b, k, at = Var("b"), Var("k"), Var(part)
        sizes = [self.padded["b"], self.padded["k"], self.padded[part]]
        order = [b, at, k] if k_last else [b, k, at]
        shape = [sizes[0], sizes[2], sizes[1]] if k_last else sizes
        buffer = Buffer(unique_name(name, self.taken), stored.dtype, [index_expr(size) for size in shape])
        ranges = Ranges()
        for var, key in ((b, "b"), (k, "k"), (at, part)):
            ranges = ranges.with_loop(var, index_expr(self.sizes[key]))
        mapping: dict[Var, Expr] = {}
        inside: list[Expr] = []
        for var, axes, key in ((b, self.axes.batch, "b"), (k, self.k, "k"), (at, own, part)):
            mapping.update(unfused(var, axes, ranges))
            if self.sizes[key] != self.padded[key]:
                inside.append(less(var, index_expr(self.sizes[key])))
        element = simplify(substitute(stored, mapping), ranges)
        if inside:
            element = _guarded(logical_and(*inside), element)
        axes = [Axis(var, size) for var, size in zip(order, shape)]
        return buffer, self._nest(buffer.name, axes, Store(buffer, order, element))

    def _sum(self, name: str, x_buffer: Buffer, y_buffer: Buffer) -> tuple[Buffer, Stmt]:
        """The sum of products; with several parts, each is a sum of its own."""
        part, b, x, y, k = Var("part"), Var("b"), Var("x"), Var("y"), Var("k")
        kind = self.store.value.dtype
        shape = [self.padded["b"], self.padded["y"], self.padded["x"]]
        depth = self.padded["k"] // self.parts
        along: Expr = k if self.parts == 1 else add(mul(part, index_expr(self.turn or depth)), k)
        if self.parts > 1 and self.turn:
            turns = mul(floordiv(k, index_expr(self.turn)), index_expr(self.turn * (self.parts - 1)))
            along = add(along, turns)
        indices: list[Var] = [b, y, x]
        if self.parts > 1:
            shape, indices = [self.parts, *shape], [part, *indices]
        buffer = Buffer(unique_name(name, self.taken), kind, [index_expr(size) for size in shape])
        left = Load(x_buffer, [b, x, along] if self.k_last[0] else [b, along, x])
        right = Load(y_buffer, [b, y, along] if self.k_last[1] else [b, along, y])
        value = add(Load(buffer, indices), mul(cast(left, kind), cast(right, kind)))
        body, init = Store(buffer, indices, value), Store(buffer, indices, const(0, kind))
        axes = [Axis(var, size) for var, size in zip(indices, shape)]
        return buffer, self._nest(buffer.name, [*axes, Axis(k, depth, "reduce")], body, init)

    def _out(self, total: Buffer) -> Stmt:
        """The result where it belongs; the sum of the parts where there are several."""
        renamed: dict[Var, Expr] = {axis.var: Var(axis.var.name) for axis in self.block.axes}
        spatial = [Axis(as_var(renamed[a.var]), a.extent) for a in self.block.axes if a.kind == "spatial"]
        at = [substitute(fused(axes), renamed) for axes in (self.axes.batch, self.axes.y, self.axes.x)]
        indices = [substitute(i, renamed) for i in self.store.indices]
        if self.parts == 1:
            return self._nest(self.block.name, spatial, Store(self.store.buffer, indices, Load(total, at)))
        part = Var("part")
        value = add(Load(self.store.buffer, indices), Load(total, [part, *at]))
        init = Store(self.store.buffer, indices, const(0, value.dtype))
        body = Store(self.store.buffer, indices, value)
        return self._nest(self.block.name, [*spatial, Axis(part, self.parts, "reduce")], body, init)


def stored_operand(value: Expr) -> Expr:
    """What a stage keeps of an operand: the value before it was widened, which takes less memory."""
    while isinstance(value, Cast) and _widens(value.value.dtype, value.dtype):
        value = value.value
    return value


def _widens(narrow: DType, wide: DType) -> bool:
    """Whether a cast only spends more bytes on a number."""
    if narrow.is_bool or narrow.is_packed or narrow.bytes >= wide.bytes:
        return False
    return wide.is_float or (narrow.is_integer and wide.is_integer and (wide.is_signed or not narrow.is_signed))


def _guarded(condition: Expr, value: Expr) -> Expr:
    """A value where a condition holds, zero elsewhere; a choice between a value and zero takes the condition in."""
    if isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == 0:
        return Select(logical_and(condition, value.condition), value.then, value.otherwise)
    return Select(condition, value, const(0, value.dtype))


def fused(axes: Sequence[Axis]) -> Expr:
    """One index for several axes, outermost first."""
    at: Expr = index_expr(0)
    for axis in axes:
        at = add(mul(at, axis.extent), axis.var)
    return at


def unfused(variable: Var, axes: Sequence[Axis], ranges: Ranges) -> Mapping[Var, Expr]:
    """Each of several axes in terms of the one that they became."""
    mapping: dict[Var, Expr] = {}
    stride = 1
    for position, axis in reversed(list(enumerate(axes))):
        size = int_value(axis.extent) or 1
        value: Expr = floordiv(variable, index_expr(stride)) if stride > 1 else variable
        if position:
            value = floormod(value, axis.extent) if size > 1 else index_expr(0)
        elif size == 1:
            value = index_expr(0)
        mapping[axis.var] = simplify(value, ranges)
        stride *= size
    return mapping

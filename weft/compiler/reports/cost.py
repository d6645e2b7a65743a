"""What a kernel has to compute and to move, counted from its tensor program.

    cost = kernel_cost(launch, constants)
    cost.operations      arithmetic of the plain program: two for a multiply-add, however a schedule does it
    cost.bytes           every parameter that is read or written, once (of a table that is looked up, what is looked up)
    cost.dtype           the element type that most products are of, which says which peak is the limit

Index arithmetic, conditions, casts and copies are not operations; a call such as exp is one. What lies outside an
image (padding) counts as if it were computed, as is the custom for convolutions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.compiler.kernels.program import build_program
from weft.compiler.lowering.items import Launch
from weft.compiler.sizes.open_sizes import unread_in
from weft.expr.evaluate import evaluate
from weft.expr.nodes import (
    Add,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Div,
    Expr,
    Load,
    Max,
    Min,
    Mul,
    Select,
    Sub,
    Var,
    const,
    int_value,
)
from weft.expr.visit import children, free_vars
from weft.graph.ir import Array, Value
from weft.loop.ir import Block, Func, Stmt, Store
from weft.loop.tree import blocks_in
from weft.loop.visit import walk_exprs, walk_stmts
from weft.plan.typical import with_sizes

_ARITHMETIC = (Add, Sub, Mul, Div, Min, Max)


@dataclass(frozen=True)
class Cost:
    """Operations, bytes, and the element type of most products."""

    operations: int
    bytes: int
    dtype: str


def kernel_cost(launch: Launch, constants: Mapping[Value, Array], sizes: Mapping[Var, int] | None = None) -> Cost:
    """The cost of one call of a kernel, where the graph's open sizes are `sizes`.

    The program is built anew, as it was before any schedule or layout.
    """
    known = {**constants, **unread_in(launch.nodes)}
    program = build_program(launch.nodes, launch.writes, known, "counted", sizes=sizes or ())
    plain = program.schedule.func
    plain = _with_numbers(plain, [program.sizes[var.name] for var in plain.size_vars], sizes)
    counted, products = 0, Counter[str]()
    for block in blocks_in(plain.body):
        times = _times(block)
        for store in _stores(block.body):
            counted += times * operations_of(store.value)
            for kind in _products(store.value):
                products[kind] += times
    dtype = products.most_common(1)[0][0] if products else "float32"
    return Cost(counted, moved_bytes(_with_numbers(launch.kernel.scheduled, launch.sizes, sizes)), dtype)


def _with_numbers(func: Func, open_sizes: Sequence[Expr], sizes: Mapping[Var, int] | None) -> Func:
    """A program with a number for each of its open sizes, which stand for these sizes of a graph."""
    if not sizes or not func.size_vars:
        return func
    numbers: dict[Var, Expr] = {}
    for var, size in zip(func.size_vars, open_sizes, strict=True):
        numbers[var] = const(int(evaluate(size, {v: sizes[v] for v in free_vars(size)})))
    return with_sizes(func, numbers)[0]


def _times(block: Block) -> int:
    """How often a block runs; sizes of kernels are known."""
    return math.prod(int_value(axis.extent) or 0 for axis in block.axes)


def _stores(s: Stmt) -> list[Store]:
    return [one for one in walk_stmts(s) if isinstance(one, Store)]


def operations_of(e: Expr) -> int:
    """The arithmetic in a value; of two branches the dearer one."""
    if isinstance(e, Load):
        return 0
    if isinstance(e, Select):
        return max(operations_of(e.then), operations_of(e.otherwise))
    if isinstance(e, (*_ARITHMETIC, Call)):
        return e.dtype.lanes + sum(map(operations_of, children(e)))
    return sum(map(operations_of, children(e)))


def _products(e: Expr) -> list[str]:
    """The element type of each product in a value: that of its narrower operand, before any cast."""
    if isinstance(e, Load):
        return []
    found = [kind for child in children(e) for kind in _products(child)]
    if isinstance(e, Mul):
        found.append(min((_source(e.a), _source(e.b)), key=lambda one: one[1])[0])
    return found


def _source(e: Expr) -> tuple[str, int]:
    while isinstance(e, (Cast, Broadcast)):
        e = e.value
    return e.dtype.scalar.name, e.dtype.bits


# ------------------------------------------------------------------------------------------------------------ bytes


def moved_bytes(func: Func) -> int:
    """The bytes of parameters that a program touches, each once."""
    total = 0
    blocks = blocks_in(func.body)
    for buffer in func.params:
        if isinstance(buffer, Buffer):
            total += min(_bytes(buffer), sum(_touched(block, buffer) for block in blocks))
    return total


def _bytes(buffer: Buffer) -> int:
    return math.prod(int_value(size) or 0 for size in buffer.shape) * int(buffer.dtype.bytes)


def _touched(block: Block, buffer: Buffer) -> int:
    """Bytes that a block may read or write of a buffer: what one run touches, times the runs.

    A plain store shows each access, also one whose place the data decide; of anything else the regions are known.
    """
    if isinstance(block.body, Store):
        read = [e.buffer for e in walk_exprs(block.body, Load) if isinstance(e, Load)]
        count = [*read, block.body.buffer].count(buffer)
    else:
        regions = [region for region in (*block.reads, *block.writes) if region.buffer is buffer]
        count = sum(math.prod(int_value(extent) or 1 for extent in region.extents) for region in regions)
    return _times(block) * count * int(buffer.dtype.bytes)

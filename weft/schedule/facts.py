"""What default schedules ask about a block: its axes, its loads, and how far apart in memory neighbours lie."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    Binary,
    Buffer,
    Call,
    Div,
    Expr,
    Load,
    Select,
    Var,
    add,
    index_expr,
    int_value,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.visit import substitute, uses_any, walk
from weft.loop.ir import Axis, Block, Func, Store
from weft.loop.tree import block_of, block_path, blocks_in, loops_on, readers
from weft.loop.visit import walk_exprs
from weft.schedule.schedule import Schedule, Stage

SLOW_CALLS = frozenset(
    "exp exp2 exp10 log log2 log10 log1p expm1 tanh sigmoid erf normal_cdf pow power sin cos tan sinh cosh asin acos "
    "atan asinh acosh atanh atan2 fmod".split()
)

OFTEN_ZERO = "often_zero"
"""A program's note of the parameters that hold many zeros, of which none meets a number that is not finite."""
FINITE = "finite"
"""A program's note of the parameters that are constants of which every number is finite."""


@dataclass(frozen=True)
class Facts:
    """A block, its axes by kind, and the loads of its body other than those of its own result."""

    block: Block
    spatial: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    loads: tuple[Load, ...]
    ranges: Ranges

    @property
    def target(self) -> Buffer:
        """The (first) buffer that the block writes."""
        return self.block.writes[0].buffer

    @property
    def is_reduction(self) -> bool:
        """Whether it combines many values into each element."""
        return bool(self.reduce)

    @property
    def is_ordered(self) -> bool:
        """Whether it is a recurrence."""
        return any(axis.kind == "ordered" for axis in self.block.axes)

    @property
    def store(self) -> Store | None:
        """The one store of its body, where that is all there is."""
        return self.block.body if isinstance(self.block.body, Store) else None

    @property
    def points(self) -> int:
        """How many elements it computes."""
        return math.prod(extent(axis) for axis in self.spatial)

    @property
    def depth(self) -> int:
        """How many values go into one element."""
        return math.prod(extent(axis) for axis in self.reduce)

    def step(self, load: Load, variable: Var) -> int | None:
        """How many elements further a load reads when an axis goes on by one; None where that varies."""
        return step_of(load.buffer, load.indices, variable, self.ranges)

    def store_step(self, variable: Var) -> int | None:
        """How many elements further the block writes when an axis goes on by one."""
        region = self.block.writes[0]
        return step_of(region.buffer, region.mins, variable, self.ranges)


def extent(axis: Axis) -> int:
    """The extent of an axis; programs of models have constant ones."""
    value = int_value(axis.extent)
    return 1 if value is None else value


@functools.lru_cache(maxsize=64)
def facts_of(block: Block) -> Facts:
    """The facts about a block; a planner asks for those of one block many times, and blocks do not change."""
    own = {region.buffer for region in block.writes}
    loads = tuple(e for e in walk_exprs(block.body, Load) if type(e) is Load and e.buffer not in own)
    ranges = Ranges()
    for axis in block.axes:
        ranges = ranges.with_loop(axis.var, axis.extent)
    spatial = tuple(axis for axis in block.axes if axis.kind != "reduce")
    reduce = tuple(axis for axis in block.axes if axis.kind == "reduce")
    return Facts(block, spatial, reduce, loads, ranges)


def block_named(schedule: Schedule, name: str) -> Block:
    """A block of a schedule as it is now."""
    return block_of(block_path(schedule.func, name, "schedule"))


def step_of(buffer: Buffer, indices: Iterable[Expr], variable: Var, ranges: Ranges) -> int | None:
    """The distance in elements between two accesses whose indices differ by one in a variable."""
    return _step(buffer, tuple(indices), variable, ranges)


@functools.lru_cache(maxsize=512)
def _step(buffer: Buffer, indices: tuple[Expr, ...], variable: Var, ranges: Ranges) -> int | None:
    flat: Expr = index_expr(0)
    stride: Expr = index_expr(1)
    used = False
    for size, index in zip(reversed(buffer.shape), reversed(indices)):
        if uses_any(index, {variable}):
            flat = add(flat, mul(index, stride))
            used = True
        stride = mul(stride, size)
    if not used:
        return 0
    next_one: dict[Var, Expr] = {variable: variable + 1}
    return int_value(simplify(sub(substitute(flat, next_one), flat), ranges))


def cost(e: Expr) -> int:
    """A rough count of the work in an expression: loads and additions 1, slow functions 12."""
    total = 0
    for node in walk(e):
        if isinstance(node, Call):
            total += 12 if node.name in SLOW_CALLS else 2
        elif isinstance(node, Div):
            total += 4
        elif node.dtype.is_float and isinstance(node, (Binary, Select)):
            total += 1
    return total


def sole_reader(func: Func, buffer: Buffer) -> Block | None:
    """The one block that reads an intermediate."""
    if buffer in func.buffers:
        return None
    found = readers(func.body, buffer)
    return found[0] if len(found) == 1 else None


def work_around(schedule: Schedule, name: str) -> int:
    """How often a block runs: the product of the extents of the loops around it."""
    loops = loops_on(block_path(schedule.func, name, "schedule"))
    return math.prod(int_value(loop.extent) or 1 for loop in loops)


def extent_of(stage: Stage, loop: Var, unknown: int = 1) -> int:
    """The constant extent of a loop around a stage, `unknown` where it is no constant; 1 where it is not around it."""
    loops = loops_on(block_path(stage.schedule.func, stage.name, "schedule"))
    return next((int_value(one.extent) or unknown for one in loops if one.var.name == loop.name), 1)


def names_of(schedule: Schedule) -> list[str]:
    """The blocks of a schedule in program order."""
    return [block.name for block in blocks_in(schedule.func.body)]


def feeding(s: Schedule, name: str) -> list[str]:
    """The blocks, last first, whose results reach a block and nothing that is not on the way to it."""
    inside = {name}
    found: list[str] = []
    order = blocks_in(s.func.body)
    for block in reversed(order[: [b.name for b in order].index(name)]):
        takers = [r.name for w in block.writes for r in readers(s.func.body, w.buffer)]
        if takers and all(t in inside for t in takers) and not any(w.buffer in s.func.buffers for w in block.writes):
            inside.add(block.name)
            found.append(block.name)
    return found

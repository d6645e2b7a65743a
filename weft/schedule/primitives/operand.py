"""The primitive that stages what a block reads in the order of the block's own axes: cache_operand.

A copy by `cache_read` has the shape of what is read; a window that moves by two places at a time reads a box with gaps.
A copy by `cache_operand` has an element for each point that reads one, so that a tile of points is a tile of the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Expr, Load, Select, Var, is_true
from weft.expr.structural import structural_equal
from weft.expr.visit import free_vars, rebuild, substitute, uses_any
from weft.loop.ir import Axis, Block, For, Func, Let, Seq, Store
from weft.loop.tree import block_of, block_path, replace_last, taken_names, unique_name
from weft.loop.visit import Mutator, walk_exprs, walk_stmts
from weft.schedule.primitives.attach import insert_producer
from weft.schedule.primitives.inline import rebody
from weft.schedule.registry import Result, primitive


@primitive(str, str, str, Sequence[str])
def cache_operand(func: Func, block: str, buffer: str, scope: str, axes: Sequence[str]) -> Result:
    """Copies what a block reads of a buffer into an array over the block's axes; compute_at then makes it a tile.

    rewrite: C[w] += A[w*2 + k] * B[k]  ->  A_local[k, w] = A[w*2 + k]
                                            C[w] += A_local[k, w] * B[k]

    `axes` are the axes of the block that the load depends on, in the order of the array's dimensions.
    """
    place = f"{block}, {buffer}"
    path = block_path(func, block, "cache_operand")
    reader = block_of(path)
    load = _only_load(reader, buffer, place)
    by_name = {axis.var.name: axis for axis in reader.axes}
    used = {axis.var.name for axis in reader.axes if any(axis.var in free_vars(i) for i in load.indices)}
    if len(set(axes)) != len(axes) or set(axes) != used:
        raise ScheduleError("cache_operand", place, f"name each axis that the load depends on once: {sorted(used)}")
    if not scope or not scope.replace(".", "_").isidentifier():
        raise ScheduleError("cache_operand", place, f"{scope!r} is not the name of a scope")
    label = unique_name(f"{buffer}_{scope.replace('.', '_')}", taken_names(func))
    chosen = [by_name[name] for name in axes]
    copied = Buffer(label, load.buffer.dtype, [axis.extent for axis in chosen], scope)
    fresh: dict[Var, Expr] = {axis.var: Var(axis.var.name) for axis in chosen}
    own = [Axis(as_var(fresh[axis.var]), axis.extent) for axis in chosen]
    at = [axis.var for axis in own]
    indices = [substitute(index, fresh) for index in load.indices]
    empty = Block(label, own, at, [], [], Seq(()))
    copy = rebody(empty, Store(copied, at, Load(load.buffer, indices)), None)
    replaced = _Replace(load, Load(copied, [axis.var for axis in chosen]))
    new = replace_last(func, path, rebody(reader, replaced.stmt(reader.body), reader.init))
    new = new.replace(allocations=[*func.allocations, copied])
    result = insert_producer(new, copy, None, "cache_operand")
    return Result(result.func, [label], result.axes)


def as_var(e: Expr) -> Var:
    """An expression that is a variable."""
    assert isinstance(e, Var)
    return e


def _only_load(block: Block, buffer: str, place: str) -> Load:
    """The one load of a buffer in a block, which happens at every point of the block."""
    loads = [e for e in walk_exprs(block.body, Load) if type(e) is Load and e.buffer.name == buffer]
    if not loads or any(not structural_equal(load, loads[0]) for load in loads):
        raise ScheduleError("cache_operand", place, f"{block.name} does not read {buffer} at one place")
    own = {node.var for node in walk_stmts(block.body) if isinstance(node, (For, Let))}
    if any(uses_any(index, own) for index in loads[0].indices):
        raise ScheduleError("cache_operand", place, f"{block.name} reads {buffer} in loops of its own")
    if any(region.buffer is loads[0].buffer for region in block.writes):
        raise ScheduleError("cache_operand", place, f"{block.name} also writes {buffer}")
    if not is_true(block.predicate) or walk_exprs(block.body, Select):
        raise ScheduleError("cache_operand", place, f"{block.name} has a test: not every point reads {buffer}")
    return loads[0]


class _Replace(Mutator):
    """One load in place of another."""

    def __init__(self, old: Load, new: Load) -> None:
        self.old, self.new = old, new

    def visit_Load(self, e: Load) -> Expr:
        """The load that is replaced, or another."""
        return self.new if structural_equal(e, self.old) else rebuild(e, self.expr)

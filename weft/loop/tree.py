"""Finding and replacing loops and blocks in a scheduled program.

A *path* is the list of statements from the body of the function down to a loop or block. Replacing the last statement
of a path copies only the statements on the path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

from weft.core.errors import InternalError, ScheduleError
from weft.expr.bounds import Ranges
from weft.expr.nodes import Buffer, Expr, Var, is_true
from weft.expr.simplify import simplify
from weft.expr.visit import free_vars, substitute, uses_any
from weft.loop.ir import Block, For, Func, If, Seq, Stmt, Store, seq
from weft.loop.visit import child_stmts, walk_stmts

Path = list[Stmt]
BUFFER_NOTES = {"storage_align", "double_buffer", "layout_gaps"}
"""The annotations of a function that speak of intermediates by name."""

BORDERS = "borders"
"""A program's note of the parameters that lie in a border of zeros: how wide it is before and after each dimension."""


@functools.lru_cache(maxsize=32)
def _outer_stmts(s: Stmt) -> tuple[list[Block], list[For]]:
    """The blocks and the loops of a scheduled program in order; what a primitive asks more than once."""
    blocks: list[Block] = []
    loops: list[For] = []
    stack = [s]
    while stack:
        node = stack.pop()
        if type(node) is For:
            loops.append(node)
            stack.append(node.body)
        elif type(node) is Block:
            blocks.append(node)
        else:
            stack.extend(child_stmts(node)[::-1])
    return blocks, loops


def blocks_in(s: Stmt) -> list[Block]:
    """The blocks inside a statement, in program order."""
    return _outer_stmts(s)[0].copy()


def loops_in(s: Stmt) -> list[For]:
    """The loops inside a statement, outermost first."""
    return _outer_stmts(s)[1].copy()


def _find(root: Stmt, kind: type[Stmt], name: str) -> Path | None:
    path: Path = []
    while type(root) is For:
        path.append(root)
        if root.var.name == name and kind is For:
            return path
        root = root.body
    path.append(root)
    if type(root) is Block:
        return path if kind is Block and root.name == name else None
    for child in child_stmts(root):
        inner = _find(child, kind, name)
        if inner is not None:
            return path + inner
    return None


def block_path(func: Func, name: str, primitive: str) -> Path:
    """The path to a block; an error of the primitive if there is none of that name."""
    found = _find(func.body, Block, name)
    if found is None:
        known = ", ".join(b.name for b in blocks_in(func.body))
        raise ScheduleError(primitive, name, f"there is no block named {name}; the program has {known}")
    return found


def loop_path(func: Func, name: str, primitive: str) -> Path:
    """The path to a loop; an error of the primitive if there is none of that name."""
    found = _find(func.body, For, name)
    if found is None:
        known = ", ".join(loop.var.name for loop in loops_in(func.body))
        raise ScheduleError(
            primitive, name, f"there is no loop named {name} now (was it split, fused or moved?); the loops are {known}"
        )
    return found


def block_of(path: Path) -> Block:
    """The block at the end of a path."""
    last = path[-1]
    if not isinstance(last, Block):
        raise InternalError("the path does not end in a block")
    return last


def loop_of(path: Path) -> For:
    """The loop at the end of a path."""
    last = path[-1]
    if not isinstance(last, For):
        raise InternalError("the path does not end in a loop")
    return last


def loops_on(path: Path) -> list[For]:
    """The loops on a path, outermost first, the last statement included."""
    return [s for s in path if isinstance(s, For)]


def replace_child(parent: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """A statement with one child replaced, or left out when `new` is None; None when nothing is left of it."""
    if isinstance(parent, Seq):
        kept = [new if child is old else child for child in parent.stmts]
        made = seq(*kept)
        return None if isinstance(made, Seq) and not made.stmts else made
    if new is None and not (isinstance(parent, If) and parent.otherwise is not None):
        return None
    if isinstance(parent, For):
        assert new is not None
        return parent.replace(body=new)
    if isinstance(parent, If):
        then = new if parent.then is old else parent.then
        otherwise = new if parent.otherwise is old else parent.otherwise
        return If(parent.condition, then if then is not None else Seq(()), otherwise)
    raise InternalError(f"a {type(parent).__name__} on a path")


def replace_last(func: Func, path: Path, new: Stmt | None) -> Func:
    """The function with the statement at the end of a path replaced; None removes it and the loops left empty."""
    old: Stmt = path[-1]
    made: Stmt | None = new
    for parent in reversed(path[:-1]):
        made = replace_child(parent, old, made)
        old = parent
    return func.replace(body=made if made is not None else Seq(()))


def integer_params(func: Func) -> tuple[Var, ...]:
    """The sizes and integer parameters of a program."""
    return (*func.size_vars, *[p for p in func.params if isinstance(p, Var) and p.dtype.is_integer])


def ranges_of(func: Func, loops: list[For]) -> Ranges:
    """What is known of sizes and of the variables of these loops."""
    ranges = Ranges().with_sizes(integer_params(func))
    for loop in loops:
        ranges.bind(loop.var, loop.extent)
    return ranges


def map_bindings(s: Stmt, change: Callable[[Block, list[For]], Block], loops: list[For]) -> Stmt:
    """Every block in a statement changed by a function of it and the loops around it."""
    if isinstance(s, Block):
        return change(s, loops)
    if isinstance(s, For):
        body = map_bindings(s.body, change, [*loops, s])
        return s if body is s.body else s.replace(body=body)
    if isinstance(s, Seq):
        new = [map_bindings(child, change, loops) for child in s.stmts]
        return s if all(a is b for a, b in zip(s.stmts, new)) else seq(*new)
    if isinstance(s, If):
        otherwise = None if s.otherwise is None else map_bindings(s.otherwise, change, loops)
        return If(s.condition, map_bindings(s.then, change, loops), otherwise)
    return s


def substitute_loops(
    func: Func, s: Stmt, mapping: Mapping[Var, Expr], outer: list[For], guard: Expr | None = None
) -> Stmt:
    """Loop variables replaced below a statement: in bindings, predicates and extents. A guard joins every predicate."""
    from weft.expr.nodes import logical_and

    def fresh(e: Expr, loops: list[For]) -> Expr:
        changed = substitute(e, mapping)
        return e if changed is e else simplify(changed, ranges_of(func, loops))

    def go(node: Stmt, loops: list[For]) -> Stmt:
        if isinstance(node, Block):
            bindings = tuple(fresh(b, loops) for b in node.bindings)
            predicate = node.predicate if is_true(node.predicate) else fresh(node.predicate, loops)
            if guard is not None:
                predicate = logical_and(predicate, guard)
            return node.replace(bindings=bindings, predicate=predicate)
        if isinstance(node, For):
            extent = fresh(node.extent, loops)
            loop = node.replace(extent=extent)
            return loop.replace(body=go(node.body, [*loops, loop]))
        if isinstance(node, Seq):
            return seq(*[go(child, loops) for child in node.stmts])
        if isinstance(node, If):
            otherwise = None if node.otherwise is None else go(node.otherwise, loops)
            return If(fresh(node.condition, loops), go(node.then, loops), otherwise)
        return node

    return go(s, outer)


def taken_names(func: Func) -> set[str]:
    """Every name of a loop, block, buffer or size in the program."""
    names = {p.name for p in func.params} | {v.name for v in func.size_vars} | {b.name for b in func.allocations}
    blocks, loops = _outer_stmts(func.body)
    names.update([loop.var.name for loop in loops])
    for block in blocks:
        names.add(block.name)
        for part in (block.init, block.body):
            if part is not None and type(part) is not Store:
                inside = walk_stmts(part)
                names.update([s.var.name for s in inside if type(s) is For])
                names.update([s.name for s in inside if type(s) is Block])
    return names


def unique_name(wanted: str, taken: set[str]) -> str:
    """The name, or the name with a number, that is not taken; it is taken from then on."""
    made, count = wanted, 0
    while made in taken:
        count += 1
        made = f"{wanted}_{count}"
    taken.add(made)
    return made


def writers(s: Stmt, buffer: Buffer) -> list[Block]:
    """The blocks that write a buffer."""
    return [b for b in blocks_in(s) if any(r.buffer is buffer for r in b.writes)]


def readers(s: Stmt, buffer: Buffer) -> list[Block]:
    """The blocks that read a buffer (not those that only update it in place)."""
    return [b for b in blocks_in(s) if any(r.buffer is buffer for r in b.reads)]


def buffer_named(func: Func, name: str, primitive: str) -> Buffer:
    """A parameter or intermediate by name."""
    for buffer in (*func.buffers, *func.allocations):
        if buffer.name == name:
            return buffer
    known = ", ".join(b.name for b in (*func.buffers, *func.allocations))
    raise ScheduleError(primitive, name, f"there is no buffer named {name}; the program has {known}")


def axes_using(block: Block, variables: Mapping[Var, object] | set[Var]) -> dict[str, list[int]]:
    """The positions of the axes, by kind, whose bindings use one of the variables."""
    out: dict[str, list[int]] = {"spatial": [], "reduce": [], "ordered": []}
    for position, (axis, binding) in enumerate(zip(block.axes, block.bindings)):
        if uses_any(binding, variables):
            out[axis.kind].append(position)
    return out


def axis_loops(block: Block) -> list[str | None]:
    """For each axis of a block the name of the loop that is bound to it alone, if there is one."""
    return [binding.name if isinstance(binding, Var) else None for binding in block.bindings]


def without_buffers(func: Func, gone: Iterable[Buffer]) -> Func:
    """The program without some intermediates, and without the notes on them."""
    dropped = set(gone)
    names = {buffer.name for buffer in dropped}
    notes = dict(func.annotations)
    for key in BUFFER_NOTES & notes.keys():
        old = notes[key]
        kept = (
            {n: v for n, v in old.items() if n not in names}
            if isinstance(old, dict)
            else [n for n in old if n not in names]
        )
        if kept:
            notes[key] = kept
        else:
            del notes[key]
    return func.replace(allocations=[b for b in func.allocations if b not in dropped], annotations=notes)


def reduction_loops(block: Block, loops: Iterable[For]) -> dict[Var, None]:
    """The variables of those of the loops along which a block reduces."""
    used = {v for a, b in zip(block.axes, block.bindings) if a.kind == "reduce" for v in free_vars(b)}
    return {loop.var: None for loop in loops if loop.var in used}

"""Loops that ask for it fetch ahead what later iterations will load.

    for k in range(n) @{"prefetch": [["B", 8]]}:            for k in range(n):
        C[…] = C[…] + B[ramp(k*64, 1, 16)]           ->         prefetch(address(B[(k + 8)*64], "r"))
                                                                 C[…] = C[…] + B[ramp(k*64, 1, 16)]

One fetch for each line of loads whose places move with the loop, in each round of short loops inside that move by one:
a window's rows. Past the end of the buffer a fetch has no effect.

`["B", 7, "f", 7]` looks 7 iterations of the loop f ahead, which stands further out: where these 7 read the same stretch
of B again and again and the next 7 read the next one, each fetches its share (a seventh) of what comes. Where f does
not move what is read, each of its rounds, however many, fetches a seventh of what lies behind, a little in each step:

    for f in range(n):                                             for f in range(n):
        for k in range(8) @{"prefetch": [["B", 4, "f", 4]]}:  ->       for k in range(8):
            C[f] = C[f] + B[ramp(k*64, 1, 64)]                             prefetch(address(B[512 + f*128 + k*16], "r"))
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.core import model
from weft.core.dtypes import INT32
from weft.expr.nodes import (
    Address,
    Buffer,
    Call,
    Expr,
    Load,
    Ramp,
    Var,
    add,
    const,
    floormod,
    index_expr,
    int_value,
    minimum,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_key
from weft.expr.visit import substitute, uses_any, walk, walk_once
from weft.loop.interpreter import register_effect
from weft.loop.ir import Allocate, Evaluate, For, Func, Let, Stmt, seq
from weft.loop.passes.support import linear
from weft.loop.visit import Mutator, child_exprs, walk_exprs, walk_stmts

register_effect("prefetch", lambda *arguments: None)


def insert_prefetch(func: Func, row_loads: Collection[str] = ()) -> Func:
    """The program with its loops' "prefetch" annotations carried out.

    `row_loads` are a target's instructions with the arguments (source, register, distance of the source's rows, …, how
    many rows).
    """
    if not any(isinstance(s, For) and "prefetch" in s.annotations for s in walk_stmts(func.body)):
        return func
    return _Insert(row_loads).func(func)


class _Insert(Mutator):
    def __init__(self, row_loads: Collection[str]) -> None:
        self.row_loads = row_loads
        self.around: list[For] = []

    def visit_For(self, s: For) -> Stmt:
        """A loop: the fetches come first in its body."""
        self.around.append(s)
        body = self.stmt(s.body)
        self.around.pop()
        wanted = s.annotations.get("prefetch")
        if not wanted:
            return s if body is s.body else s.replace(body=body)
        fetches: list[Stmt] = []
        for name, distance, *further in wanted:
            if further:
                outer = [loop for loop in self.around if loop.var.name == further[0]]
                if outer:
                    between = self.around[self.around.index(outer[-1]) + 1 :]
                    fetches += _behind(s, str(name), outer[-1], int(distance), between) or _shares(
                        s, str(name), outer[-1], int(distance), int(further[1]), self.row_loads
                    )
            else:
                fetches += _fetches(s, str(name), int(distance))
        notes = {key: value for key, value in s.annotations.items() if key != "prefetch"}
        return s.replace(body=seq(*fetches, body), annotations=notes)


def _fetches(loop: For, name: str, distance: int) -> list[Stmt]:
    later: dict[object, Stmt] = {}
    starts: dict[object, Expr] = {}
    ahead: Expr = add(loop.var, index_expr(distance))
    first: dict[Var, Expr] = {loop.var: ahead}
    hidden: set[Var | Buffer] = set()
    inside: list[For] = []
    for s in walk_stmts(loop.body):
        if isinstance(s, For):
            first[s.var] = index_expr(0)  # where the loops inside begin
            inside.append(s)
        elif isinstance(s, Let):
            hidden.add(s.var)
        elif isinstance(s, Allocate):
            hidden.add(s.buffer)
    seen: set[Expr] = set()
    parts = (part for s in walk_stmts(loop.body) for part in child_exprs(s))
    last: dict[object, tuple[int, Stmt]] = {}
    for e in (node for part in parts for node in walk_once(part, seen)):
        if not isinstance(e, Load) or e.buffer.name != name or e.buffer in hidden:
            continue
        place = e.indices[0].base if isinstance(e.indices[0], Ramp) else e.indices[0]
        if place.dtype.lanes != 1 or not uses_any(place, {loop.var}) or not _is_plain(place, hidden):
            continue
        for number, target in enumerate(_rounds(place, first, inside, e.buffer.dtype.bytes)):
            start = starts.setdefault(number, target)
            offset = int_value(simplify(sub(target, start)))
            key = structural_key(target) if offset is None else (number, offset * e.buffer.dtype.bytes // LINE)
            fetch = Evaluate(Call("prefetch", (Address(e.buffer, (target,), "r"),), INT32))
            later.setdefault(key, fetch)
            if offset is not None and place is e.indices[0] and offset >= last.get(number, (offset,))[0]:
                last[number] = (offset, fetch)
    # Numbers one by one begin anywhere in a line: the last one may be in another.
    return [*dict.fromkeys((*later.values(), *(fetch for _, fetch in last.values())))]


def _rounds(place: Expr, first: dict[Var, Expr], inside: Sequence[For], size: int) -> list[Expr]:
    """Where a load reads first, in each round of the short loops inside that move it by a line or more."""
    found = [substitute(place, first)]
    for loop in inside:
        count = int_value(loop.extent)
        if count is None or not 1 < count <= model.MOST_ROUNDS_FETCHED or not uses_any(place, {loop.var}):
            continue
        moved = [substitute(place, {**first, loop.var: index_expr(n)}) for n in range(count)]
        steps = [int_value(simplify(sub(target, moved[0]))) for target in moved]
        if all(step is not None and abs(step) * size >= LINE * n for n, step in enumerate(steps)):
            found = [add(target, index_expr(step or 0)) for target in found for step in steps]
    return found


LINE = 64
"""Bytes that one fetch brings."""

SECOND_LEVEL = 2
"""Where a share goes that is needed later: into the second-level cache."""


def _shares(loop: For, name: str, around: For, distance: int, shares: int, row_loads: Collection[str]) -> list[Stmt]:
    """One share of the fetches for what the loop's body will load when an outer loop is some iterations further.

    Not past the outer loop's end: looking up pages that are not there would take longer than all the rest.
    """
    outer = around.var
    last = sub(around.extent, index_expr(1))
    first: dict[Var, Expr] = {outer: minimum(add(outer, index_expr(distance)), last)}
    hidden: set[Var | Buffer] = set()
    for s in walk_stmts(loop.body):
        if isinstance(s, For):
            first[s.var] = index_expr(0)
        elif isinstance(s, (Let, Allocate)):
            hidden.add(s.var if isinstance(s, Let) else s.buffer)
    buffer, places = _places(loop.body, name, row_loads)
    if buffer is None or not all(p.dtype.lanes == 1 and uses_any(p, {outer}) and _is_plain(p, hidden) for p in places):
        return []
    offsets = [int_value(simplify(sub(p, places[0]))) for p in places]
    if any(offset is None for offset in offsets):
        return []
    known = [offset for offset in offsets if offset is not None]
    step = LINE // buffer.dtype.bytes
    lines = (max(known) - min(known)) // step + 1
    share = -(-lines // shares)
    start = add(
        substitute(places[known.index(min(known))], first),
        mul(floormod(outer, index_expr(shares)), index_expr(share * step)),
    )
    return _into_second_level(buffer, start, share)


def _behind(loop: For, name: str, around: For, shares: int, between: Sequence[For]) -> list[Stmt]:
    """A share of the lines behind those that a loop and the loops around it read one after the other, in each round of
    an outer loop, which does not move them."""
    buffer, places = _places(loop.body, name, ())
    inner = {s.var for s in walk_stmts(loop.body) if isinstance(s, (For, Let))}
    offsets = [int_value(simplify(sub(p, places[0]))) for p in places if not uses_any(p, {around.var, *inner})]
    known = [offset for offset in offsets if offset is not None]
    if buffer is None or len(known) < len(places):
        return []
    step = LINE // buffer.dtype.bytes
    lines = (max(known) - min(known)) // step + 1
    share, stretch = -(-lines // shares), lines * step
    start = places[known.index(min(known))]
    form, moved = linear(start), index_expr(0)
    for one in (loop, *reversed(between)):
        count = int_value(one.extent)
        if count is None or form.terms.get(one.var) != stretch:
            return []
        moved = add(moved, mul(one.var, index_expr(stretch // lines * share)))
        stretch *= count
    start = substitute(start, {one.var: index_expr(0) for one in (loop, *between)})
    moved = add(moved, mul(around.var, index_expr(stretch // lines * share)))
    return _into_second_level(buffer, add(add(start, moved), index_expr(stretch)), share)


def _into_second_level(buffer: Buffer, start: Expr, lines: int) -> list[Stmt]:
    """Fetches of so many lines."""
    step = LINE // buffer.dtype.bytes
    return [
        Evaluate(
            Call(
                "prefetch",
                (
                    Address(buffer, (add(start, index_expr(line * step)),), "r"),
                    const(0, INT32),
                    const(SECOND_LEVEL, INT32),
                ),
                INT32,
            )
        )
        for line in range(lines)
    ]


def _places(body: Stmt, name: str, row_loads: Collection[str]) -> tuple[Buffer | None, list[Expr]]:
    """A buffer, and where a statement reads it: by loads, or by instructions that are told rows and their distance."""
    buffer: Buffer | None = None
    places: list[Expr] = []
    for e in walk_exprs(body, Load, Call):
        if isinstance(e, Load) and e.buffer.name == name:
            buffer = e.buffer
            places.append(e.indices[0].base if isinstance(e.indices[0], Ramp) else e.indices[0])
        elif isinstance(e, Call) and e.name in row_loads:
            source, stride, rows = e.args[0], e.args[2], int_value(e.args[4]) or 1
            if isinstance(source, Address) and source.buffer.name == name:
                buffer = source.buffer
                places += [source.indices[0], add(source.indices[0], mul(stride, index_expr(rows - 1)))]
    return buffer, places


def _is_plain(place: Expr, hidden: set[Var | Buffer]) -> bool:
    """Whether an index can be worked out before the body runs, some iterations early: it loads nothing."""
    return not any(isinstance(node, Load) or (isinstance(node, Var) and node in hidden) for node in walk(place))

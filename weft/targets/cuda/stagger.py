"""Products of one step of attention beside the powers of the next: a loop whose second product is one step late.

    for p in range(n):                                   fetch(0); scores = q · k[0]; wait(scores); powers; weigh W anew
        fetch(p); scores = q · k[p]; wait(scores)        for p in range(n - 1):
        powers, sums; weigh W anew                  ->       fetch(p + 1); scores = q · k[p + 1]
        W += powers · v[p]; wait(W)                          W += powers · v[p]
        give back p                                          wait(scores); powers, sums        while W is summed
                                                             wait(W); weigh W anew; give back p
                                                         W += powers · v[n - 1]; wait(W); give back n - 1

The tensor cores have work while threads take powers: the products that were begun before. In order, it is the same
program: the powers of a step are read by its product before those of the next are made, and W is weighed anew after it.
Loops are those that `producer.fetch_beside` marks, whose steps wait for what they read and give it back themselves.
"""

from __future__ import annotations

from weft.core.dtypes import dtype
from weft.expr.nodes import Address, Buffer, Call, Expr, add, floordiv, index_expr, int_value, sub
from weft.expr.visit import substitute
from weft.loop.ir import Allocate, Evaluate, For, Func, Seq, Stmt, seq
from weft.loop.passes.support import Copier, Names, buffers_written, is_call, statements
from weft.loop.visit import Mutator, walk_stmts
from weft.targets.cuda import bulk, wgmma
from weft.targets.cuda.fragments import PACK

STAGGER = "stagger"
"""The annotation of such a loop."""


def stagger(func: Func) -> Func:
    """The program whose marked loops have their second product one step late."""
    return _Stagger(func).func(func) if any(_is_marked(s) for s in walk_stmts(func.body)) else func


def _is_marked(s: Stmt) -> bool:
    return isinstance(s, For) and bool(s.annotations.get(STAGGER))


class _Stagger(Mutator):
    def __init__(self, func: Func) -> None:
        self.names = Names(func)

    def visit_For(self, s: For) -> Stmt:
        if not _is_marked(s):
            return self.generic_stmt(s)
        parts = list(statements(s.body))
        late = [part for part in parts if any(wgmma.is_held(one) for one in walk_stmts(part))]
        early = [part for part in parts if part not in late and any(map(wgmma.is_dot, walk_stmts(part)))]
        back = [part for part in parts if any(is_call(one, bulk.ARRIVE) for one in walk_stmts(part))]
        if len(late) != 1 or len(early) != 1 or len(back) != 1:
            return s.replace(annotations={key: note for key, note in s.annotations.items() if key != STAGGER})
        first, last = parts.index(early[0]), parts.index(late[0])
        (sums,) = buffers_written(late[0])
        weighed = [part for part in parts[first + 1 : last] if sums in buffers_written(part)]
        between = [part for part in parts[first + 1 : last] if part not in weighed]
        begun, scores = _begun(early[0])
        added, whole = _begun(late[0])
        words, pack, added = _packed(added, self.names)

        def at(step: Expr, *some: Stmt) -> Stmt:
            return Copier(self.names, {s.var: step}).stmt(seq(*some))

        zero, one, many = index_expr(0), index_expr(1), wgmma.groups_of(added) or 0
        after, end = add(s.var, one), sub(s.extent, one)
        loop = For(s.var, end, seq(
            at(after, *parts[:first], begun), at(s.var, added), wgmma.wait_for(*scores, pending=many),
            at(after, *between), wgmma.wait_for(*whole), at(after, *weighed), pack, at(s.var, *back),
        ))  # fmt: skip
        start = at(zero, *parts[:first], begun, wgmma.wait_for(*scores), *between, *weighed)
        return Allocate(words, seq(start, pack, loop, at(end, added, wgmma.wait_for(*whole), *back)))


def _begun(part: Stmt) -> tuple[Stmt, tuple[Expr, Expr]]:
    """Products without their wait, and the tile that this was for: where it lies, and its width."""
    (wait,) = (s for s in walk_stmts(part) if is_call(s, wgmma.WAIT_FOR))
    out, width, _ = wait.value.args  # type: ignore[attr-defined]
    loops = {s.var: index_expr(0) for s in walk_stmts(part) if isinstance(s, For)}
    assert isinstance(out, Address)
    place = Address(out.buffer, [substitute(index, loops) for index in out.indices], out.mode)
    return _Instead(wait, Seq(())).stmt(part), (place, width)


def _packed(part: Stmt, names: Names) -> tuple[Buffer, Stmt, Stmt]:
    """Words for the rows of a product, the statement that makes them, and the product that takes them.

    Nothing but products may be between products that are on their way, or they wait for one another.
    """
    (dot,) = (s for s in walk_stmts(part) if isinstance(s, Evaluate) and wgmma.is_held(s))
    assert isinstance(dot.value, Call)
    rows, values, out, stride, *numbers = dot.value.args
    assert isinstance(rows, Address)
    *around, height, width = (int_value(n) or 1 for n in rows.buffer.shape)
    words = Buffer(names.fresh("words"), dtype("uint32"), (*around, height, width // 2), scope=rows.buffer.scope)
    *outer, column = rows.indices
    place = Address(words, [*outer, floordiv(column, index_expr(2))], "r")
    made = Evaluate(Call(dot.value.name, (place, values, out, index_expr(width // 2), *numbers), dot.value.dtype))
    zeros = [index_expr(0)] * len(rows.indices)
    ends = Address(rows.buffer, zeros, "r"), Address(words, zeros, "w")
    kind, _, _ = dot.value.name.removeprefix(wgmma.HELD).partition(wgmma.FIRST)
    pack = Call(f"{PACK}{kind}", (*ends, index_expr(width)), dot.value.dtype)
    return words, Evaluate(pack), _Instead(dot, made).stmt(part)


class _Instead(Mutator):
    """A statement with another instead of one that is in it."""

    def __init__(self, gone: Stmt, made: Stmt) -> None:
        self.gone, self.made = gone, made

    def stmt(self, s: Stmt) -> Stmt:
        return self.made if s is self.gone else super().stmt(s)

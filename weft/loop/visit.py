"""Walking and rewriting statements.

`Mutator` rewrites statements and, through `expr`, the expressions in them; a pass is a subclass with `visit_For`,
`visit_Load`, … for what it cares about. `rebuild_stmt(s, on_stmt, on_expr)` does one level. Nodes that do not change
are kept, so that an unchanged program comes back as the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from weft.core.native import mypyc_attr
from weft.expr.nodes import Address, Buffer, Expr, Load, Var
from weft.expr.visit import ExprMutator, bits, find_methods, map_all, substitute, walk
from weft.loop.ir import (
    STATEMENTS,
    Allocate,
    Axis,
    Block,
    Evaluate,
    For,
    Func,
    If,
    Let,
    Region,
    Seq,
    Stmt,
    Store,
    seq,
)

OnStmt = Callable[[Stmt], Stmt]
OnExpr = Callable[[Expr], Expr]


def map_region(region: Region, f: OnExpr) -> Region:
    """A region with f applied to its bounds."""
    mins, extents = map_all(region.mins, f), map_all(region.extents, f)
    return region if mins is region.mins and extents is region.extents else Region(region.buffer, mins, extents)


def _regions(regions: tuple[Region, ...], f: OnExpr) -> tuple[Region, ...]:
    new = tuple(map_region(r, f) for r in regions)
    return regions if all(a is b for a, b in zip(regions, new)) else new


def _store(s: Store, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    indices, value = map_all(s.indices, on_expr), on_expr(s.value)
    predicate = None if s.predicate is None else on_expr(s.predicate)
    if indices is s.indices and value is s.value and predicate is s.predicate:
        return s
    return Store(s.buffer, indices, value, predicate)


def _for(s: For, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    extent, body = on_expr(s.extent), on_stmt(s.body)
    return s if extent is s.extent and body is s.body else s.replace(extent=extent, body=body)


def _seq(s: Seq, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    new = [on_stmt(child) for child in s.stmts]
    return s if all(a is b for a, b in zip(s.stmts, new)) else seq(*new)


def _if(s: If, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    condition, then = on_expr(s.condition), on_stmt(s.then)
    otherwise = None if s.otherwise is None else on_stmt(s.otherwise)
    if condition is s.condition and then is s.then and otherwise is s.otherwise:
        return s
    return If(condition, then, otherwise)


def _let(s: Let, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    value, body = on_expr(s.value), on_stmt(s.body)
    return s if value is s.value and body is s.body else Let(s.var, value, body)


def _allocate(s: Allocate, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    body = on_stmt(s.body)
    return s if body is s.body else Allocate(s.buffer, body)


def _evaluate(s: Evaluate, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    value = on_expr(s.value)
    return s if value is s.value else Evaluate(value)


def _block(s: Block, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    bindings, predicate = map_all(s.bindings, on_expr), on_expr(s.predicate)
    reads, writes = _regions(s.reads, on_expr), _regions(s.writes, on_expr)
    init = None if s.init is None else on_stmt(s.init)
    body = on_stmt(s.body)
    axes = s.axes
    extents = map_all(tuple(axis.extent for axis in axes), on_expr)
    if any(axis.extent is not extent for axis, extent in zip(axes, extents)):
        axes = tuple(Axis(axis.var, extent, axis.kind) for axis, extent in zip(axes, extents))
    same = bindings is s.bindings and predicate is s.predicate and reads is s.reads and writes is s.writes
    if same and init is s.init and body is s.body and axes is s.axes:
        return s
    return s.replace(
        axes=axes, bindings=bindings, predicate=predicate, reads=reads, writes=writes, init=init, body=body
    )


_REBUILD: dict[type[Stmt], Callable[[Any, OnStmt, OnExpr], Stmt]] = {
    Store: _store, For: _for, Seq: _seq, If: _if, Let: _let, Allocate: _allocate, Evaluate: _evaluate, Block: _block,
}  # fmt: skip


def rebuild_stmt(s: Stmt, on_stmt: OnStmt, on_expr: OnExpr) -> Stmt:
    """One level of a statement with the functions applied to its parts; the statement itself if nothing changed."""
    return _REBUILD[type(s)](s, on_stmt, on_expr)


def child_stmts(s: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside one."""
    if isinstance(s, Seq):
        return s.stmts
    if isinstance(s, If):
        return (s.then,) if s.otherwise is None else (s.then, s.otherwise)
    if isinstance(s, Block):
        return (s.body,) if s.init is None else (s.init, s.body)
    return (s.body,) if isinstance(s, (For, Let, Allocate)) else ()


def child_exprs(s: Stmt) -> tuple[Expr, ...]:
    """The expressions directly inside a statement (a block's regions and axis extents are not counted)."""
    if isinstance(s, Store):
        return (*s.indices, s.value) if s.predicate is None else (*s.indices, s.value, s.predicate)
    if isinstance(s, For):
        return (s.extent,)
    if isinstance(s, If):
        return (s.condition,)
    if isinstance(s, (Let, Evaluate)):
        return (s.value,)
    if isinstance(s, Block):
        return (*s.bindings, s.predicate)
    return ()


def walk_stmts(s: Stmt) -> list[Stmt]:
    """Every statement, outermost first, in program order."""
    found: list[Stmt] = []
    stack = [s]
    while stack:
        node = stack.pop()
        found.append(node)
        kind = type(node)
        if kind is not Store and kind is not Evaluate:
            stack.extend(child_stmts(node)[::-1])
    return found


def walk_exprs(s: Stmt, *kinds: type[Expr]) -> list[Expr]:
    """Every expression node (or those of some kinds) anywhere in a statement."""
    if not kinds:
        return [node for stmt in walk_stmts(s) for e in child_exprs(stmt) for node in walk(e)]
    wanted = bits(kinds)
    parts = (e for stmt in walk_stmts(s) for e in child_exprs(stmt) if e.holds & wanted)
    return [node for e in parts for node in walk(e, *kinds)]


def substitute_stmt(s: Stmt, mapping: Mapping[Var, Expr]) -> Stmt:
    """Variables replaced by expressions everywhere in a statement."""
    if not mapping:
        return s

    def on_expr(e: Expr) -> Expr:
        return substitute(e, mapping)

    def on_stmt(child: Stmt) -> Stmt:
        return _REBUILD[type(child)](child, on_stmt, on_expr)

    return on_stmt(s)


@mypyc_attr(allow_interpreted_subclasses=True)
class Mutator(ExprMutator):
    """Rewrites statements and the expressions in them; subclasses add `visit_For`, `visit_Load`, …

    One that has a method for no kind of expression leaves expressions alone: they are not even walked.
    """

    _stmt_handlers: ClassVar[dict[type[Stmt], Callable[[Any, Any], Stmt]]] = {}

    def __init_subclass__(cls) -> None:
        find_methods(cls)
        cls._stmt_handlers = {kind: getattr(cls, f"visit_{kind.__name__}", Mutator.generic_stmt) for kind in STATEMENTS}

    def stmt(self, s: Stmt) -> Stmt:
        """The rewritten statement."""
        return self._stmt_handlers[type(s)](self, s)

    def generic_stmt(self, s: Stmt) -> Stmt:
        """What happens to a statement without a method of its own: its parts are rewritten."""
        if type(s) is not Let or self._stmt_handlers[Let] is not Mutator.generic_stmt:
            return _REBUILD[type(s)](s, self.stmt, self.expr)
        names: list[Let] = []  # one inside the other, perhaps hundreds: without a call for each
        while isinstance(s, Let):
            names.append(s)
            s = s.body
        values, made = [self.expr(name.value) for name in names], self.stmt(s)
        for name, value in zip(reversed(names), reversed(values)):
            made = name if value is name.value and made is name.body else Let(name.var, value, made)
        return made

    def func(self, f: Func) -> Func:
        """The program with its body rewritten."""
        body = self.stmt(f.body)
        return f if body is f.body else f.replace(body=body)


_ACCESSES = bits((Load, Address))


@mypyc_attr(allow_interpreted_subclasses=True)
class AccessMutator(Mutator):
    """Rewrites accesses of memory: in `access`, subclasses say what becomes of a buffer and its (rewritten) indices."""

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """What is accessed instead."""
        raise NotImplementedError

    def visit_Load(self, e: Load) -> Expr:
        """A load."""
        buffer, indices = self.access(e.buffer, map_all(e.indices, self.expr))
        return e if buffer is e.buffer and indices is e.indices else Load(buffer, indices)

    def visit_Address(self, e: Address) -> Expr:
        """An address."""
        buffer, indices = self.access(e.buffer, map_all(e.indices, self.expr))
        return e if buffer is e.buffer and indices is e.indices else Address(buffer, indices, e.mode)

    def visit_Store(self, s: Store) -> Stmt:
        """A store."""
        done = self.generic_stmt(s)
        assert isinstance(done, Store)
        buffer, indices = self.access(done.buffer, done.indices)
        same = buffer is done.buffer and indices is done.indices
        return done if same else Store(buffer, indices, done.value, done.predicate)


@mypyc_attr(allow_interpreted_subclasses=True)
class BufferReplacer(AccessMutator):
    """Replaces buffers by others, in loads, stores, addresses, regions and allocations."""

    def __init__(self, mapping: Mapping[Buffer, Buffer]) -> None:
        self.mapping = mapping
        self.done: dict[Expr, Expr] = {}

    def expr(self, e: Expr) -> Expr:
        """An expression, rewritten once however often it occurs."""
        if not e.holds & _ACCESSES:
            return e
        found = self.done.get(e)
        if found is None:
            found = self.done[e] = self._handlers[type(e)](self, e)
        return found

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """The other buffer, at the same place."""
        return self.mapping.get(buffer, buffer), indices

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """An allocation of a replaced buffer."""
        return Allocate(self.mapping.get(s.buffer, s.buffer), self.stmt(s.body))

    def visit_Block(self, s: Block) -> Stmt:
        """A block: its regions name the new buffers too."""
        done = self.generic_stmt(s)
        assert isinstance(done, Block)

        def swap(regions: tuple[Region, ...]) -> tuple[Region, ...]:
            return tuple(Region(self.mapping.get(r.buffer, r.buffer), r.mins, r.extents) for r in regions)

        return done.replace(reads=swap(done.reads), writes=swap(done.writes))

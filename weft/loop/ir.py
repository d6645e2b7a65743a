"""Loop IR: the closed set of statement nodes.

    Func  := func name(params) allocations* body            params: Buffers and scalar Vars; sizes may be Vars
    Stmt  := For(var, extent, body, kind, thread)           var runs over 0 .. extent-1
           | Block(name, axes, bindings, predicate, reads, writes, init, body)
           | Seq(stmts) | If(condition, then, otherwise) | Let(var, value, body)
           | Allocate(buffer, body) | Store(buffer, indices, value, predicate) | Evaluate(call)

A **block** is a computation isolated from the loops around it. Its axes (each "spatial", "reduce" or "ordered") are
bound to expressions of the loop variables outside; its body speaks only of its own axes. It runs where its predicate
(over the loop variables) holds. `init` runs first for each spatial point: exactly when every reduce axis is at 0.
`reads` and `writes` are the regions that one run of the body touches, in terms of the axes.
Spatial iterations write different elements and may run in any order; reduce iterations may be reordered because the
update is associative and commutative; ordered iterations keep their order.

A Func has two forms. *Scheduled*: For, Seq and Block, intermediate buffers listed in `allocations`. *Lowered*: no
blocks, `Allocate` where the memory lives. The verifier checks both; the interpreter runs both.

Kinds of loop: "serial", "parallel", "vectorized", "unrolled", "thread". A thread loop carries a tag: "blockIdx.x",
"threadIdx.x", … or "vthread"; or, made by a pass, "clusterRank.x": blocks that run together, in a loop over blocks, and
see one another's shared memory. The outermost loop of a tag launches that dimension; a loop of the same tag inside it
does not launch again: its variable is the same thread's index, and its body runs where the index is below its extent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Union

from weft.core.dtypes import INDEX
from weft.core.native import mypyc_attr
from weft.expr.classes import MADE_OF, Picklable
from weft.expr.nodes import TRUE, Buffer, Const, Expr, ExprLike, Var, index_expr
from weft.expr.visit import free_vars

LOOP_KINDS = ("serial", "parallel", "vectorized", "unrolled", "thread")
AXIS_KINDS = ("spatial", "reduce", "ordered")
THREAD_TAGS = tuple(f"{group}.{dim}" for group in ("blockIdx", "threadIdx") for dim in "xyz") + ("vthread",)
CLUSTER_RANK = "clusterRank.x"
"""The tag of a loop that a pass makes, and no schedule."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Stmt(Picklable):
    """Base of every statement."""

    __slots__ = ()

    def __repr__(self) -> str:
        from weft.loop.printer import format_stmt

        return format_stmt(self)


class Store(Stmt):
    """buffer[indices] = value, where the predicate (None: always; a bool vector for a vector store) holds."""

    __slots__ = ("buffer", "indices", "value", "predicate")

    def __init__(self, buffer: Buffer, indices: Sequence[Expr], value: Expr, predicate: Expr | None = None) -> None:
        self.buffer = buffer
        self.indices = tuple(indices)
        self.value = value
        self.predicate = predicate


class For(Stmt):
    """A loop from 0 to extent-1. `annotations` are hints with string keys and plain (JSON) values."""

    __slots__ = ("var", "extent", "body", "kind", "thread", "annotations")

    def __init__(
        self,
        var: Var,
        extent: ExprLike,
        body: Stmt,
        kind: str = "serial",
        thread: str | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        self.var = var
        self.extent = index_expr(extent)
        self.body = body
        self.kind = kind
        self.thread = thread
        self.annotations: dict[str, Any] = dict(annotations) if annotations else {}


class Seq(Stmt):
    """Statements one after the other. Made by `seq(...)`, which flattens."""

    __slots__ = ("stmts",)

    def __init__(self, stmts: Sequence[Stmt]) -> None:
        self.stmts = tuple(stmts)


class If(Stmt):
    """A condition (scalar bool)."""

    __slots__ = ("condition", "then", "otherwise")

    def __init__(self, condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> None:
        self.condition = condition
        self.then = then
        self.otherwise = otherwise


class Let(Stmt):
    """A value computed once and named in the body."""

    __slots__ = ("var", "value", "body")

    def __init__(self, var: Var, value: Expr, body: Stmt) -> None:
        self.var = var
        self.value = value
        self.body = body


class Allocate(Stmt):
    """A buffer that lives while the body runs; its contents start undefined."""

    __slots__ = ("buffer", "body")

    def __init__(self, buffer: Buffer, body: Stmt) -> None:
        self.buffer = buffer
        self.body = body


class Evaluate(Stmt):
    """An expression run for its effect: an intrinsic call such as a barrier or a tensor instruction."""

    __slots__ = ("value",)

    def __init__(self, value: Expr) -> None:
        self.value = value


class Axis(Picklable):
    """One axis of a block: its variable, extent (from 0) and kind."""

    __slots__ = ("var", "extent", "kind")

    def __init__(self, var: Var, extent: ExprLike, kind: str = "spatial") -> None:
        self.var = var
        self.extent = index_expr(extent)
        self.kind = kind


class Region(Picklable):
    """A box of a buffer: for each dimension a first index and an extent."""

    __slots__ = ("buffer", "mins", "extents")

    def __init__(self, buffer: Buffer, mins: Sequence[ExprLike], extents: Sequence[ExprLike]) -> None:
        self.buffer = buffer
        self.mins = tuple([m if isinstance(m, Expr) and m.dtype is INDEX else index_expr(m) for m in mins])
        self.extents = tuple([e if isinstance(e, Expr) and e.dtype is INDEX else index_expr(e) for e in extents])


class Block(Stmt):
    """A computation isolated from the loops around it (see the top of this file)."""

    __slots__ = ("name", "axes", "bindings", "predicate", "reads", "writes", "init", "body", "annotations", "origin")

    def __init__(
        self,
        name: str,
        axes: Sequence[Axis],
        bindings: Sequence[Expr],
        reads: Sequence[Region],
        writes: Sequence[Region],
        body: Stmt,
        init: Stmt | None = None,
        predicate: Expr = TRUE,
        annotations: Mapping[str, Any] | None = None,
        origin: str | None = None,
    ) -> None:
        self.name = name
        self.axes = tuple(axes)
        self.bindings = tuple(bindings)
        self.reads = tuple(reads)
        self.writes = tuple(writes)
        self.body = body
        self.init = init
        self.predicate = predicate
        self.annotations: dict[str, Any] = dict(annotations) if annotations else {}
        self.origin = origin


Param = Union[Buffer, Var]


class Func(Picklable):
    """A whole program: parameters, intermediate buffers (scheduled form), and a body."""

    __slots__ = ("name", "params", "allocations", "body", "annotations")

    def __init__(
        self,
        name: str,
        params: Sequence[Param],
        body: Stmt,
        allocations: Sequence[Buffer] = (),
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.params = tuple(params)
        self.allocations = tuple(allocations)
        self.body = body
        self.annotations: dict[str, Any] = dict(annotations) if annotations else {}

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The parameters that are buffers."""
        return tuple(p for p in self.params if isinstance(p, Buffer))

    @property
    def size_vars(self) -> tuple[Var, ...]:
        """Variables in the parameters' shapes and strides that are not parameters: bound from the arguments' shapes."""
        return _size_vars(self.params)

    def __repr__(self) -> str:
        from weft.loop.printer import format_func

        return format_func(self)


@functools.lru_cache(maxsize=64)
def _size_vars(params: tuple[Param, ...]) -> tuple[Var, ...]:
    given = {p for p in params if isinstance(p, Var)}
    found: dict[Var, None] = {}
    for buffer in params:
        if isinstance(buffer, Buffer):
            sizes = [size for size in (*buffer.shape, *(buffer.strides or ())) if type(size) is not Const]
            found.update(dict.fromkeys(var for var in free_vars(*sizes) if var not in given))
    return tuple(found)


def seq(*stmts: Stmt | None) -> Stmt:
    """Statements in order, nested Seqs flattened; None and empty Seqs drop out."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if type(stmt) is Seq:
            flat.extend(stmt.stmts)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(flat)


STATEMENTS: tuple[type[Stmt], ...] = (Store, For, Seq, If, Let, Allocate, Evaluate, Block)
MADE_OF.update({
    Store: ("buffer", "indices", "value", "predicate"), Seq: ("stmts",), If: ("condition", "then", "otherwise"),
    For: ("var", "extent", "body", "kind", "thread", "annotations"), Let: ("var", "value", "body"),
    Allocate: ("buffer", "body"), Evaluate: ("value",), Axis: ("var", "extent", "kind"),
    Block: ("name", "axes", "bindings", "reads", "writes", "body", "init", "predicate", "annotations", "origin"),
    Region: ("buffer", "mins", "extents"), Func: ("name", "params", "body", "allocations", "annotations"),
})  # fmt: skip

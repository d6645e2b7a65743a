"""Programs as text: in goes a Func or a Stmt, out comes indented text that `weft.loop.parser` reads back.

    func matmul(A: float32[1024, n], B: float32[1024, n], C: float32[n, n]):
        allocate C_local: float32[n, n] local                         a buffer of Func.allocations
        for y in range(n) parallel:
            for x in range(n) thread threadIdx.x @{"hint": 1}:
                for k in range(1024):
                    block C(y: n = y, x: n = x, k: reduce 1024 = k):  axis: [kind] extent = binding
                        where y < n                                   the predicate, over the loops outside
                        reads A[k, y], B[k, x +: 4]                   `first +: extent`; an extent of 1 is not written
                        writes C_local[y, x]
                        init:
                            C_local[y, x] = 0.0
                        C_local[y, x] = C_local[y, x] + A[k, y]*B[k, x]
        allocate T: float32[64] local strides [1] align 16:           an Allocate: has a colon, and a body
        allocate U: float32[64] local:                                two of them, one inside the other
            let t = U[0] + 1.0                                        t is known to the end of this suite
            T[0] = t where n < 4
            if n < 4:
                barrier()

Names are made unique: of two variables or buffers with one name the later is called name_1. Only a block's axes may
take the name of a loop outside, which the block's body cannot mean. `Block.origin` is not printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.core.dtypes import INDEX
from weft.expr.nodes import Buffer, Const, Expr, Var
from weft.expr.text import (
    Named,
    format_expr,
    format_inside,
    format_list,
    is_identifier,
    is_reserved,
)
from weft.loop.ir import (
    Allocate,
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
)
from weft.loop.visit import walk_exprs

INDENT = "    "


def format_func(func: Func) -> str:
    """A whole program as text."""
    return _Printer().func(func)


def format_stmt(stmt: Stmt) -> str:
    """A statement as text; variables and buffers from outside it appear by name."""
    printer = _Printer()
    printer.suite(stmt, "")
    return "\n".join(printer.lines)


def flatten(stmt: Stmt) -> list[Stmt]:
    """The statements of a suite: nested Seqs opened up."""
    if type(stmt) is not Seq:
        return [stmt]
    found: list[Stmt] = []
    stack: list[Stmt] = [stmt]
    while stack:
        node = stack.pop()
        if type(node) is Seq:
            stack.extend(reversed(node.stmts))
        else:
            found.append(node)
    return found


class Namer:
    """Gives every variable and buffer of a program a name of its own."""

    def __init__(self) -> None:
        self.names: dict[Named, str] = {}
        self.taken: dict[str, bool] = {}  # name -> whether a block axis may hide it
        self.free: list[Var] = []  # variables that nothing here binds: a part of a program is being printed
        self.axes: dict[str, Var] = {}  # the axes of the blocks around the current place

    def __call__(self, thing: Named) -> str:
        """The name of a variable or buffer."""
        name = self.names.get(thing)
        if name is None:
            if type(thing) is Var:
                self.free.append(thing)
            return self.bind(thing)
        hidden_by = self.axes.get(name)
        # A hidden name in use is a broken program; it is still printed so that nobody takes one for the other.
        return name if hidden_by is None or hidden_by is thing else f"{name}.outer"

    def bind(self, thing: Named, hideable: bool = False) -> str:
        """Names a variable or buffer for the rest of the program."""
        known = self.names.get(thing)
        if known is not None:
            return known
        name = self._free(thing.name, lambda n: n in self.taken or n in self.axes)
        self.names[thing] = name
        self.taken[name] = hideable
        return name

    def open_block(self, block: Block) -> tuple[list[str], Callable[[], None]]:
        """Names a block's axes; gives the names, and what to call where the block ends."""
        axes = block.axes
        for free in [free for free in self.free if any(axis.var.name == self.names[free] for axis in axes)]:
            self.taken[self.names[free]] = not _mentions(block, free)
        before = self.axes
        own: dict[str, Var] = {}
        outer_names = {axis.var: self.names.get(axis.var) for axis in axes}
        for axis in axes:
            name = self._free(axis.var.name, lambda n: n in own or not self.taken.get(n, True))
            own[name] = axis.var
            self.names[axis.var] = name
        self.axes = {**before, **own}

        def close() -> None:
            self.axes = before
            for var, name in outer_names.items():
                if name is None:
                    del self.names[var]
                else:
                    self.names[var] = name

        return list(own), close

    def _free(self, wish: str, clashes: Callable[[str], bool]) -> str:
        if not is_identifier(wish):
            wish = re.sub(r"[^A-Za-z0-9_]", "_", wish)
            wish = wish if is_identifier(wish) else f"_{wish}"
        name, count = wish, 0
        while is_reserved(name) or clashes(name):
            count += 1
            name = f"{wish}_{count}"
        return name


def _mentions(block: Block, var: Var) -> bool:
    inside = (block.body,) if block.init is None else (block.init, block.body)
    return any(e is var for stmt in inside for e in walk_exprs(stmt))


def _word(text: str, reserved: Iterable[str] = ()) -> str:
    """A name as it stands, in quotes if it is no plain word."""
    return text if is_identifier(text) and text not in reserved else json.dumps(text)


def _annotations(annotations: Mapping[str, Any]) -> str:
    return f" @{json.dumps(annotations, default=str, skipkeys=True)}" if annotations else ""


def _is_one(e: Expr) -> bool:
    return type(e) is Const and e.value == 1


class _Printer:
    """Collects the lines of one program."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names = Namer()

    def func(self, func: Func) -> str:
        names = self.names
        for thing in (*func.params, *func.size_vars, *func.allocations):
            names.bind(thing)
        params = [self.buffer(p) if isinstance(p, Buffer) else f"{names(p)}: {p.dtype.name}" for p in func.params]
        params += [f"size {names(v)}: {v.dtype.name}" for v in func.size_vars if v.dtype is not INDEX]
        header = f"func {_word(func.name)}({', '.join(params)}){_annotations(func.annotations)}:"
        self.lines.append(header)
        self.lines += [f"{INDENT}allocate {self.buffer(buffer)}" for buffer in func.allocations]
        self.suite(func.body, INDENT)
        return "\n".join(self.lines) + "\n"

    def buffer(self, buffer: Buffer) -> str:
        """A declaration: name, dtype, shape, and what is not as usual."""
        names = self.names
        text = f"{names(buffer)}: {buffer.dtype.name}[{format_list(buffer.shape, names)}]"
        if buffer.scope != "global":
            text += f" {_word(buffer.scope, ('strides', 'align'))}"
        if buffer.strides is not None:
            text += f" strides [{format_list(buffer.strides, names)}]"
        return text if buffer.alignment == 64 else f"{text} align {buffer.alignment}"

    def suite(self, stmt: Stmt, pad: str) -> None:
        """The statements of one indentation level; a Let at the end needs no level of its own."""
        at = len(self.lines)
        stmts = flatten(stmt)
        while stmts:
            for child in stmts[:-1]:
                self.stmt(child, pad)
            last = stmts[-1]
            if type(last) is not Let:
                self.stmt(last, pad)
                break
            self.lines.append(pad + self.let_header(last))
            stmts = flatten(last.body)
        if len(self.lines) == at:
            self.lines.append(f"{pad}pass")

    def stmt(self, s: Stmt, pad: str) -> None:
        printer = _PRINT.get(type(s))
        if printer is None:  # not a node of the IR: error messages print what they refuse
            self.lines.append(f"{pad}<{type(s).__name__}>")
        else:
            printer(self, s, pad)

    def store(self, s: Store, pad: str) -> None:
        names = self.names
        where = "" if s.predicate is None else f" where {format_expr(s.predicate, names)}"
        target = f"{names(s.buffer)}[{format_list(s.indices, names)}]"
        self.lines.append(f"{pad}{target} = {format_expr(s.value, names)}{where}")

    def evaluate(self, s: Evaluate, pad: str) -> None:
        self.lines.append(pad + format_expr(s.value, self.names))

    def for_(self, s: For, pad: str) -> None:
        extent = format_expr(s.extent, self.names)
        name = self.names.bind(s.var, hideable=True)
        kind = "" if s.kind == "serial" and s.thread is None else f" {_word(s.kind)}"
        tag = "" if s.thread is None else f" {_word(s.thread)}"
        typed = "" if s.var.dtype is INDEX else f": {s.var.dtype.name}"
        self.lines.append(f"{pad}for {name}{typed} in range({extent}){kind}{tag}{_annotations(s.annotations)}:")
        self.suite(s.body, pad + INDENT)

    def if_(self, s: If, pad: str) -> None:
        word, node = "if", s
        while True:
            self.lines.append(f"{pad}{word} {format_expr(node.condition, self.names)}:")
            self.suite(node.then, pad + INDENT)
            otherwise = node.otherwise
            if type(otherwise) is not If:
                break
            word, node = "elif", otherwise
        if otherwise is not None:
            self.lines.append(f"{pad}else:")
            self.suite(otherwise, pad + INDENT)

    def let_header(self, s: Let) -> str:
        value = format_expr(s.value, self.names)
        typed = "" if s.var.dtype is s.value.dtype else f": {s.var.dtype.name}"
        return f"let {self.names.bind(s.var, hideable=True)}{typed} = {value}"

    def let(self, s: Let, pad: str) -> None:
        self.lines.append(f"{pad}{self.let_header(s)}:")
        self.suite(s.body, pad + INDENT)

    def allocate(self, s: Allocate, pad: str) -> None:
        body: Stmt = s
        while type(body) is Allocate:
            self.names.bind(body.buffer)
            self.lines.append(f"{pad}allocate {self.buffer(body.buffer)}:")
            body = body.body
        self.suite(body, pad + INDENT)

    def block(self, s: Block, pad: str) -> None:
        names, inner = self.names, pad + INDENT
        extents = [format_inside(axis.extent, names) for axis in s.axes]
        bindings = [f" = {format_inside(binding, names)}" for binding in s.bindings]
        bindings += [""] * (len(extents) - len(bindings))
        plain = type(s.predicate) is Const and s.predicate.value is True
        predicate = None if plain else format_expr(s.predicate, names)
        axis_names, close = names.open_block(s)
        axes = [
            axis_name
            + ("" if axis.var.dtype is INDEX else f" as {axis.var.dtype.name}")
            + f": {'' if axis.kind == 'spatial' else axis.kind + ' '}{extent}{binding}"
            for axis_name, axis, extent, binding in zip(axis_names, s.axes, extents, bindings)
        ]
        axes += bindings[len(axes) :]
        self.lines.append(f"{pad}block {_word(s.name)}({', '.join(axes)}){_annotations(s.annotations)}:")
        if predicate is not None:
            self.lines.append(f"{inner}where {predicate}")
        for word, regions in (("reads", s.reads), ("writes", s.writes)):
            if regions:
                self.lines.append(f"{inner}{word} {', '.join([self.region(region) for region in regions])}")
        if s.init is not None:
            self.lines.append(f"{inner}init:")
            self.suite(s.init, inner + INDENT)
        self.suite(s.body, inner)
        close()

    def region(self, region: Region) -> str:
        names = self.names
        parts = [
            format_inside(first, names) + ("" if _is_one(extent) else f" +: {format_inside(extent, names)}")
            for first, extent in zip(region.mins, region.extents)
        ]
        return f"{names(region.buffer)}[{', '.join(parts)}]"


_PRINT: dict[type[Stmt], Callable[[_Printer, Any, str], None]] = {
    Store: _Printer.store, Evaluate: _Printer.evaluate, For: _Printer.for_, If: _Printer.if_, Let: _Printer.let,
    Allocate: _Printer.allocate, Block: _Printer.block, Seq: _Printer.suite,
}  # fmt: skip

__all__ = ["Namer", "flatten", "format_func", "format_stmt"]

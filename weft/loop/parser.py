"""Text to programs: `parse_func` reads what `weft.loop.printer` writes (its docstring shows the language).

In goes text, out comes a Func, or a ParseError with the line, the column, the text of the line and what was expected.
The nodes come out exactly as written: nothing is folded. Names are resolved while reading: a block's bindings and
predicate in the scope outside, its regions and body in the scope of its axes. Whether the program obeys the rules of
the IR is the verifier's question. `#` starts a comment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.core.dtypes import INDEX, DType
from weft.core.errors import ParseError
from weft.expr.nodes import TRUE, Buffer, Expr, Load, Var
from weft.expr.text import Named, is_reserved
from weft.loop.ir import (
    AXIS_KINDS,
    CLUSTER_RANK,
    LOOP_KINDS,
    THREAD_TAGS,
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
)
from weft.loop.reader import Line, LineReader, Scope, read_lines

MAX_SUITES = 100
"""How many suites may stand inside one another."""


def parse_func(text: str) -> Func:
    """The program that a text describes."""
    try:
        return _FuncParser(read_lines(text)).func()
    except RecursionError:
        raise ParseError("line 1, column 1: the program is nested too deeply to read") from None


def parse_expr(text: str, scope: Mapping[str, Named]) -> Expr:
    """The expression that one line of text describes; `scope` gives the variables and buffers by name."""
    try:
        lines = read_lines(text)
        if len(lines) != 1:
            raise ParseError(f"expected an expression on one line, got {len(lines)} lines: {text[:80]!r}")
        reader = LineReader(lines[0], dict(scope))
        result = reader.expression()
        reader.end("an operator or the end of the expression")
        return result
    except RecursionError:
        raise ParseError("line 1, column 1: the expression is nested too deeply to read") from None


class _FuncParser:
    """Reads the lines of one program, a suite at a time."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.at = 0
        self.depth = 0
        self.scope: Scope = {}

    # ------------------------------------------------------------------------------------------------ lines

    def reader(self) -> LineReader:
        """A reader of the current line, which is then done with."""
        line = self.lines[self.at]
        self.at += 1
        return LineReader(line, self.scope)

    def peek(self, indent: int) -> Line | None:
        """The current line if it belongs to the suite of this indentation."""
        if self.at < len(self.lines) and self.lines[self.at].indent == indent:
            return self.lines[self.at]
        return None

    def inner_indent(self, header: LineReader) -> int:
        """The indentation of the suite that a header's colon opens."""
        line = header.line
        if self.at >= len(self.lines) or self.lines[self.at].indent <= line.indent:
            raise line.error(len(line.text), "expected an indented suite after this line ('pass' for an empty one)")
        return self.lines[self.at].indent

    def open(self, header: LineReader) -> int:
        """The end of a header: a colon, then a deeper suite; gives its indentation."""
        header.expect(":")
        header.end("the end of the line after ':'")
        return self.inner_indent(header)

    # ------------------------------------------------------------------------------------------------ scope

    def declare(self, reader: LineReader, column: int, thing: Named, axis: bool = False) -> None:
        """Makes a name known from here on."""
        if is_reserved(thing.name):
            raise reader.line.error(column, f"{thing.name!r} is a word of the language; choose another name")
        if thing.name in self.scope and not axis:
            raise reader.line.error(column, f"the name {thing.name!r} is already in use here")
        self.scope[thing.name] = thing

    # ------------------------------------------------------------------------------------------------ program

    def func(self) -> Func:
        """The whole text."""
        if not self.lines:
            raise ParseError("line 1, column 1: expected 'func name(...):', got an empty text")
        reader = self.reader()
        if reader.line.indent:
            raise reader.line.error(0, "expected 'func' at the left margin")
        reader.expect("func")
        name = reader.word("the name of the function")
        params = self.params(reader)
        annotations = reader.annotations()
        indent = self.open(reader)
        allocations = self.allocations(indent)
        body = self.suite(indent)
        if self.at < len(self.lines):
            line = self.lines[self.at]
            raise line.error(line.indent, "expected the end of the program: this line is in no suite of it")
        return Func(name, params, body, allocations, annotations)

    def params(self, reader: LineReader) -> list[Buffer | Var]:
        """The parameters; sizes in shapes that nothing declares become size variables."""
        for name, kind, column in reader.scalar_params():
            self.declare(reader, column, Var(name, kind))
        reader.implicit_sizes = True
        params: list[Buffer | Var] = []
        buffers: list[tuple[int, Buffer]] = []
        reader.expect("(")
        first = True
        while not reader.accept(")"):
            if not first:
                reader.expect(",")
            first = False
            if reader.accept("size"):
                reader.name("the name of a size")
                reader.expect(":")
                reader.dtype()
                continue
            column, name = reader.column, reader.name("the name of a parameter")
            if reader.is_buffer():
                buffers.append((column, self.buffer(reader, name)))
                params.append(buffers[-1][1])
                continue
            reader.expect(":")
            reader.dtype()
            variable = self.scope.get(name)
            if not isinstance(variable, Var):
                raise reader.line.error(column, f"the name {name!r} is already in use here")
            params.append(variable)
        reader.implicit_sizes = False
        for column, buffer in buffers:
            self.declare(reader, column, buffer)
        return params

    def allocations(self, indent: int) -> list[Buffer]:
        """The buffers of Func.allocations: `allocate` lines without a colon."""
        found: list[Buffer] = []
        while True:
            line = self.peek(indent)
            if line is None or not line.starts("allocate") or line.ends(":"):
                return found
            reader = self.reader()
            reader.expect("allocate")
            found.append(self.declared_buffer(reader))
            reader.end("the end of the line, or ':' and an indented suite for an allocation with a body")

    def declared_buffer(self, reader: LineReader) -> Buffer:
        """A buffer declaration that enters the scope."""
        column, name = reader.column, reader.name("the name of a buffer")
        buffer = self.buffer(reader, name)
        self.declare(reader, column, buffer)
        return buffer

    def buffer(self, reader: LineReader, name: str) -> Buffer:
        """`: dtype[shape] scope strides [...] align n` after a name."""
        reader.expect(":")
        kind = reader.dtype()
        shape = reader.bracketed_sizes()
        scope, strides, alignment = "global", None, 64
        if reader.is_word() and not reader.at_word("strides") and not reader.at_word("align"):
            scope = reader.word("the scope of the buffer")
        if reader.accept("strides"):
            strides = reader.bracketed_sizes()
        if reader.accept("align"):
            alignment = reader.integer("the alignment in bytes", 0, 1 << 40)
        return Buffer(name, kind, shape, scope, strides, alignment)

    # ------------------------------------------------------------------------------------------------ statements

    def suite(self, indent: int) -> Stmt:
        """The statements of one indentation level; whatever they declare is forgotten after it."""
        self.depth += 1
        if self.depth > MAX_SUITES:
            line = self.lines[min(self.at, len(self.lines) - 1)]
            raise line.error(line.indent, f"more than {MAX_SUITES} suites inside one another")
        before = dict(self.scope)
        stmts: list[Stmt] = []
        lets: list[tuple[int, Var, Expr]] = []  # a let without a colon holds to the end of the suite
        while self.at < len(self.lines) and self.lines[self.at].indent >= indent:
            line = self.lines[self.at]
            if line.indent > indent:
                raise line.error(line.indent, f"expected this line at column {indent + 1}, like the ones before it")
            if line.starts("let"):
                stmts += self.let(lets, len(stmts))
            elif line.is_only("pass"):
                self.at += 1
            else:
                stmts.append(self.stmt(line, indent))
        for position, variable, value in reversed(lets):
            stmts[position:] = [Let(variable, value, _sequence(stmts[position:]))]
        self.scope.clear()
        self.scope.update(before)
        self.depth -= 1
        return _sequence(stmts)

    def stmt(self, line: Line, indent: int) -> Stmt:
        """One statement with the suites inside it."""
        handler = _STATEMENTS.get(line.first_word())
        if handler is not None:
            return handler(self, indent)
        reader = self.reader()
        value = reader.expression()
        if not reader.accept("="):
            reader.end("'=' or the end of the line")
            return Evaluate(value)
        if type(value) is not Load:
            raise line.error(line.indent, "only an element of a buffer, such as A[i, j], can stand left of '='")
        stored = reader.expression()
        predicate = reader.expression() if reader.accept("where") else None
        reader.end("an operator, 'where' or the end of the line")
        return Store(value.buffer, value.indices, stored, predicate)

    def let(self, lets: list[tuple[int, Var, Expr]], position: int) -> list[Stmt]:
        """`let x = value` (noted in `lets`), or `let x = value:` with a suite."""
        reader = self.reader()
        reader.expect("let")
        column, name = reader.column, reader.name("the name of a value")
        kind = reader.dtype() if reader.accept(":") else None
        reader.expect("=")
        value = reader.expression()
        variable = Var(name, kind or value.dtype)
        if not reader.at_symbol(":"):
            reader.end("an operator, ':' or the end of the line")
            self.declare(reader, column, variable)
            lets.append((position, variable, value))
            return []
        indent = self.open(reader)
        self.declare(reader, column, variable)
        body = self.suite(indent)
        del self.scope[name]
        return [Let(variable, value, body)]

    def for_(self, indent: int) -> Stmt:
        """`for i in range(extent) kind tag @{...}:`."""
        reader = self.reader()
        reader.expect("for")
        column, name = reader.column, reader.name("the name of a loop variable")
        kind = reader.dtype() if reader.accept(":") else INDEX
        for word in ("in", "range", "("):
            reader.expect(word)
        extent = reader.size()
        reader.expect(")")
        loop_kind, tag = "serial", None
        if reader.is_word():
            loop_kind = reader.one_of(LOOP_KINDS, "a kind of loop")
            if loop_kind == "thread" or reader.is_word():
                tag = reader.one_of((*THREAD_TAGS, CLUSTER_RANK), "a thread tag")
        annotations = reader.annotations()
        inner = self.open(reader)
        variable = Var(name, kind)
        self.declare(reader, column, variable)
        body = self.suite(inner)
        del self.scope[name]
        return For(variable, extent, body, loop_kind, tag, annotations)

    def if_(self, indent: int) -> Stmt:
        """`if`, any number of `elif`, and `else`."""
        arms: list[tuple[Expr, Stmt]] = []
        otherwise: Stmt | None = None
        word = "if"
        while True:
            reader = self.reader()
            reader.expect(word)
            if word == "else":
                otherwise = self.suite(self.open(reader))
                break
            condition = reader.expression()
            arms.append((condition, self.suite(self.open(reader))))
            line = self.peek(indent)
            if line is None or line.first_word() not in ("elif", "else"):
                break
            word = line.first_word()
        for condition, then in reversed(arms):
            otherwise = If(condition, then, otherwise)
        assert otherwise is not None
        return otherwise

    def allocate(self, indent: int) -> Stmt:
        """`allocate X: …:` lines, one inside the other, then the suite they share."""
        buffers: list[Buffer] = []
        while True:
            reader = self.reader()
            reader.expect("allocate")
            buffers.append(self.declared_buffer(reader))
            reader.expect(":")
            reader.end("the end of the line after ':'")
            line = self.peek(indent)
            if line is None or not line.starts("allocate"):
                break
        body = self.suite(self.inner_indent(reader))
        for buffer in reversed(buffers):
            body = Allocate(buffer, body)
            del self.scope[buffer.name]
        return body

    def block(self, indent: int) -> Stmt:
        """A block: its header and `where` in the scope outside, the rest in the scope of its axes."""
        reader = self.reader()
        reader.expect("block")
        name = reader.word("the name of the block")
        axes, bindings, columns = self.axes(reader)
        annotations = reader.annotations()
        inner = self.open(reader)
        predicate: Expr = TRUE
        line = self.peek(inner)
        if line is not None and line.starts("where"):
            where = self.reader()
            where.expect("where")
            predicate = where.expression()
            where.end("an operator or the end of the line")
        before = dict(self.scope)
        for axis, column in zip(axes, columns):
            self.declare(reader, column, axis.var, axis=True)
        reads, writes = self.regions(inner, "reads"), self.regions(inner, "writes")
        init = None
        line = self.peek(inner)
        if line is not None and line.starts("init"):
            header = self.reader()
            header.expect("init")
            init = self.suite(self.open(header))
        body = self.suite(inner)
        self.scope.clear()
        self.scope.update(before)
        return Block(name, axes, bindings, reads, writes, body, init, predicate, annotations)

    def axes(self, reader: LineReader) -> tuple[list[Axis], list[Expr], list[int]]:
        """`(y: 1024 = yo*32 + yi, k: reduce 1024 = k)`, and the column of each axis."""
        axes: list[Axis] = []
        bindings: list[Expr] = []
        columns: list[int] = []
        reader.expect("(")
        while not reader.accept(")"):
            if axes and not reader.accept(","):
                raise reader.unexpected("',' or ')' after an axis")
            column, name = reader.column, reader.name("the name of an axis")
            if any(axis.var.name == name for axis in axes):
                raise reader.line.error(column, f"the block has two axes named {name!r}")
            columns.append(column)
            kind: DType = reader.dtype() if reader.accept("as") else INDEX
            reader.expect(":")
            axis_kind = reader.one_of(AXIS_KINDS, "a kind of axis") if reader.at_any(AXIS_KINDS) else "spatial"
            axes.append(Axis(Var(name, kind), reader.size(), axis_kind))
            reader.expect("=")
            bindings.append(reader.expression())
        return axes, bindings, columns

    def regions(self, indent: int, word: str) -> list[Region]:
        """A line of `reads` or `writes`, where there is one."""
        line = self.peek(indent)
        if line is None or not line.starts(word):
            return []
        reader = self.reader()
        reader.expect(word)
        found = [reader.region()]
        while reader.accept(","):
            found.append(reader.region())
        reader.end("',' or the end of the line")
        return found

    def stray(self, indent: int) -> Stmt:
        """A word that opens a line in some other place only."""
        line = self.lines[self.at]
        place = {
            "elif": "after the suite of an 'if'", "else": "after the suite of an 'if'",
            "func": "at the top of the text",
            "where": "as the first line of a block", "reads": "after 'where' at the top of a block",
            "writes": "after 'reads' at the top of a block", "init": "after 'writes' at the top of a block",
        }[line.first_word()]  # fmt: skip
        raise line.error(line.indent, f"expected a statement; '{line.first_word()}' stands {place} only")


def _sequence(stmts: list[Stmt]) -> Stmt:
    return stmts[0] if len(stmts) == 1 else Seq(stmts)


_STATEMENTS: dict[str, Callable[[Any, int], Stmt]] = {
    "for": _FuncParser.for_, "if": _FuncParser.if_, "allocate": _FuncParser.allocate, "block": _FuncParser.block,
    **dict.fromkeys(("elif", "else", "func", "where", "reads", "writes", "init"), _FuncParser.stray),
}  # fmt: skip

__all__ = ["parse_expr", "parse_func"]

"""The lower half of the parser: lines, tokens, and the expressions on one line.

`read_lines(text)` gives the lines that say something, each cut into tokens. A `LineReader` walks over one line's
tokens: `expect` and `accept` take symbols and words, `expression` reads an expression (precedence climbing, the mirror
of `weft.expr.text`). Every refusal is a ParseError made by `Line.error`, which shows the line and points at the column.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft.core.dtypes import FLOAT32, INDEX, DType, dtype
from weft.core.errors import DTypeError, ParseError
from weft.expr.nodes import (
    FALSE,
    LE,
    LT,
    TRUE,
    Address,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Select,
    Sub,
    Var,
)
from weft.expr.text import (
    ATOM,
    BUILTINS,
    COMPARE,
    INFIX,
    NOT,
    OR,
    PREFIX,
    SPECIAL,
    SUFFIXES,
    Named,
    call_dtype,
    is_dtype_name,
    is_reserved,
)
from weft.loop.ir import Region

Scope = dict[str, Named]

MAX_DEPTH = 200
"""How many expressions may stand inside one another."""
MAX_LANES = 4096

_TOKEN = re.compile(
    r"""[ \t]*(?:
    (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*) |
    (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[A-Za-z0-9_]*) |
    (?P<string>"(?:[^"\\]|\\.)*") |
    (?P<symbol>\+:|->|//|<=|>=|==|!=|[-+*/%<>=()\[\],:@]) |
    (?P<comment>\#.*) |
    (?P<end>$))""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"([0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?([A-Za-z0-9_]*)\Z")
_OPERATORS: dict[str, tuple[Callable[[Expr, Expr], Expr], int]] = {
    **{symbol: (kind, strength) for kind, (symbol, strength) in INFIX.items()},
    ">": (lambda a, b: LT(b, a), COMPARE),
    ">=": (lambda a, b: LE(b, a), COMPARE),
}
_TWO_SIDED: dict[str, type[Binary]] = {word: kind for kind, word in PREFIX.items()}


class Token(NamedTuple):
    """A piece of a line: "name", "number", "string", "json", "symbol" or "end"."""

    kind: str
    text: str
    column: int
    value: Any = None


class Line:
    """A line that says something: its number, indentation, text and tokens."""

    __slots__ = ("number", "indent", "text", "tokens")

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.indent = len(text) - len(text.lstrip(" "))
        self.tokens = _tokens(self)

    def error(self, column: int, message: str) -> ParseError:
        """The refusal of this line at a column (counted from 0)."""
        start = max(0, column - 60)
        shown = self.text[start : start + 120]
        return ParseError(
            f"line {self.number}, column {column + 1}: {message}\n    {shown}\n    {' ' * (column - start)}^"
        )

    def first_word(self) -> str:
        """The first token's text, if it is a word."""
        return self.tokens[0].text if self.tokens[0].kind == "name" else ""

    def starts(self, word: str) -> bool:
        """Whether the line begins with this word."""
        return self.tokens[0].text == word and self.tokens[0].kind == "name"

    def ends(self, symbol: str) -> bool:
        """Whether this is the last symbol of the line."""
        return len(self.tokens) > 1 and self.tokens[-2].text == symbol and self.tokens[-2].kind == "symbol"

    def is_only(self, word: str) -> bool:
        """Whether the line is nothing but this word."""
        return len(self.tokens) == 2 and self.starts(word)


def read_lines(text: str) -> list[Line]:
    """The lines of a text without the empty ones and those that are comments only."""
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        raw = raw.rstrip()
        stripped = raw.lstrip(" ")
        if stripped and not stripped.startswith("#"):
            lines.append(Line(number, raw))
    return lines


def _tokens(line: Line) -> list[Token]:
    tokens: list[Token] = []
    text, at = line.text, 0
    if text[line.indent : line.indent + 1] == "\t":
        raise line.error(line.indent, "expected spaces: a tab cannot indent a line")
    while True:
        found = _TOKEN.match(text, at)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip(" \t"))
            what = "a string that ends on this line" if text[at] == '"' else "a name, a number or a symbol"
            raise line.error(at, f"expected {what}, got {text[at]!r}")
        kind = found.lastgroup or "end"
        column, at = found.start(kind), found.end()
        if kind in ("end", "comment"):
            tokens.append(Token("end", "", column))
            return tokens
        value = None
        if kind == "string":
            value = _json(line, column, json.loads, found.group(kind))
        elif kind == "symbol" and found.group(kind) == "@":
            value, at = _json(line, column + 1, json.JSONDecoder().raw_decode, text, at)
            kind = "json"
        tokens.append(Token(kind, text[column:at], column, value))


def _json(line: Line, column: int, decode: Callable[..., Any], *args: Any) -> Any:
    try:
        return decode(*args)
    except (ValueError, RecursionError) as error:
        raise line.error(column, f"expected JSON: {error}") from None


class LineReader:
    """Walks over the tokens of one line; names are looked up in `scope`."""

    def __init__(self, line: Line, scope: Scope) -> None:
        self.line = line
        self.tokens = line.tokens
        self.at = 0
        self.scope = scope
        self.depth = 0
        self.implicit_sizes = False  # whether an unknown name declares a size (in a parameter's shape)

    # ------------------------------------------------------------------------------------------------ tokens

    @property
    def column(self) -> int:
        """Where the next token stands."""
        return self.tokens[self.at].column

    def unexpected(self, wanted: str) -> ParseError:
        """The refusal of the next token."""
        token = self.tokens[self.at]
        got = "the end of the line" if token.kind == "end" else repr(token.text[:40])
        return self.line.error(token.column, f"expected {wanted}, got {got}")

    def take(self) -> Token:
        """The next token; the end stays where it is."""
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def at_symbol(self, text: str) -> bool:
        """Whether this symbol comes next."""
        token = self.tokens[self.at]
        return token.kind == "symbol" and token.text == text

    def at_word(self, text: str) -> bool:
        """Whether this word comes next."""
        token = self.tokens[self.at]
        return token.kind == "name" and token.text == text

    def at_any(self, words: Sequence[str]) -> bool:
        """Whether one of these words comes next."""
        token = self.tokens[self.at]
        return token.kind == "name" and token.text in words

    def is_word(self) -> bool:
        """Whether a word (or a word in quotes) comes next."""
        return self.tokens[self.at].kind in ("name", "string")

    def accept(self, text: str) -> bool:
        """Takes this symbol or word if it comes next."""
        token = self.tokens[self.at]
        if token.text == text and token.kind in ("symbol", "name"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Takes this symbol or word."""
        if not self.accept(text):
            raise self.unexpected(repr(text))

    def end(self, wanted: str) -> None:
        """Nothing more on this line."""
        if self.tokens[self.at].kind != "end":
            raise self.unexpected(wanted)

    def name(self, what: str) -> str:
        """A name."""
        if self.tokens[self.at].kind != "name":
            raise self.unexpected(what)
        return self.take().text

    def word(self, what: str) -> str:
        """A name, or any text in quotes."""
        token = self.tokens[self.at]
        if token.kind == "string":
            self.at += 1
            return str(token.value)
        return self.name(what)

    def one_of(self, words: Sequence[str], what: str) -> str:
        """One of these words."""
        if not self.at_any(words):
            raise self.unexpected(f"{what} ({', '.join(words)})")
        return self.take().text

    def integer(self, what: str, least: int, most: int) -> int:
        """A plain integer in a range."""
        token = self.tokens[self.at]
        if token.kind != "number" or not token.text.isdigit() or len(token.text) > 20:
            raise self.unexpected(what)
        value = int(token.text)
        if not least <= value <= most:
            raise self.line.error(token.column, f"expected {what} from {least} to {most}, got {value}")
        self.at += 1
        return value

    def annotations(self) -> dict[str, Any]:
        """`@{...}`, where there is one."""
        token = self.tokens[self.at]
        if token.kind != "json":
            return {}
        if not isinstance(token.value, dict):
            raise self.line.error(token.column, 'expected annotations such as @{"key": 1}')
        self.at += 1
        return token.value

    def dtype(self) -> DType:
        """A data type."""
        token = self.tokens[self.at]
        name = self.name("a data type")
        try:
            return dtype(name)
        except DTypeError as error:
            raise self.line.error(token.column, f"expected a data type: {error}") from None

    def scalar_params(self) -> list[tuple[str, DType, int]]:
        """The names in `name: dtype` without a shape, found ahead of reading the parameters."""
        found = []
        for name, colon, kind, after in zip(self.tokens, self.tokens[1:], self.tokens[2:], self.tokens[3:]):
            if name.kind == "name" and colon.text == ":" and is_dtype_name(kind.text) and after.text != "[":
                found.append((name.text, dtype(kind.text), name.column))
        return found

    def is_buffer(self) -> bool:
        """Whether `: dtype[` comes next."""
        ahead = self.tokens[self.at : self.at + 3]
        return len(ahead) == 3 and ahead[0].text == ":" and ahead[2].text == "["

    # ------------------------------------------------------------------------------------------------ expressions

    def expression(self, floor: int = OR) -> Expr:
        """An expression whose operators bind at least so tightly."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.line.error(self.column, f"more than {MAX_DEPTH} expressions inside one another")
        left = self.unary()
        compared = False
        while True:
            token = self.tokens[self.at]
            build, strength = _OPERATORS.get(token.text, (None, -1))
            if build is None or strength < floor or token.kind not in ("symbol", "name"):
                break
            if strength == COMPARE:
                if compared:
                    raise self.line.error(token.column, "comparisons do not chain: write a < b and b < c")
                compared = True
            self.at += 1
            right = self.expression(strength + 1)
            if left.dtype is not right.dtype:
                raise self.line.error(
                    token.column,
                    f"the sides of '{token.text}' are {left.dtype} and {right.dtype}; expected one dtype "
                    "(a literal says its own: 2 is int64, 2.0 is float32, 2i8, 2.0f16)",
                )
            left = build(left, right)
        self.depth -= 1
        return left

    def unary(self) -> Expr:
        """`not x`, `-x`, or an atom."""
        token = self.tokens[self.at]
        if token.kind == "name" and token.text == "not":
            self.at += 1
            return Not(self.expression(NOT))
        if token.kind != "symbol" or token.text != "-":
            return self.atom()
        self.at += 1
        ahead = self.tokens[self.at]
        if ahead.kind == "number":
            return self.number(negative=True)
        if ahead.kind == "name" and ahead.text in SPECIAL and ahead.text.startswith("inf"):
            self.at += 1
            return Const(-math.inf, SPECIAL[ahead.text][1])
        value = self.expression(ATOM)
        if value.dtype.is_float:
            return Call("neg", (value,), value.dtype)
        if value.dtype.is_integer and value.dtype.lanes == 1:
            return Sub(Const(0, value.dtype), value)
        raise self.line.error(token.column, f"'-' is not defined on {value.dtype}")

    def atom(self) -> Expr:
        """A literal, a variable, a load, a call, or an expression in parentheses."""
        token = self.tokens[self.at]
        if token.kind == "number":
            return self.number()
        if token.kind == "name":
            return self.named()
        if not self.accept("("):
            raise self.unexpected("an expression")
        inner = self.expression()
        self.expect(")")
        return inner

    def number(self, negative: bool = False) -> Expr:
        """A literal; a minus before it belongs to it."""
        token = self.take()
        found = _NUMBER.match(token.text)
        whole, fraction, exponent, suffix = found.groups() if found else ("", None, None, "?")
        decimal = fraction is not None or exponent is not None
        kind = SUFFIXES.get(suffix) if suffix else FLOAT32 if decimal else INDEX
        if kind is None:
            known = ", ".join(SUFFIXES)
            raise self.line.error(token.column, f"expected a number, got {token.text[:40]!r}; its endings are {known}")
        sign = "-" if negative else ""
        if kind.is_float:
            value = float(sign + whole + (fraction or "") + (exponent or ""))
            if math.isfinite(value):
                return Const(value, kind)
        elif not decimal and len(whole) < 100:
            integer = int(sign + whole)
            least, most = (0, (1 << 64) - 1) if kind.kind == "handle" else (kind.min, kind.max)
            if least <= integer <= most:
                return Const(integer, kind)
        raise self.line.error(token.column, f"the value {sign}{token.text[:40]} does not fit {kind}")

    def named(self) -> Expr:
        """What begins with a name."""
        token = self.take()
        if self.at_symbol("("):
            return self.called(token)
        special = SPECIAL.get(token.text)
        if special is not None:
            value, kind = special
            return Const(value, kind) if kind.is_float else TRUE if value else FALSE
        if self.at_symbol("["):
            return Load(self.buffer(token), self.indices())
        thing = self.lookup(token, "variable")
        if not isinstance(thing, Var):
            raise self.line.error(token.column, f"{token.text!r} is a buffer: expected indices, as in {token.text}[i]")
        return thing

    def lookup(self, token: Token, what: str) -> Named:
        """What a name stands for here."""
        found = self.scope.get(token.text)
        if found is not None:
            return found
        if is_reserved(token.text):
            raise self.line.error(token.column, f"expected an expression, got the word '{token.text}'")
        if self.implicit_sizes:
            size = Var(token.text)
            self.scope[token.text] = size
            return size
        near = difflib.get_close_matches(token.text, list(self.scope), 3)
        known = f"did you mean {', '.join(near)}?" if near else f"known here: {', '.join(list(self.scope)[-12:])}"
        raise self.line.error(token.column, f"no {what} named {token.text!r} is in scope; {known}")

    def buffer(self, token: Token) -> Buffer:
        """The buffer of a name."""
        thing = self.scope.get(token.text) if self.implicit_sizes else self.lookup(token, "buffer")
        if not isinstance(thing, Buffer):
            raise self.line.error(token.column, f"expected a buffer, but {token.text!r} is none")
        return thing

    def indices(self) -> list[Expr]:
        """`[i, j]`."""
        self.expect("[")
        return self.until("]")

    def until(self, close: str) -> list[Expr]:
        """Expressions with commas between them, up to a closing symbol."""
        found: list[Expr] = []
        while not self.accept(close):
            if found and not self.accept(","):
                raise self.unexpected(f"an operator, ',' or '{close}'")
            found.append(self.expression())
        return found

    def called(self, token: Token) -> Expr:
        """`name(...)`: one of the language's own words, a cast, or a call of an intrinsic."""
        self.expect("(")
        name = token.text
        if name in _BUILTIN:
            return _BUILTIN[name](self, token)
        if is_dtype_name(name):
            (value,) = self.arguments(token, 1)
            return Cast(dtype(name), value)
        if is_reserved(name):
            raise self.line.error(token.column, f"expected an expression, got the word '{name}'")
        return self.call(token, name)

    def call(self, token: Token, name: str) -> Expr:
        """The arguments of an intrinsic, and its dtype where it is written."""
        args = self.until(")")
        kind = self.dtype() if self.accept("->") else call_dtype(name, args)
        if kind is None:
            raise self.line.error(token.column, f"expected the dtype of this call, as in {name}(...) -> int32")
        return Call(name, args, kind)

    def arguments(self, token: Token, count: int) -> list[Expr]:
        """So many arguments, and `)`."""
        args = self.until(")")
        if len(args) != count:
            raise self.line.error(token.column, f"expected {count} arguments of {token.text}(...), got {len(args)}")
        return args

    def quoted_call(self, token: Token) -> Expr:
        """`call("any name", ...)`."""
        if self.tokens[self.at].kind != "string":
            raise self.unexpected("the name of the intrinsic in quotes")
        name = str(self.take().value)
        if not self.at_symbol(")"):
            self.expect(",")
        return self.call(token, name)

    def two_sided(self, token: Token) -> Expr:
        """`min(a, b)` and the like."""
        a, b = self.arguments(token, 2)
        if a.dtype is not b.dtype:
            raise self.line.error(
                token.column, f"the arguments of {token.text} are {a.dtype} and {b.dtype}; expected one dtype"
            )
        return _TWO_SIDED[token.text](a, b)

    def select(self, token: Token) -> Expr:
        """`select(c, a, b)`."""
        condition, then, otherwise = self.arguments(token, 3)
        return Select(condition, then, otherwise)

    def lanes(self) -> int:
        """`, 16)`: the end of ramp and broadcast."""
        self.expect(",")
        lanes = self.integer("the number of lanes", 1, MAX_LANES)
        self.expect(")")
        return lanes

    def ramp(self, token: Token) -> Expr:
        """`ramp(base, stride, lanes)`."""
        base = self.expression()
        self.expect(",")
        stride = self.expression()
        return Ramp(base, stride, self.lanes())

    def broadcast(self, token: Token) -> Expr:
        """`broadcast(value, lanes)`."""
        value = self.expression()
        return Broadcast(value, self.lanes())

    def address(self, token: Token) -> Expr:
        """`address(A[i, j], "r")`."""
        element = self.expression()
        if type(element) is not Load:
            raise self.line.error(token.column, "expected an element of a buffer, as in address(A[i, j])")
        mode = "rw"
        if self.accept(","):
            given = self.take()
            if given.kind != "string" or given.value not in ("r", "w", "rw", ""):
                raise self.line.error(given.column, 'expected "r", "w", "rw" or ""')
            mode = given.value
        self.expect(")")
        return Address(element.buffer, element.indices, mode)

    # ------------------------------------------------------------------------------------------------ sizes, regions

    def size(self) -> Expr:
        """An expression that must be an int64: an extent, a size, the bound of a region."""
        column = self.column
        value = self.expression()
        if value.dtype is not INDEX:
            raise self.line.error(column, f"expected an int64 here, got {value.dtype}")
        return value

    def bracketed_sizes(self) -> list[Expr]:
        """`[n, 4]` of a declaration."""
        self.expect("[")
        found: list[Expr] = []
        while not self.accept("]"):
            if found and not self.accept(","):
                raise self.unexpected("an operator, ',' or ']'")
            found.append(self.size())
        return found

    def region(self) -> Region:
        """`A[y*8 +: 8, x]`."""
        token = self.tokens[self.at]
        self.name("a buffer")
        buffer = self.buffer(token)
        self.expect("[")
        mins: list[Expr] = []
        extents: list[Expr | int] = []
        while not self.accept("]"):
            if mins and not self.accept(","):
                raise self.unexpected("an operator, '+:', ',' or ']'")
            mins.append(self.size())
            extents.append(self.size() if self.accept("+:") else 1)
        return Region(buffer, mins, extents)


_BUILTIN: dict[str, Callable[[LineReader, Token], Expr]] = {
    "select": LineReader.select, "ramp": LineReader.ramp, "broadcast": LineReader.broadcast,
    "address": LineReader.address, "call": LineReader.quoted_call,
    **dict.fromkeys(_TWO_SIDED, LineReader.two_sided),
}  # fmt: skip
assert set(_BUILTIN) == BUILTINS

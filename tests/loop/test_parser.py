"""Text to programs: what is printed comes back, and nothing but a ParseError meets any other text."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import FULL
from tests.loop.programs import PROGRAMS, Maker, programs
from tests.loop.structural import funcs_equal
from weft.core.dtypes import BOOL, FLOAT32, INDEX, dtype
from weft.core.errors import ParseError
from weft.expr.nodes import Add, Buffer, Const, FloorDiv, Mul, Not, Var, const
from weft.expr.text import format_expr
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Store
from weft.loop.parser import parse_expr, parse_func
from weft.loop.printer import format_func

SCOPE = {
    "i": Var("i"), "x": Var("x", FLOAT32), "p": Var("p", BOOL), "A": Buffer("A", FLOAT32, [8, 8]), "n": Var("n"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_round_trip_of_the_goldens(name):
    func = PROGRAMS[name]()
    text = format_func(func)
    again = parse_func(text)
    assert format_func(again) == text
    assert funcs_equal(func, again)


@given(programs())
@settings(max_examples=500 if FULL else 50)
def test_round_trip_of_random_programs(func):
    text = format_func(func)
    again = parse_func(text)
    assert format_func(again) == text
    assert funcs_equal(func, again)


@st.composite
def expressions(draw):
    maker = Maker(draw)
    maker.vars = [thing for thing in SCOPE.values() if isinstance(thing, Var)]
    maker.buffers = [SCOPE["A"]]
    lanes = draw(st.sampled_from([1, 1, 4]))
    return maker.expr(maker.pick([INDEX, FLOAT32, BOOL, dtype("uint8")]).with_lanes(lanes), 4)


@given(expressions())
@settings(max_examples=500 if FULL else 50)
def test_round_trip_of_random_expressions(expression):
    text = format_expr(expression)
    again = parse_expr(text, SCOPE)
    wrap = [Func("f", [], Evaluate(e)) for e in (expression, again)]
    assert format_expr(again) == text and funcs_equal(*wrap)


def test_what_people_write_by_hand():
    func = parse_func(
        """
# a comment
func f(A: float32[n, 4], n: int64):   # the size is a parameter further on

  for i in range(n):
        if i > 2 and not i >= 7:
            A[i, 0] = -A[i, 1] * -2.5   # unary minus
        else:
            pass
"""
    )
    A, n = func.params
    assert A.shape[0] is n and isinstance(func.body, For) and isinstance(func.body.body, If)
    assert "A[i, 0] = neg(A[i, 1]) * -2.5" in format_func(func)


def test_nothing_is_folded():
    e = parse_expr("(1 + 2) * 1 // 1", {})
    assert isinstance(e, FloorDiv) and isinstance(e.a, Mul) and isinstance(e.a.a, Add)
    assert isinstance(parse_expr("not true", {}), Not)


def test_sizes_share_one_variable_and_axes_hide_loops():
    header = "func f(A: float32[n], B: float32[n + 1]):\n"
    text = header + "    for k in range(n):\n        block b(k: n = k):\n            pass\n"
    func = parse_func(text)
    A, B = func.params
    assert B.shape[0].a is A.shape[0] and func.size_vars == (A.shape[0],)
    block = func.body.body
    assert block.bindings[0] is func.body.var and block.axes[0].var is not func.body.var
    assert format_func(func) == text


def test_allocations_and_allocate_are_told_apart_by_the_colon():
    func = parse_func("func f():\n    allocate X: float32[4]\n    allocate Y: float32[4]:\n        Y[0] = 0.0\n")
    assert [b.name for b in func.allocations] == ["X"] and isinstance(func.body, Allocate)


def test_lets_hold_to_the_end_of_their_suite():
    func = parse_func(
        "func f(A: int64[4]):\n    A[0] = 1\n    let t = A[0]\n    let u = t\n    A[1] = u\n    A[2] = t\n"
    )
    assert isinstance(func.body, Seq)
    first, let = func.body.stmts
    assert isinstance(first, Store) and isinstance(let, Let) and isinstance(let.body, Let)
    assert len(let.body.body.stmts) == 2


@pytest.mark.parametrize(
    "text, value, kind",
    [
        ("1", 1, "int64"), ("-9223372036854775808", -(2**63), "int64"), ("1e5", 1e5, "float32"),
        ("1f16", 1.0, "float16"),
        ("2.5f32", 2.5, "float32"), ("-inf_f64", float("-inf"), "float64"), ("-128i8", -128, "int8"),
        ("- 3u8", None, ""),
    ],
)  # fmt: skip
def test_literals(text, value, kind):
    if value is None:
        with pytest.raises(ParseError, match="does not fit"):
            parse_expr(text, {})
        return
    e = parse_expr(text, {})
    assert isinstance(e, Const) and e.value == value and e.dtype is dtype(kind)


HEAD = "func f(A: float32[8, 8], n: int64):\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"line 1, column 1: expected 'func name"),
        ("  func f():\n    pass", "left margin"),
        ("func f()\n    pass", r"line 1, column 9: expected ':', got the end of the line"),
        ("func f():\npass", "expected an indented suite"),
        ("func f(A: float33[4]):\n    pass", "unknown dtype 'float33'"),
        ("func f(A: float32[1.5]):\n    pass", "expected an int64 here, got float32"),
        ("func f(A: float32[4], A: float32[4]):\n    pass", "'A' is already in use"),
        ("func f(n: int64, n: int64):\n    pass", "'n' is already in use"),
        ("func f(for: int64):\n    pass", "'for' is a word of the language"),
        ("func f(A: float32[4] align 0x):\n    pass", "the alignment in bytes"),
        (HEAD + "    A[0, 0] = B[0]", "no buffer named 'B' is in scope"),
        (HEAD + "    A[0, 0] = nn", "did you mean n"),
        (HEAD + "    A[0, 0] = A", "'A' is a buffer: expected indices"),
        (HEAD + "    A[0, 0] = n[0]", "expected a buffer"),
        (HEAD + "    A[0, 0] = A[0, 0] * 2", r"line 2, column 23: the sides of '\*' are float32 and int64"),
        (HEAD + "    A[0, 0] = 1.0 +", "expected an expression, got the end of the line"),
        (HEAD + "    A[0, 0] = (1.0", r"expected '\)'"),
        (HEAD + "    A[0, 0] = 1.0 2.0", "'where' or the end of the line"),
        (HEAD + "    n = 3", "only an element of a buffer"),
        (HEAD + "    A[0, 0] = 1.0q", "its endings are"),
        (HEAD + "    A[0, 0] = 1e999", "does not fit float32"),
        (HEAD + "    use(99999999999999999999)", "does not fit int64"),
        (HEAD + "    use(" + "9" * 5000 + ")", "does not fit int64"),
        (HEAD + "    use(1.5i32)", "does not fit int32"),
        (HEAD + "    use(0 < n < 4)", "comparisons do not chain"),
        (HEAD + "    use(min(1, 2, 3))", "expected 2 arguments of min"),
        (HEAD + "    use(min(1, 2.0))", "int64 and float32"),
        (HEAD + "    use(float32())", "expected 1 arguments of float32"),
        (HEAD + "    use(ramp(0, 1, 5000))", "from 1 to 4096"),
        (HEAD + "    use(address(n))", "expected an element of a buffer"),
        (HEAD + '    use(address(A[0, 0], "x"))', 'expected "r", "w", "rw" or ""'),
        (HEAD + "    reinterpret(n)", "expected the dtype of this call"),
        (HEAD + "    call(n)", "in quotes"),
        (HEAD + '    call("abc)', "a string that ends on this line"),
        (HEAD + "    use(-true)", "'-' is not defined on bool"),
        (HEAD + "    use($)", r"a name, a number or a symbol, got '\$'"),
        (HEAD + "\tuse()", "a tab cannot indent"),
        (HEAD + "    for i in range(4) sideways:\n        pass", "a kind of loop"),
        (HEAD + "    for i in range(4) thread warp:\n        pass", "a thread tag"),
        (HEAD + "    for n in range(4):\n        pass", "'n' is already in use"),
        (HEAD + "    for i in range(4) @{1}:\n        pass", "expected JSON"),
        (HEAD + "    for i in range(4) @[1]:\n        pass", "expected annotations"),
        (HEAD + "    for i in range(4):\n        use(i)\n    use(i)", "line 4, column 9: no variable named 'i'"),
        (HEAD + "    use(1)\n      use(2)", "expected this line at column 5"),
        (HEAD + "    use(1)\n  use(2)", "in no suite"),
        (HEAD + "    else:\n        pass", "'else' stands after the suite of an 'if'"),
        (HEAD + "    reads A[0, 0]", "at the top of a block"),
        (HEAD + "    allocate B: float32[4]:\n    use(1)", "expected an indented suite"),
        (HEAD + "    use(1)\n    allocate B: float32[4]", "expected ':'"),
        (HEAD + "    block b(i: 4 = 0, i: 4 = 0):\n        pass", "two axes named 'i'"),
        (HEAD + "    block b(i: 4):\n        pass", "expected '='"),
        (HEAD + "    block b(i: 4 = i):\n        pass", "no variable named 'i'"),
        (HEAD + "    block b():\n        reads n[0]\n        pass", "expected a buffer"),
        (HEAD + "    let t: float32\n", "expected '='"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(ParseError, match=message) as caught:
        parse_func(text)
    assert str(caught.value).startswith("line ")


def test_an_error_shows_the_line_and_points_at_the_column():
    with pytest.raises(ParseError) as caught:
        parse_func(HEAD + "    A[0, 0] = A[0, q]\n")
    assert str(caught.value).splitlines()[1:] == ["        A[0, 0] = A[0, q]", " " * 23 + "^"]


def test_deep_nesting_is_refused_not_a_crash():
    deep = [
        "(" * 100000, "-" * 5000 + "1.0", "not " * 5000 + "true", "A[" * 5000, "exp(" * 400 + "1.0" + ")" * 400,
        "1 + (" * 3000, "select(true, " * 2000,
    ]  # fmt: skip
    for text in deep:
        with pytest.raises(ParseError):
            parse_expr(text, SCOPE)
        with pytest.raises(ParseError):
            parse_func(HEAD + f"    use({text})")
    loops = "".join(f"{' ' * (d + 1)}for i{d} in range(2):\n" for d in range(2000)) + " " * 2001 + "pass\n"
    with pytest.raises(ParseError, match="suites inside one another"):
        parse_func("func f():\n" + loops)
    with pytest.raises(ParseError):
        parse_func("func f() @" + "[" * 100000 + ":\n    pass")
    assert format_expr(parse_expr("1" + " + 1" * 5000, {})).count("+") == 5000


def test_parse_expr_takes_one_line():
    with pytest.raises(ParseError, match="on one line"):
        parse_expr("", {})
    with pytest.raises(ParseError, match="on one line"):
        parse_expr("1\n2", {})
    with pytest.raises(ParseError, match="the end of the expression"):
        parse_expr("1 i", SCOPE)


PIECES = [
    "", " ", "    ", "\n", ":", "(", ")", "[", "]", ",", "+:", "=", "-", "where", "block", "for", "0", "1e9", '"', "@{",
    "float32", "#", "\t", "\\", "é", "->", "not", "size", "let x = 1", "else:", "init:", "\x00", "9" * 30, "A", ".",
]  # fmt: skip


def mutate(rng, text):
    for _ in range(rng.randint(1, 4)):
        a, b = sorted(rng.randint(0, len(text)) for _ in range(2))
        how = rng.randint(0, 4)
        if how == 0:
            text = text[:a] + rng.choice(PIECES) + text[a:]
        elif how == 1:
            text = text[:a] + text[min(b, a + 6) :]
        elif how == 2:
            lines = text.split("\n")
            rng.shuffle(lines)
            text = "\n".join(lines)
        elif how == 3:
            text = text[:a] + text[b : b + 12] + text[a:]
        else:
            lines = text.split("\n")
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
    return text


def test_mutated_programs_parse_or_are_refused():
    rng = random.Random(0)
    texts = [format_func(make()) for make in PROGRAMS.values()]
    parsed = 0
    for _ in range(3000):
        text = mutate(rng, rng.choice(texts))
        try:
            func = parse_func(text)
        except ParseError:
            continue
        parsed += 1
        printed = format_func(func)
        assert format_func(parse_func(printed)) == printed
    assert parsed > 50


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text):
    for read in (parse_func, lambda t: parse_func("func f():\n    " + t), lambda t: parse_expr(t, SCOPE)):
        try:
            read(text)
        except ParseError:
            pass


def test_constants_of_other_widths_survive():
    for kind in ("int4", "uint2", "int16", "float64"):
        e = const(1, kind)
        assert parse_expr(format_expr(e), {}).dtype is dtype(kind)

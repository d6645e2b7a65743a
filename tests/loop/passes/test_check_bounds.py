"""Every access stays inside its buffer: proven, guarded, or tested when it runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import te
from weft.core.errors import BoundsError, InterpreterError, RuntimeFault
from weft.expr.nodes import Address, Buffer, Call, Var, dtype, index_expr
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate, For, Func, If, Let, Store, seq
from weft.loop.parser import parse_func as parse
from weft.loop.passes.check_bounds import VALUES, check_bounds, check_bounds_on_device
from weft.targets.registry import find_target


def checked(text: str) -> tuple[str, dict[str, int]]:
    made = check_bounds(parse(text))
    counts = {kind: count for kind, count in made.annotations["bounds"].items() if count}
    return "\n".join(repr(made).splitlines()[1:]).strip(), counts


def test_loops_prove_accesses() -> None:
    _, counts = checked(
        """
func f(A: float32[8, 16], B: float32[16, 8]):
    for i in range(8):
        for j in range(16):
            B[j, i] = A[i, j]
"""
    )
    assert counts == {"proven": 2}


def test_a_test_guards_what_is_under_it() -> None:
    text, counts = checked(
        """
func f(A: float32[10], B: float32[10]):
    for io in range(3):
        for ii in range(4):
            if io * 4 + ii < 10:
                B[io * 4 + ii] = A[io * 4 + ii]
"""
    )
    assert counts == {"guarded": 2}
    assert "report_if" not in text


def test_a_row_that_is_gathered_is_tested_once() -> None:
    text, counts = checked(
        """
func f(A: float32[8, 16], I: int64[4], B: float32[4, 16]):
    for i in range(4):
        for j in range(16):
            B[i, j] = A[I[i], j]
"""
    )
    assert counts == {"proven": 2, "flagged": 1}
    lines = text.splitlines()
    assert lines[1].startswith("        report_if(") and "for j" in lines[2], text
    assert "A[min(max(I[i], 0), 7), j]" in lines[3]


def test_a_report_stays_behind_what_writes_its_data() -> None:
    """The indices are computed in the same loop: tested before, they would be those of the turn before."""
    func = parse(
        """
func f(A: float32[8], I: int64[4], B: float32[4]):
    for i in range(4):
        I[i] = i * 2
        for j in range(1):
            B[i] = A[I[i]]
"""
    )
    made = check_bounds(func)
    body = repr(made).splitlines()
    at = next(k for k, line in enumerate(body) if "report_if" in line)
    assert "I[i] = " in body[at - 1], repr(made)
    a, index, b = np.arange(8, dtype=np.float32), np.full(4, 1 << 40), np.zeros(4, np.float32)
    interpret(made, a, index, b)
    assert b.tolist() == [0, 2, 4, 6]


def test_what_a_test_says_of_data_that_is_written_under_it_is_not_used() -> None:
    _, counts = checked(
        """
func f(A: float32[8], I: int64[4], B: float32[4]):
    for i in range(4):
        if 0 <= I[i] and I[i] < 8:
            I[i] = 100
            B[i] = A[I[i]]
"""
    )
    assert counts["flagged"] == 1


def test_a_guard_on_data_is_enough() -> None:
    _, counts = checked(
        """
func f(A: float32[8], I: int64[4], B: float32[4]):
    for i in range(4):
        if 0 <= I[i] and I[i] < 8:
            B[i] = A[I[i]]
"""
    )
    assert "flagged" not in counts


def test_the_arms_of_a_select_know_its_condition() -> None:
    _, counts = checked(
        """
func f(A: float32[8], B: float32[10]):
    for i in range(10):
        B[i] = select(1 <= i and i < 9, A[i - 1], 0.0)
"""
    )
    assert counts == {"proven": 1, "guarded": 1}


def test_quotients_of_one_variable_are_tried() -> None:
    _, counts = checked(
        """
func f(A: float32[4], B: float32[8]):
    for i in range(8):
        B[i] = A[(i + 1) // 2 - (0 - (i + 1) % 2) // 2 - 1]
"""
    )
    assert counts == {"proven": 2}


def test_a_constant_whose_values_are_known_needs_no_test() -> None:
    func = parse(
        """
func f(A: float32[8], I: int32[4], B: float32[4]):
    for i in range(4):
        B[i] = A[int64(I[i])]
"""
    )
    flagged = check_bounds(func).annotations["bounds"]["flagged"]
    noted = check_bounds(func.replace(annotations={VALUES: {"I": [0, 7]}})).annotations["bounds"]["flagged"]
    wrong = check_bounds(func.replace(annotations={VALUES: {"I": [0, 8]}})).annotations["bounds"]["flagged"]
    assert (flagged, noted, wrong) == (1, 0, 1)


def test_always_outside_is_refused() -> None:
    with pytest.raises(BoundsError, match=r"f: the load of A\[i \+ 8\] lies outside"):
        checked(
            """
func f(A: float32[8], B: float32[4]):
    for i in range(4):
        B[i] = A[i + 8]
"""
        )


def test_an_address_outside_is_refused() -> None:
    buffer, i = Buffer("A", dtype("float32"), (8,)), Var("i")
    call = Evaluate(Call("prefetch", (Address(buffer, (i + 4,), "r"),), dtype("int32")))
    with pytest.raises(BoundsError, match="cannot be shown to lie in A"):
        check_bounds(Func("f", [buffer], For(i, 8, call)))


def test_an_empty_dimension_is_not_read() -> None:
    a, b = te.placeholder((te.var("n"), 4), name="A"), te.placeholder((3,), "int64", name="I")
    c = te.compute((3, 4), lambda i, j: a[b[i], j], name="C")
    f = weft.build(te.create_schedule(c.op), [a, b, c])
    out = np.zeros((3, 4), np.float32)
    with pytest.raises(RuntimeFault, match="outside"):
        f(np.zeros((0, 4), np.float32), np.zeros(3, np.int64), out)


def test_a_scatter_writes_nothing_outside() -> None:
    base, index = Buffer("B", dtype("float32"), (4,)), Buffer("I", dtype("int64"), (6,))
    i, at = Var("i"), Var("at")
    body = For(i, 6, Let(at, index_expr_of(index, i), Store(base, (at,), te.const(1, "float32"))))
    func = Func("f", [index, base], body)
    f = weft.build(func)
    room = np.zeros(12, np.float32)
    f(np.array([0, 3, 0, 3, 1, 1]), room[4:8])
    assert room[4:8].tolist() == [1, 1, 0, 1]
    with pytest.raises(RuntimeFault, match="outside"):
        f(np.array([-1, 4, 2, -(1 << 63), (1 << 63) - 1, 7]), room[4:8])
    assert room.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    with pytest.raises(InterpreterError, match="outside"):
        interpret(check_bounds(func), np.array([-1, 4, 2, 0, 0, 7]), room[4:8])


def index_expr_of(buffer: Buffer, i: Var) -> te.Expr:
    from weft.expr.nodes import Load

    return index_expr(Load(buffer, (i,)))


def test_unchecked_on_request() -> None:
    a, b = te.placeholder((8,), name="A"), te.placeholder((3,), "int64", name="I")
    c = te.compute((3,), lambda i: a[b[i]], name="C")
    f = weft.build(te.create_schedule(c.op), [a, b, c], check_indices=False)
    assert f.built.lowered.annotations["bounds"]["unchecked"] == 1
    assert "report_if" not in repr(f.built.lowered)


def test_on_a_device_reports_go_to_the_last_parameter() -> None:
    func = parse(
        """
func f(A: float32[8], I: int64[4], B: float32[4]):
    for i in range(4):
        B[i] = A[I[i]]
"""
    )
    made = check_bounds_on_device(func)
    assert [p.name for p in made.params] == ["A", "I", "B", "weft_errors"]
    assert [p.name for p in check_bounds_on_device(func.replace(annotations={VALUES: {"I": [0, 7]}})).params] == [
        "A", "I", "B",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "target", ["cpu", "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "opencl:generic", "cuda:sm_90"]
)
def test_every_pipeline_checks(target: str) -> None:
    a, b = te.placeholder((8,), name="A"), te.placeholder((3,), "int64", name="I")
    c = te.compute((3,), lambda i: a[b[i]], name="C")
    s = te.create_schedule(c.op)
    machine = find_target(target)
    if machine.threads is not None:
        s[c].bind(s[c].op.axis[0], te.thread_axis("threadIdx.x"))
    assert machine.lower(s.func).annotations["bounds"]["flagged"] == 1


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_gathers_and_scatters(data: st.DataObject) -> None:
    """Right indices give what numpy gives, under any schedule; a wrong one fails, and nothing outside is touched."""
    n, rows, columns = (data.draw(st.integers(1, 9)) for _ in range(3))
    kind = data.draw(st.sampled_from(["int64", "int32", "uint8", "int8"]))
    a, index = te.placeholder((rows, columns), name="A"), te.placeholder((n,), kind, name="I")
    shift = data.draw(st.integers(0, min(2, rows - 1)))  # more than that is refused: it always lies outside
    c = te.compute((n, columns), lambda i, j: a[te.cast(index[i], "int64") + shift, j] * 2.0, name="C")
    s = te.create_schedule(c.op)
    i, j = s[c].op.axis
    for axis in (i, j):
        if data.draw(st.booleans()):
            outer, inner = s[c].split(axis, data.draw(st.integers(1, 5)))
            getattr(s[c], data.draw(st.sampled_from(["vectorize", "unroll", "parallel"])))(
                inner if data.draw(st.booleans()) else outer
            )
    f = weft.build(s, [a, index, c])
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    room = np.full((n + 2, columns), 7, np.float32)
    choices = st.integers(-3, rows + 2) if kind[0] != "u" else st.integers(0, rows + 2)
    at = np.array(data.draw(st.lists(choices, min_size=n, max_size=n)), kind)
    right = ((at.astype(int) + shift >= 0) & (at.astype(int) + shift < rows)).all()
    if right:
        f(x, at, room[1:-1])
        np.testing.assert_array_equal(room[1:-1], x[at.astype(int) + shift] * 2)
    else:
        with pytest.raises(RuntimeFault, match="outside"):
            f(x, at, room[1:-1])
    assert (room[0] == 7).all() and (room[-1] == 7).all()


def test_a_report_under_a_loop_that_does_not_run_is_not_made() -> None:
    a, index, out = (
        Buffer("A", dtype("float32"), (8,)),
        Buffer("I", dtype("int64"), (1,)),
        Buffer("B", dtype("float32"), (1,)),
    )
    n, k = Var("n"), Var("k")
    from weft.expr.nodes import Load

    inside = Store(out, (index_expr(0),), Load(a, (index_expr_of(index, index_expr(0)),)))  # type: ignore[arg-type]
    func = Func("f", [n, a, index, out], For(k, n, inside))
    f = weft.build(func)
    x, wrong, y = np.zeros(8, np.float32), np.array([99]), np.zeros(1, np.float32)
    f(0, x, wrong, y)
    with pytest.raises(RuntimeFault):
        f(1, x, wrong, y)
    guarded = Func("f", [n, a, index, out], If(n > 3, seq(For(k, 2, inside))))
    g = weft.build(guarded)
    g(3, x, wrong, y)
    with pytest.raises(RuntimeFault):
        g(4, x, wrong, y)


LARGEST = (1 << 63) - 1
FAR = 1 << 40


def outcome(text: str, *arrays: object) -> str:
    """Whether a program fails because of an index, in machine code with nothing beside its buffers that is its own."""
    try:
        weft.build(parse(text))(*arrays)
    except RuntimeFault as fault:
        assert "outside" in str(fault)
        return "refused"
    return "ran"


def test_one_index_of_two_dimensions_is_clamped_for_each() -> None:
    text, _ = checked(
        """
func f(A: float32[4, 8], I: int64[3], B: float32[3]):
    for i in range(3):
        let v: int64 = I[i]
        B[i] = A[v, v]
"""
    )
    assert "A[min(max(v, 0), 3), min(max(v, 0), 7)]" in text


STALE = {
    "a name": """
func f(I: int64[1], B: float32[8]):
    let v: int64 = I[0]
    I[0] = 3
    if 0 <= I[0] and I[0] < 8:
        B[v] = 1.0
""",
    "an extent": """
func f(I: int64[1], B: float32[8]):
    for i in range(min(I[0], 100)):
        I[0] = 3
        if I[0] < 8:
            B[i] = 1.0
""",
    "a test": """
func f(I: int64[1], B: float32[8]):
    if 8 <= I[0]:
        I[0] = I[0] % 8
        if I[0] == 0:
            I[0] = 1099511627776
            if 0 <= I[0]:
                B[I[0]] = 1.0
""",
}


@pytest.mark.parametrize("what", STALE)
def test_what_was_known_of_data_before_it_was_written_is_not_used(what: str) -> None:
    assert checked(STALE[what])[1]["flagged"] == 1
    room = np.zeros(24, np.float32)
    assert outcome(STALE[what], np.array([FAR]), room[8:16]) == "refused"
    assert not room[:8].any() and not room[16:].any()


def test_a_test_tells_nothing_of_what_is_written_under_it_when_it_is_simplified() -> None:
    text = """
func f(I: int64[1], A: float32[8], B: float32[1]):
    if 0 <= I[0] and I[0] < 8:
        I[0] = 1099511627776
        B[0] = A[I[0]]
"""
    assert outcome(text, np.array([3]), np.zeros(8, np.float32), np.zeros(1, np.float32)) == "refused"


@pytest.mark.parametrize("binding", ["", "let v: int64 = I[i]\n        let w: int64 = J[i]\n        "])
def test_a_sum_of_data_that_wraps_guards_nothing(binding: str) -> None:
    v, w = ("v", "w") if binding else ("I[i]", "J[i]")
    text = f"""
func f(A: float32[8], I: int64[4], J: int64[4], B: float32[4]):
    for i in range(4):
        {binding}if 0 <= {v} and 1 <= {w} and {v} + {w} < 8:
            B[i] = A[{v}]
"""
    room, out = np.full(9, 5, np.float32), np.zeros(4, np.float32)
    arrays = np.array([1, 2, 3, LARGEST]), np.ones(4, np.int64)
    assert outcome(text, room[1:], *arrays, out) == "refused"
    arrays[0][3] = 7
    assert outcome(text, room[1:], *arrays, out) == "ran" and out.tolist() == [5, 5, 5, 5]


def test_a_number_that_is_given_may_wrap_too() -> None:
    text = """
func f(n: int64, k: int64, X: float32[n], B: float32[1]):
    if 0 <= k and k + n < n * 2:
        B[0] = X[k]
"""
    assert checked(text)[1]["flagged"] == 1


def test_a_sum_of_one_datum_between_two_sizes_has_not_wrapped() -> None:
    _, counts = checked(
        """
func f(A: float32[8], I: int64[4], B: float32[4]):
    for i in range(4):
        if 0 <= I[i] + 1 and I[i] + 1 < 8:
            B[i] = A[I[i] + 1]
"""
    )
    assert "flagged" not in counts


def test_a_loop_that_runs_elsewhere_says_nothing_of_what_is_stored_here() -> None:
    text, counts = checked(
        """
func f(n: int64, A: float32[8], B: float32[1], C: float32[n]):
    allocate T: int64[1]
    for z in range(1):
        T[z] = min(n, 8) - 1
    B[0] = A[T[0]]
    for i in range(n):
        C[i] = 1.0
"""
    )
    assert counts["flagged"] == 1, text


@pytest.mark.parametrize(
    ("fill", "flagged"),
    [
        ("for k in range(8):\n        T[k] = 1", 0),
        ("for k in range(7):\n        T[k] = 1", 1),
        ("if 0 < C[0]:\n        T[0] = 1", 1),
    ],
)
def test_what_was_never_written_holds_anything(fill: str, flagged: int) -> None:
    text, counts = checked(
        f"""
func f(A: float32[4], B: float32[8], C: int64[1]):
    allocate T: int64[8]
    {fill}
    for j in range(8):
        B[j] = A[T[j]]
"""
    )
    assert counts.get("flagged", 0) == flagged, text


def test_more_bytes_than_64_bits_can_count_are_not_allocated() -> None:
    f = weft.build(
        parse(
            """
func f(n: int64, m: int64, X: int8[n, m], B: int8[8]):
    for z in range(1):
        allocate T: int64[m]:
            for j in range(m):
                T[j] = j
            B[0] = int8(T[0])
"""
        )
    )
    with pytest.raises(RuntimeFault, match="not enough memory"):
        f(0, 1 << 61, np.zeros((0, 1 << 61), np.int8), np.zeros(8, np.int8))


WRAPPING = {
    "a product": (lambda x: te.maximum(x, 0) * te.maximum(x, 0), 3037000500),
    "a sum in a quotient": (lambda x: (te.maximum(x, 0) + 5) // 2**62, 2**63 - 1),
    "a sum in a minimum": (lambda x: te.minimum(te.maximum(x, 0) + 5, 15), 2**63 - 1),
    "a product in a minimum": (lambda x: te.minimum(te.maximum(x, 1) * te.maximum(x, 1), 15), 3037000500),
    "a bounded product": (lambda x: (te.clip(x, 0, 15) * 2**60) // 2**60, 9),
    "a shift": (lambda x: (te.clip(x, 0, 15) << 60) >> 60, 9),
}


@pytest.mark.parametrize("index, value", WRAPPING.values(), ids=WRAPPING)
@pytest.mark.parametrize("store", [False, True], ids=["load", "store"])
def test_arithmetic_on_data_that_wraps_is_caught(index, value, store) -> None:
    """What is no less than 0 as a number may be less in 64 bits."""
    A, I = te.placeholder((16,), name="A"), te.placeholder((4,), "int64", name="I")
    if store:

        def body(ins, outs):
            i = Var("i")
            return For(i, index_expr(4), Store(outs[0], (index(ins[0][i]),), te.const(1.0, "float32")))

        B = te.extern((16,), [I], body, dtype="float32", name="B")
    else:
        B = te.compute((4,), lambda i: A[index(I[i])], name="B")
    function = weft.build(te.create_schedule(B.op), [I, B] if store else [A, I, B])
    arrays = [] if store else [np.arange(16, dtype="float32")]
    out = np.zeros(16 if store else 4, "float32")
    function(*arrays, np.array([1, 2, 1, 2]), out)
    with pytest.raises(RuntimeFault):
        function(*arrays, np.array([1, value, 1, 2]), out)


def test_large_numbers_wrap_too() -> None:
    """2**62 times 7, and 2**40 times itself, are no indices that loops could count to: they are what 64 bits hold."""
    product = parse(
        """
func f(A: int64[8], O: int64[8]):
    for i in range(min(7*(0 - 4611686018427387904), 5)):
        O[i] = A[i]
"""
    )
    square = parse(
        """
func g(A: int64[8], O: int64[8]):
    let t = max(A[0] - A[0] + 7, 1099511627776)
    if 0 <= max(A[3], t*t) and max(A[3], t*t) < 8:
        O[max(A[3], t*t)] = A[max(A[3], t*t) + 1]
"""
    )
    a = np.arange(8)
    for func in (product, square):
        want, got = np.zeros(8, "int64"), np.zeros(8, "int64")
        interpret(func, a, want)
        weft.build(func)(a, got)
        np.testing.assert_array_equal(got, want)
        assert want.any()


BROADCAST = """
func f(A: float32[m, k], B: float32[n, k], C: float32[max(m, n), k]):
    for i in range(max(m, n)):
        for j in range(k):
            C[i, j] = A[select(m == 1, 0, i), j] + B[select(n == 1, 0, i), j]
"""


def test_what_is_asked_of_sizes_is_tested_once() -> None:
    text, counts = checked(BROADCAST)
    assert text.startswith("if (m == 1 or max(m, n) - 1 < m) and (n == 1 or max(m, n) - 1 < n):")
    fast, slow = text.split("else:")
    assert "report_if" not in fast and "min(" not in fast and "report_if" in slow
    assert counts["guarded"] == 2


@pytest.mark.parametrize("m, n", [(1, 1), (1, 4), (4, 1), (4, 4), (4, 3), (2, 4)])
def test_sizes_that_do_not_fit_are_reported(m: int, n: int) -> None:
    a, b = np.ones((m, 3), np.float32), np.ones((n, 3), np.float32)
    made = np.zeros((max(m, n), 3), np.float32)
    if m == n or 1 in (m, n):
        weft.build(parse(BROADCAST))(a, b, made)
        assert (made == 2).all()
    else:
        assert outcome(BROADCAST, a, b, made) == "refused"


def test_sizes_that_do_not_fit_where_nothing_is_read_are_no_fault() -> None:
    text = """
func f(A: float32[m], F: int32[1], C: float32[n]):
    for i in range(n):
        C[i] = select(0i32 < F[0], A[i], 1.0)
"""
    assert checked(text)[0].startswith("if n - 1 < m:")
    short, out = np.zeros(2, np.float32), np.zeros(3, np.float32)
    assert outcome(text, short, np.zeros(1, np.int32), out) == "ran" and (out == 1).all()
    assert outcome(text, short, np.ones(1, np.int32), out) == "refused"

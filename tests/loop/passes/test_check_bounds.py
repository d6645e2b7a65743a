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

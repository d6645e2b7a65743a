"""Programs as text: goldens (UPDATE_GOLDENS=1 writes them anew), names, speed."""

import os
from pathlib import Path

import pytest

from tests.loop.programs import PROGRAMS, matmul, point
from tests.loop.structural import funcs_equal, stmts_equal
from tests.work import calls_of
from weft.core.dtypes import FLOAT32, INDEX, INT32
from weft.expr.nodes import Add, Buffer, Call, Load, Var, const, index_expr
from weft.loop.ir import Allocate, Axis, Block, Evaluate, For, Func, Let, Seq, Store
from weft.loop.printer import format_func, format_stmt

GOLDENS = Path(__file__).parent / "goldens"


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden(name):
    text, golden = format_func(PROGRAMS[name]()), GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_goldens_belong_to_programs():
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(PROGRAMS)


def test_a_block_alone_keeps_the_names_of_its_program():
    nest = matmul().body
    while not isinstance(nest, Block):
        nest = nest.body
    lines = format_stmt(nest).splitlines()
    assert lines[0] == "block C(y: 1024 = yo*32 + yi, x: 1024 = xo*32 + xi, k: reduce 1024 = k):"
    assert lines[-1] == "    C[y, x] = C[y, x] + A[k, y]*B[k, x]"


def test_a_free_variable_that_the_body_uses_is_not_hidden():
    outside, axis, A = Var("k"), Var("k"), Buffer("A", INDEX, [8])
    block = Block("b", [Axis(axis, 8)], [outside], [], [point(A, axis)], Store(A, [axis], outside))
    assert format_stmt(block).splitlines()[-1] == "    A[k_1] = k"


def test_a_loop_variable_used_wrongly_in_a_body_is_told_from_the_axis():
    loop, axis, A = Var("k"), Var("k"), Buffer("A", INDEX, [8])
    block = Block("b", [Axis(axis, 8)], [loop], [], [point(A, axis)], Store(A, [axis], Add(axis, loop)))
    assert "A[k] = k + k.outer" in format_func(Func("f", [A], For(loop, 8, block)))


def test_two_loops_of_one_name_and_a_third_of_the_name_made_up():
    A = Buffer("A", FLOAT32, [8])
    loops = [For(Var(name), 8, Store(A, [index_expr(0)], const(0, FLOAT32))) for name in ("i", "i", "i_1")]
    text = format_func(Func("f", [A], Seq(loops)))
    assert [line.split()[1] for line in text.splitlines() if "for" in line] == ["i", "i_1", "i_1_1"]


def test_empty_suites_and_nested_sequences():
    assert format_stmt(Seq([])) == "pass"
    assert format_stmt(Seq([Seq([Seq([])]), Evaluate(Call("a", [], INT32))])) == "a()"
    assert format_stmt(For(Var("i"), 4, Seq([]))) == "for i in range(4):\n    pass"


def test_a_let_in_the_middle_has_a_suite_of_its_own():
    t, A = Var("t", FLOAT32), Buffer("A", FLOAT32, [])
    let = Let(t, Load(A, []), Store(A, [], t))
    assert format_stmt(Seq([let, Store(A, [], const(0, FLOAT32))])) == "let t = A[]:\n    A[] = t\nA[] = 0.0"
    assert format_stmt(let) == "let t = A[]\nA[] = t"


def test_broken_programs_are_printed_too():
    A = Buffer("A", FLOAT32, [8])
    missing = Block("b", [Axis(Var("i"), 8), Axis(Var("i"), 8)], [], [], [], Seq([]))
    extra = Block("b", [], [const(1)], [], [], Seq([]), annotations={"x": A})
    odd = For(Var("i"), 4, Seq([missing, extra, Allocate(A, Seq([]))]), "odd kind", "tag")
    text = format_func(Func("f", [], odd))
    assert "block b(i_1: 8, i_2: 8)" in text or "block b(i: 8, i_1: 8)" in text
    assert '"odd kind" tag' in text


def test_a_shared_axis_variable_is_printed():
    axis, A = Var("i"), Buffer("A", FLOAT32, [8])
    block = Block("b", [Axis(axis, 8), Axis(axis, 8)], [const(0), const(0)], [], [point(A, axis)], Seq([]))
    assert "block b(" in format_func(Func("f", [A], Seq([block, block])))


def test_long_chains_of_lets_print_flat():
    A = Buffer("A", FLOAT32, [])
    body = Store(A, [], const(0, FLOAT32))
    for number in range(1000):
        body = Let(Var(f"t{number}", FLOAT32), Load(A, []), body)
    text = format_func(Func("f", [A], body))
    assert len(text.splitlines()) == 1002
    assert funcs_equal(Func("f", [A], body), Func("f", [A], body))


def test_printing_is_little_work():
    func = matmul().replace(body=Seq([matmul().body for _ in range(5)]))
    assert len(format_func(func).splitlines()) == 62 and calls_of(lambda: format_func(func)) < 2000


def test_equality_up_to_names():
    a, b = matmul(), matmul()
    assert funcs_equal(a, b)
    assert not funcs_equal(a, b.replace(name="other"))
    assert not funcs_equal(a, b.replace(allocations=[]))
    assert not funcs_equal(a, b.replace(annotations={"x": 1}))
    assert not funcs_equal(a, b.replace(body=b.body.replace(kind="serial")))
    assert not stmts_equal(a.body, b.body)  # their buffers are free here, and different


def test_equality_of_a_buffer_and_a_subclass_of_it():
    class Tensor(Buffer):
        pass

    a, b = (Func("f", [kind("A", FLOAT32, [Var("n")])], Seq([])) for kind in (Buffer, Tensor))
    assert funcs_equal(a, b) and not funcs_equal(a, Func("f", [Var("A", FLOAT32)], Seq([])))


def test_equality_tells_literals_apart():
    A = Buffer("A", FLOAT32, [])

    def program(value):
        return Func("f", [A], Store(A, [], const(value, FLOAT32)))

    assert not funcs_equal(program(0.0), program(-0.0))
    assert funcs_equal(program(float("nan")), program(float("nan")))
    assert not funcs_equal(program(1.0), program(1.0000001))


def test_equality_follows_variables_not_names():
    A = Buffer("A", INDEX, [8, 8])
    i, j = Var("i"), Var("j")
    straight = Func("f", [A], For(i, 8, For(j, 8, Store(A, [i, j], i))))
    swapped = Func("f", [A], For(j, 8, For(i, 8, Store(A, [i, j], i))))
    renamed = Func("f", [A], For(j, 8, For(i, 8, Store(A, [j, i], j))))
    assert funcs_equal(straight, renamed) and not funcs_equal(straight, swapped)

"""Tables of what an unrolled loop works out in every step: where they are made, and that nothing else changes."""

from __future__ import annotations

import numpy as np

from weft.core.dtypes import FLOAT32, INDEX, INT32
from weft.expr.nodes import Buffer, Load, Var, floordiv, index_expr
from weft.loop.interpreter import interpret
from weft.loop.ir import Allocate, For, Func, Store
from weft.loop.passes.narrow_indices import narrow_indices
from weft.loop.passes.tabulate import tabulate
from weft.loop.visit import walk_stmts


def program(divisor, steps=6, copies=4, var="y"):
    """out[y, k, b] = a[(y + b * 5) // divisor * 8 + k]: the row of each copy stays the same from step to step."""
    a, out = Buffer("a", FLOAT32, [200]), Buffer("out", FLOAT32, [3, steps, copies])
    y, k, b = Var("y"), Var("k"), Var("b")
    row = floordiv((y if var == "y" else k) + b * 5, index_expr(divisor)) * 8
    body = Store(out, [y, k, b], Load(a, [row + k]))
    loop = For(y, 3, For(k, steps, For(b, copies, body, "unrolled")))
    return Func("f", [a, out], loop)


def tables(func):
    return [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]


def run(func, steps=6, copies=4):
    out = np.zeros((3, steps, copies), np.float32)
    interpret(func, np.arange(200, dtype=np.float32), out)
    return out


def test_rows_are_found_once():
    plain = program(3)
    made = tabulate(plain)
    (table,) = tables(made)
    assert table.dtype is INDEX
    np.testing.assert_array_equal(run(made), run(plain))
    narrow = narrow_indices(made)
    assert [one.dtype for one in tables(narrow)] == [INT32]
    np.testing.assert_array_equal(run(narrow), run(plain))


def test_a_shift_is_no_work():
    assert tables(tabulate(program(4))) == []


def test_what_a_step_changes_stays():
    assert tables(tabulate(program(3, var="k"))) == []


def test_few_steps_and_many_copies_stay():
    assert tables(tabulate(program(3, steps=2))) == []
    assert tables(tabulate(program(3, copies=20))) == []

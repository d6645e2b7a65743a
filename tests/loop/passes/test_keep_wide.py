"""Numbers of 16 bits that are rounded once."""

import numpy as np

from weft import te
from weft.loop.interpreter import interpret
from weft.loop.ir import Store
from weft.loop.passes.keep_wide import keep_wide
from weft.loop.visit import walk_stmts


def stored(body):
    a, b = te.placeholder((4,), "float32", name="a"), te.placeholder((4,), "float16", name="b")
    out = te.compute((4,), lambda i: body(a[i], b[i]), name="out")
    func = te.create_schedule(out.op).func
    made = keep_wide(func)
    (store,) = [s for s in walk_stmts(made.body) if isinstance(s, Store)]
    return func, made, repr(store.value)


def test_a_sum_is_rounded_where_it_is_stored():
    func, made, text = stored(lambda x, y: (x.astype("float16") + y) * y)
    assert text.count("float16") == 1
    x, y = np.full(4, 1 + 2.0**-12, np.float32), np.full(4, 3, np.float16)
    plain, wide = np.zeros(4, np.float16), np.zeros(4, np.float16)
    interpret(func, x, y, plain)
    interpret(made, x, y, wide)
    np.testing.assert_array_equal(wide, ((x + 3) * 3).astype(np.float16))


def test_functions_take_what_was_not_rounded():
    _, _, text = stored(lambda x, y: te.exp((x.astype("float16") + y).astype("float32")).astype("float16"))
    assert text.count("float16") == 1


def test_what_jumps_is_as_it_was():
    for body in (
        lambda x, y: te.floor((x.astype("float16") * y).astype("float32")).astype("float16"),
        lambda x, y: te.if_then_else((x.astype("float16") * y) < y, y, y + y),
    ):
        func, made, _ = stored(body)
        assert repr(made) == repr(func)


def test_copies_stay_copies():
    func, made, _ = stored(lambda x, y: te.if_then_else(x > 0, y, te.const(0.0, "float16")))
    assert made is func or repr(made) == repr(func)

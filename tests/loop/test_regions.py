"""The boxes that blocks read and write."""

import numpy as np

import weft
from weft import te
from weft.expr.nodes import Var, index_expr
from weft.loop.ir import For, Store, seq


def test_scratch_at_a_place_that_is_counted_meanwhile():
    """A buffer whose place is a number that the same statement writes keeps its whole size."""
    x = te.placeholder((6,), "float32", name="x")
    twice = te.compute((6,), lambda i: x[i] * 2.0, name="twice")

    def statement(inputs, outputs):
        out, stack, count = outputs
        i, j, cell = Var("i"), Var("j"), (index_expr(0),)
        top = te.minimum(te.maximum(index_expr(count[cell]), 0), 5)
        push = seq(Store(stack, (top,), inputs[0][i]), Store(count, cell, count[cell] + 1))
        pop = seq(Store(count, cell, count[cell] - 1), Store(out, (j,), stack[(top,)]))
        return seq(Store(count, cell, te.const(0, "int32")), For(i, 6, push), For(j, 6, pop))

    out, *_ = te.extern([(6,), (6,), (1,)], [twice], statement, "turned", ["float32", "float32", "int32"])
    result = te.compute((6,), lambda i: out[i], name="result")
    s = te.create_schedule(result)
    s[twice].compute_inline()  # the regions of the statement are found again
    made = np.zeros(6, "float32")
    weft.build(s, [x, result])(np.arange(6, dtype="float32"), made)
    assert made.tolist() == [10, 8, 6, 4, 2, 0]

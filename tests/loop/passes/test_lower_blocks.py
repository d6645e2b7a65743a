"""Where intermediates live, and how large they are."""

import numpy as np

import weft
from weft import te
from weft.expr.nodes import Var, index_expr
from weft.loop.ir import For, Store, seq


def test_scratch_at_a_place_that_is_counted_meanwhile():
    """A buffer whose place is a number that the same statement writes keeps its whole size."""
    x = te.placeholder((6,), "float32", name="x")

    def statement(inputs, outputs):
        out, stack, count = outputs
        i, j, cell = Var("i"), Var("j"), (index_expr(0),)
        top = te.minimum(te.maximum(index_expr(count[cell]), 0), 5)
        push = seq(Store(stack, (top,), inputs[0][i]), Store(count, cell, count[cell] + 1))
        pop = seq(Store(count, cell, count[cell] - 1), Store(out, (j,), stack[(top,)]))
        return seq(Store(count, cell, te.const(0, "int32")), For(i, 6, push), For(j, 6, pop))

    out, *_ = te.extern([(6,), (6,), (1,)], [x], statement, "turned", ["float32", "float32", "int32"])
    result = te.compute((6,), lambda i: out[i], name="result")
    made = np.zeros(6, "float32")
    weft.build(te.create_schedule(result), [x, result])(np.arange(6, dtype="float32"), made)
    assert made.tolist() == [5, 4, 3, 2, 1, 0]

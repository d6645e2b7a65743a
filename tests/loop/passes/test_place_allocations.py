"""Scopes that follow from where a buffer lives."""

import pytest

from weft.core.dtypes import dtype
from weft.expr.nodes import Buffer, Var, const
from weft.loop.ir import Allocate, For, Func, Store
from weft.loop.passes.place_allocations import place_allocations
from weft.loop.visit import walk_stmts

OUT = Buffer("out", dtype("float32"), (8,))


def scope_after(scope, *tags):
    """The scope of a buffer that is allocated where "here" stands among thread loops, outermost first."""
    held = Buffer("held", dtype("float32"), (8,), scope=scope)
    body = Store(held, (const(0),), const(0.0, "float32"))
    for tag in reversed(tags):
        body = Allocate(held, body) if tag == "here" else For(Var("t"), 8, body, "thread", tag)
    made = place_allocations(Func("f", [OUT], body))
    (allocate,) = [s for s in walk_stmts(made.body) if isinstance(s, Allocate)]
    (store,) = [s for s in walk_stmts(made.body) if isinstance(s, Store)]
    assert store.buffer is allocate.buffer
    return allocate.buffer.scope


@pytest.mark.parametrize(
    ("scope", "tags", "wanted"),
    [
        ("global", ("here", "blockIdx.x", "threadIdx.x"), "global"),
        ("shared", ("here", "blockIdx.x", "threadIdx.x"), "global"),
        ("global", ("blockIdx.x", "here", "threadIdx.x"), "shared"),
        ("local", ("blockIdx.x", "here", "threadIdx.x"), "local"),
        ("global", ("blockIdx.x", "threadIdx.x", "here"), "local"),
        ("shared", ("blockIdx.x", "threadIdx.x", "here"), "shared"),
        ("global", ("blockIdx.x", "threadIdx.y", "here", "threadIdx.x"), "shared"),
        ("global", ("threadIdx.x", "here"), "local"),
        ("mma.accumulator", ("blockIdx.x", "here", "threadIdx.x"), "mma.accumulator"),
    ],
)
def test_scope_follows_the_place(scope, tags, wanted):
    assert scope_after(scope, *tags) == wanted

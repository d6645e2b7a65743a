"""Elementary functions of stores that follow one another are computed on one wide vector, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import te
from weft.loop.parser import parse_func

N = 64


def swish(copies, lanes=4, function=te.sigmoid, kind="float32"):
    a = te.placeholder((N,), kind, name="A")
    b = te.compute((N,), lambda i: a[i] * function(a[i]), name="B")
    s = te.create_schedule(b.op)
    _, inner = s[b].split(b.op.axis[0], factor=copies * lanes)
    if copies > 1:
        outer, inner = s[b].split(inner, factor=lanes)
        s[b].unroll(outer)
    s[b].vectorize(inner)
    return weft.build(s, [a, b])


@pytest.mark.parametrize("function", ["sigmoid", "exp", "tanh", "erf", "log1p", "normal_cdf"])
def test_several_registers_at_once_give_what_one_gives(function):
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32) * 3
    one, four = swish(1, function=getattr(te, function)), swish(4, function=getattr(te, function))
    text = four.built.llvm_ir
    assert f"define internal <16 x float> @weft.{function}.v16(" in text and ".v4(" not in text
    out = [np.empty_like(x), np.empty_like(x)]
    one(x, out[0])
    four(x, out[1])
    np.testing.assert_array_equal(out[0].view(np.int32), out[1].view(np.int32))


def test_what_is_called_often_stays_a_function():
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32) * 3
    a = te.placeholder((N,), name="A")
    b = te.compute((N,), lambda i: a[i] * te.sigmoid(a[i]), name="B")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[0], factor=4)
    s[b].unroll(outer)
    s[b].vectorize(inner)
    often, out = weft.build(s, [a, b]), [np.empty_like(x), np.empty_like(x)]
    if ".v16(" in often.built.llvm_ir:
        assert "%x) noinline nounwind" in often.built.llvm_ir
    few = swish(4)
    assert "noinline" not in few.built.llvm_ir
    often(x, out[0])
    few(x, out[1])
    np.testing.assert_array_equal(out[0].view(np.int32), out[1].view(np.int32))


def run(text, *arrays):
    built = weft.build(parse_func(text))
    built(*arrays)
    return built.built.llvm_ir


def test_what_a_store_leaves_is_read_by_the_next():
    text = """
func f(a: float32[12]):
    a[ramp(4, 1, 4)] = exp(a[ramp(0, 1, 4)])
    a[ramp(8, 1, 4)] = exp(a[ramp(4, 1, 4)])
"""
    a = np.linspace(-1, 1, 12).astype(np.float32)
    first = a[:4].astype(np.float64)
    run(text, a)
    np.testing.assert_allclose(a[8:], np.exp(np.exp(first)), rtol=1e-6)


def test_loads_under_a_condition_stay_there():
    text = """
func f(a: float32[4], n: int64, b: float32[8]):
    b[ramp(0, 1, 4)] = select(broadcast(n, 4) > broadcast(0, 4), exp(a[ramp(0, 1, 4)]), broadcast(0.0, 4))
    b[ramp(4, 1, 4)] = select(broadcast(n, 4) > broadcast(1, 4), exp(a[ramp(0, 1, 4)]), broadcast(0.0, 4))
"""
    a, b = np.ones(4, np.float32), np.ones(8, np.float32)
    assert "exp.v8" not in run(text, a, 1, b)
    np.testing.assert_allclose(b, [np.e] * 4 + [0] * 4, rtol=1e-6)


def test_functions_of_functions():
    x = np.linspace(-2, 2, N).astype(np.float32)
    out = np.empty_like(x)
    swish(4, function=lambda v: te.tanh(te.log1p(te.exp(v))))(x, out)
    np.testing.assert_allclose(out, x * np.tanh(np.log1p(np.exp(x.astype(np.float64)))), rtol=2e-6)


def test_sixteen_bits():
    x = np.linspace(-2, 2, N).astype(np.float16)
    out = np.empty_like(x)
    swish(4, kind="float16")(x, out)
    np.testing.assert_allclose(out, x / (1 + np.exp(-x.astype(np.float64))), rtol=3e-3, atol=1e-3)

"""Random expressions: what simplify, interval, prove and the symbolic bounds say holds at every point tried."""

import random

import numpy as np
from hypothesis import given, settings

from tests.conftest import FULL
from tests.expr.random_expressions import Scene, narrow, seeds
from weft.core.dtypes import BOOL, dtype
from weft.core.errors import ExpressionError
from weft.expr.bounds import Ranges, interval, lower_bound, prove, upper_bound
from weft.expr.evaluate import evaluate
from weft.expr.nodes import LT, Not, Var, is_false, is_true
from weft.expr.simplify import simplify
from weft.expr.visit import free_vars, uses_any

many = settings(max_examples=6000 if FULL else 200)


def value(e, env):
    try:
        return evaluate(e, env)
    except ExpressionError as error:
        assert "division by zero" in str(error)
        return None


def inside(found, number):
    return (found[0] is None or found[0] <= number) and (found[1] is None or number <= found[1])


@many
@given(seeds)
def test_index_expressions_keep_their_value(seed):
    scene = Scene(random.Random(seed))
    e = scene.index(4)
    simple = simplify(e, scene.ranges)
    bounds = interval(e, scene.ranges)
    again = simplify(simple, scene.ranges)
    for _ in range(6):
        env = scene.point()
        if env is None:
            return
        expected = value(e, env)
        if expected is not None:
            assert value(simple, env) == expected, (e, simple, env)
            assert value(again, env) == expected, (e, again, env)
            assert inside(bounds, expected), (e, bounds, env)


@many
@given(seeds)
def test_conditions_keep_their_truth(seed):
    scene = Scene(random.Random(seed))
    e = scene.condition(2)
    simple = simplify(e, scene.ranges)
    always, never = prove(e, scene.ranges), prove(Not(e), scene.ranges)
    for _ in range(6):
        env = scene.point()
        if env is None:
            return
        expected = value(e, env)
        if expected is not None:
            assert value(simple, env) == expected, (e, simple, env)
            assert expected or not always, (e, env)
            assert not expected or not never, (e, env)


@many
@given(seeds)
def test_what_a_condition_says_is_used_soundly(seed):
    rng = random.Random(seed)
    scene = Scene(rng)
    condition, e = scene.condition(2), scene.index(3)
    ranges = scene.ranges.with_condition(condition)
    simple, bounds = simplify(e, ranges), interval(e, ranges)
    goal = LT(e, scene.index(1))
    holds = prove(goal, ranges)
    for _ in range(10):
        env = scene.point()
        if env is None:
            return
        if not value(condition, env):
            continue
        expected = value(e, env)
        if expected is not None:
            assert value(simple, env) == expected, (condition, e, simple, env)
            assert inside(bounds, expected)
            assert not holds or value(goal, env) is not False


@many
@given(seeds)
def test_symbolic_bounds_hold(seed):
    rng = random.Random(seed)
    scene = Scene(rng)
    e = scene.index(3)
    gone = [var for var, _ in scene.loops if rng.random() < 0.6] or [scene.loops[-1][0]]
    high, low = upper_bound(e, gone, scene.ranges), lower_bound(e, gone, scene.ranges)
    for bound in (high, low):
        assert bound is None or not uses_any(bound, set(gone))
    for _ in range(6):
        env = scene.point()
        if env is None:
            return
        expected = value(e, env)
        if expected is None:
            continue
        if high is not None and value(high, env) is not None:
            assert expected <= value(high, env), (e, high, env)
        if low is not None and value(low, env) is not None:
            assert value(low, env) <= expected, (e, low, env)


@many
@given(seeds)
def test_vectors_keep_their_value(seed):
    rng = random.Random(seed)
    scene = Scene(rng)
    lanes = rng.choice((2, 4, 8, 16))
    e = scene.vector(3, lanes)
    if rng.random() < 0.3:
        e = LT(e, scene.vector(1, lanes))
    simple = simplify(e, scene.ranges)
    assert simple.dtype is e.dtype
    bounds = interval(e, scene.ranges)
    for _ in range(4):
        env = scene.point()
        if env is None:
            return
        expected = value(e, env)
        if expected is None:
            continue
        np.testing.assert_array_equal(value(simple, env), expected, err_msg=f"{e} -> {simple}")
        assert inside(bounds, int(expected.min())) and inside(bounds, int(expected.max()))
        if e.dtype.scalar is BOOL:
            assert expected.all() or not prove(e, scene.ranges)


@many
@given(seeds)
def test_wrapping_integers_keep_their_value(seed):
    rng = random.Random(seed)
    kind = dtype(rng.choice(("int8", "uint8", "int32", "uint32", "int16", "uint64", "int4", "uint1")))
    variables = [Var("x", kind), Var("y", kind)]
    e = narrow(rng, kind, variables, 4)
    simple = simplify(e)
    bounds = interval(e, Ranges())
    for _ in range(8):
        env = {var: rng.choice((kind.min, kind.max, 0, 1, rng.randint(kind.min, kind.max))) for var in variables}
        expected = value(e, env)
        if expected is not None:
            assert value(simple, env) == expected, (e, simple, env)
            assert inside(bounds, int(expected)), (e, bounds, env)


@given(seeds)
def test_nothing_new_the_second_time(seed):
    """A result is its own simplification, and an expression that does not change stays the same object."""
    scene = Scene(random.Random(seed))
    e = simplify(scene.index(2), scene.ranges)
    assert simplify(e, scene.ranges) is e
    assert set(free_vars(e)) <= set(scene.variables)
    truth = simplify(scene.condition(1), scene.ranges)
    assert truth.dtype is BOOL
    assert is_true(truth) or is_false(truth) or simplify(truth, scene.ranges) is truth


def test_quotients_meet_their_remainders():
    """Sums of quotients and remainders of almost the same thing, as tiles of a fused axis make them."""
    source = random.Random(5)
    for _ in range(2000):
        a, b, x = (Var(name) for name in "abx")
        extents = {var: source.choice([3, 8, 32, 57, 100]) for var in (a, b, x)}
        ranges = Ranges()
        for var, extent in extents.items() if source.random() < 0.7 else ():
            ranges = ranges.with_loop(var, extent)
        c, d, k = source.choice([3, 4, 6, 8, 19, 38]), source.choice([2, 3, 5, 48, 57]), source.choice([1, 2, -1, 3])

        def line(c=c, d=d, a=a, b=b, x=x):
            first = a * source.choice([1, 2, c, 32, 64, c * d, -3, c + 1])
            return first + b * source.choice([0, 1, c, 32, -c]) + x + source.choice([0, 0, 1, c, -5])

        f = line()
        g = source.choice([f, f + a * (c * source.choice([1, 2, -1])), f % (c * d), line()])
        whole = source.choice([g // c, g // c % d, (g // c + b * source.choice([0, 1, -2])) % d, g % (c * d) // c])
        before = whole * (c * k) + f % c * k + source.choice([0, f // (c * d) * (c * d * k), a])
        after = simplify(before, ranges)
        for _ in range(5):
            values = {var: source.randrange(extent) for var, extent in extents.items()}
            assert evaluate(before, values) == evaluate(after, values), (before, after, values)

"""Whether the iterations of loops touch different points of a block: by counting.

A binding like `f // 4` of a loop f in 0..15 takes 4 values; where all bindings together take fewer values than the
loops have iterations, two iterations meet at one point. Sizes that are not known are tried at a few values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from weft.expr.bounds import Ranges, interval
from weft.expr.nodes import Expr, Var, add, index_expr, int_value, mul, sub
from weft.expr.simplify import simplify
from weft.expr.visit import free_vars, substitute, uses_any
from weft.loop.ir import Block, For, Func
from weft.loop.regions import conjuncts
from weft.loop.tree import integer_params, reduction_loops
from weft.schedule.primitives.limits import greatest_where

Loop = tuple[Var, Expr]
"""A variable and its extent."""
TRIED = (5, 12, 31)
"""What a size is taken to be when it is not known (with something added, so that no two are the same)."""


def keeps_apart(func: Func, block: Block, loop: For, inner: Sequence[For]) -> bool:
    """Whether iterations of a loop (and of the loops inside it) run a block at different points of its spatial axes."""
    bindings = tuple(b for a, b in zip(block.axes, block.bindings) if a.kind == "spatial")
    around = tuple((x.var, x.extent) for x in (loop, *inner))
    return _keep_apart(bindings, block.predicate, around, tuple(integer_params(func)))


@functools.lru_cache(maxsize=4096)
def _keep_apart(bindings: tuple[Expr, ...], predicate: Expr, around: tuple[Loop, ...], params: tuple[Var, ...]) -> bool:
    """The answer to one question, which is asked again after each step that leaves these loops as they are."""
    loops = [(var, extent) for var, extent in around if any(uses_any(b, {var}) for b in bindings)]
    if _by_digits(bindings, loops, conjuncts(predicate)):
        return True
    return all(_values(bindings, loops, sizes) >= _iterations(loops, sizes) for sizes in _tried_sizes(params))


def _by_digits(bindings: Sequence[Expr], loops: Sequence[Loop], tests: Sequence[Expr]) -> bool:
    """Whether each binding writes its loops as the digits of one number, every digit above what those below can reach.

    `jc*256 + jr*48 + jt` keeps apart under the test `jr*48 + jt < 256`, though jr*48 + jt alone could pass 256.
    """
    ranges = Ranges()
    for var, extent in loops:
        ranges = ranges.with_loop(var, extent)
    still: dict[Var, Expr] = {var: index_expr(0) for var, extent in loops if int_value(extent) == 1}
    bindings, tests = ([substitute(e, still) for e in part] for part in (bindings, tests))
    variables = [var for var, _ in loops if var not in still]
    seen: set[Var] = set()
    for binding in bindings:
        digits: list[tuple[int, Var]] = []
        for var in variables:
            if uses_any(binding, {var}):
                grown = substitute(binding, {var: var + 1})
                step = int_value(simplify(sub(grown, binding), ranges))
                if step is None or step < 1 or var in seen:
                    return False
                seen.add(var)
                digits.append((step, var))
        below: Expr = index_expr(0)
        for step, variable in sorted(digits, key=lambda digit: digit[0]):
            if _reach(below, tests, ranges) >= step:
                return False
            below = add(below, mul(variable, index_expr(step)))
    return all(var in seen for var in variables)


def _reach(e: Expr, tests: Sequence[Expr], ranges: Ranges) -> int:
    """The greatest value of a sum of digits, where the tests hold."""
    high = interval(e, ranges)[1]
    reach = 1 << 62 if high is None else high
    for test in tests:
        limit = greatest_where(e, test, free_vars(e), ranges)
        bound = None if limit is None else int_value(limit)
        if bound is not None:
            reach = min(reach, bound)
    return reach


def revisits(func: Func, block: Block, loops: Sequence[For]) -> bool:
    """Whether loops may run a block more than once at one point of its spatial axes; loops it reduces along apart.

    A reduction that is computed anew (a producer that several iterations of its consumer need) revisits its points: its
    init has to come again each time.
    """
    reducing = reduction_loops(block, loops)
    others = [loop for loop in loops if loop.var not in reducing]
    unused = [loop for loop in others if not any(uses_any(b, {loop.var}) for b in block.bindings)]
    if any(int_value(loop.extent) not in (0, 1) for loop in unused):
        return True
    used = [loop for loop in others if loop not in unused]
    return bool(used) and not keeps_apart(func, block, used[0], used[1:])


def covers_axes(func: Func, block: Block, loops: Sequence[For]) -> bool:
    """Whether loops have enough iterations to run a block at every point of its spatial axes."""
    spatial = [(a, b) for a, b in zip(block.axes, block.bindings) if a.kind != "reduce"]
    used = [(x.var, x.extent) for x in loops if any(uses_any(b, {x.var}) for _, b in spatial)]
    return all(
        _iterations(used, sizes) >= math.prod(_number(axis.extent, sizes) for axis, _ in spatial)
        for sizes in _tried_sizes(integer_params(func))
    )


def _tried_sizes(sizes: Sequence[Var]) -> list[dict[Var, Expr]]:
    if not sizes:
        return [{}]
    return [{v: index_expr(base + 2 * i) for i, v in enumerate(sizes)} for base in TRIED]


def _number(e: Expr, sizes: dict[Var, Expr]) -> int:
    value = int_value(e)
    if value is None:
        made = simplify(substitute(e, sizes))
        bound = interval(made, Ranges())[1] if int_value(made) is None else int_value(made)
        value = 1 if bound is None else bound
    return max(value, 0)


def _iterations(loops: Sequence[Loop], sizes: dict[Var, Expr]) -> int:
    return math.prod(_number(extent, sizes) for _, extent in loops)


def _values(bindings: Sequence[Expr], loops: Sequence[Loop], sizes: dict[Var, Expr]) -> int:
    """How many points the bindings can name while the loops run, the loops around standing still."""
    ranges = Ranges()
    running = {var for var, _ in loops}
    for var, extent in loops:
        ranges = ranges.with_loop(var, _number(extent, sizes))
    total = 1
    for binding in bindings:
        if not uses_any(binding, running):
            continue
        still: dict[Var, Expr] = {v: index_expr(0) for v in free_vars(binding) if v not in running and v not in sizes}
        low, high = interval(simplify(substitute(binding, {**still, **sizes}), ranges), ranges)
        if low is None or high is None:
            return 1 << 62
        total *= high - low + 1
    return total


__all__ = ["covers_axes", "keeps_apart", "revisits"]

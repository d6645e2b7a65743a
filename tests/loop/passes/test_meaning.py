"""Every pass, and the whole list of them, keeps the meaning of random programs: the interpreter says the same."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.loop.passes.strategies import programs, same_meaning
from weft.loop.passes.double_buffer import double_buffer
from weft.loop.passes.flatten import flatten
from weft.loop.passes.hoist import hoist
from weft.loop.passes.insert_barriers import insert_barriers
from weft.loop.passes.lower_virtual_threads import lower_virtual_threads
from weft.loop.passes.partition_loops import partition_loops
from weft.loop.passes.reuse_storage import reuse_storage
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.passes.unroll import unroll
from weft.loop.passes.vectorize import vectorize

PASSES = [
    lower_virtual_threads, insert_barriers, double_buffer, partition_loops, flatten, vectorize, unroll, simplify_func,
    hoist, reuse_storage,
]  # fmt: skip


@pytest.mark.parametrize("transform", [partition_loops, flatten, vectorize, unroll, simplify_func, hoist])
@given(func=programs())
def test_a_pass_alone_keeps_the_meaning(transform, func):
    same_meaning(func, transform(func))


@given(func=programs())
def test_the_list_of_passes_keeps_the_meaning(func):
    current = func
    for transform in PASSES:
        done = transform(current)
        same_meaning(current, done)
        current = done


@given(func=programs(kinds=("serial", "vectorized", "vectorized")))
def test_vectors_of_few_lanes(func):
    flat = flatten(func)
    same_meaning(flat, vectorize(flat, max_lanes=3))

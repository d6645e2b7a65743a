"""Converters of random bits: Threefry, and what JAX makes of it. The numbers are those that JAX draws.

A key is its words, uint32[..., 2] for Threefry; what its implementation does with it JAX itself writes out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from weft.frontends.emit import Unsupported
from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.table import enter, primitive
from weft.graph.ir import Value

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


@primitive("threefry2x32")
def _threefry(c: JaxEmitter, a: Value, b: Value, x: Value, y: Value, **_: Any) -> list[Value]:
    keys = [a, b, c.op("BitwiseXor", c.op("BitwiseXor", a, b), np.uint32(0x1BD11BDA))]
    x, y = c.op("Add", x, a), c.op("Add", y, b)
    for turn in range(5):
        for bits in _ROTATIONS[turn % 2]:
            x = c.op("Add", x, y)
            left = c.op("BitShift", y, np.uint32(bits), direction="LEFT")
            right = c.op("BitShift", y, np.uint32(32 - bits), direction="RIGHT")
            y = c.op("BitwiseXor", x, c.op("BitwiseOr", left, right))
        x = c.op("Add", x, keys[(turn + 1) % 3])
        y = c.op("Add", y, c.op("Add", keys[(turn + 2) % 3], np.uint32(turn + 1)))
    return [x, y]


@primitive("iota_2x32_shape")
def _counts(c: JaxEmitter, *, shape: Sequence[int], **_: Any) -> list[Value]:
    size = math.prod(shape)
    if size >= 1 << 32:
        raise Unsupported(f"{size} random numbers at once")
    numbers = c.constant(np.arange(size, dtype=np.uint32).reshape(shape))
    return [c.filled(list(map(int, shape)), 0, "uint32"), numbers]


def _implementation(c: JaxEmitter) -> Any:
    found = c.avals[0].dtype._impl
    if "threefry" not in str(getattr(found, "name", "")) and getattr(found, "tag", "") != "fry":
        raise Unsupported(f"random numbers by {found.tag}: jax.random.key(seed, impl='threefry2x32')")
    return found


def _over_keys(c: JaxEmitter, function: Any, *values: Value) -> Value:
    """A function of a key for every key of an array."""
    for _ in c.avals[0].shape:
        function = jax.vmap(function)
    return c.traced(function, *values)[0]


@primitive("random_bits")
def _bits(c: JaxEmitter, keys: Value, *, bit_width: int, shape: Sequence[int], **_: Any) -> Value:
    draw = _implementation(c).random_bits
    return _over_keys(c, lambda key: draw(key, bit_width, tuple(shape)), keys)


@primitive("random_split")
def _split(c: JaxEmitter, keys: Value, *, shape: Sequence[int], **_: Any) -> Value:
    split = _implementation(c).split
    return _over_keys(c, lambda key: split(key, tuple(shape)), keys)


@primitive("random_fold_in")
def _fold_in(c: JaxEmitter, keys: Value, numbers: Value, **_: Any) -> Value:
    return _over_keys(c, _implementation(c).fold_in, keys, numbers)


@primitive("random_seed")
def _seed(c: JaxEmitter, seeds: Value, *, impl: Any, **_: Any) -> Value:
    return _over_keys(c, impl.seed, seeds)


@primitive("random_gamma")
def _gamma(c: JaxEmitter, keys: Value, shapes: Value, **params: Any) -> Value:
    function = functools.partial(c.primitive.impl, **params)
    given = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in c.avals]
    made: Value = c.inline(jax.make_jaxpr(function)(*given), [keys, shapes])[0]
    return made


@primitive("rng_bit_generator", "rng_uniform")
def _of_xla(c: JaxEmitter, *_: Value, **__: Any) -> Value:
    raise Unsupported("random numbers that XLA draws in its own way: draw them with jax.random and a threefry2x32 key")


enter({"random_wrap random_unwrap random_clone": lambda c, keys, **_: keys})

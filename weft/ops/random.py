"""Random operators: normal, uniform, Bernoulli, multinomial, and Dropout.

A node with a seed gives the same numbers each time it runs; without one, new numbers each time. Their trait
"random" says so: what they give is never folded into constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.graph.ir import Array, TensorType, Type, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.signature import Between
from weft.ops.casts import cast_array
from weft.ops.elementwise_support import element_type, expect_one_element, wide


def _source(c: Use) -> np.random.RandomState:
    """Where the numbers come from: the generator whose stream numpy promises never to change."""
    seed = c.get("seed")
    if seed is None:
        return np.random.RandomState()
    value = float(seed)
    whole = int(value) if value.is_integer() else int(np.float32(value).view(np.uint32))
    return np.random.RandomState(whole % (1 << 32))


# ---------------------------------------------------------------------------------------------- normal and uniform


def _infer_like(c: Infer) -> Sequence[Type]:
    return [TensorType(element_type(c, "dtype", c.tensor(0).dtype), c.tensor(0).shape)]


def _register_draw(name: str, draw: Callable[[Use, tuple[int, ...]], Array]) -> None:
    def infer(c: Infer) -> Sequence[Type]:
        shape = [int(s) for s in c.need("shape")]
        if any(s < 0 for s in shape):
            raise c.error(f"a shape cannot have negative sizes: {shape}")
        return [TensorType(element_type(c, "dtype", "float32"), shape)]

    def evaluate(c: Evaluate) -> Array:
        return cast_array(draw(c, tuple(c.need("shape"))), element_type(c, "dtype", "float32"))

    def evaluate_like(c: Evaluate, like: Array) -> Array:
        return cast_array(draw(c, like.shape), element_type(c, "dtype", dtype_name(like.dtype)))

    register(name, infer, evaluate, takes="", traits="random")
    register(f"{name}Like", _infer_like, evaluate_like, takes="input", traits="random")


_register_draw(
    "RandomNormal", lambda c, shape: np.asarray(_source(c).normal(c.get("mean", 0.0), c.get("scale", 1.0), shape))
)
_register_draw(
    "RandomUniform", lambda c, shape: np.asarray(_source(c).uniform(c.get("low", 0.0), c.get("high", 1.0), shape))
)


# ------------------------------------------------------------------------------------------ Bernoulli, Multinomial


def _bernoulli(c: Evaluate, x: Array) -> Array:
    made = _source(c).uniform(0.0, 1.0, x.shape) < x.astype(np.float64)
    return cast_array(np.asarray(made), element_type(c, "dtype", dtype_name(x.dtype)))


register("Bernoulli", _infer_like, _bernoulli, takes="input:float", traits="random")


def _infer_multinomial(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    shape = None if kind.shape is None else (kind.dims[0], int(c.get("sample_size", 1)))
    return [TensorType(element_type(c, "dtype", "int32"), shape)]


def _multinomial(c: Evaluate, x: Array) -> Array:
    """Classes drawn by their unnormalized log-probabilities: the greatest of them after Gumbel noise was added."""
    count = int(c.get("sample_size", 1))
    noise = _source(c).gumbel(size=(x.shape[0], count, x.shape[1]))
    return cast_array((noise + x.astype(np.float64)[:, None, :]).argmax(axis=2), element_type(c, "dtype", "int32"))


register(
    "Multinomial",
    _infer_multinomial,
    _multinomial,
    takes="input:float[_ _]",
    requires=(Between("sample_size", 0),),
    traits="random",
)


# ---------------------------------------------------------------------------------------------------------- Dropout


def _infer_dropout(c: Infer) -> Sequence[Type]:
    for position in (1, 2):
        if c.has(position):
            expect_one_element(c, position)
    kind = c.tensor(0)
    return [kind, TensorType("bool", kind.shape)][: c.output_count]


def _dropout(c: Evaluate, x: Array, ratio: Array | None = None, training: Array | None = None) -> Any:
    share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if training is None or not training.reshape(-1)[0] or share == 0:
        return (x, np.ones(x.shape, bool))[: c.output_count]
    mask = _source(c).uniform(0.0, 1.0, x.shape) >= share
    made = np.asarray(mask * wide(x) * (1 / (1 - share))).astype(x.dtype)
    return (made, mask)[: c.output_count]


def _compute_dropout(
    c: Compute, x: te.Tensor, ratio: te.Tensor | None = None, training: te.Tensor | None = None
) -> Any:
    """In inference the input itself; training draws numbers, on the host."""
    if len(c.types) > 2 and c.types[2] is not None:
        value = c.value(2)
        if value is None or value.reshape(-1)[0]:
            return None
    made = te.compute(c.out_shape(), lambda *i: x[i], name="dropout")
    if len(c.outputs) == 1:
        return made
    return made, te.compute(c.out_shape(1), lambda *i: te.const(True, "bool"), name="dropout_mask")


register(
    "Dropout",
    _infer_dropout,
    _dropout,
    _compute_dropout,
    lambda node: "elementwise" if len(node.outputs) == 1 else "opaque",
    shape_inputs=(2,),
    takes="data:float, ratio:float?, training_mode:bool?",
    traits="optional_outputs",
)

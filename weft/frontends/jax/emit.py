"""Writing Weft nodes for primitives of JAX: an Emitter that knows jaxprs.

c.inline(jaxpr, values)              the equations of a jaxpr, written here
c.traced(function, *values)          those that JAX's own definition of something consists of
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from weft.frontends.emit import Emitter, Unsupported
from weft.graph.ir import NUMPY_TYPES, Node, TensorType, Value


def type_of(aval: Any) -> TensorType:
    """The type of what JAX describes; a random key is its words, along one more axis."""
    shape = tuple(map(int, aval.shape))
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return TensorType("uint32", (*shape, *aval.dtype._impl.key_shape))
    kind = str(np.dtype(aval.dtype).name)
    if kind.startswith("complex"):
        raise Unsupported("complex numbers: compute with real and imaginary parts in two arrays")
    if kind not in NUMPY_TYPES:
        raise Unsupported(f"arrays of {kind}")
    return TensorType(kind, shape)


class JaxEmitter(Emitter):
    """Collects the nodes of a graph and of its subgraphs. Constants are all the outermost graph's."""

    primitive: Any = None
    """The primitive that is being converted."""
    avals: Sequence[Any] = ()
    """What JAX says of the operands of the equation that is being converted."""
    results: Sequence[Any] = ()
    """What it says of the results."""

    def __init__(self) -> None:
        super().__init__()
        self.makers: dict[Value, Node] = {}
        self.complements: dict[Value, Value] = {}
        """What erfc made, and what of: a Gelu is recognised by it."""

    def several(self, outputs: int, op: str, *operands: Any, **attributes: Any) -> list[Value]:
        """A node with several outputs, remembered as their maker."""
        made = super().several(outputs, op, *operands, **attributes)
        self.makers.update((value, self.nodes[-1]) for value in made)
        return made

    def scaled(self, value: Value) -> tuple[float, Value]:
        """A value as a number times another."""
        maker, factor = self.makers.get(value), 1.0
        while maker is not None and maker.op in ("Mul", "Neg"):
            numbers = [self.number(one) for one in maker.inputs if one is not None]
            if maker.op == "Neg":
                factor, value = -factor, maker.inputs[0]  # type: ignore[assignment]
            elif len(numbers) == 2 and (numbers[0] is None) != (numbers[1] is None):
                at = 1 if numbers[0] is None else 0
                factor, value = factor * float(numbers[at] or 0), maker.inputs[1 - at]  # type: ignore[assignment]
            else:
                break
            maker = self.makers.get(value)
        return factor, value

    def known(self, value: Value) -> Any:
        """The array of a value that is a constant; None for any other."""
        return self.constants.get(value)

    def number(self, value: Value) -> float | int | bool | None:
        """The number that a constant consists of; None for any other value."""
        found = self.constants.get(value)
        if found is None or not found.size or (found.size > 1 and (found != found.flat[0]).any()):
            return None
        return found.flat[0].item()  # type: ignore[no-any-return]

    def tail(self, operand: int = 0) -> list[int]:
        """The axes that a random key has beyond those that JAX counts."""
        aval = self.avals[operand]
        return list(type_of(aval).static[len(aval.shape) :])

    def like(self, number: Any, x: Value) -> Value:
        """A number in the element type of a value."""
        return self.value(number, x.tensor.dtype)

    def traced(self, function: Callable[..., Any], *values: Value) -> list[Value]:
        """The results of a function of JAX arrays."""
        shapes = [jax.ShapeDtypeStruct(one.tensor.static, one.tensor.numpy) for one in values]
        return self.inline(jax.make_jaxpr(function)(*shapes), values)

    def clamped(self, index: Value, most: Any) -> Value:
        """An index within 0 and the greatest that there is room for."""
        known = self.constants.get(index)
        if known is not None:
            return self.constant(np.clip(known, 0, most))
        low, high = self.like(0, index), self.like(most, index)
        return self.op("Min", self.op("Max", index, low), high)

    def iota(self, count: int, dtype: str = "int64", rank: int = 1, axis: int = 0) -> Value:
        """0, 1, 2, … along one of several axes."""
        shape = [1] * rank
        if rank:
            shape[axis] = count
        return self.constant(np.arange(count).astype(NUMPY_TYPES[dtype]).reshape(shape))

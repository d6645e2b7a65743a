"""What the families of operators share: kernels guarded by what the code generator takes, and elementwise operators.

`elementwise(name, meaning, expression)` registers an operator whose output elements come from one element of each
input, broadcast as numpy does. float16 and bfloat16 are computed in float32 and rounded once, by both meanings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.intrinsics import FLOAT8_FORMS
from weft.expr.nodes import Expr
from weft.graph.ir import NUMPY_TYPES, Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, Use, register
from weft.graph.shapes import Shape, broadcast

FLOAT8 = frozenset(FLOAT8_FORMS)

NARROW_FLOATS = frozenset(("float16", "bfloat16")) | FLOAT8
_NARROW_NUMPY = frozenset(NUMPY_TYPES[name] for name in NARROW_FLOATS & NUMPY_TYPES.keys())

ELEMENT_TYPES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""The element types by the numbers that attributes such as Cast's `to` hold."""

TYPE_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


def element_type(c: Use, name: str, default: str | None = None) -> str:
    """The element type that an attribute names by its number."""
    number = c.need(name) if default is None else c.get(name)
    if number is None:
        assert default is not None
        return default
    if number not in ELEMENT_TYPES:
        raise c.error(f"the attribute {name!r} names the element type {number}, which is not known")
    return ELEMENT_TYPES[number]


# --------------------------------------------------------------------------------------------------------- kernels


def wide_type(dtype: str) -> str:
    """The type that arithmetic on an element type is done in: float32 for the narrow floats."""
    return "float32" if dtype in NARROW_FLOATS else dtype


def wide(array: Array) -> Array:
    """An array in the type that arithmetic on it is done in."""
    return array.astype(np.float32) if array.dtype in _NARROW_NUMPY else array


def read(tensor: te.Tensor, indices: Sequence[Any], whole: Sequence[Dim]) -> Expr:
    """The element that broadcasting brings to these indices of a shape, in the type that arithmetic is done in."""
    return widen(te.broadcast_read(tensor, indices, whole))


def widen(value: Expr) -> Expr:
    """An expression in the type that arithmetic on it is done in."""
    return value.astype(wide_type(value.dtype.name))


def number(c: Compute, position: int, tensor: te.Tensor) -> Expr:
    """The one element of an input: a literal where its value is known, which lets the code generator use it."""
    value = c.value(position)
    if value is not None:
        return widen(te.const(value.reshape(-1)[0], tensor.dtype))
    return widen(tensor[(0,) * len(tensor.shape)])


# ---------------------------------------------------------------------------------------------- checks of the inputs


def expect_shape(c: Infer, position: int, wanted: Sequence[Dim]) -> None:
    """An input, if given, has this shape as far as both are known: a kernel would read outside it otherwise."""
    if not c.has(position) or c.tensor(position).shape is None:
        return
    found = c.tensor(position).dims
    if len(found) != len(wanted) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(found, wanted)
    ):
        raise c.error(f"input {position} must have the shape {list(wanted)}, not {list(found)}")


def expect_broadcast(c: Infer, position: int, onto: Shape | None) -> None:
    """An input, if given, broadcasts to this shape without changing it."""
    if not c.has(position) or c.tensor(position).shape is None or onto is None:
        return
    found = c.tensor(position).dims
    together = broadcast([found, onto], c.error)
    if together is None or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(together, onto)):
        raise c.error(f"input {position} of shape {list(found)} does not broadcast to {list(onto)}")
    if len(found) > len(onto):
        raise c.error(f"input {position} has more dimensions than {list(onto)}")


def expect_one_element(c: Infer, position: int) -> None:
    """An input has one element."""
    kind = c.tensor(position)
    if kind.is_static and int(np.prod(kind.static)) != 1:
        raise c.error(f"input {position} must have one element, not the shape {list(kind.static)}")


# ----------------------------------------------------------------------------------------------------- elementwise


def infer_same(c: Infer) -> Sequence[Type]:
    """The output is like the first input."""
    return [c.tensor(0)]


def infer_broadcast(c: Infer) -> Sequence[Type]:
    """Inputs of one type, broadcast against each other."""
    return [TensorType(c.tensor(0).dtype, broadcast([c.tensor(i).shape for i in range(len(c.types))], c.error))]


def infer_comparison(c: Infer) -> Sequence[Type]:
    """Inputs of one type, broadcast against each other; the output is bool."""
    kind = infer_broadcast(c)[0]
    assert isinstance(kind, TensorType)
    return [TensorType("bool", kind.shape)]


def signature_of(function: Callable[..., Any], skip: int = 1, types: str = "", same: bool = False) -> str:
    """The signature that the parameters of a function say, after the first `skip`: those that may be None are optional.

    `types` are the element types of the first input; the others have the `same`, or any.
    """
    made: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[skip:]:
        first = made[0].partition(":")[0] if made else ""
        element = (f":{first}" if same else "") if made else f":{types}" if types else ""
        several = parameter.kind is parameter.VAR_POSITIONAL
        if several and same:  # there is at least one, which says the type of all
            made += [parameter.name + element, f"more:{parameter.name}?", "..."]
        else:
            optional = several or parameter.default is not parameter.empty or "None" in str(parameter.annotation)
            made += [parameter.name + element + "?" * optional] + ["..."] * several
    return ", ".join(made)


def elementwise(
    name: str,
    meaning: Callable[..., Any],
    expression: Callable[..., Any] | None,
    infer: Callable[[Infer], Sequence[Type]] = infer_broadcast,
    types: str = "",
    takes: str | None = None,
    traits: str = "",
) -> OpSpec:
    """Registers an elementwise operator: `meaning(c, *arrays)` in numpy, `expression(c, *elements)` of expressions.

    `types` are the element types that the operator takes, in the words of signatures; empty means any. All inputs have
    the type of the first. `takes` is the signature, where the parameters of the meaning do not say it.
    """

    def evaluate(c: Evaluate, *arrays: Array) -> Array:
        result = np.asarray(meaning(c, *[wide(a) for a in arrays]))
        return result.astype(arrays[0].dtype) if result.dtype != np.bool_ else result

    def compute(c: Compute, *tensors: te.Tensor) -> te.Tensor:
        def body(*indices: Any) -> Any:
            assert expression is not None
            return expression(c, *[read(t, indices, c.out_dims()) for t in tensors])

        return te.stage(c.out_dims(), body, name=name.lower(), dtype=c.outputs[0].dtype)

    takes = takes or signature_of(meaning, 1, types, True)
    built = None if expression is None else compute
    return register(name, infer, evaluate, built, "elementwise", takes=takes, traits=traits)

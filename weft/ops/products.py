"""Matrix products: MatMul with numpy's batch rules, and Gemm.

`multiply_tensors` is the one tensor expression of a batched product; other operators (integer and quantized products)
use it with a product of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import NUMPY_TYPES, Array, Dim, TensorType, Type, dtype_name, same_dim
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.passes.narrow_weights import DOMAIN as NARROW_DOMAIN
from weft.graph.passes.narrow_weights import NAME as NARROW_MATMUL
from weft.graph.shapes import broadcast
from weft.ops.convolution import accumulator, dims_of, exact_type, result_type, wide_product

# ------------------------------------------------------------------------------------------------------------- MatMul


def product_shape(use: Use, a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> tuple[Dim, ...] | None:
    """The shape of a product by numpy's rules; None where a rank is not known."""
    if a is None or b is None:
        return None
    if not a or not b:
        raise use.error("a matrix product needs operands of at least one dimension")
    inner_a, inner_b = a[-1], b[-2] if len(b) > 1 else b[0]
    if isinstance(inner_a, int) and isinstance(inner_b, int) and inner_a != inner_b:
        raise use.error(f"shapes {list(a)} and {list(b)} do not multiply: {inner_a} is not {inner_b}")
    batch = broadcast([tuple(a[:-2]), tuple(b[:-2])], use.error)
    assert batch is not None
    return (*batch, *a[-2:-1], *b[-1:]) if len(b) > 1 else (*batch, *a[-2:-1])


def infer_product(c: Infer, a: int, b: int, dtype: str) -> list[Type]:
    """The type of a matrix product; `a` and `b` are the positions of its inputs."""
    return [TensorType(dtype, product_shape(c, c.tensor(a).shape, c.tensor(b).shape))]


_OWN_TYPE = (np.dtype(np.float32), np.dtype(np.float64))
"""Types whose products are summed in themselves."""


def multiply_arrays(a: Array, b: Array, kind: Any = None) -> Array:
    """A product in the arrays' own type (or another); narrow floats are summed in float32."""
    # The name of a type takes numpy as long as a small product: most are asked for by identity.
    wide = None if a.dtype in _OWN_TYPE or a.dtype.kind in "iu" else exact_type(str(a.dtype))
    if wide is None:
        return np.asarray(np.matmul(a, b))
    return np.asarray(np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype if kind is None else kind))


def multiply_tensors(
    a: te.Tensor, b: te.Tensor, shape: Sequence[Dim], product: Callable[[Expr, Expr], Expr], name: str = "matmul"
) -> te.Tensor:
    """The batched product of two tensors; a dimension of size 1 in the batch broadcasts."""
    left, right = dims_of(a), dims_of(b)
    k = te.reduce_axis(left[-1], "k")
    columns = 1 if len(right) > 1 else 0
    rows = 1 if len(left) > 1 else 0
    depth = len(shape) - rows - columns

    def batched(sizes: Sequence[Dim], batch: Sequence[Expr]) -> list[Expr]:
        count = len(sizes)
        last = list(zip(batch, shape))[len(batch) - count :] if count else []
        return [te.broadcast_index(size, at, whole) for size, (at, whole) in zip(sizes, last)]

    def body(*at: Expr) -> Any:
        batch, row, column = at[:depth], at[depth : depth + rows], at[depth + rows :]
        x = a[(*batched(left[:-2], batch), *row, k.var)]
        y = b[(*batched(right[:-2], batch), k.var, *column)]
        return te.sum(product(x, y), axis=k)

    return te.stage(tuple(shape), lambda *at: body(*at), name=name)


def cast_to(made: te.Tensor, dtype: str, name: str = "cast") -> te.Tensor:
    """A tensor in another type; itself where it has that type."""
    if str(made.dtype) == dtype:
        return made
    return te.stage(made.shape, lambda *at: made[at].astype(dtype), name=name)


def sum_type(dtype: str) -> str:
    """The type in which a product of this type is summed: integers wrap in their own."""
    return accumulator(dtype) if "float" in dtype else dtype


def _compute_matmul(c: Compute, a: te.Tensor, b: te.Tensor) -> te.Tensor | None:
    kind = c.outputs[0].dtype
    return cast_to(multiply_tensors(a, b, c.out_dims(), wide_product(sum_type(kind))), kind)


register(
    "MatMul",
    lambda c: infer_product(c, 0, 1, result_type(c, c.tensor(0).dtype)),
    lambda c, a, b: multiply_arrays(a, b, NUMPY_TYPES[result_type(c, dtype_name(a.dtype))]),
    _compute_matmul,
    "complex",
    takes="A:number, B:A",
    traits="product heavy",
    multiplies=2,
)

# ------------------------------------------------------------------------------------------------- narrow weights


register(
    NARROW_MATMUL,
    lambda c: infer_product(c, 0, 1, "float32"),
    lambda c, a, b: np.asarray(np.matmul(a.astype(np.float32), b.astype(np.float32))),
    _compute_matmul,
    "complex",
    domain=NARROW_DOMAIN,
    takes="A:float32|float8_e4m3fn|float8_e5m2, B:bfloat16|float16|float8_e4m3fn|float8_e5m2",
    traits="heavy",
    multiplies=2,
)

# --------------------------------------------------------------------------------------------------------------- Gemm


def _infer_gemm(c: Infer) -> list[Type]:
    a, b = c.tensor(0), c.tensor(1)
    kind = result_type(c, a.dtype)
    if a.shape is None or b.shape is None:
        return [TensorType(kind, None)]
    rows, inner = reversed(a.dims) if c.get("transA", 0) else a.dims
    other, columns = reversed(b.dims) if c.get("transB", 0) else b.dims
    if isinstance(inner, int) and isinstance(other, int) and not same_dim(inner, other):
        raise c.error(f"{a!r} and {b!r} do not multiply: {inner} is not {other}")
    if c.has(2):
        made = broadcast([(rows, columns), c.tensor(2).shape], c.error)
        if made is not None and (len(made) != 2 or not all(_fits(m, d) for m, d in zip(made, (rows, columns)))):
            raise c.error(f"C is {c.tensor(2)!r}, which does not broadcast to [{rows!r}, {columns!r}]")
    return [TensorType(kind, (rows, columns))]


def _fits(made: Dim, wanted: Dim) -> bool:
    return not (isinstance(made, int) and isinstance(wanted, int)) or made == wanted


def _evaluate_gemm(c: Evaluate, a: Array, b: Array, bias: Array | None = None) -> Array:
    alpha, beta = float(c.get("alpha", 1.0)), float(c.get("beta", 1.0))
    kind = a.dtype
    wide = np.dtype(np.float32) if exact_type(str(kind)) and kind.kind not in "iu" else kind
    left, right = (a.T if c.get("transA", 0) else a), (b.T if c.get("transB", 0) else b)
    made = np.matmul(left.astype(wide), right.astype(wide))
    if alpha != 1:
        made = made * (alpha if kind.kind in "iu" else wide.type(alpha))
    if bias is not None and beta:
        added = bias.astype(wide)
        made = made + (added if beta == 1 else added * (beta if kind.kind in "iu" else wide.type(beta)))
    return np.asarray(np.asarray(made).astype(NUMPY_TYPES[result_type(c, dtype_name(kind))]))


def _compute_gemm(c: Compute, a: te.Tensor, b: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor | None:
    kind = c.outputs[0].dtype
    alpha, beta = float(c.get("alpha", 1.0)), float(c.get("beta", 1.0))
    if "float" not in kind and (alpha, beta) != (1, 1):
        return None
    wide = sum_type(kind)
    across, down = c.get("transA", 0), c.get("transB", 0)
    k = te.reduce_axis(c.dims(0)[0 if across else 1], "k")

    def product(i: Expr, j: Expr) -> Any:
        x = a[k.var, i] if across else a[i, k.var]
        y = b[j, k.var] if down else b[k.var, j]
        return te.sum(x.astype(wide) * y.astype(wide), axis=k)

    made = te.stage(c.out_dims(), lambda i, j: product(i, j), name="gemm")
    if alpha == 1 and kind == wide and (bias is None or beta == 0):
        return made

    def finish(i: Expr, j: Expr) -> Expr:
        value: Expr = made[i, j]
        if alpha != 1:
            value = value * te.const(alpha, wide)
        if bias is not None and beta != 0:
            added = te.broadcast_read(bias, (i, j), c.out_dims()).astype(wide)
            value = value + (added if beta == 1 else added * te.const(beta, wide))
        return value.astype(kind)

    return te.stage(c.out_dims(), lambda i, j: finish(i, j), name="gemm_bias")


register(
    "Gemm",
    _infer_gemm,
    _evaluate_gemm,
    _compute_gemm,
    "complex",
    takes="A:number[_ _], B:A[_ _], C:number?",
    traits="product heavy",
    multiplies=2,
)

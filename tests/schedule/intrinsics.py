"""Tensor intrinsics for tests: small products and increments written as plain loops, so that they compile anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft import te
from weft.expr.nodes import Load, Var, add, const, index_expr
from weft.loop.ir import For, Store, seq

TENSORIZED = ("float32", "int32", "int8", "int64", "float16")


def _nest(sizes: Sequence[int], body: Callable[..., Any]) -> Any:
    variables = [Var(f"u{d}") for d in range(len(sizes))]
    made = body(*variables)
    for variable, size in zip(reversed(variables), reversed(sizes)):
        made = For(variable, size, made)
    return made


def _at(view: Any, *offsets: Any) -> tuple[Any, tuple[Any, ...]]:
    lead = len(view.indices) - len(offsets)
    tail = [add(base, index_expr(offset)) for base, offset in zip(view.indices[lead:], offsets)]
    return view.buffer, (*view.indices[:lead], *tail)


def declare_matmul(dtype: str, m: int, n: int, k: int) -> None:
    """A matrix product of one small tile, written as plain loops, so that it also compiles."""
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), dtype, name="b")
    axis = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="c")

    def rule(inputs: Any, outputs: Any) -> Any:
        x, y, z = *inputs, outputs[0]

        def reset() -> Any:
            return _nest((m, n), lambda i, j: Store(*_at(z, i, j), const(0, dtype)))

        def update() -> Any:
            return _nest(
                (m, n, k),
                lambda i, j, r: Store(*_at(z, i, j), Load(*_at(z, i, j)) + Load(*_at(x, i, r)) * Load(*_at(y, r, j))),
            )

        return seq(reset(), update()), reset(), update()

    te.decl_tensor_intrin(c.op, rule, name=f"test_matmul_{dtype}_{m}x{n}x{k}")


def declare_double(dtype: str, length: int) -> None:
    """Twice each element of a short vector, as plain loops."""
    a = te.placeholder((length,), dtype, name="a")
    c = te.compute((length,), lambda i: a[i] + const(1, dtype), name="c")

    def rule(inputs: Any, outputs: Any) -> Any:
        return _nest((length,), lambda i: Store(*_at(outputs[0], i), Load(*_at(inputs[0], i)) + const(1, dtype)))

    te.decl_tensor_intrin(c.op, rule, name=f"test_increment_{dtype}_{length}")


def declare_intrinsics() -> None:
    """The intrinsics that random schedules may use."""
    for dtype in TENSORIZED:
        declare_matmul(dtype, 2, 2, 2)
        declare_matmul(dtype, 4, 2, 2)
        declare_matmul(dtype, 2, 4, 4)
        declare_double(dtype, 2)
        declare_double(dtype, 4)

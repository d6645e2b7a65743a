"""Tensor intrinsics: what a hardware instruction computes, and how to call it.

A `TensorIntrin` holds a description (a program with one block, over small constant buffers) and a lowering rule that
builds the calls from views of the matched buffers. Targets declare theirs; `tensorize` finds them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.dtypes import INDEX
from weft.core.errors import WeftError
from weft.expr.nodes import Address, Buffer, Call, Expr, index_expr
from weft.loop.interpreter import register_effect
from weft.loop.ir import Block, Evaluate, For, Func, Stmt, seq


class BufferView:
    """The part of a buffer that an intrinsic works on: where it starts, and the strides of the dimensions it covers."""

    __slots__ = ("buffer", "indices", "shape")

    def __init__(self, buffer: Buffer, indices: Sequence[Expr], shape: Sequence[Expr]) -> None:
        self.buffer = buffer
        self.indices = tuple(indices)
        self.shape = tuple(shape)

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.buffer.dtype

    def access_ptr(self, mode: str = "rw") -> Address:
        """The address of the view's first element."""
        return Address(self.buffer, self.indices, mode)

    def stride(self, dim: int) -> Expr:
        """The stride, in elements, of a dimension of the view: a call until memory is laid out.

        Dimensions are counted from the last: passes may put further ones in front.
        """
        position = dim - len(self.shape) if dim >= 0 else dim
        return Call("buffer_stride", (Address(self.buffer, self.indices, ""), index_expr(position)), INDEX)

    @property
    def strides(self) -> tuple[Expr, ...]:
        """The strides, in elements, of the dimensions of the view."""
        return tuple(self.stride(d) for d in range(len(self.shape)))


Lowered = tuple[Stmt, "Stmt | None", "Stmt | None"]


class TensorIntrin:
    """A hardware instruction: description and lowering rule."""

    __slots__ = ("name", "description", "inputs", "output", "rule")

    def __init__(
        self, name: str, description: Func, inputs: Sequence[Buffer], output: Buffer, rule: Callable[[Any, Any], Any]
    ) -> None:
        self.name = name
        self.description = description
        self.inputs = tuple(inputs)
        self.output = output
        self.rule = rule

    @property
    def block(self) -> Block:
        """The description's only block."""
        s: Stmt = self.description.body
        while isinstance(s, For):
            s = s.body
        assert isinstance(s, Block)
        return s

    def lower(self, inputs: Sequence[BufferView], output: BufferView) -> Lowered:
        """The statements for (compute at once, reset, update); the last two are None for what is not a reduction."""
        made = self.rule(list(inputs), [output])
        parts = tuple(made) if isinstance(made, tuple) else (made,)
        if len(parts) not in (1, 3):
            raise WeftError(
                f"the lowering rule of {self.name} gives {len(parts)} parts; give one, or (compute, reset, update)"
            )
        stmts = [None if p is None else as_statement(p) for p in parts]
        if stmts[0] is None:
            raise WeftError(f"the lowering rule of {self.name} gives no computation")
        return (stmts[0], stmts[1], stmts[2]) if len(stmts) == 3 else (stmts[0], None, None)


def as_statement(value: Any) -> Stmt:
    """A statement, a call, or a list of these as one statement."""
    if isinstance(value, Stmt):
        return value
    if isinstance(value, Expr):
        return Evaluate(value)
    if isinstance(value, (list, tuple)):
        return seq(*[as_statement(v) for v in value])
    raise WeftError(f"a lowering rule gives statements or calls, not {value!r}")


register_effect("buffer_stride", lambda pointer, dim: pointer.strides[int(dim)])

INTRINSICS: dict[str, TensorIntrin] = {}


def register_intrinsic(intrin: TensorIntrin) -> TensorIntrin:
    """Makes an intrinsic known by its name, so that a trace can replay it."""
    INTRINSICS[intrin.name] = intrin
    return intrin

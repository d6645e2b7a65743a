"""Tensors, axes and operations: what a tensor expression is made of.

A `Tensor` is a buffer of the loop IR that knows the operation that computes it, so `A[i, j]` is the IR's own Load.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Iterable, Sequence

from weft.core.dtypes import INDEX, DType, DTypeLike, dtype
from weft.core.errors import ExpressionError, ShapeError
from weft.expr.nodes import Buffer, Expr, ExprLike, Load, Var, index_expr
from weft.loop.ir import Stmt


def origin(depth: int = 2) -> str:
    """The file and line of the first caller outside this package."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("weft."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class IterVar:
    """An axis of an operation, or a thread axis. In an expression it stands for its variable."""

    __slots__ = ("var", "extent", "kind", "thread")

    def __init__(self, name: str, extent: ExprLike | None, kind: str, thread: str | None = None) -> None:
        self.var = Var(name)
        self.extent = None if extent is None else index_expr(extent)
        self.kind = kind
        self.thread = thread

    @property
    def name(self) -> str:
        """The axis's name."""
        return self.var.name

    def as_expr(self) -> Expr:
        """The variable."""
        return self.var

    def __repr__(self) -> str:
        return f"{self.kind} axis {self.name}[0, {self.extent!r})"


def _delegate(name: str) -> Callable[..., Any]:
    def operator(self: IterVar, *others: Any) -> Any:
        return getattr(self.var, name)(*[o.var if isinstance(o, IterVar) else o for o in others])

    operator.__name__ = name
    return operator


for _name in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod lt le gt ge and or xor lshift rshift neg"
).split():
    setattr(IterVar, f"__{_name}__", _delegate(f"__{_name}__"))
IterVar.astype = lambda self, to: self.var.astype(to)  # type: ignore[attr-defined]


class Tensor(Buffer):
    """A buffer computed (or given) by an operation. Indexing it gives the value at a point."""

    __slots__ = ("op", "value_index")
    op: Operation
    value_index: int

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, indices: Any) -> Load:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != len(self.shape):
            raise ShapeError(f"{self.name} has {len(self.shape)} dimensions and was indexed with {len(given)}")
        if any(isinstance(index, slice) for index in given):
            raise ExpressionError(f"{self.name} was indexed with a slice; index a tensor with one expression per dimension")
        return Load(self, tuple(index_expr(i.var if isinstance(i, IterVar) else i) for i in given))

    def __call__(self, *indices: Any) -> Load:
        return self[tuple(indices)]

    def as_expr(self) -> Expr:
        """The value of a tensor without dimensions."""
        if self.shape:
            raise ExpressionError(f"the tensor {self.name} stands in a scalar expression; index it: {self.name}[...]")
        return Load(self, ())


class Operation:
    """What makes tensors. `outputs` are the tensors; `axis` and `reduce_axis` its iteration axes."""

    axis: tuple[IterVar, ...] = ()
    reduce_axis: tuple[IterVar, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.outputs: tuple[Tensor, ...] = ()
        self.origin = origin(3)

    def output(self, index: int) -> Tensor:
        """One of the outputs."""
        return self.outputs[index]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that it reads."""
        return ()

    def _make_outputs(self, specs: Iterable[tuple[str, DType, Sequence[ExprLike]]]) -> None:
        made = []
        for position, (name, kind, shape) in enumerate(specs):
            tensor = Tensor(name, kind, shape)
            tensor.op, tensor.value_index = self, position
            made.append(tensor)
        self.outputs = tuple(made)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class PlaceholderOp(Operation):
    """A tensor that the caller gives."""


class ComputeOp(Operation):
    """Each element by an expression of its indices; `bodies` holds one expression or Reduce for each output."""

    def __init__(
        self, name: str, shape: Sequence[ExprLike], axis: Sequence[IterVar], bodies: Sequence[Any], dtypes: Sequence[DType]
    ) -> None:
        super().__init__(name)
        self.axis = tuple(axis)
        self.bodies = tuple(bodies)
        names = [name] if len(dtypes) == 1 else [f"{name}_v{i}" for i in range(len(dtypes))]
        self._make_outputs((n, d, shape) for n, d in zip(names, dtypes))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the bodies read."""
        from weft.te.reduce import Reduce
        from weft.expr.visit import walk

        found: dict[Tensor, None] = {}
        for body in self.bodies:
            parts = (*body.sources, body.condition) if isinstance(body, Reduce) else (body,)
            for part in parts:
                for node in walk(part):
                    if type(node) is Load and isinstance(node.buffer, Tensor):
                        found[node.buffer] = None
        return tuple(found)


class ExternOp(Operation):
    """Outputs written by a statement that the user builds from the buffers."""

    def __init__(
        self, name: str, specs: Sequence[tuple[str, DType, Sequence[ExprLike]]], given: Sequence[Tensor]
    ) -> None:
        super().__init__(name)
        self._given = tuple(given)
        self._make_outputs(specs)
        self.statement: Stmt | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors handed to the statement."""
        return self._given


class ScanOp(Operation):
    """A recurrence along the first dimension: states start from `init` and each step is given by `update`."""

    def __init__(
        self, name: str, init: Sequence[Tensor], update: Sequence[Tensor], state: Sequence[Tensor], steps: Expr
    ) -> None:
        super().__init__(name)
        self.init, self.update, self.state = tuple(init), tuple(update), tuple(state)
        self.steps = steps
        names = [name] if len(self.state) == 1 else [f"{name}_v{i}" for i in range(len(self.state))]
        self._make_outputs((n, s.dtype, s.shape) for n, s in zip(names, self.state))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The initial states and the updates."""
        return (*self.init, *self.update)


def shape_of(shape: Any) -> tuple[Expr, ...]:
    """A shape given as an int, an expression or a sequence of these; negative sizes are refused."""
    if isinstance(shape, (int, Expr)):
        shape = (shape,)
    sizes = tuple(index_expr(s) for s in shape)
    for size in sizes:
        value = getattr(size, "value", None)
        if isinstance(value, int) and value < 0:
            raise ShapeError(f"a dimension cannot be negative: {list(shape)!r}")
        if isinstance(value, int) and value >= 1 << 40:
            raise ShapeError(f"a dimension of {value} elements is larger than any memory")
    return sizes


def var(name: str = "n", kind: DTypeLike = INDEX) -> Var:
    """A named scalar, most often a size that is known when the function is called."""
    return Var(name, dtype(kind))

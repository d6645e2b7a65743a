"""Tensors and operations: what a tensor expression is made of.

A `Tensor` is a buffer of the loop IR that knows the operation that computes it, so `A[i, j]` is the IR's own Load.
A `Reduce` is the whole body of a compute; it is not an expression, because it has no value at a single point of the
reduction axis.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.core.dtypes import INDEX, DType, DTypeLike, dtype
from weft.core.errors import DTypeError, ExpressionError, ShapeError
from weft.expr.nodes import Buffer, Expr, ExprLike, Load, Var, index_expr
from weft.expr.visit import walk
from weft.loop.ir import Stmt
from weft.te.axis import IterVar, on_value

LARGEST_DIMENSION = 1 << 40


def origin(depth: int = 2) -> str:
    """The file and line of the first caller outside this package."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("weft."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Tensor(Buffer):
    """A buffer computed (or given) by an operation. Indexing it gives the value at a point."""

    __slots__ = ("op",)
    op: Operation

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, indices: Any) -> Load:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != len(self.shape):
            raise ShapeError(f"{self.name} has {len(self.shape)} dimensions and was indexed with {len(given)}")
        if any(isinstance(index, slice) or index is Ellipsis or index is None for index in given):
            raise ExpressionError(
                f"{self.name} was indexed with a slice; index a tensor with one expression per dimension"
            )
        return Load(self, tuple(index_expr(i.as_expr() if isinstance(i, Tensor) else i) for i in given))

    def __call__(self, *indices: Any) -> Load:
        """The same as indexing: A(i, j) is A[i, j]."""
        return self[tuple(indices)]

    def __iter__(self) -> Any:
        raise ExpressionError(f"the tensor {self.name} cannot be iterated over; index it: {self.name}[...]")

    def as_expr(self) -> Expr:
        """The value of a tensor without dimensions."""
        if self.shape:
            raise ExpressionError(f"the tensor {self.name} stands in a scalar expression; index it: {self.name}[...]")
        return Load(self, ())


for _name in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow lt le gt ge neg invert"
    " and rand or ror xor rxor lshift rlshift rshift rrshift"
).split():
    setattr(Tensor, f"__{_name}__", on_value(f"__{_name}__"))


class Reducer:
    """An associative, commutative combination of one or several values, with its identity."""

    __slots__ = ("name", "combine", "identity")

    def __init__(
        self,
        name: str,
        combine: Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]],
        identity: Callable[[Sequence[DType]], Sequence[Expr]],
    ) -> None:
        self.name = name
        self.combine = combine
        self.identity = identity


class Reduce:
    """A reduction of source expressions over axes, where a condition holds, from an identity."""

    __slots__ = ("reducer", "sources", "axes", "condition", "identity")

    def __init__(
        self,
        reducer: Reducer,
        sources: Sequence[Expr],
        axes: Sequence[IterVar],
        condition: Expr,
        identity: Sequence[Expr],
    ) -> None:
        self.reducer = reducer
        self.sources = tuple(sources)
        self.axes = tuple(axes)
        self.condition = condition
        self.identity = tuple(identity)

    def _refuse(self, *others: Any) -> Any:
        raise ExpressionError(
            "a reduction must be the whole body of te.compute: give it a compute of its own and use its result "
            "in another"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __neg__ = __invert__ = __pow__ = __bool__ = _refuse
    __getitem__ = astype = as_expr = _refuse


class Operation:
    """What makes tensors. `outputs` are the tensors; `axis` and `reduce_axis` its iteration axes."""

    axis: tuple[IterVar, ...] = ()
    reduce_axis: tuple[IterVar, ...] = ()

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ExpressionError(f"{name!r} cannot name a tensor: use letters, digits and underscores")
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

    def _make_outputs(self, kinds: Sequence[DType], shapes: Iterable[Sequence[ExprLike]]) -> None:
        names = [self.name] if len(kinds) == 1 else [f"{self.name}_v{i}" for i in range(len(kinds))]
        made = []
        for name, kind, shape in zip(names, kinds, shapes):
            tensor = Tensor(name, kind, shape)
            tensor.op = self
            made.append(tensor)
        self.outputs = tuple(made)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class PlaceholderOp(Operation):
    """A tensor that the caller gives."""

    def __init__(self, name: str, kind: DType, shape: Sequence[ExprLike]) -> None:
        super().__init__(name)
        self._make_outputs([kind], [shape])


class ComputeOp(Operation):
    """Each element by an expression of its indices; `bodies` holds one expression for each output, or one Reduce."""

    def __init__(
        self,
        name: str,
        shape: Sequence[ExprLike],
        axis: Sequence[IterVar],
        bodies: Sequence[Expr | Reduce],
        kinds: Sequence[DType],
    ) -> None:
        super().__init__(name)
        self.axis = tuple(axis)
        self.bodies = tuple(bodies)
        first = self.bodies[0]
        self.reduce_axis = first.axes if isinstance(first, Reduce) else ()
        self._make_outputs(kinds, [shape] * len(kinds))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """Every expression of the bodies."""
        found: list[Expr] = []
        for body in self.bodies:
            found += [*body.sources, body.condition, *body.identity] if isinstance(body, Reduce) else [body]
        return tuple(found)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the bodies read."""
        found: dict[Tensor, None] = {}
        for expression in self.expressions:
            for node in walk(expression, Load):
                if isinstance(node, Load) and isinstance(node.buffer, Tensor):
                    found[node.buffer] = None
        return tuple(found)


class ExternOp(Operation):
    """Outputs written by a statement that the user builds from the buffers."""

    def __init__(
        self, name: str, kinds: Sequence[DType], shapes: Sequence[Sequence[ExprLike]], given: Sequence[Tensor]
    ) -> None:
        super().__init__(name)
        self._given = tuple(given)
        self._make_outputs(kinds, shapes)
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
        self._make_outputs([s.dtype for s in self.state], [s.shape for s in self.state])

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The initial states and the updates."""
        return (*self.init, *self.update)


def shape_of(shape: Any) -> tuple[Expr, ...]:
    """A shape given as an int, an expression or a sequence of these; negative and absurd sizes are refused."""
    if isinstance(shape, (str, bytes, dict, set)):
        raise ShapeError(f"a shape is a whole number, an expression, or a tuple of these, not {shape!r}")
    if not isinstance(shape, Tensor) and hasattr(shape, "__iter__"):
        given = tuple(shape)
    else:
        given = (shape,)
    return tuple(_size(size, given) for size in given)


def _size(size: Any, shape: tuple[Any, ...]) -> Expr:
    if isinstance(size, (bool, IterVar)):
        raise ShapeError(f"a dimension is a whole number or a te.var, not {size!r}: {list(shape)!r}")
    try:
        made = index_expr(size)
    except DTypeError:
        raise ShapeError(
            f"a dimension is a whole number or an integer expression, not {size!r}: {list(shape)!r}"
        ) from None
    if walk(made, Load):
        raise ShapeError(f"a dimension cannot be read from a tensor: {made!r}")
    value = getattr(made, "value", None)
    if isinstance(value, int) and value < 0:
        raise ShapeError(f"a dimension cannot be negative: {list(shape)!r}")
    if isinstance(value, int) and value >= LARGEST_DIMENSION:
        raise ShapeError(f"a dimension of {value} elements is larger than any memory")
    return made


def var(name: str = "n", kind: DTypeLike = INDEX) -> Var:
    """A named scalar, most often a size that is known when the function is called."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ExpressionError(f"{name!r} cannot name a variable: use letters, digits and underscores")
    made = dtype(kind)
    if made.lanes != 1 or made.kind == "handle" or made.is_packed:
        raise DTypeError(f"a variable cannot be a {made}")
    return Var(name, made)

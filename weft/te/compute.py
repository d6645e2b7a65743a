"""The constructors of tensor expressions: placeholder, compute, reduce_axis, scan, extern, and broadcasting helpers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from weft.core.dtypes import FLOAT32, INT32, DType, DTypeLike
from weft.core.dtypes import dtype as dtype_of
from weft.core.errors import DTypeError, ExpressionError, ShapeError
from weft.expr.nodes import Address, Call, Const, Expr, ExprLike, as_expr, const, equal, index_expr, int_value
from weft.expr.structural import structural_equal
from weft.loop.ir import THREAD_TAGS, Evaluate, Stmt, seq
from weft.te.axis import IterVar
from weft.te.math import condition, if_then_else
from weft.te.tensor import ComputeOp, ExternOp, PlaceholderOp, Reduce, ScanOp, Tensor, shape_of

_counter = itertools.count()


def placeholder(shape: Any, dtype: DTypeLike = "float32", name: str | None = None) -> Tensor:
    """A tensor that the caller of the compiled function gives."""
    return PlaceholderOp(name or f"placeholder{next(_counter)}", _dtype(dtype), shape_of(shape)).outputs[0]


def _dtype(like: DTypeLike) -> DType:
    kind = dtype_of(like)
    if kind.lanes != 1 or kind.kind == "handle":
        raise DTypeError(f"a tensor cannot have elements of {kind}")
    return kind


def reduce_axis(dom: Any, name: str = "k") -> IterVar:
    """An axis to reduce over: `reduce_axis((0, 1024))` or `reduce_axis(1024)`."""
    return IterVar(_axis_name(name), _extent(dom, "reduce axis"), "reduce")


def _axis_name(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ExpressionError(f"{name!r} cannot name an axis: use letters, digits and underscores")
    return name


def _extent(dom: Any, what: str) -> Expr:
    if isinstance(dom, (tuple, list)):
        if len(dom) != 2 or int_value(dom[0]) != 0:
            raise ExpressionError(
                f"a {what} runs from 0: give (0, extent), not {dom!r}; add the offset in the expression"
            )
        dom = dom[1]
    return shape_of((dom,))[0]


def thread_axis(dom: Any = None, tag: str | None = None, name: str | None = None) -> IterVar:
    """A thread axis to bind a loop to: `thread_axis("threadIdx.x")` or `thread_axis((0, 16), "threadIdx.x")`."""
    if isinstance(dom, str) and tag is None:
        dom, tag = None, dom
    if isinstance(tag, str) and tag.startswith(("vthread", "cthread")):
        tag = "vthread"
    if tag not in THREAD_TAGS:
        raise ExpressionError(f"unknown thread axis {tag!r}; known are {', '.join(THREAD_TAGS)}")
    extent = None if dom is None else _extent(dom, "thread axis")
    return IterVar(_axis_name(name or tag.replace(".", "_")), extent, "thread", tag)


def _axis_names(function: Callable[..., Any], count: int) -> list[str]:
    if not callable(function):
        raise ExpressionError(f"te.compute takes a function of the indices, not {function!r}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [f"i{i}" for i in range(count)]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional if p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(names) > count or (len(names) < count and not variadic):
        raise ShapeError(f"the function of te.compute takes {len(names)} indices for a shape of {count} dimensions")
    return names + [f"i{i}" for i in range(len(names), count)]


def compute(shape: Any, function: Callable[..., Any], name: str | None = None, dtype: DTypeLike | None = None) -> Any:
    """A tensor whose element at each index is given by the function; a tuple of results gives several tensors.

    `te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k))`
    """
    sizes = shape_of(shape)
    axis = [IterVar(n, size, "spatial") for n, size in zip(_axis_names(function, len(sizes)), sizes)]
    result = function(*[a.var for a in axis])
    bodies = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if not bodies:
        raise ExpressionError("the function of te.compute gives no value")
    wanted = None if dtype is None else _dtype(dtype)
    kinds: list[DType]
    if any(isinstance(b, Reduce) for b in bodies):
        if len(bodies) > 1:
            raise ExpressionError(
                "several reductions in one te.compute: use a reducer over a tuple (te.comm_reducer) or one compute each"
            )
        kinds = [source.dtype for source in bodies[0].sources]
        if wanted is not None and wanted is not kinds[0]:
            raise DTypeError(f"te.compute was asked for {wanted} and its reduction gives {kinds[0]}: cast the source")
    else:
        bodies = tuple(_plain_body(b, wanted) for b in bodies)
        kinds = [body.dtype for body in bodies]
    op = ComputeOp(name or f"compute{next(_counter)}", sizes, axis, bodies, kinds)
    return op.outputs[0] if len(op.outputs) == 1 else op.outputs


def stage(shape: Any, function: Callable[..., Any], name: str | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """`compute` of one result."""
    made = compute(shape, function, name, dtype)
    assert isinstance(made, Tensor)
    return made


def _plain_body(body: Any, kind: DType | None) -> Expr:
    if kind is None or not kind.is_bool:
        condition(body, "the body of te.compute")
    made = as_expr(body, kind if kind is not None else FLOAT32 if isinstance(body, float) else None)
    if made.dtype.lanes != 1 or made.dtype.kind == "handle":
        raise DTypeError(f"the body of te.compute gives {made.dtype}; it must be one scalar")
    if kind is None or made.dtype is kind:
        return made
    return const(made.value, kind) if isinstance(made, Const) else made.astype(kind)


def scan(init: Any, update: Any, state: Any, inputs: Sequence[Tensor] = (), name: str | None = None) -> Any:
    """A recurrence along the first dimension.

    `state` are placeholders for the whole history, shape (T, …); `init` gives the first rows; `update` (a compute of
    shape (T, …)) gives row t from earlier rows such as state[t - 1, …] and anything else. The result has the shape of
    the state. `inputs` may name what else is read, for the reader: it is found from the expressions.
    """
    inits, updates, states = (tuple(x) if isinstance(x, (list, tuple)) else (x,) for x in (init, update, state))
    if not len(inits) == len(updates) == len(states):
        raise ExpressionError(f"te.scan: {len(inits)} initial states, {len(updates)} updates and {len(states)} states")
    if not states:
        raise ExpressionError("te.scan needs at least one state")
    _check_tensors((*inits, *updates, *states, *inputs), "te.scan")
    for first, step, whole in zip(inits, updates, states):
        _check_state(first, step, whole)
        if not _same_sizes(first.shape[:1], inits[0].shape[:1]) or not _same_sizes(
            whole.shape[:1], states[0].shape[:1]
        ):
            raise ShapeError(f"te.scan: {whole.name} has other steps, or other first rows, than {states[0].name}")
    op = ScanOp(name or f"scan{next(_counter)}", inits, updates, states, states[0].shape[0])
    return op.outputs[0] if len(op.outputs) == 1 else op.outputs


def _check_tensors(given: Sequence[Any], what: str) -> None:
    for one in given:
        if not isinstance(one, Tensor):
            raise ExpressionError(f"{what} takes tensors, not {one!r}")


def _same_sizes(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    return len(a) == len(b) and all(structural_equal(x, y) for x, y in zip(a, b))


def _check_state(first: Tensor, step: Tensor, whole: Tensor) -> None:
    if not isinstance(whole.op, PlaceholderOp):
        raise ExpressionError(f"te.scan: the state {whole.name} must be a te.placeholder")
    if not isinstance(step.op, ComputeOp):
        raise ExpressionError(f"te.scan: the update {step.name} must be a te.compute")
    if not first.dtype is step.dtype is whole.dtype:
        raise DTypeError(f"te.scan: dtypes differ: {first.dtype}, {step.dtype}, {whole.dtype}")
    if not len(first.shape) == len(step.shape) == len(whole.shape) >= 1:
        raise ShapeError(f"te.scan: ranks of {first.name}, {step.name} and {whole.name} differ, or are 0")
    if not _same_sizes(step.shape, whole.shape):
        raise ShapeError(f"te.scan: the shapes of {step.name} and {whole.name} differ")
    rows, steps = int_value(first.shape[0]), int_value(whole.shape[0])
    if rows is None:
        raise ShapeError(f"te.scan: the first dimension of {first.name} must be a constant")
    if not _same_sizes(first.shape[1:], whole.shape[1:]):
        raise ShapeError(f"te.scan: the shapes of {first.name} and {whole.name} differ after the first dimension")
    if rows < 1:
        raise ShapeError(f"te.scan: {first.name} must give at least one first row")
    if steps is not None and rows > steps:
        raise ShapeError(f"te.scan: {first.name} has more first rows ({rows}) than {whole.name} has steps ({steps})")


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    function: Callable[[Sequence[Tensor], Sequence[Tensor]], Any],
    name: str | None = None,
    dtype: Any = "float32",
) -> Any:
    """Tensors written by a statement (or a call) that `function(inputs, outputs)` builds from the buffers."""
    label = name or f"extern{next(_counter)}"
    if not callable(function):
        raise ExpressionError(f"te.extern takes a function of the inputs and outputs, not {function!r}")
    _check_tensors(inputs, "te.extern")
    several = isinstance(shape, (list, tuple)) and len(shape) > 0 and isinstance(shape[0], (list, tuple))
    shapes = [shape_of(s) for s in (shape if several else [shape])]
    kinds = [_dtype(d) for d in (dtype if isinstance(dtype, (list, tuple)) else [dtype] * len(shapes))]
    if len(kinds) != len(shapes):
        raise ExpressionError(f"te.extern {label}: {len(shapes)} shapes and {len(kinds)} dtypes")
    op = ExternOp(label, kinds, shapes, inputs)
    op.statement = as_stmt(function(list(inputs), list(op.outputs)))
    return op.outputs[0] if len(op.outputs) == 1 else op.outputs


def as_stmt(value: Any) -> Stmt:
    """A statement, a call, or a list of these as one statement."""
    if isinstance(value, Stmt):
        return value
    if isinstance(value, Expr):
        return Evaluate(value)
    if isinstance(value, (list, tuple)):
        if not value:
            raise ExpressionError("the function gives no statement")
        return seq(*[as_stmt(v) for v in value])
    raise ExpressionError(f"expected a statement or a call, not {value!r}")


def access_ptr(tensor: Tensor, mode: str = "rw", indices: Sequence[ExprLike] | None = None) -> Address:
    """The address of a tensor's first (or given) element, for the argument of a call; mode is "r", "w" or "rw"."""
    _check_tensors([tensor], "te.access_ptr")
    if mode not in ("r", "w", "rw"):
        raise ExpressionError(f"the mode of te.access_ptr is 'r', 'w' or 'rw', not {mode!r}")
    if indices is not None and len(indices) != len(tensor.shape):
        raise ShapeError(f"{tensor.name} has {len(tensor.shape)} dimensions and was indexed with {len(indices)}")
    at = [index_expr(0)] * len(tensor.shape) if indices is None else [index_expr(i) for i in indices]
    return Address(tensor, at, mode)


def call_extern(name: str, *args: Any, dtype: DTypeLike = "int32") -> Call:
    """A call of a C function by its symbol; tensors pass the address of their first element."""
    kind = dtype_of(dtype)
    if kind.lanes != 1 or kind.is_packed:
        raise DTypeError(f"a C function cannot give {kind}")
    if not isinstance(name, str) or not name.isidentifier():
        raise ExpressionError(f"{name!r} cannot be the name of a C function")
    return Call(f"extern:{name}", [_argument(a) for a in args], kind)


def _argument(value: Any) -> Expr:
    return access_ptr(value) if isinstance(value, Tensor) else as_expr(value)


def hardware_intrin(name: str, *args: Any) -> Call:
    """A call of a hardware instruction by name, for the lowering rule of a tensor intrinsic."""
    return Call(name, [_argument(a) for a in args], INT32)


# ---------------------------------------------------------------------------------------------------- broadcasting


def broadcast_shapes(*shapes: Sequence[ExprLike]) -> tuple[Expr, ...]:
    """The shape that numpy's broadcasting gives; symbolic sizes must be equal expressions or meet a 1."""
    given = [shape_of(s) for s in shapes]
    rank = max((len(s) for s in given), default=0)
    out: list[Expr] = []
    for position in range(rank):
        size = index_expr(1)
        for shape in given:
            at = position - (rank - len(shape))
            if at < 0 or int_value(shape[at]) == 1 or structural_equal(size, shape[at]):
                continue
            if int_value(size) != 1:
                raise ShapeError(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
            size = shape[at]
        out.append(size)
    return tuple(out)


def broadcast_read(tensor: Tensor, indices: Sequence[ExprLike], whole: Sequence[ExprLike] | None = None) -> Expr:
    """The element of a tensor that broadcasting brings to an index of the result, whose shape is `whole`."""
    _check_tensors([tensor], "broadcasting")
    if len(indices) < len(tensor.shape):
        raise ShapeError(f"{tensor.name} has {len(tensor.shape)} dimensions, which do not broadcast to {len(indices)}")
    last = [index_expr(i) for i in indices][len(indices) - len(tensor.shape) :]
    sizes = [None] * len(last) if whole is None else list(whole)[len(indices) - len(tensor.shape) :]
    return tensor[tuple(map(broadcast_index, tensor.shape, last, sizes))]


def broadcast_index(size: ExprLike, index: Expr, whole: ExprLike | None = None) -> Expr:
    """Where along a dimension the element stands that broadcasting brings to an index: at 0 where the size is 1.

    `whole` is the size of the result: a size that is no number, and surely not that one, is asked when it runs.
    """
    number = int_value(size) if isinstance(size, Expr) else size
    if number is not None or whole is None or structural_equal(index_expr(size), index_expr(whole)):
        return index_expr(0) if number == 1 else index
    return if_then_else(equal(index_expr(size), index_expr(1)), index_expr(0), index)


def broadcast_to(tensor: Tensor, shape: Any, name: str | None = None) -> Tensor:
    """A tensor broadcast to a shape."""
    _check_tensors([tensor], "te.broadcast_to")
    wanted = shape_of(shape)
    if not _same_sizes(broadcast_shapes(tensor.shape, wanted), wanted):
        raise ShapeError(f"shapes {list(tensor.shape)} and {list(wanted)} do not broadcast to the latter")
    made = compute(wanted, lambda *i: broadcast_read(tensor, i), name=name or f"{tensor.name}_broadcast")
    assert isinstance(made, Tensor)
    return made


def elementwise(function: Callable[..., Any], *tensors: Tensor, name: str | None = None) -> Tensor:
    """A function of the elements of tensors, broadcast against each other."""
    _check_tensors(tensors, "te.elementwise")
    sizes = broadcast_shapes(*[t.shape for t in tensors])
    made = compute(sizes, lambda *i: function(*[broadcast_read(t, i) for t in tensors]), name=name)
    if not isinstance(made, Tensor):
        raise ExpressionError("the function of te.elementwise gives several values: use te.compute")
    return made

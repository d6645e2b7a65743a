"""The constructors of tensor expressions: placeholder, compute, reduce_axis, scan, extern, and broadcasting helpers."""

from __future__ import annotations

import inspect
import itertools
from typing import Any, Callable, Sequence

from weft.core.dtypes import FLOAT32, INT32, DType, DTypeLike, dtype
from weft.core.errors import ExpressionError, ShapeError
from weft.expr.nodes import Address, Call, Const, Expr, ExprLike, as_expr, const, index_expr, int_value, sub
from weft.expr.visit import free_vars
from weft.loop.ir import THREAD_TAGS, Evaluate, Stmt, seq
from weft.te.reduce import Reduce
from weft.te.tensor import ComputeOp, ExternOp, IterVar, PlaceholderOp, ScanOp, Tensor, shape_of

_counter = itertools.count()


def placeholder(shape: Any, dtype: DTypeLike = "float32", name: str | None = None) -> Tensor:
    """A tensor that the caller of the compiled function gives."""
    op = PlaceholderOp(name or f"placeholder{next(_counter)}")
    op._make_outputs([(op.name, _dtype(dtype), shape_of(shape))])
    return op.outputs[0]


def _dtype(like: DTypeLike) -> DType:
    kind = dtype(like)
    if kind.lanes != 1 or kind.kind == "handle":
        raise ExpressionError(f"a tensor cannot have elements of {kind}")
    return kind


def reduce_axis(dom: Any, name: str = "k") -> IterVar:
    """An axis to reduce over: `reduce_axis((0, 1024))` or `reduce_axis(1024)`."""
    if isinstance(dom, (tuple, list)):
        if len(dom) != 2 or int_value(dom[0]) != 0:
            raise ExpressionError(f"a reduce axis runs from 0: give (0, extent), not {dom!r}; add the offset in the expression")
        dom = dom[1]
    return IterVar(name, shape_of(dom)[0], "reduce")


def thread_axis(dom: Any = None, tag: str | None = None, name: str | None = None) -> IterVar:
    """A thread axis to bind a loop to: `thread_axis("threadIdx.x")` or `thread_axis((0, 16), "threadIdx.x")`."""
    if isinstance(dom, str) and tag is None:
        dom, tag = None, dom
    if tag is not None and tag.startswith(("vthread", "cthread")):
        tag = "vthread"
    if tag not in THREAD_TAGS:
        raise ExpressionError(f"unknown thread axis {tag!r}; known are {', '.join(THREAD_TAGS)}")
    if isinstance(dom, (tuple, list)):
        dom = dom[1]
    return IterVar(name or tag.replace(".", "_"), dom, "thread", tag)


def _axis_names(function: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [f"i{i}" for i in range(count)]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(names) > count or (len(names) < count and not variadic):
        raise ExpressionError(f"the function of te.compute takes {len(names)} indices for a shape of {count} dimensions")
    return names + [f"i{i}" for i in range(len(names), count)]


def compute(
    shape: Any, function: Callable[..., Any], name: str | None = None, dtype: DTypeLike | None = None
) -> Any:
    """A tensor whose element at each index is given by the function; a tuple of results gives several tensors.

    `te.compute((m, n), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k))`
    """
    sizes = shape_of(shape)
    axis = [IterVar(n, size, "spatial") for n, size in zip(_axis_names(function, len(sizes)), sizes)]
    result = function(*[a.var for a in axis])
    bodies = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if not bodies:
        raise ExpressionError("the function of te.compute gives no value")
    reductions = [b for b in bodies if isinstance(b, Reduce)]
    if reductions and len(bodies) > 1:
        raise ExpressionError(
            "several reductions in one te.compute: use a reducer over a tuple (te.comm_reducer) or one compute each"
        )
    if reductions:
        kinds = [source.dtype for source in reductions[0].sources]
        if dtype is not None and _dtype(dtype) is not kinds[0]:
            raise ExpressionError(f"te.compute was asked for {dtype} and its reduction gives {kinds[0]}: cast the source")
    else:
        bodies = tuple(_plain_body(b, None if dtype is None else _dtype(dtype)) for b in bodies)
        kinds = [body.dtype for body in bodies]
    op = ComputeOp(name or f"compute{next(_counter)}", sizes, axis, bodies, kinds)
    op.reduce_axis = reductions[0].axes if reductions else ()
    return op.outputs[0] if len(op.outputs) == 1 else op.outputs


def _plain_body(body: Any, kind: DType | None) -> Expr:
    made = as_expr(body, kind if kind is not None else FLOAT32 if isinstance(body, float) else None)
    if made.dtype.lanes != 1 or made.dtype.kind == "handle":
        raise ExpressionError(f"the body of te.compute gives {made.dtype}; it must be one scalar")
    if kind is not None and made.dtype is not kind:
        return Const(const(made.value, kind).value, kind) if type(made) is Const else made.astype(kind)  # type: ignore[attr-defined]
    return made


def scan(
    init: Any, update: Any, state: Any, inputs: Sequence[Tensor] = (), name: str | None = None
) -> Any:
    """A recurrence along the first dimension.

    `state` are placeholders for the whole history, shape (T, …); `init` gives the first rows; `update` (a compute of
    shape (T, …)) gives row t from state[t - 1] and anything else. The result has the shape of the state.
    """
    inits, updates, states = (tuple(x) if isinstance(x, (list, tuple)) else (x,) for x in (init, update, state))
    if not len(inits) == len(updates) == len(states):
        raise ExpressionError(f"te.scan: {len(inits)} initial states, {len(updates)} updates and {len(states)} states")
    for first, step, whole in zip(inits, updates, states):
        if not isinstance(whole.op, PlaceholderOp):
            raise ExpressionError(f"te.scan: the state {whole.name} must be a te.placeholder")
        if not isinstance(step.op, ComputeOp):
            raise ExpressionError(f"te.scan: the update {step.name} must be a te.compute")
        if not first.dtype is step.dtype is whole.dtype:
            raise ExpressionError(f"te.scan: dtypes differ: {first.dtype}, {step.dtype}, {whole.dtype}")
        if not len(first.shape) == len(step.shape) == len(whole.shape) >= 1:
            raise ShapeError(f"te.scan: ranks of {first.name}, {step.name} and {whole.name} differ")
        if int_value(first.shape[0]) is None:
            raise ShapeError(f"te.scan: the first dimension of {first.name} must be a constant")
        for a, b in zip(step.shape, whole.shape):
            if a is not b and int_value(a) != int_value(b):
                raise ShapeError(f"te.scan: the shapes of {step.name} and {whole.name} differ")
    op = ScanOp(name or f"scan{next(_counter)}", inits, updates, states, states[0].shape[0])
    return op.outputs[0] if len(op.outputs) == 1 else op.outputs


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    function: Callable[[Sequence[Tensor], Sequence[Tensor]], Any],
    name: str | None = None,
    dtype: Any = "float32",
) -> Any:
    """Tensors written by a statement (or a call) that `function(inputs, outputs)` builds from the buffers."""
    label = name or f"extern{next(_counter)}"
    several = isinstance(shape, (list, tuple)) and len(shape) > 0 and isinstance(shape[0], (list, tuple))
    shapes = [shape_of(s) for s in (shape if several else [shape])]
    kinds = [_dtype(d) for d in (dtype if isinstance(dtype, (list, tuple)) else [dtype] * len(shapes))]
    if len(kinds) != len(shapes):
        raise ExpressionError(f"te.extern {label}: {len(shapes)} shapes and {len(kinds)} dtypes")
    names = [label] if len(shapes) == 1 else [f"{label}_v{i}" for i in range(len(shapes))]
    op = ExternOp(label, list(zip(names, kinds, shapes)), inputs)
    op.statement = as_stmt(function(list(inputs), list(op.outputs)))
    return op.outputs[0] if len(op.outputs) == 1 else op.outputs


def as_stmt(value: Any) -> Stmt:
    """A statement, a call, or a list of these as one statement."""
    if isinstance(value, Stmt):
        return value
    if isinstance(value, Expr):
        return Evaluate(value)
    if isinstance(value, (list, tuple)):
        return seq(*[as_stmt(v) for v in value])
    raise ExpressionError(f"expected a statement or a call, not {value!r}")


def access_ptr(tensor: Tensor, mode: str = "rw", indices: Sequence[ExprLike] | None = None) -> Address:
    """The address of a tensor's first (or given) element, for the argument of a call."""
    at = [index_expr(0)] * len(tensor.shape) if indices is None else [index_expr(i) for i in indices]
    return Address(tensor, at, mode)


def call_extern(name: str, *args: Any, dtype: DTypeLike = "int32") -> Call:
    """A call of a C function by its symbol; tensors pass the address of their first element."""
    return Call(f"extern:{name}", [access_ptr(a) if isinstance(a, Tensor) else as_expr(a) for a in args], _dtype(dtype))


def hardware_intrin(name: str, *args: Any) -> Call:
    """A call of a hardware instruction by name, for the lowering rule of a tensor intrinsic."""
    return Call(name, [access_ptr(a) if isinstance(a, Tensor) else as_expr(a) for a in args], INT32)


# ---------------------------------------------------------------------------------------------------- broadcasting


def broadcast_shapes(*shapes: Sequence[ExprLike]) -> tuple[Expr, ...]:
    """The shape that numpy's broadcasting gives; symbolic sizes must be the same variable or meet a 1."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Expr] = []
    for position in range(rank):
        size = index_expr(1)
        for shape in shapes:
            at = position - (rank - len(shape))
            if at < 0 or int_value(shape[at]) == 1:
                continue
            other = index_expr(shape[at])
            if int_value(size) == 1:
                size = other
            elif size is not other and (int_value(size) is None or int_value(size) != int_value(other)):
                raise ShapeError(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
        out.append(size)
    return tuple(out)


def broadcast_read(tensor: Tensor, indices: Sequence[ExprLike]) -> Expr:
    """The element of a tensor that broadcasting brings to an index of the result."""
    last = [index_expr(i) for i in indices][len(indices) - len(tensor.shape) :]
    return tensor[tuple(index_expr(0) if int_value(s) == 1 else i for s, i in zip(tensor.shape, last))]


def broadcast_to(tensor: Tensor, shape: Any, name: str | None = None) -> Tensor:
    """A tensor broadcast to a shape."""
    sizes = broadcast_shapes(tensor.shape, shape_of(shape))
    made = compute(sizes, lambda *i: broadcast_read(tensor, i), name=name or f"{tensor.name}_broadcast")
    assert isinstance(made, Tensor)
    return made


def elementwise(function: Callable[..., Any], *tensors: Tensor, name: str | None = None) -> Tensor:
    """A function of the elements of tensors, broadcast against each other."""
    sizes = broadcast_shapes(*[t.shape for t in tensors])
    made = compute(sizes, lambda *i: function(*[broadcast_read(t, i) for t in tensors]), name=name)
    assert isinstance(made, Tensor)
    return made


def size_of(tensor: Tensor) -> Expr:
    """The number of elements of a tensor."""
    total = index_expr(1)
    for s in tensor.shape:
        total = total * s
    return total


def is_constant_shape(shape: Sequence[Expr]) -> bool:
    """Whether no size of a shape is symbolic."""
    return not free_vars(*shape)


__all__ = [
    "access_ptr", "as_stmt", "broadcast_read", "broadcast_shapes", "broadcast_to", "call_extern", "compute",
    "elementwise", "extern", "hardware_intrin", "is_constant_shape", "placeholder", "reduce_axis", "scan", "size_of",
    "sub", "thread_axis",
]  # fmt: skip

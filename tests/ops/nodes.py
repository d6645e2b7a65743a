"""Runs one node, made on the spot, through infer, evaluate and compute, and checks that the three agree."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import weft
import weft.ops  # noqa: F401  (fills the table of operators)
from weft import te
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Expr, Var
from weft.expr.visit import free_vars
from weft.graph.ir import Graph, Node, TensorType, Value, dtype_name
from weft.graph.opspec import Compute, Infer, find_operator
from weft.ops.tensors import tensors_of
from weft.runtime.model.module import HostWarning


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Random data: normal floats, or integers over the whole range of a short type."""
    generator = np.random.default_rng(seed)
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return generator.integers(max(limits.min, -1000), min(limits.max, 1000) + 1, shape).astype(dtype)
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def make(op: str, inputs: int, outputs: int, attributes: dict[str, Any], domain: str = "") -> Node:
    """A node of an operator, with values named in order."""
    given: list[Value | None] = [Value(f"in{i}") for i in range(inputs)]
    return Node(op, given, [Value(f"out{i}") for i in range(outputs)], attributes, name="test", domain=domain)


def run_node(
    op: str,
    *arrays: Any,
    outputs: int = 1,
    known: tuple[int, ...] | None = None,
    domain: str = "",
    build: bool = True,
    **attributes: Any,
) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """What evaluate gives, and what the compiled form gives (None: there is none). `known`: inputs with a value."""
    node = make(op, len(arrays), outputs, attributes, domain)
    spec = find_operator(op, domain)
    assert spec is not None, op
    types = [None if a is None else TensorType(dtype_name(a.dtype), a.shape) for a in arrays]
    known = spec.shape_inputs if known is None else (*known, *spec.shape_inputs)
    values = [a if i in known else None for i, a in enumerate(arrays)]
    inferred = spec.types(Infer(node, types, values))
    made = spec.run(node, arrays)
    assert len(made) == len(inferred) == outputs
    for got, kind in zip(made, inferred):
        assert isinstance(kind, TensorType)
        assert dtype_name(got.dtype) == kind.dtype and got.shape == kind.static, (got.dtype, got.shape, kind)
    if build and spec.compute is None and spec.expand is not None:
        return made, run_expanded(node, arrays, types, values)
    return made, _compiled(spec, node, arrays, types, inferred, values) if build else None


def run_expanded(node: Node, arrays: Any, types: Any, values: Any) -> list[np.ndarray] | None:
    """What a node gives that is made of others; None where some of it runs on the host."""
    inputs = [None if kind is None else Value(f"in{at}", kind) for at, kind in enumerate(types)]
    known = {one: array for one, array in zip(inputs, values) if one is not None and array is not None}
    outputs = [Value(f"out{at}") for at in range(len(node.outputs))]
    free = [(one, array) for one, array in zip(inputs, arrays) if one is not None and one not in known]
    whole = [node.replace(inputs=inputs, outputs=outputs)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostWarning)
        try:
            module = weft.compile(Graph("main", [one for one, _ in free], outputs, whole, known))
            return module.run(None, {one.name: array for one, array in free})
        except HostWarning:
            return None


def _compiled(spec: Any, node: Node, arrays: Any, types: Any, inferred: Any, values: Any) -> list[np.ndarray] | None:
    tensors = [
        None if a is None or i in spec.shape_inputs else te.placeholder(t.static, t.core, name=f"in{i}")
        for i, (a, t) in enumerate(zip(arrays, types))
    ]
    outs = tensors_of(spec, Compute(node, types, inferred, values), tensors)
    if outs is None:
        return None
    for out, kind in zip(outs, inferred):
        assert str(out.dtype) == kind.dtype, (out.dtype, kind)
    schedule = te.create_schedule([o.op for o in outs])
    used = [b for b in schedule.func.buffers if b in tensors]
    results = [np.zeros(k.static, k.numpy) for k in inferred]
    buffers = {t: a for t, a in zip(tensors, arrays) if t is not None}
    weft.build(schedule, [*used, *outs])(*[np.array(buffers[b], order="C") for b in used], *results)
    return results


def check_node(op: str, arrays: Any, wanted: Any, rtol: float = 1e-4, atol: float = 1e-4, **options: Any) -> None:
    """Both meanings against the wanted outputs; a compiled form must be there (unless `build` is False)."""
    results = [np.asarray(w) for w in (wanted if isinstance(wanted, (list, tuple)) else [wanted])]
    host, compiled = run_node(op, *arrays, outputs=len(results), **options)
    assert compiled is not None or not options.get("build", True), f"{op} has no compiled form for this use"
    for label, made in (("evaluate", host), ("compute", compiled)):
        for got, want in zip(made or [], results):
            assert got.shape == want.shape, (label, got.shape, want.shape)
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, err_msg=f"{op} {label}"
            )


def check_symbolic(
    op: str, arrays: Any, names: dict[tuple[int, int], str], outputs: int = 1, **attributes: Any
) -> None:
    """Inference with named sizes, and the real sizes put in afterwards, gives the shapes of the real result."""
    node = make(op, len(arrays), outputs, attributes)
    spec = find_operator(op)
    assert spec is not None
    variables = {name: Var(name) for name in names.values()}
    sizes = {variables[name]: arrays[i].shape[d] for (i, d), name in names.items()}
    types = [
        TensorType(
            dtype_name(a.dtype), [variables[names[i, d]] if (i, d) in names else s for d, s in enumerate(a.shape)]
        )
        for i, a in enumerate(arrays)
    ]
    inferred = spec.types(Infer(node, types, [None] * len(arrays)))
    for got, kind in zip(spec.run(node, arrays), inferred):
        assert isinstance(kind, TensorType)
        found = [_number(d, sizes) for d in kind.dims]
        assert tuple(found) == got.shape, (kind, got.shape)


def _number(dim: int | Expr, sizes: dict[Var, int]) -> int:
    if isinstance(dim, int):
        return dim
    assert set(free_vars(dim)) <= set(sizes), f"{dim!r} has sizes that no input has"
    return int(evaluate(dim, sizes))

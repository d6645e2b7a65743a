"""Einsum: any equation, with ellipsis and repeated indices.

An equation is brought to terms of labels, one label for each dimension; the dimensions of an ellipsis get labels of
their own. Operands are multiplied from left to right; a label is summed as soon as nothing that follows has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.ops.convolution import exact_type, sizes_of
from weft.ops.products import cast_to, sum_type

Term = tuple[str, ...]


def parse_equation(use: Use, equation: str, ranks: Sequence[int]) -> tuple[list[Term], Term]:
    """The labels of each operand's dimensions and of the result's; an ellipsis has labels "…1", "…2" from the right."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    given = left.split(",")
    if len(given) != len(ranks):
        raise use.error(f"the equation {equation!r} has {len(given)} terms for {len(ranks)} inputs")
    widest = 0
    terms: list[Term] = []
    for term, rank in zip(given, ranks):
        letters = term.replace("...", "")
        if not (letters.isalpha() or letters == "") or term.count("...") > 1:
            raise use.error(f"the term {term!r} of the equation {equation!r} is not letters with at most one ellipsis")
        hidden = rank - len(letters)
        if hidden < 0 or (hidden and "..." not in term):
            raise use.error(f"the term {term!r} does not fit an input of {rank} dimensions")
        if "..." in term:
            widest = max(widest, hidden)
        terms.append(_labels(term, hidden))
    if arrow:
        result = _labels(right, widest)
    else:
        every = [label for term in terms for label in term if not label.startswith("…")]
        result = (*_labels("...", widest), *sorted(label for label in set(every) if every.count(label) == 1))
    known = {label for term in terms for label in term}
    if not set(result) <= known or len(set(result)) != len(result):
        raise use.error(f"the result of the equation {equation!r} names an index that no input has, or one twice")
    return terms, result


def _labels(term: str, hidden: int) -> Term:
    head, dots, tail = term.partition("...")
    return (*head, *[f"…{i}" for i in range(hidden, 0, -1)], *tail) if dots else tuple(head)


def label_sizes(use: Use, terms: Sequence[Term], shapes: Sequence[Sequence[Dim]]) -> dict[str, Dim]:
    """The size of each label; a size of 1 broadcasts."""
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes):
        for label, size in zip(term, shape):
            old = sizes.get(label, 1)
            if isinstance(old, int) and isinstance(size, int) and old != size and 1 not in (old, size):
                raise use.error(f"the index {label!r} is {old} in one input and {size} in another")
            if label not in sizes or (isinstance(old, int) and old == 1):
                sizes[label] = size
            elif isinstance(size, int) and size != 1:
                sizes[label] = size
    return sizes


def _infer(c: Infer) -> list[Type]:
    inputs = [c.tensor(i) for i in range(len(c.types))]
    if any(t.shape is None for t in inputs):
        return [TensorType(inputs[0].dtype, None)]
    shapes = [t.dims for t in inputs]
    terms, result = parse_equation(c, c.need("equation"), [len(s) for s in shapes])
    sizes = label_sizes(c, terms, shapes)
    return [TensorType(inputs[0].dtype, [sizes[label] for label in result])]


def _evaluate(c: Evaluate, *arrays: Array) -> Array:
    terms, result = parse_equation(c, c.need("equation"), [a.ndim for a in arrays])
    names: dict[str, int] = {}
    for term in terms:
        for label in term:
            names.setdefault(label, len(names))
    kind = arrays[0].dtype
    wide = np.dtype(np.float32) if exact_type(str(kind)) and kind.kind not in "iu" else kind
    operands: list[Any] = []
    for array, term in zip(arrays, terms):
        operands += [array.astype(wide), [names[label] for label in term]]
    made = np.einsum(*operands, [names[label] for label in result], optimize=len(arrays) > 1)
    return np.asarray(np.asarray(made).astype(kind))


def _contract(
    operands: Sequence[tuple[te.Tensor, Term]], keep: Term, sizes: dict[str, int], kind: str
) -> tuple[te.Tensor, Term]:
    """The product of one or two operands, summed over every label that is not kept."""
    summed = [label for label in dict.fromkeys(x for _, term in operands for x in term) if label not in keep]
    axes = {label: te.reduce_axis(sizes[label], f"k{i}") for i, label in enumerate(summed)}

    def body(*at: Expr) -> Any:
        place = {**dict(zip(keep, at)), **{label: axis.var for label, axis in axes.items()}}
        value: Expr | None = None
        for tensor, term in operands:
            shape = sizes_of(tensor)
            index = [te.const(0) if size == 1 else place[label] for label, size in zip(term, shape)]
            element = tensor[tuple(index)].astype(kind)
            value = element if value is None else value * element
        return te.sum(value, axis=list(axes.values())) if axes else value

    made = te.stage(tuple(sizes[label] for label in keep), lambda *at: body(*at), name="einsum")
    return made, keep


def _compute(c: Compute, *tensors: te.Tensor) -> te.Tensor | None:
    shapes = [c.shape(i) for i in range(len(tensors))]
    terms, result = parse_equation(c, c.need("equation"), [len(s) for s in shapes])
    sizes = {label: int(size) for label, size in label_sizes(c, terms, shapes).items() if isinstance(size, int)}
    kind = sum_type(c.outputs[0].dtype)
    left: tuple[te.Tensor, Term] = (tensors[0], terms[0])
    if len(tensors) == 1:
        return cast_to(_contract([left], result, sizes, kind)[0], c.outputs[0].dtype)
    for position in range(1, len(tensors)):
        later = {label for term in terms[position + 1 :] for label in term} | set(result)
        right = (tensors[position], terms[position])
        keep = (
            result
            if position == len(tensors) - 1
            else tuple(label for label in dict.fromkeys((*left[1], *right[1])) if label in later)
        )
        left = _contract([left, right], keep, sizes, kind)
    return cast_to(left[0], c.outputs[0].dtype)


register("Einsum", _infer, _evaluate, _compute, "complex", takes="inputs:number, more:inputs?, ...", traits="heavy")

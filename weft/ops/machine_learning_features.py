"""Operators of ai.onnx.ml that prepare features and name results: scaling, encoding, imputing, mapping."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, Dim, SequenceType, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import plus, unknown_dim
from weft.graph.signature import OneOf
from weft.ops.elementwise_support import infer_same
from weft.ops.expansion import Builder
from weft.ops.machine_learning_scores import DOMAIN, compose
from weft.ops.strings import strings, text


def _float_like(c: Infer) -> list[Type]:
    return [TensorType("float32", c.tensor(0).shape)]


# ------------------------------------------------------------------------------------------ Scaler, Normalizer, …


def _scaler(b: Builder, x: Value) -> Value:
    """A difference and a product."""
    offset, scale = (np.asarray(b.get(k) or d, np.float32) for k, d in (("offset", [0.0]), ("scale", [1.0])))
    if any(array.size not in (1, *b.dims(x)[-1:]) for array in (offset, scale)):
        raise b.error(f"{offset.size} offsets and {scale.size} scales for {x.type!r}")
    return b("Mul", b("Sub", b.cast(x, "float32"), b.constant(offset, None)), b.constant(scale, None))


_NORMS = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}


def _normalizer(b: Builder, x: Value) -> Value:
    """A quotient; rows whose norm is zero stay as they are."""
    rows, norm = b.cast(x, "float32"), str(b.get("norm", "MAX"))
    size = b(_NORMS[norm], rows, b.constant([-1], np.int64), keepdims=1)
    zero, one = b.constant(0.0, np.float32), b.constant(1.0, np.float32)
    return b("Div", rows, b("Where", b("Equal", size, zero), one, size))


def _binarizer(b: Builder, x: Value) -> Value:
    """A comparison."""
    return b.cast(b("Greater", x, b.constant(b.get("threshold", 0.0), x.tensor.numpy)), x.tensor.dtype)


def _imputer(b: Builder, x: Value) -> Value:
    """A choice."""
    kind, is_float = x.tensor.numpy, "float" in x.tensor.dtype
    filling = b.get("imputed_value_floats" if is_float else "imputed_value_int64s") or []
    if len(filling) not in (1, *b.dims(x)[-1:]):
        raise b.error(f"{len(filling)} values to fill in for {x.type!r}")
    gap = b.get("replaced_value_float", 0.0) if is_float else b.get("replaced_value_int64", 0)
    holes = b("IsNaN", x) if is_float and np.isnan(gap) else b("Equal", x, b.constant(gap, kind))
    return b("Where", holes, b.constant(filling, kind), x)


compose("Scaler", _scaler, infer=_float_like)
compose("Normalizer", _normalizer, infer=_float_like, requires=(OneOf("norm", tuple(_NORMS)),))
compose("Binarizer", _binarizer, infer=infer_same)
compose("Imputer", _imputer, infer=infer_same)


# ------------------------------------------------------------------------------------------ choosing and joining


def _extract_infer(c: Infer) -> list[Type]:
    x, chosen = c.tensor(0), c.tensor(1)
    if x.shape is None or chosen.shape is None:
        return [TensorType(x.dtype, None)]
    count: Dim = 1
    for dim in chosen.shape:
        count = dim if isinstance(dim, int) and count == 1 else count if dim == 1 else unknown_dim("features")
    rows = x.shape[:-1] if x.rank > 1 else (1,)
    return [TensorType(x.dtype, (*rows, count))]


def _extract(c: Evaluate, x: Array, chosen: Array) -> Array:
    places = chosen.reshape(-1).astype(np.int64)
    if places.size and not (0 <= places.min() and places.max() < x.shape[-1]):
        raise c.error(f"features {places.tolist()} of {x.shape[-1]}")
    made = np.take(x, places, axis=-1)
    return made.reshape(1, -1) if x.ndim == 1 else made


def _extract_compute(c: Compute, x: te.Tensor, chosen: te.Tensor) -> Any:
    lead = (0,) * (chosen.ndim - 1)
    if chosen.ndim == 0 or any(d != 1 for d in c.shape(1)[:-1]):
        return None

    def read(*i: Any) -> Expr:
        at = index_expr(chosen[(*lead, i[-1])])
        return x[(*i[:-1], at)] if x.ndim > 1 else x[at]

    return te.compute(c.out_shape(), read, name="extract")


register(
    "ArrayFeatureExtractor", _extract_infer, _extract, _extract_compute, "injective", domain=DOMAIN, takes="X, Y:int"
)


def _vectorizer_infer(c: Infer) -> list[Type]:
    rows: Dim = unknown_dim("rows")
    sizes = [int(s) for s in c.get("inputdimensions") or []]
    total: Dim = sum(sizes)
    for position in range(len(c.types)):
        shape = c.tensor(position).shape
        if shape is not None:
            rows = shape[0] if len(shape) > 1 else 1
            if not sizes:
                total = plus(total, shape[-1] if shape else 1)
        elif not sizes:
            total = unknown_dim("features")
    return [TensorType("float32", (rows, total))]


def _vectorizer(c: Evaluate, *arrays: Array) -> Array:
    sizes = [int(s) for s in c.get("inputdimensions") or [np.atleast_2d(a).shape[1] for a in arrays]]
    parts = []
    for array, size in zip(arrays, sizes):
        rows = np.atleast_2d(array).astype(np.float32)[:, :size]
        parts.append(np.pad(rows, ((0, 0), (0, size - rows.shape[1]))))
    return np.concatenate(parts, axis=1)


register("FeatureVectorizer", _vectorizer_infer, _vectorizer, domain=DOMAIN, takes="X:number?, ...")


# ------------------------------------------------------------------------------------------------------- encoders


def _hot_infer(c: Infer) -> list[Type]:
    shape, count = c.tensor(0).shape, len(c.get("cats_strings") or c.get("cats_int64s") or [])
    return [TensorType("float32", None if shape is None else (*shape, count))]


def _hot(c: Evaluate, x: Array) -> Array:
    words, numbers = c.get("cats_strings"), c.get("cats_int64s")
    if x.dtype.kind in "OUS":
        places = {str(w): k for k, w in enumerate(words or [])}
        found = [places.get(text(v), -1) for v in x.reshape(-1)]
    else:
        numbered = {int(n): k for k, n in enumerate(numbers or [])}
        found = [numbered.get(int(v), -1) for v in x.reshape(-1)]
    if not c.get("zeros", 1) and -1 in found:
        raise c.error("a value is none of the categories")
    count = len(words or numbers or [])
    out = np.asarray(np.array(found)[:, None] == np.arange(count)[None, :])
    return out.astype(np.float32).reshape(*x.shape, count)


register("OneHotEncoder", _hot_infer, _hot, domain=DOMAIN, takes="X:number|string")


def _mapper_infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    return [TensorType("int64" if x.dtype == "string" else "string", x.shape)]


def _mapper(c: Evaluate, x: Array) -> Array:
    words, numbers = c.get("cats_strings") or [], [int(n) for n in c.get("cats_int64s") or []]
    if x.dtype.kind in "OUS":
        table = dict(zip(words, numbers))
        found = [table.get(text(v), int(c.get("default_int64", -1))) for v in x.reshape(-1)]
        return np.array(found, np.int64).reshape(x.shape)
    back = dict(zip(numbers, words))
    return strings([back.get(int(v), c.get("default_string", "_Unused")) for v in x.reshape(-1)], x.shape)


register("CategoryMapper", _mapper_infer, _mapper, domain=DOMAIN, takes="X:int64|string")


def _listed(c: Use, side: str) -> Array:
    """The keys or the values of a LabelEncoder."""
    tensor = c.get(f"{side}_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    for name, kind in (("strings", object), ("int64s", np.int64), ("floats", np.float32)):
        found = c.get(f"{side}_{name}")
        if found is not None:
            return np.array(found, kind)
    raise c.error(f"its {side} are missing")


def _label_type(c: Use) -> str:
    kind = _listed(c, "values").dtype
    return "string" if kind.kind in "OUS" else str(kind)


def _label(c: Evaluate, x: Array) -> Array:
    keys, values = _listed(c, "keys"), _listed(c, "values")
    if len(keys) != len(values):
        raise c.error(f"{len(keys)} keys and {len(values)} values")
    is_text = values.dtype.kind in "OUS"
    other = c.get("default_tensor")
    if other is not None:
        default: Any = np.asarray(other).reshape(-1)[0]
    elif is_text:
        default = c.get("default_string", "_Unused")
    else:
        default = c.get("default_float", -0.0) if values.dtype.kind == "f" else c.get("default_int64", -1)
    table = {_key(k): v for k, v in zip(keys.tolist(), values.tolist())}
    found = [table.get(_key(v), default) for v in x.reshape(-1).tolist()]
    return strings([text(v) for v in found], x.shape) if is_text else np.array(found, values.dtype).reshape(x.shape)


def _key(value: Any) -> Any:
    """A key of the table: NaN finds NaN, and bytes their text."""
    if isinstance(value, float) and value != value:
        return "NaN", None
    return value.decode() if isinstance(value, bytes) else value


register(
    "LabelEncoder",
    lambda c: [TensorType(_label_type(c), c.tensor(0).shape)],
    _label,
    domain=DOMAIN,
    takes="X:number|string",
)


# ------------------------------------------------------------------------------------------------------------ maps


def _dictionary_infer(c: Infer) -> list[Type]:
    names = c.get("string_vocabulary") or c.get("int64_vocabulary") or []
    return [TensorType("float32", (1, len(names)))]


def _dictionary(c: Evaluate, given: dict[Any, Any]) -> Array:
    names = c.get("string_vocabulary") or c.get("int64_vocabulary") or []
    values = [given.get(name, "" if _has_text(given) else 0) for name in names]
    if _has_text(given):
        return strings(values, (1, len(values)))
    kind = np.asarray(next(iter(given.values()), np.float32(0))).dtype
    return np.array(values, kind).reshape(1, -1)


def _has_text(given: dict[Any, Any]) -> bool:
    return any(isinstance(v, str) for v in given.values())


register("DictVectorizer", _dictionary_infer, _dictionary, domain=DOMAIN, takes="X")


def _cast_type(c: Use) -> str:
    return {"TO_FLOAT": "float32", "TO_INT64": "int64", "TO_STRING": "string"}[c.get("cast_to", "TO_FLOAT")]


def _cast_infer(c: Infer) -> list[Type]:
    sparse = c.get("map_form", "DENSE") == "SPARSE"
    return [TensorType(_cast_type(c), (1, int(c.get("max_map", 1)) if sparse else unknown_dim("entries")))]


def _cast(c: Evaluate, given: dict[Any, Any]) -> Array:
    keys = sorted(given)
    if c.get("map_form", "DENSE") == "SPARSE":
        size = int(c.get("max_map", 1))
        values: list[Any] = [given.get(k, 0) for k in range(size)]
    else:
        values = [given[k] for k in keys]
    kind = _cast_type(c)
    if kind == "string":
        return strings([text(v) for v in values], (1, len(values)))
    return np.array([float(v) for v in values]).astype(kind).reshape(1, -1)


register("CastMap", _cast_infer, _cast, domain=DOMAIN, takes="X")


def _zip(c: Evaluate, x: Array) -> list[dict[Any, Any]]:
    names = c.get("classlabels_strings") or c.get("classlabels_int64s") or []
    rows = np.atleast_2d(x)
    if rows.shape[1] != len(names):
        raise c.error(f"{rows.shape[1]} scores and {len(names)} labels")
    return [dict(zip(names, row)) for row in rows]


register("ZipMap", lambda c: [SequenceType(TensorType("float32", None))], _zip, domain=DOMAIN, takes="X:number")

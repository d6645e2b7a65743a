"""Operators on strings (object arrays of str): StringConcat, StringNormalizer, StringSplit, RegexFullMatch,
TfIdfVectorizer; and ImageDecoder, whose input is the text of a file as bytes."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Evaluate, Infer, Use, register
from weft.graph.shapes import broadcast, unknown_dim
from weft.graph.signature import Between, OneOf


def strings(values: list[Any], shape: Any) -> Array:
    """An object array of strings."""
    out = np.empty(len(values), object)
    for position, value in enumerate(values):
        out[position] = value
    return out.reshape(shape)


def text(value: Any) -> str:
    """A string, whatever the array held it as."""
    return value.decode() if isinstance(value, bytes) else str(value)


# ---------------------------------------------------------------------------------------------------- StringConcat


def _concat(c: Evaluate, a: Array, b: Array) -> Array:
    left, right = np.broadcast_arrays(a, b)
    return strings([text(x) + text(y) for x, y in zip(left.reshape(-1), right.reshape(-1))], left.shape)


register(
    "StringConcat",
    lambda c: [TensorType("string", broadcast([c.tensor(0).shape, c.tensor(1).shape], c.error))],
    _concat,
    takes="X:string, Y:string",
)


# ------------------------------------------------------------------------------------------------ StringNormalizer


def _normal_infer(c: Infer) -> list[Type]:
    shape = c.tensor(0).shape
    if shape is None:
        return [TensorType("string", None)]
    if not c.get("stopwords"):
        return [TensorType("string", shape)]
    return [TensorType("string", (*shape[:-1], unknown_dim("words")))]


def _normal(c: Evaluate, x: Array) -> Array:
    if x.ndim == 2 and x.shape[0] != 1:
        raise c.error(f"two dimensions must be (1, words), not {list(x.shape)}")
    words = [text(w) for w in x.reshape(-1)]
    stop, sensitive = list(c.get("stopwords") or []), bool(c.get("is_case_sensitive", 0))
    if sensitive:
        kept = [w for w in words if w not in set(stop)]
    else:
        lower = {s.lower() for s in stop}
        kept = [w for w in words if w.lower() not in lower]
    change = c.get("case_change_action", "NONE")
    if change not in ("NONE", "LOWER", "UPPER"):
        raise c.error(f"unknown case_change_action {change!r}")
    kept = [w.lower() if change == "LOWER" else w.upper() if change == "UPPER" else w for w in kept]
    if not kept and (stop or not words):
        kept = [""]  # nothing left is one empty string
    return strings(kept, (1, len(kept)) if x.ndim == 2 else (len(kept),))


register("StringNormalizer", _normal_infer, _normal, takes="X:string[_]|[_ _]")


# ----------------------------------------------------------------------------------------------------- StringSplit


def _split_infer(c: Infer) -> list[Type]:
    shape = c.tensor(0).shape
    if shape is None:
        return [TensorType("string", None), TensorType("int64", None)]
    return [TensorType("string", (*shape, unknown_dim("pieces"))), TensorType("int64", shape)]


def _split(c: Evaluate, x: Array) -> tuple[Array, Array]:
    delimiter, most = c.get("delimiter") or None, c.get("maxsplit")
    rows = [text(v).split(delimiter, -1 if most is None else int(most)) for v in x.reshape(-1)]
    if delimiter is not None:
        rows = [[] if text(v) == "" else row for v, row in zip(x.reshape(-1), rows)]
    width = max((len(row) for row in rows), default=0)
    flat = [piece for row in rows for piece in (*row, *[""] * (width - len(row)))]
    return strings(flat, (*x.shape, width)), np.array([len(r) for r in rows], np.int64).reshape(x.shape)


register("StringSplit", _split_infer, _split, takes="X:string")


# -------------------------------------------------------------------------------------------------- RegexFullMatch


def _match(c: Evaluate, x: Array) -> Array:
    try:
        pattern = re.compile(c.get("pattern", ""))
    except re.error as problem:
        raise c.error(f"the pattern {c.get('pattern')!r} is no regular expression: {problem}") from None
    found = [pattern.fullmatch(text(v)) is not None for v in x.reshape(-1)]
    return np.array(found, bool).reshape(x.shape)


def _match_infer(c: Infer) -> list[Type]:
    return [TensorType("bool", c.tensor(0).shape)]


# A pattern may ask for steps without end: that is for who runs the model to want, not for who compiles it.
register("RegexFullMatch", _match_infer, _match, takes="X:string", steps=lambda node, arrays: 1 << 62)


# ------------------------------------------------------------------------------------------------- TfIdfVectorizer


def _grams(c: Use) -> dict[int, dict[tuple[Any, ...], int]]:
    """For each length of n-gram: the n-grams of the pool, and the output column of each."""
    pool: list[Any] = list(c.get("pool_strings") or c.get("pool_int64s") or [])
    starts, columns = [int(s) for s in c.need("ngram_counts")], [int(i) for i in c.need("ngram_indexes")]
    found: dict[int, dict[tuple[Any, ...], int]] = {}
    number = 0
    for position, start in enumerate(starts):
        length = position + 1
        end = starts[position + 1] if length < len(starts) else len(pool)
        if not 0 <= start <= end <= len(pool):
            raise c.error(f"ngram_counts are {starts}, which are no places in order in a pool of {len(pool)}")
        group = found.setdefault(length, {})
        for at in range(start, end - length + 1, length):
            group[tuple(pool[at : at + length])] = number
            number += 1
    if number > len(columns):
        raise c.error(f"{number} n-grams and {len(columns)} ngram_indexes")
    return found


def _width(c: Use) -> int:
    return max((int(i) for i in c.need("ngram_indexes")), default=-1) + 1


def _tfidf_infer(c: Infer) -> list[Type]:
    shape = c.tensor(0).shape
    if shape is None:
        return [TensorType("float32", None)]
    rows: tuple[Dim, ...] = shape[:-1]
    return [TensorType("float32", (*rows, _width(c)))]


def _counts(c: Use, row: list[Any], grams: dict[int, dict[tuple[Any, ...], int]]) -> Array:
    low, high = int(c.need("min_gram_length")), int(c.need("max_gram_length"))
    columns, out = c.need("ngram_indexes"), np.zeros(_width(c), np.float32)
    for length, group in grams.items():
        if not low <= length <= high:
            continue
        for skip in range(min(int(c.need("max_skip_count")) + 1, len(row)) if length > 1 else 1):
            step = skip + 1
            for start in range(len(row) - step * (length - 1)):
                number = group.get(tuple(row[start : start + step * (length - 1) + 1 : step]))
                if number is not None:
                    out[int(columns[number])] += 1
    return out


def _tfidf(c: Evaluate, x: Array) -> Array:
    grams, mode = _grams(c), c.need("mode")
    rows = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)
    counts = [_counts(c, [text(v) if x.dtype.kind in "OUS" else int(v) for v in row], grams) for row in rows]
    made = np.array(counts, np.float32).reshape(*x.shape[:-1], _width(c))
    if mode == "TF":
        return made
    scale = np.ones(_width(c), np.float32)
    for column, weight in zip(c.need("ngram_indexes"), c.get("weights") or []):
        scale[int(column)] = weight
    return np.asarray((made if mode == "TFIDF" else (made > 0).astype(np.float32)) * scale, np.float32)


register(
    "TfIdfVectorizer",
    _tfidf_infer,
    _tfidf,
    takes="X:int|string[_ *s]",
    requires=(
        OneOf("mode", ("TF", "IDF", "TFIDF")),
        Between("max_skip_count", 0),
        Between("ngram_indexes", 0),
        Between("ngram_counts", 0),
    ),
)


# ---------------------------------------------------------------------------------------------------- ImageDecoder


def _decode_infer(c: Infer) -> list[Type]:
    channels = 1 if c.get("pixel_format", "RGB") == "Grayscale" else 3
    return [TensorType("uint8", (unknown_dim("height"), unknown_dim("width"), channels))]


def _decode(c: Evaluate, stream: Array) -> Array:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise c.error("decoding images needs the package Pillow: pip install pillow") from None
    form = c.get("pixel_format", "RGB")
    if form not in ("RGB", "BGR", "Grayscale"):
        raise c.error(f"unknown pixel_format {form!r}")
    try:
        image = Image.open(io.BytesIO(stream.astype(np.uint8).tobytes()))
        pixels = np.asarray(image.convert("L" if form == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as problem:
        raise c.error(f"the image cannot be decoded: {problem}") from None
    if form == "Grayscale":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if form == "BGR" else np.array(pixels)


register("ImageDecoder", _decode_infer, _decode, takes="encoded_stream:uint8[_]")

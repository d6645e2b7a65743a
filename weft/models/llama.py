"""A decoder of the size and shape of stories110M (Touvron et al., 2023, in little): 12 layers of 768, tied embeddings.

    tokens [batch, length]                     the words of this call: a prompt, or one
    lengths [batch]                            keys of each sequence with those of this call, less one (seqlens_k)
    keys_i, values_i [batch, heads, capacity, size]      the cache of layer i before this call
    -> logits [batch, vocabulary]              for the word after the last one
       new_keys_i, new_values_i                the cache after this call: `out` may be the arrays that went in

It is written in the operators that exporters write for ONNX Runtime (GroupQueryAttention, MatMulNBits, simplified layer
norms), so that the same graph runs there. `length` and `capacity` are open sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.expr.nodes import Var
from weft.graph.ir import NUMPY_TYPES, Array, Graph, Value
from weft.models.builder import Builder

MICROSOFT = "com.microsoft"
WEIGHTS = ("float32", "bfloat16", "float8", "int8", "int4")
"""The element types that weights can have."""
BLOCK = 32
"""Weights of a block with one scale, in int8 and int4."""
LARGEST_FLOAT8 = 448
"""The greatest number of float8_e4m3fn."""
LONGEST = 4096
"""Places that there are angles for."""


def llama_110m(
    batch: int = 1,
    seed: int = 0,
    *,
    weights: str = "float32",
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    key_heads: int = 12,
    hidden: int = 2048,
    vocabulary: int = 32000,
    accuracy_level: int = 4,
) -> Graph:
    """A decoder with a cache of keys and values, which the caller keeps.

    `accuracy_level` of products with int8 and int4 weights is what exporters for processors write: activations may be
    rounded (weft/ops/few_bits.py). 0 wants floats.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights are {weights!r}; there are {', '.join(WEIGHTS)}")
    made = _Decoder(Builder("llama_110m", seed), weights, batch, width, heads, key_heads, accuracy_level)
    return made.graph(layers, hidden, vocabulary)


class _Decoder:
    """The parts of the model; all products are without bias."""

    def __init__(
        self, b: Builder, weights: str, batch: int, width: int, heads: int, key_heads: int, accuracy_level: int
    ) -> None:
        self.b, self.weights, self.batch, self.width, self.accuracy_level = b, weights, batch, width, accuracy_level
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        angles = np.outer(np.arange(LONGEST), 10000.0 ** (-np.arange(0, self.size, 2) / self.size))
        self.turns = [b.constant(f(angles).astype(np.float32), n) for f, n in ((np.cos, "cosine"), (np.sin, "sine"))]

    def graph(self, layers: int, hidden: int, vocabulary: int) -> Graph:
        """The whole model."""
        b = self.b
        length, capacity = Var("length"), Var("capacity")
        tokens = b.input("tokens", (self.batch, length), "int64")
        self.lengths = b.input("lengths", (self.batch,), "int32")
        shape = (self.batch, self.key_heads, capacity, self.size)
        caches = [(b.input(f"keys_{i}", shape), b.input(f"values_{i}", shape)) for i in range(layers)]
        room = b.node("Gather", b.node("Shape", caches[0][0]), b.constant(np.array(2)), axis=0)
        self.total = b.node("Cast", room, to=6)
        table = b.random.standard_normal((vocabulary, self.width), np.float32)
        stored = self.stored(table)
        x = self.embedded(stored, tokens)
        new: list[Value] = []
        added: Value | None = None
        for cache in caches:
            y, x = self.norm(x, added)
            added, *grown = self.attention(y, cache)
            new += grown
            y, x = self.norm(x, added)
            added = self.gated(y, hidden)
        y, _ = self.norm(x, added)
        last = b.node("Gather", y, b.constant(np.array(-1)), axis=1)
        names = [f"new_{kind}_{i}" for i in range(layers) for kind in ("keys", "values")]
        return b.finish(self.product(last, stored, vocabulary), *new, names=["logits", *names])

    # ---------------------------------------------------------------------------------------------------------- weights

    def stored(self, matrix: Array) -> list[Value]:
        """A matrix of (outputs, inputs) as constants: itself, or codes and scales of its blocks."""
        b = self.b
        if self.weights == "float32":
            return [b.constant(matrix, "weight")]
        if self.weights == "bfloat16":
            return [b.constant(matrix.astype(NUMPY_TYPES["bfloat16"]), "weight")]
        if self.weights == "float8":  # one scale for each row of W
            scales = np.abs(matrix).max(1) / np.float32(LARGEST_FLOAT8)
            kind = NUMPY_TYPES["float8_e4m3fn"]
            return [
                self.b.constant((matrix / scales[:, None]).astype(kind), "codes"),
                self.b.constant(scales, "scales"),
            ]
        codes, scales = quantize(matrix, 8 if self.weights == "int8" else 4, BLOCK)
        return [b.constant(codes, "codes"), b.constant(scales, "scales")]

    def product(self, x: Value, stored: list[Value], outputs: int) -> Value:
        """x W^T, for x of any rank and W as it is stored."""
        b, made = self.b, None
        if len(stored) == 1:
            weight = stored[0]
            if self.weights == "bfloat16":
                weight = b.node("Cast", weight, to=1)
            made = b.node("MatMul", x, b.node("Transpose", weight, perm=[1, 0]))
        elif self.weights == "float8":
            weight = b.node("DequantizeLinear", *stored, axis=0)
            made = b.node("MatMul", x, b.node("Transpose", weight, perm=[1, 0]))
        else:
            shape = b.constants[stored[0]].shape
            bits = 8 if self.weights == "int8" else 4
            attributes = {"K": shape[1] * BLOCK, "N": outputs, "bits": bits, "block_size": BLOCK}
            attributes["accuracy_level"] = self.accuracy_level
            made = b.node("MatMulNBits", x, *stored, domain=MICROSOFT, **attributes)
        assert isinstance(made, Value)
        return made

    def dense(self, x: Value, inputs: int, outputs: int) -> Value:
        """A product with new weights."""
        matrix = self.b.random.standard_normal((outputs, inputs), np.float32) * np.float32(inputs**-0.5)
        return self.product(x, self.stored(matrix), outputs)

    def embedded(self, stored: list[Value], tokens: Value) -> Value:
        """The rows of the table that tokens name."""
        b = self.b
        if len(stored) == 1:
            rows: Value = b.node("Gather", stored[0], tokens, axis=0)
            wide: Value = rows if self.weights == "float32" else b.node("Cast", rows, to=1)
            return wide
        if self.weights == "float8":  # of which Gather takes none
            codes, scales = (b.constants[value].astype(np.float32) for value in stored)
            table = b.constant((codes * scales[:, None]).astype(NUMPY_TYPES["bfloat16"]), "table")
            found: Value = b.node("Cast", b.node("Gather", table, tokens, axis=0), to=1)
            return found
        codes = b.constants[stored[0]]
        flat = b.constant(codes.reshape(len(codes), -1), "table")
        bits = 8 if self.weights == "int8" else 4
        attributes = {"bits": bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        made: Value = b.node("GatherBlockQuantized", flat, tokens, stored[1], domain=MICROSOFT, **attributes)
        return made

    # ----------------------------------------------------------------------------------------------------------- layers

    def norm(self, x: Value, added: Value | None) -> tuple[Value, Value]:
        """The norm of x, or of the sum of both, which comes second."""
        b = self.b
        scale = b.constant(b.random.uniform(0.5, 1.5, self.width).astype(np.float32), "scale")
        if added is None:
            return b.node("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-5), x
        parts: Any = b.node(
            "SkipSimplifiedLayerNormalization", x, added, scale, outputs=4, domain=MICROSOFT, epsilon=1e-5
        )
        return parts[0], parts[3]

    def attention(self, x: Value, cache: tuple[Value, Value]) -> tuple[Value, Value, Value]:
        """Attention over the cache, which grows by the keys and values of x."""
        b, size = self.b, self.size
        widths = (self.heads * size, self.key_heads * size, self.key_heads * size)
        query, key, value = (self.dense(x, self.width, width) for width in widths)
        mixed, keys, values = b.node(
            "GroupQueryAttention", query, key, value, *cache, self.lengths, self.total, *self.turns, outputs=3,
            domain=MICROSOFT, num_heads=self.heads, kv_num_heads=self.key_heads, do_rotary=1,
        )  # fmt: skip
        return self.dense(mixed, self.heads * size, self.width), keys, values

    def gated(self, x: Value, hidden: int) -> Value:
        """Two layers with SwiGLU between."""
        b = self.b
        gate, up = self.dense(x, self.width, hidden), self.dense(x, self.width, hidden)
        opened = b.node("Mul", b.node("Mul", gate, b.node("Sigmoid", gate)), up)
        return self.dense(opened, hidden, self.width)


def quantize(matrix: Array, bits: int, block: int) -> tuple[Array, Array]:
    """The rows of a matrix in blocks: codes around the middle of their range, low bits first, and scales."""
    parts = matrix.reshape(len(matrix), -1, block)
    middle = 1 << (bits - 1)
    scales = (np.abs(parts).max(axis=-1) / np.float32(middle - 1)).astype(np.float32)
    codes = np.rint(parts / np.maximum(scales, np.float32(1e-30))[..., None]).astype(np.int16) + middle
    numbers = codes.astype(np.uint8)
    if bits == 4:
        numbers = numbers[..., 0::2] | numbers[..., 1::2] << 4
    return np.ascontiguousarray(numbers), scales

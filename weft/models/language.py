"""Language models: the LSTM of the TVM paper (Zaremba et al., 2014, medium), and BERT-base (Devlin et al., 2018)."""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Graph, Value
from weft.models.builder import Builder


def lstm_lm(batch: int = 1, seed: int = 0, *, steps: int = 35, hidden: int = 650, vocabulary: int = 10000) -> Graph:
    """Two LSTM layers of 650 over 35 words, and the scores of the next word at each."""
    b = Builder("lstm_lm", seed)
    words = b.input("words", (batch, steps), "int64")
    x = b.node("Gather", b.normal(vocabulary, hidden, name="embedding"), words, axis=0)
    x = b.node("Transpose", x, perm=[1, 0, 2])
    for _ in range(2):
        weight = b.normal(1, 4 * hidden, hidden, scale=hidden**-0.5)
        recurrence = b.normal(1, 4 * hidden, hidden, scale=hidden**-0.5)
        bias = b.normal(1, 8 * hidden, scale=0.1, name="bias")
        y = b.node("LSTM", x, weight, recurrence, bias, hidden_size=hidden)
        x = b.node("Squeeze", y, b.ints(1))
    x = b.node("Transpose", x, perm=[1, 0, 2])
    return b.finish(b.dense(x, hidden, vocabulary), names=["logits"])


def bert_base(
    batch: int = 1,
    seed: int = 0,
    *,
    length: int = 128,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
) -> Graph:
    """The encoder of BERT-base over 128 words."""
    b = Builder("bert_base", seed)
    words = b.input("words", (batch, length), "int64")
    x: Value = b.node("Gather", b.normal(vocabulary, width, name="embedding"), words, axis=0)
    x = b.add(x, b.normal(length, width, scale=0.02, name="positions"))
    for _ in range(layers):
        x = _encoder_layer(b, x, (batch, length, width), heads)
    return b.finish(x, names=["hidden"])


def _encoder_layer(b: Builder, x: Value, shape: tuple[int, int, int], heads: int) -> Value:
    """Attention, then two dense layers; the input goes around each, and each ends in a layer normalisation."""
    batch, length, width = shape
    size = width // heads
    joined = b.node("Reshape", b.dense(x, width, 3 * width), b.ints(batch, length, 3, heads, size))
    joined = b.node("Transpose", joined, perm=[2, 0, 3, 1, 4])
    parts = b.node("Split", joined, b.ints(1, 1, 1), outputs=3, axis=0)
    query, key, value = (b.node("Squeeze", part, b.ints(0)) for part in parts)
    scores = b.node("MatMul", query, b.node("Transpose", key, perm=[0, 1, 3, 2]))
    scores = b.node("Mul", scores, b.constant(np.float32(size**-0.5), "scale"))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), value)
    mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(batch, length, width))
    x = b.layer_norm(b.add(x, b.dense(mixed, width, width)), width)
    hidden = b.node("Gelu", b.dense(x, width, 4 * width))
    return b.layer_norm(b.add(x, b.dense(hidden, 4 * width, width)), width)

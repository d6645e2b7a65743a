"""The LSTM language model of the TVM paper (Zaremba et al., 2014, medium), and BERT-base (Devlin et al., 2018)."""

from __future__ import annotations

import math

from weft.graph.ir import Graph, Value
from weft.models.builder import Builder

STEPS, HIDDEN, VOCABULARY = 35, 650, 10_000
TOKENS, WIDTH, HEADS, LAYERS, WORDS = 128, 768, 12, 12, 30_522


def lstm_lm(batch: int = 1, seed: int = 0) -> Graph:
    """The language model: 35 words to the logits of the word after each, through two LSTM layers of 650."""
    b = Builder("lstm_lm", seed)
    words = b.input("words", "int64", (batch, STEPS))
    x = b.node("Gather", b.normal("embedding", (VOCABULARY, HIDDEN), 1.0), words, axis=0)
    x = b.transpose(x, 1, 0, 2)
    for _ in range(2):
        x = b.lstm(x, HIDDEN, HIDDEN)
    return b.build({"logits": b.dense(b.transpose(x, 1, 0, 2), HIDDEN, VOCABULARY)})


def bert_base(batch: int = 1, seed: int = 0) -> Graph:
    """The encoder of BERT-base: 128 tokens to 128 vectors of 768, through twelve layers."""
    b = Builder("bert_base", seed)
    tokens = b.input("tokens", "int64", (batch, TOKENS))
    position = b.normal("position", (TOKENS, WIDTH), 0.02)
    x = b.add(b.node("Gather", b.normal("embedding", (WORDS, WIDTH), 1.0), tokens, axis=0), position)
    for _ in range(LAYERS):
        x = _encoder_layer(b, x, batch)
    return b.build({"hidden": x})


def _encoder_layer(b: Builder, x: Value, batch: int) -> Value:
    """Attention, then two dense layers; the input goes around each of the two, and each ends in a normalisation."""
    attended = _attention(b, x, batch)
    projected = b.dense(attended, WIDTH, WIDTH)
    x = b.layer_norm(b.add(x, projected), WIDTH)
    inner = b.node("Gelu", b.dense(x, WIDTH, 4 * WIDTH))
    return b.layer_norm(b.add(x, b.dense(inner, 4 * WIDTH, WIDTH)), WIDTH)


def _attention(b: Builder, x: Value, batch: int) -> Value:
    """softmax(q kᵀ / √size) v, for every head; q, k and v come from one dense layer."""
    size = WIDTH // HEADS
    joined = b.reshape(b.dense(x, WIDTH, 3 * WIDTH), batch, TOKENS, 3, HEADS, size)
    parts = b.split_node("Split", 3, b.transpose(joined, 2, 0, 3, 1, 4), axis=0, num_outputs=3)
    query, key, value = (b.node("Squeeze", part, b.integers("axes", 0)) for part in parts)
    scores = b.node("MatMul", query, b.transpose(key, 0, 1, 3, 2))
    weights = b.node("Softmax", b.node("Div", scores, b.scalar("root", math.sqrt(size))), axis=-1)
    mixed = b.transpose(b.node("MatMul", weights, value), 0, 2, 1, 3)
    return b.reshape(mixed, batch, TOKENS, WIDTH)

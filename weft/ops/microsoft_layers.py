"""com.microsoft's fused layers: activations, normalizations with their residual, embeddings, fused products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph.ir import Value
from weft.ops.expansion import Builder
from weft.ops.microsoft_composition import alias, compose

# -------------------------------------------------------------------------------------------------------- activations


compose("Gelu", lambda b, x: b("Gelu", x))
compose("BiasGelu", lambda b, x, bias: b("Gelu", b("Add", x, bias)))
compose("FastGelu", lambda b, x, bias=None: b("Gelu", x if bias is None else b("Add", x, bias), approximate="tanh"))
compose("QuickGelu", lambda b, x: b("Swish", x, alpha=float(b.get("alpha", 1.702))))
compose("BiasAdd", lambda b, x, bias, skip: b("Add", b("Add", x, bias), skip))


def activate(b: Builder, x: Value, name: str, numbers: list[float]) -> Value:
    """The activation that a fused operator names, with its numbers in order."""
    if name == "":
        return x
    if name in ("Relu", "Tanh", "Sigmoid", "HardSwish", "Softplus"):
        return b(name, x)
    if name in ("LeakyRelu", "Elu", "ThresholdedRelu"):
        return b(name, x, alpha=float(numbers[0]) if numbers else None)
    if name == "HardSigmoid":
        alpha, beta = [*map(float, numbers), None, None][:2]
        return b(name, x, alpha=alpha, beta=beta)
    if name == "Clip":
        return b("Clip", x, *[b.constant(float(n), x.tensor.dtype) for n in numbers])
    raise b.error(f"the activation {name!r} is not known here")


# ----------------------------------------------------------------------------------------------------------- products


def _fused_conv(b: Builder, x: Value, w: Value, bias: Value | None = None, added: Value | None = None) -> Any:
    names = ("group", "pads", "strides", "dilations", "kernel_shape", "auto_pad")
    made = b("Conv", x, w, bias, **{name: b.get(name) for name in names})
    if added is not None:
        made = b("Add", made, added)
    return activate(b, made, b.get("activation", ""), list(b.get("activation_params") or []))


def _fused_gemm(b: Builder, x: Value, y: Value, z: Value | None = None) -> Any:
    made = b("Gemm", x, y, z, **{name: b.get(name) for name in ("alpha", "beta", "transA", "transB")})
    numbers = [b.get(name) for name in ("activation_alpha", "activation_beta", "activation_gamma")]
    return activate(b, made, b.get("activation", ""), [n for n in numbers if n is not None])


def turned(b: Builder, x: Value) -> Value:
    """A tensor with its last two dimensions exchanged."""
    rank = len(x.tensor.dims)
    if rank < 2:
        return x
    return b("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _fused_matmul(b: Builder, x: Value, y: Value) -> Any:
    if b.get("transBatchA", 0) or b.get("transBatchB", 0):
        raise b.error("transBatchA and transBatchB are not supported")
    made = b("MatMul", turned(b, x) if b.get("transA", 0) else x, turned(b, y) if b.get("transB", 0) else y)
    alpha = float(b.get("alpha", 1.0))
    return made if alpha == 1 else b("Mul", made, b.constant(alpha, made.tensor.dtype))


compose("FusedConv", _fused_conv)
compose("FusedGemm", _fused_gemm)
compose("FusedMatMul", _fused_matmul)

# ----------------------------------------------------------------------------------------------------- normalizations


def _spread(b: Builder, total: Value, epsilon: float, centred: bool) -> list[Value]:
    """The mean of the last axis, and one over its deviation (from the mean, or from zero)."""
    axes = b.constant([-1], "int64")
    mean = b("ReduceMean", total, axes, keepdims=1)
    far = b("Sub", total, mean) if centred else total
    square = b("ReduceMean", b("Mul", far, far), axes, keepdims=1)
    return [mean, b("Reciprocal", b("Sqrt", b("Add", square, b.constant(epsilon, total.tensor.dtype))))]


def _wide(b: Builder, part: Value | None) -> Any:
    """Halves as float32: a fused layer rounds to halves once, at its end, not after each of its steps."""
    return part if part is None or part.tensor.dtype not in ("float16", "bfloat16") else b.cast(part, "float32")


def _skip(b: Builder, op: str, x: Value, skip: Value, bias: Value | None, scales: Sequence[Value | None]) -> Any:
    epsilon, kind = float(b.get("epsilon", 1e-12)), x.tensor.dtype
    x, skip, bias = (_wide(b, part) for part in (x, skip, bias))
    total = b("Add", x, skip) if bias is None else b("Add", b("Add", x, bias), skip)
    made = b.cast(b(op, total, *[_wide(b, part) for part in scales], axis=-1, epsilon=epsilon), kind)
    if b.output_count == 1:
        return [made]
    spread = _spread(b, total, epsilon, op == "LayerNormalization")
    return [made, *spread, b.cast(total, kind)][: b.output_count]


def _skip_layer(
    b: Builder, x: Value, skip: Value, gamma: Value, beta: Value | None = None, bias: Value | None = None
) -> Any:
    return _skip(b, "LayerNormalization", x, skip, bias, [gamma, beta])


def _skip_simplified(b: Builder, x: Value, skip: Value, gamma: Value, bias: Value | None = None) -> Any:
    return _skip(b, "RMSNormalization", x, skip, bias, [gamma])


def _simplified(b: Builder, x: Value, gamma: Value) -> Any:
    return b("RMSNormalization", x, gamma, axis=b.get("axis", -1), epsilon=float(b.get("epsilon", 1e-5)))


def _embed(
    b: Builder,
    ids: Value,
    segments: Value | None,
    words: Value,
    positions: Value,
    segment_table: Value | None,
    gamma: Value,
    beta: Value,
    mask: Value | None = None,
    position_ids: Value | None = None,
) -> Any:
    places = b.range(ids.tensor.dims[1]) if position_ids is None else position_ids
    kind = words.tensor.dtype
    total = b("Add", _wide(b, b("Gather", words, ids)), _wide(b, b("Gather", positions, places)))
    if segments is not None and segment_table is not None:
        total = b("Add", total, _wide(b, b("Gather", segment_table, segments)))
    scales = [_wide(b, part) for part in (gamma, beta)]
    made = b("LayerNormalization", total, *scales, axis=-1, epsilon=float(b.get("epsilon", 1e-12)))
    made, total = b.cast(made, kind), b.cast(total, kind)
    if b.output_count == 1:
        return [made]
    if mask is None:
        ones = b("Mul", b.cast(ids, "int32"), b.constant(0, "int32"))
    else:
        ones = b.cast(mask, "int32")
    lengths = b("ReduceSum", ones, b.constant([1], "int64"), keepdims=0)
    return [made, lengths, b("Identity", total)]


compose("SkipLayerNormalization", _skip_layer)
compose("SkipSimplifiedLayerNormalization", _skip_simplified)
compose("SimplifiedLayerNormalization", _simplified, domain="")
compose("SimplifiedLayerNormalization", _simplified)
compose("EmbedLayerNormalization", _embed)

# ------------------------------------------------------------------------------------------------- positions and names


def _rotary(b: Builder, x: Value, places: Value, cosines: Value, sines: Value) -> Any:
    if b.get("is_packed_batching", 0) or float(b.get("scale", 1.0)) != 1:
        raise b.error("packed batches and scales are not supported")
    batch, length = x.tensor.dims[0], x.tensor.dims[1 if len(x.tensor.dims) == 3 else 2]
    if len(places.tensor.dims) < 2:
        row = b("Unsqueeze", b("Add", b.range(length), places), b.constant([0], "int64"))
        zeros = b("Unsqueeze", b("Mul", b.range(batch), b.constant(0, "int64")), b.constant([1], "int64"))
        places = b("Add", zeros, row)
    heads, size = int(b.get("num_heads", 0)), int(b.get("rotary_embedding_dim", 0))
    if len(x.tensor.dims) == 3 and heads == 0:
        width, half = x.tensor.dims[2], cosines.tensor.dims[1]
        if not isinstance(width, int) or not isinstance(half, int):
            raise b.error("num_heads is needed where sizes are not numbers")
        heads = width // (2 * half)
    return b(
        "RotaryEmbedding",
        x,
        cosines,
        sines,
        places,
        interleaved=int(b.get("interleaved", 0)),
        num_heads=heads or None,
        rotary_embedding_dim=size or None,
    )


compose("RotaryEmbedding", _rotary)

for _name in ("Trilu", "GatherND", "Unique"):
    alias(_name)
alias("Pad", (1,), traits="grows")
alias("Range", (0, 1, 2), traits="grows")
alias("QuantizeLinear")
alias("DequantizeLinear", traits="cheap")

"""Cases of `benchmarks.programs` with products in them: matrices, recurrent layers, attention."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as nn

from benchmarks.program_case import Case, normal, scalar


def product_cases() -> list[Case]:
    """Matrix products: both operands computed, odd sizes, one row, einsums, bytes."""

    def batched(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> Case:
        inputs = {"x": normal(*left), "z": normal(*right, seed=1)}
        return Case(name, "products", "y = MatMul(x, z)", inputs, lambda t: lambda: t.x @ t.z)

    def einsum(equation: str, left: tuple[int, ...], right: tuple[int, ...]) -> Case:
        inputs = {"x": normal(*left), "z": normal(*right, seed=1)}
        nodes = f'y = Einsum<equation="{equation}">(x, z)'
        return Case(f"einsum {equation}", "products", nodes, inputs, lambda t: lambda: torch.einsum(equation, t.x, t.z))

    return [
        batched("product 128×768×768, both computed", (128, 768), (768, 768)),
        batched("product 197×64×197", (12, 197, 64), (12, 64, 197)),
        batched("product 577×577×64", (12, 577, 577), (12, 577, 64)),
        batched("product 17×13×11", (100, 17, 13), (100, 13, 11)),
        batched("product 3×3×3", (1000, 3, 3), (1000, 3, 3)),
        batched("product 49×32×49", (64, 49, 32), (64, 32, 49)),
        batched("product 1×1024×1024, both computed", (1, 1024), (1024, 1024)),
        batched("matrix by vector", (1024, 1024), (1024,)),
        Case(
            "product transposed both", "products", "y = Gemm<transA=1, transB=1>(x, z)",
            {"x": normal(300, 200), "z": normal(250, 300)}, lambda t: lambda: t.x.T @ t.z.T,
        ),
        Case(
            "linear layer one row", "products", "y = Gemm<transB=1>(x, w, b)", {"x": normal(1, 2048)},
            lambda t: lambda: nn.linear(t.x, t.w, t.b), {"w": normal(1000, 2048, scale=0.02), "b": normal(1000)},
        ),
        einsum("bhid,bhjd->bhij", (1, 8, 196, 32), (1, 8, 196, 32)),
        einsum("bchw,kc->bkhw", (1, 64, 28, 28), (32, 64)),
        einsum("bij,bik->bjk", (16, 50, 65), (16, 50, 33)),
        _quantized_product(),
    ]  # fmt: skip


def _quantized_product() -> Case:
    """Bytes between QuantizeLinear and DequantizeLinear; PyTorch's form is the reference, not a peer."""
    weight = np.clip(np.round(normal(768, 768, seed=1) * 40), -127, 127).astype(np.int8)
    constants = {
        "s": scalar(0.03), "z": np.array(128, np.uint8), "w": weight, "ws": scalar(0.001), "wz": np.array(0, np.int8),
        "os": scalar(0.05), "oz": np.array(128, np.uint8),
    }  # fmt: skip

    def peer(t: SimpleNamespace) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            rounded = (torch.clamp(torch.round(t.x / t.s) + 128, 0, 255) - 128) * t.s
            made = rounded @ (t.w.to(t.x.dtype) * t.ws)
            return (torch.clamp(torch.round(made / t.os) + 128, 0, 255) - 128) * t.os

        return call

    return Case(
        "product of bytes",
        "products",
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, ws, wz) m = MatMul(d, v) "
        "o = QuantizeLinear(m, os, oz) y = DequantizeLinear(o, os, oz)",
        {"x": normal(128, 768)},
        peer,
        constants,
        tolerance=0.03,  # a value between two steps may fall on either
        in_torch=False,
    )


# ------------------------------------------------------------------------------------------------ recurrent layers

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""PyTorch's order of ONNX's gates."""


def _recurrent(name: str, op: str, steps: int, batch: int, inputs: int, size: int, both: bool = False) -> Case:
    directions, gates = 1 + both, len(GATES[op])
    shapes = {
        "w": (directions, gates * size, inputs),
        "r": (directions, gates * size, size),
        "b": (directions, 2 * gates * size),
    }
    constants = {key: normal(*shape, scale=0.08, seed=1) for key, shape in shapes.items()}
    settings = f"hidden_size={size}" + (', direction="bidirectional"' if both else "")
    settings += ", linear_before_reset=1" if op == "GRU" else ""
    return Case(
        name,
        "recurrent",
        f"y = {op}<{settings}>(x, w, r, b)",
        {"x": normal(steps, batch, inputs)},
        lambda t: _recurrent_peer(t, op, size, both),
        constants,
    )


def _recurrent_peer(t: SimpleNamespace, op: str, size: int, both: bool) -> Callable[[], Any]:
    layer = getattr(torch.nn, op)(t.x.shape[2], size, bidirectional=both).to(t.x.dtype).eval()
    order = torch.cat([torch.arange(size) + gate * size for gate in GATES[op]])
    split = len(order)
    for direction, suffix in enumerate(["", "_reverse"][: 1 + both]):
        bias = t.b[direction]
        parts = {
            "weight_ih": t.w[direction],
            "weight_hh": t.r[direction],
            "bias_ih": bias[:split],
            "bias_hh": bias[split:],
        }
        for name, tensor in parts.items():
            getattr(layer, f"{name}_l0{suffix}").copy_(tensor[order])
    steps, batch, _ = t.x.shape
    return lambda: layer(t.x)[0].view(steps, batch, 1 + both, size).transpose(1, 2).contiguous()


def recurrent_cases() -> list[Case]:
    """Layers that walk over a sequence."""
    return [
        _recurrent("lstm bidirectional", "LSTM", 40, 1, 256, 128, both=True),
        _recurrent("lstm of a batch", "LSTM", 20, 16, 128, 128),
        _recurrent("lstm small", "LSTM", 100, 1, 16, 32),
        _recurrent("lstm wide", "LSTM", 10, 1, 512, 512),
        _recurrent("gru", "GRU", 40, 1, 128, 256),
        _recurrent("gru bidirectional", "GRU", 30, 4, 64, 64, both=True),
        _recurrent("rnn", "RNN", 50, 1, 64, 128),
    ]


# ------------------------------------------------------------------------------------------------------- attention


def attention(name: str, heads: int, queries: int, keys: int, size: int, mask: str = "") -> Case:
    """Scores, a mask where there is one, softmax, and the mean of the values, as exporters write it."""
    inputs = {
        "q": normal(1, heads, queries, size),
        "k": normal(1, heads, keys, size, seed=1),
        "v": normal(1, heads, keys, size, seed=2),
    }
    constants = {"scale": scalar(size**-0.5)}
    if mask == "padding":
        inputs["mask"] = np.where(np.arange(keys) < keys * 3 // 4, 0, -1e9).astype("float32").reshape(1, 1, 1, keys)
    if mask == "causal":
        constants["mask"] = np.triu(np.full((queries, keys), -1e9, "float32"), 1)
    added = " m = Add(c, mask) p = Softmax<axis=-1>(m)" if mask else " p = Softmax<axis=-1>(c)"
    nodes = f"t = Transpose<perm=[0, 1, 3, 2]>(k) s = MatMul(q, t) c = Mul(s, scale){added} y = MatMul(p, v)"

    def peer(t: SimpleNamespace) -> Callable[[], torch.Tensor]:
        given = {"is_causal": True} if mask == "causal" else {"attn_mask": t.mask} if mask else {}
        return lambda: nn.scaled_dot_product_attention(t.q, t.k, t.v, **given)

    return Case(name, "attention", nodes, inputs, peer, constants)


def attention_cases() -> list[Case]:
    """One layer's attention, all heads."""
    return [
        attention("attention 64", 8, 64, 64, 64),
        attention("attention 197", 12, 197, 197, 64),
        attention("attention 512 masked", 12, 512, 512, 64, "padding"),
        attention("attention 1024 causal", 16, 1024, 1024, 64, "causal"),
        attention("attention cross 1024×77", 8, 1024, 77, 40),
        attention("attention one query", 16, 1, 512, 64),
        attention("attention windows 49", 64, 49, 49, 32),
    ]

"""The families of `benchmarks.sanitize`: for each kind of kernel that Weft makes on a GPU, one small model that has it.

Sizes are small, but leave edges: more than one block, tiles that are not full, rows that are no multiple of a warp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.dtypes import dtype
from weft.graph.ir import Graph, Value
from weft.models.builder import Builder

Make = Callable[[Builder], "Value | Sequence[Value]"]


@dataclass(frozen=True)
class Family:
    """A kind of kernel: a model that has one, and what must stand in its CUDA source."""

    name: str
    make: Make
    needs: str = "__global__"
    """A regular expression: where it is not found, the model no longer belongs to the family."""
    tolerance: float = 1e-4
    precision: str | None = None

    def graph(self) -> Graph:
        """The model."""
        builder = Builder(re.sub(r"\W+", "_", self.name))
        made = self.make(builder)
        return builder.finish(*(made if isinstance(made, (list, tuple)) else [made]))

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """Random inputs: floats around 0, any bytes and truths; other integers from 0 to 3, as every index may be."""
        random = np.random.default_rng(7)
        found: list[np.ndarray[Any, Any]] = []
        for value in self.graph().inputs:
            shape, kind = value.tensor.static, np.dtype(value.tensor.numpy)
            if kind.kind == "b":
                found.append(random.integers(0, 2, shape).astype(kind))
            elif kind.kind in "iu":
                low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.itemsize == 1 else (0, 4)
                found.append(random.integers(low, high, shape).astype(kind))
            else:
                found.append(random.standard_normal(shape).astype(kind))
        return found


def _one(op: str, *shapes: tuple[int, ...], dtype: str = "float32", **attributes: Any) -> Make:
    """A model of one node whose operands are all inputs."""
    return lambda b: b.node(op, *[b.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)], **attributes)


def _over(op: str, shape: tuple[int, ...], *axes: int, **attributes: Any) -> Make:
    """A reduction over some axes."""
    return lambda b: b.node(op, b.input("x", shape), b.ints(*axes), keepdims=0, **attributes)


def _conv(shape: tuple[int, ...], outputs: int, kernel: int, stride: int = 1, pad: int = 1, **more: Any) -> Make:
    return lambda b: b.relu(b.conv(b.input("x", shape), shape[1], outputs, kernel, stride, pad, bias=True, **more))


def _indexed(
    op: str, shape: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...] = (), **a: Any
) -> Make:
    """A gather or scatter by indices that are an input."""

    def make(b: Builder) -> Value:
        operands = [b.input("x", shape), b.input("at", indices, "int64")]
        made: Value = b.node(op, *operands, *([b.input("new", updates)] if updates else []), **a)
        return made

    return make


def _attention(b: Builder) -> Value:
    q, k, v = (b.input(name, (2, 3, 40, 16)) for name in "qkv")
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    made: Value = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    return made


def _streamed(rows: int, kind: int) -> Make:
    """A product of few rows with constants: as they are (0, of bfloat16: 3), of their norm (1), of a long chain (2)."""

    def make(b: Builder) -> Value:
        inner = 9216 if kind == 2 else 512
        x = b.input("x", (rows, inner))
        if kind == 1:
            x = b.node("RMSNormalization", x, b.normal(inner), axis=-1)
        elif kind == 2:
            x = b.node("Mul", b.node("Sigmoid", x), b.node("Tanh", x))
        columns, weights = 272, b.random.standard_normal((inner, 272)).astype(np.float32) * np.float32(0.02)
        if kind == 3:
            weights = (weights.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        made: Value = b.node("Add", b.node("MatMul", x, b.constant(weights)), b.input("skip", (rows, columns)))
        return made

    return make


def _few_bits(bits: int, rows: int = 1) -> Make:
    """A product with weights of few bits, with scales and zero points; of 8 bits that are float8."""

    def make(b: Builder) -> Value:
        x, random, (inner, columns, block) = b.input("x", (rows, 1024)), b.random, (1024, 528, 32)
        if bits == 8:
            weights = (random.standard_normal((inner, columns)) * 0.1).astype(dtype("float8_e4m3fn").numpy)
            scales = b.constant(random.uniform(0.5, 1, columns).astype(np.float32))
            made: Value = b.node("MatMul", x, b.node("DequantizeLinear", b.constant(weights), scales, axis=1))
            return made
        stored = random.integers(0, 256, (columns, inner // block, block * bits // 8)).astype(np.uint8)
        scales = b.constant((random.uniform(0.5, 1, (columns, inner // block)) * 0.02).astype(np.float32))
        zeros = b.constant(random.integers(0, 256, (columns, inner // block * bits // 8)).astype(np.uint8))
        sizes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
        made = b.node("MatMulNBits", x, b.constant(stored), scales, zeros, domain="com.microsoft", **sizes)
        return made

    return make


def _bytes_row(b: Builder) -> Value:
    """One row of bytes and a constant matrix of them."""
    weights = b.constant(b.random.integers(-128, 128, (1024, 272)).astype(np.int8))
    made: Value = b.node("MatMulInteger", b.input("x", (1, 1024), "int8"), weights)
    return made


def _heads(b: Builder) -> list[Value]:
    """Queries and keys turned by their place, keys and values written into caches."""
    caches = [b.node("Copy", b.input(name, (2, 3, 9, 8)), domain="weft") for name in ("keys", "values")]
    angles = [b.normal(9, 4), b.normal(9, 4)]
    places, starts = b.input("places", (2, 1), "int64"), b.input("starts", (2,), "int64")
    given = [*caches, b.input("x", (2, 12, 1, 8)), *angles, places, starts]
    attributes = {"axis": 2, "split": 1, "updated": 2, "interleaved": 0, "rotary_embedding_dim": 8}
    made: list[Value] = b.node("UpdateHeads", *given, outputs=3, domain="weft", **attributes)
    return made


def _recurrent(op: str, gates: int) -> Make:
    def make(b: Builder) -> Value:
        x = b.input("x", (5, 3, 24))
        weight, recurrence = b.normal(1, gates * 40, 24, scale=0.2), b.normal(1, gates * 40, 40, scale=0.2)
        y = b.node(op, x, weight, recurrence, b.normal(1, 2 * gates * 40, scale=0.1), hidden_size=40)
        made: Value = b.node("Squeeze", y, b.ints(1))
        return made

    return make


def _grouped(b: Builder) -> Value:
    """Groups of eight channels between convolutions of all of them."""
    x = b.relu(b.conv(b.input("x", (1, 32, 13, 11)), 32, 64, 1))
    return b.conv(b.relu(b.conv(x, 64, 64, 3, 1, 1, bias=True, groups=8)), 64, 32, 1)


def _image(b: Builder) -> Value:
    """A last layer of a generator."""
    x, weight = b.relu(b.conv(b.input("x", (2, 32, 9, 9)), 32, 32, 1)), b.normal(32, 3, 4, 4, scale=0.1)
    return b.node("Tanh", b.node("ConvTranspose", x, weight, kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4))


def _groups(b: Builder) -> Value:
    """A norm of groups between convolutions, in channels last: groups of 12 of 24 channels."""
    y = b.node("Conv", b.input("x", (2, 16, 40, 36), "float16"), b.constant(_half(b, 24, 16, 1, 1)))
    y = b.node("GroupNormalization", y, b.constant(_half(b, 24)), b.constant(_half(b, 24)), num_groups=2)
    return b.node("Conv", b.node("Relu", y), b.constant(_half(b, 4, 24, 3, 3)), pads=[1, 1, 1, 1])


def _half(b: Builder, *shape: int) -> Any:
    return b.random.standard_normal(shape, np.float32).astype(np.float16)


def _topk(length: int, k: int) -> Make:
    return lambda b: b.node("TopK", b.input("x", (20, length)), b.ints(k), outputs=2, axis=-1)


def _elementwise(b: Builder) -> Value:
    x, row = b.input("x", (37, 130)), b.input("row", (130,))
    made: Value = b.node("Mul", b.node("Erf", b.node("Add", x, row)), b.node("Sigmoid", x))
    return made


def _where(b: Builder) -> Value:
    made: Value = b.node("Where", b.input("c", (33, 1), "bool"), b.input("x", (33, 70)), b.input("y", (70,)))
    return made


def _resize(mode: str) -> Make:
    def make(b: Builder) -> Value:
        sizes = b.constant(np.array([1.0, 1.0, 1.7, 2.3], np.float32))
        made: Value = b.node("Resize", b.input("x", (2, 3, 19, 23)), None, sizes, mode=mode)
        return made

    return make


def _pieces(b: Builder) -> Value:
    x, y = b.input("x", (9, 33, 20)), b.input("y", (9, 12, 20))
    joined = b.node("Concat", x, y, axis=1)
    part = b.node("Slice", joined, b.ints(3), b.ints(40), b.ints(1), b.ints(2))
    made: Value = b.node("Pad", part, b.ints(1, 0, 2, 0, 3, 1), mode="constant")
    return made


def _quantized(b: Builder) -> Value:
    scale, zero = b.constant(np.float32(0.05)), b.constant(np.uint8(100))
    made: Value = b.node("DequantizeLinear", b.node("QuantizeLinear", b.input("x", (17, 90)), scale, zero), scale, zero)
    return made


TWO = r"(?s)__global__.*__global__"
"""At least two kernels."""
FAMILIES: tuple[Family, ...] = (
    Family("product float32", _one("MatMul", (70, 90), (90, 130)), "__shared__"),
    Family("product float32, whole tiles", _one("MatMul", (256, 128), (128, 256)), "cp.async"),
    Family("product float32, loaded ahead", _one("MatMul", (2000, 96), (96, 2000)), r"_x_local\[32\]"),
    Family("product float32, batched", _one("MatMul", (5, 33, 40), (5, 40, 50)), "__shared__"),
    Family("product float32, split k", _one("MatMul", (32, 4096), (4096, 64)), TWO),
    Family("vector times matrix", _one("MatMul", (1, 512), (512, 300)), "__shared__"),
    Family("matrix times vector", _one("MatMul", (300, 512), (512, 1)), "__shared__"),
    Family("product bfloat16, wgmma", _one("MatMul", (512, 256), (256, 512), dtype="bfloat16"), "wgmma", 2e-2),
    Family("product float16, wgmma", _one("MatMul", (512, 256), (256, 512), dtype="float16"), "wgmma", 2e-2),
    Family("product bfloat16, mma.sync", _one("MatMul", (16, 256), (256, 72), dtype="bfloat16"), "mma.sync", 2e-2),
    Family("product float16, split k", _one("MatMul", (16, 4096), (4096, 256), dtype="float16"), "mma.sync", 2e-2),
    Family("product of one row and its norm", _streamed(1, 1), "weft_copy_async_16"),
    Family("product of three rows", _streamed(3, 0), "prefetch.L2"),
    Family("product of one row, in rounds", _streamed(1, 2), "weft_copy_async_16"),
    Family("product of five rows, weights of bfloat16", _streamed(5, 3), "weft_mma_stream"),
    Family("product of one row, weights of 4 bits", _few_bits(4), "weft_copy_async_16"),
    Family("product of one row, weights of 2 bits", _few_bits(2), "weft_copy_async_16"),
    Family("product of three rows, weights of 4 bits", _few_bits(4, 3), "weft_mma_words"),
    Family("product of eight rows, weights of 4 bits, clusters", _few_bits(4, 8), "weft_cluster_store"),
    Family("product of one row, weights of float8", _few_bits(8), "weft_words_get_e"),
    Family("product of one row of bytes", _bytes_row, "weft_copy_async_16"),
    Family("heads of a token", _heads),
    Family("product of bytes", _one("MatMulInteger", (64, 128), (128, 96), dtype="int8")),
    Family("product float16, clusters", _one("MatMul", (1000, 1000), (1000, 1000), dtype="float16"),
           "multicast::cluster", 2e-2),
    Family("product float16, rows beyond", _one("MatMul", (333, 256), (256, 512), dtype="float16"), "wgmma", 2e-2),
    Family("product tf32, held rows", _one("MatMul", (512, 256), (256, 512)), "weft_wgmma_loaded", 1e-2, "tf32"),
    Family("product tf32, rows beyond", _one("MatMul", (333, 200), (200, 1000)), "weft_wgmma_loaded", 1e-2, "tf32"),
    Family("product tf32, mma.sync", _one("MatMul", (16, 256), (256, 72)), "mma.sync", 1e-2, "tf32"),
    Family("product of bytes, wgmma", _one("MatMulInteger", (512, 256), (256, 512), dtype="int8"), "wgmma"),
    Family("convolution bfloat16", _one("Conv", (2, 64, 20, 20), (128, 64, 3, 3), dtype="bfloat16"), "mma", 2e-2),
    Family("convolution of bytes", _one("ConvInteger", (2, 32, 15, 15), (64, 32, 3, 3), dtype="uint8")),
    Family("convolution 3 × 3", _conv((2, 20, 17, 17), 40, 3), "__shared__"),
    Family("convolution 1 × 1, stride 2", _conv((1, 64, 14, 14), 96, 1, 2, 0), "__shared__"),
    Family("convolution in groups", _conv((1, 32, 13, 13), 32, 3, groups=4), "__shared__"),
    Family("convolution in groups, channels last", _grouped, "weft_mma_dot_f16", 2e-2, "fp16"),
    Family("convolution, depthwise", _conv((2, 48, 15, 15), 48, 3, 2, groups=48)),
    Family("convolution, transposed", _one("ConvTranspose", (1, 16, 9, 9), (16, 24, 4, 4), strides=[2, 2])),
    Family("convolution, transposed, of three channels", _image, "weft_mma_dot_f16", 2e-2, "fp16"),
    Family("einsum", _one("Einsum", (6, 20, 30), (30, 6, 17), equation="abc,cad->bda")),
    Family("pooling, maximum", _one("MaxPool", (2, 20, 17, 17), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)),
    Family("pooling, average", _one("AveragePool", (2, 20, 17, 17), kernel_shape=[3, 3], pads=[1] * 4)),
    Family("pooling, global", _one("GlobalAveragePool", (2, 37, 21, 21))),
    Family("sum along rows", _over("ReduceSum", (70, 1000), 1), "__shared__"),
    Family("sum along columns", _over("ReduceSum", (1000, 70), 0), "__shared__"),
    Family("sum along the middle", _over("ReduceMean", (7, 300, 33), 1), "__shared__"),
    Family("sum of everything", _over("ReduceSum", (300, 500), 0, 1), TWO),
    Family("place of the largest", _one("ArgMax", (40, 500), axis=1)),
    Family("softmax along rows", _one("Softmax", (45, 300), axis=-1), "__shared__"),
    Family("softmax along columns", _one("Softmax", (300, 45), axis=0)),
    Family("layer norm", lambda b: b.layer_norm(b.input("x", (30, 200)), 200), "__shared__"),
    Family("instance norm", _one("InstanceNormalization", (2, 6, 15, 15), (6,), (6,))),
    Family("norm of groups in parts, few channels of many places", _groups, "group_gains", 2e-2),
    Family("attention, its nodes", _attention, "__shared__"),
    Family("attention, one node", _one("Attention", (2, 3, 40, 16), (2, 3, 40, 16), (2, 3, 40, 16))),
    Family("attention, long keys", _one("Attention", (1, 2, 8, 16), (1, 2, 9000, 16), (1, 2, 9000, 16)), TWO),
    Family("attention of a token, parts added up by clusters",
           _one("Attention", (1, 8, 1, 64), (1, 8, 1024, 64), (1, 8, 1024, 64)), "weft_cluster_store"),
    Family("attention, causal", _one("Attention", *[(2, 3, 40, 16)] * 3, is_causal=1)),
    Family("attention, narrow", _one("Attention", *[(2, 3, 100, 64)] * 3), "wgmma_held", 5e-3, "fp16"),
    Family("attention, narrow and causal", _one("Attention", *[(1, 2, 150, 64)] * 3, is_causal=1), "wgmma_held", 5e-3,
           "bf16"),
    Family("attention, narrow, heads of 40", _one("Attention", *[(2, 1024, 320)] * 3, q_num_heads=8, kv_num_heads=8),
           "weft_bulk_copy", 5e-3, "fp16"),
    Family("attention, narrow, heads of 80", _one("Attention", *[(2, 1024, 640)] * 3, q_num_heads=8, kv_num_heads=8),
           "weft_bulk_copy", 5e-3, "fp16"),
    Family("LSTM", _recurrent("LSTM", 4)),
    Family("GRU", _recurrent("GRU", 3)),
    Family("LSTM by tensor cores", _recurrent("LSTM", 4), "weft_mma_rows", 2e-2, "fp16"),
    Family("scan along rows", lambda b: b.node("CumSum", b.input("x", (40, 300)), b.constant(np.int64(1)))),
    Family("scan along columns", lambda b: b.node("CumSum", b.input("x", (300, 40)), b.constant(np.int64(0)))),
    Family("elementwise", _elementwise),
    Family("where", _where),
    Family("transposition", _one("Transpose", (90, 130), perm=[1, 0]), "__shared__"),
    Family("permutation", _one("Transpose", (9, 20, 33, 5), perm=[2, 0, 3, 1])),
    Family("concat, slice, pad", _pieces),
    Family("gather", _indexed("Gather", (50, 90), (33,), axis=0)),
    Family("gather elements", _indexed("GatherElements", (50, 90), (20, 90), axis=0)),
    Family("gather by places", _indexed("GatherND", (9, 8, 30), (40, 2))),
    Family("scatter elements", _indexed("ScatterElements", (50, 90), (3, 90), (3, 90), axis=0, reduction="add")),
    Family("scatter by places", _indexed("ScatterND", (9, 8, 30), (5, 2), (5, 30), reduction="add")),
    Family("one hot", lambda b: b.node("OneHot", b.input("at", (40, 3), "int64"), b.ints(7),
                                       b.constant(np.array([0.0, 1.0], np.float32)))),  # fmt: skip
    Family("top k", _topk(200, 5)),
    Family("sort", _topk(100, 100)),
    Family("resize, linear", _resize("linear")),
    Family("resize, cubic", _resize("cubic")),
    Family("grid sample", _one("GridSample", (2, 3, 11, 12), (2, 9, 10, 2), mode="linear")),
    Family("quantization", _quantized),
)  # fmt: skip

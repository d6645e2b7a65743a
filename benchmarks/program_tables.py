"""The cases of `benchmarks.programs`, by family: what networks have besides convolutions, in sizes that they have."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as nn

from benchmarks.program_case import Case, indices, integers, normal, scalar, uniform
from benchmarks.program_layers import attention_cases, product_cases, recurrent_cases

Peer = Callable[[Any], Any]
"""What PyTorch computes of a case's tensors."""

INT64 = {"y": "int64"}


def _pooling() -> list[Case]:
    def case(name: str, nodes: str, shape: tuple[int, ...], peer: Peer) -> Case:
        return Case(f"pool {name}", "pooling", nodes, {"x": normal(*shape)}, lambda t: lambda: peer(t.x))

    pool = "y = {}<kernel_shape={}, strides={}, pads={}>(x)".format
    return [
        case(
            "max 3s2", pool("MaxPool", [3, 3], [2, 2], [1] * 4), (1, 64, 112, 112), lambda x: nn.max_pool2d(x, 3, 2, 1)
        ),
        case("max 2s2", pool("MaxPool", [2, 2], [2, 2], [0] * 4), (1, 128, 112, 112), lambda x: nn.max_pool2d(x, 2)),
        case(
            "max 5s1", pool("MaxPool", [5, 5], [1, 1], [2] * 4), (1, 256, 20, 20), lambda x: nn.max_pool2d(x, 5, 1, 2)
        ),
        case(
            "max 3s2 ceil",
            "y = MaxPool<kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1>(x)",
            (1, 96, 54, 54),
            lambda x: nn.max_pool2d(x, 3, 2, 0, ceil_mode=True),
        ),
        case("max 1-D 3s2", pool("MaxPool", [3], [2], [1, 1]), (8, 64, 1000), lambda x: nn.max_pool1d(x, 3, 2, 1)),
        case(
            "max 3-D 3s2",
            pool("MaxPool", [3] * 3, [2] * 3, [1] * 6),
            (1, 32, 16, 56, 56),
            lambda x: nn.max_pool3d(x, 3, 2, 1),
        ),
        case(
            "average 3s1",
            "y = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=0>(x)",
            (1, 192, 35, 35),
            lambda x: nn.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        ),
        case(
            "average 2s2", pool("AveragePool", [2, 2], [2, 2], [0] * 4), (1, 256, 28, 28), lambda x: nn.avg_pool2d(x, 2)
        ),
        case(
            "average 10s10",
            pool("AveragePool", [10, 10], [10, 10], [0] * 4),
            (1, 512, 60, 60),
            lambda x: nn.avg_pool2d(x, 10),
        ),
        case("average 1-D 4s4", pool("AveragePool", [4], [4], [0, 0]), (16, 32, 1024), lambda x: nn.avg_pool1d(x, 4)),
        case(
            "average 3-D 2s2",
            pool("AveragePool", [2] * 3, [2] * 3, [0] * 6),
            (1, 64, 8, 28, 28),
            lambda x: nn.avg_pool3d(x, 2),
        ),
        case("global average 7²", "y = GlobalAveragePool(x)", (1, 2048, 7, 7), lambda x: nn.adaptive_avg_pool2d(x, 1)),
        case(
            "global average 112²", "y = GlobalAveragePool(x)", (1, 32, 112, 112), lambda x: nn.adaptive_avg_pool2d(x, 1)
        ),
        case("global max 14²", "y = GlobalMaxPool(x)", (1, 512, 14, 14), lambda x: nn.adaptive_max_pool2d(x, 1)),
    ]


def _reductions() -> list[Case]:
    def case(name: str, op: str, axes: tuple[int, ...], shape: tuple[int, ...], peer: Peer) -> Case:
        nodes = f"y = {op}<keepdims=0>(x, axes)" if axes else f"y = {op}<keepdims=0>(x)"
        constants = {"axes": integers(*axes)} if axes else {}
        return Case(
            f"reduce {name}", "reductions", nodes, {"x": normal(*shape)}, lambda t: lambda: peer(t.x), constants
        )

    def arg(name: str, op: str, axis: int, shape: tuple[int, ...], peer: Peer) -> Case:
        nodes = f"y = {op}<axis={axis}, keepdims=0>(x)"
        return Case(
            f"reduce {name}", "reductions", nodes, {"x": normal(*shape)}, lambda t: lambda: peer(t.x), {}, INT64
        )

    return [
        case("sum last, short", "ReduceSum", (1,), (8192, 12), lambda x: x.sum(1)),
        case("sum last, long", "ReduceSum", (1,), (16, 65536), lambda x: x.sum(1)),
        case("sum all", "ReduceSum", (), (1024, 1000), lambda x: x.sum()),
        case("mean first", "ReduceMean", (0,), (512, 1024), lambda x: x.mean(0)),
        case("mean first, narrow", "ReduceMean", (0,), (65536, 6), lambda x: x.mean(0)),
        case("mean middle", "ReduceMean", (1,), (8, 197, 768), lambda x: x.mean(1)),
        case("mean last two", "ReduceMean", (2, 3), (8, 128, 28, 28), lambda x: x.mean((2, 3))),
        case("mean first and last", "ReduceMean", (0, 2), (64, 32, 256), lambda x: x.mean((0, 2))),
        case("max last", "ReduceMax", (1,), (1000, 1000), lambda x: x.amax(1)),
        case("max of classes", "ReduceMax", (1,), (1, 80, 8400), lambda x: x.amax(1)),
        case("norm last", "ReduceL2", (1,), (1024, 512), lambda x: torch.linalg.vector_norm(x, dim=1)),
        case("log sum exp", "ReduceLogSumExp", (1,), (256, 1000), lambda x: x.logsumexp(1)),
        arg("argmax of classes", "ArgMax", 1, (1, 21, 256, 256), lambda x: x.argmax(1)),
        arg("argmax last", "ArgMax", 1, (64, 32000), lambda x: x.argmax(1)),
    ]


def _softmax() -> list[Case]:
    def case(name: str, axis: int, shape: tuple[int, ...], op: str = "Softmax") -> Case:
        peer = {"Softmax": torch.softmax, "LogSoftmax": torch.log_softmax}[op]
        return Case(
            name, "softmax", f"y = {op}<axis={axis}>(x)", {"x": normal(*shape)}, lambda t: lambda: peer(t.x, axis)
        )

    return [
        case("softmax of scores", -1, (12, 128, 128)),
        case("softmax 197", -1, (12, 197, 197)),
        case("softmax of one row", -1, (1, 1000)),
        case("softmax long rows", -1, (16, 50257)),
        case("softmax of one long row", -1, (1, 50257)),
        case("softmax short rows", -1, (8400, 16)),
        case("softmax of channels", 1, (1, 21, 128, 128)),
        case("softmax first", 0, (256, 512)),
        case("log softmax long", -1, (4, 50257), "LogSoftmax"),
        case("log softmax of channels", 1, (1, 32, 64, 64), "LogSoftmax"),
    ]


def _norms() -> list[Case]:
    def layer(name: str, *shape: int) -> Case:
        size = shape[-1]
        return Case(
            name,
            "norms",
            "y = LayerNormalization<axis=-1>(x, w, b)",
            {"x": normal(*shape)},
            lambda t: lambda: nn.layer_norm(t.x, (size,), t.w, t.b, 1e-5),
            {"w": normal(size, seed=1), "b": normal(size, seed=2)},
        )

    channels = {"w": normal(64, seed=1), "b": normal(64, seed=2)}
    return [
        layer("layer norm 128×768", 1, 128, 768),
        layer("layer norm 3136×96", 1, 3136, 96),
        layer("layer norm one row", 1, 1, 1024),
        Case(
            "RMS norm",
            "norms",
            "q = Mul(x, x) m = ReduceMean<keepdims=1>(q, axes) e = Add(m, eps) r = Sqrt(e) n = Div(x, r) y = Mul(n, w)",
            {"x": normal(128, 2048)},
            lambda t: lambda: nn.rms_norm(t.x, (2048,), t.w, 1e-6),
            {"axes": integers(-1), "eps": scalar(1e-6), "w": normal(2048, seed=1)},
        ),
        Case(
            "layer norm of sum",
            "norms",
            "s = Add(x, z) y = LayerNormalization<axis=-1>(s, w, b)",
            {"x": normal(1, 384, 768), "z": normal(1, 384, 768, seed=3)},
            lambda t: lambda: nn.layer_norm(t.x + t.z, (768,), t.w, t.b),
            {"w": normal(768, seed=1), "b": normal(768, seed=2)},
        ),
        _group_norm("group norm", 320, 32, ""),
        _group_norm("group norm, silu", 320, 64, " s = Sigmoid(n) y = Mul(n, s)"),
        Case(
            "instance norm",
            "norms",
            "y = InstanceNormalization(x, w, b)",
            {"x": normal(1, 64, 128, 128)},
            lambda t: lambda: nn.instance_norm(t.x, weight=t.w, bias=t.b),
            channels,
        ),
        Case(
            "batch norm, relu",
            "norms",
            "n = BatchNormalization(x, w, b, m, v) y = Relu(n)",
            {"x": normal(1, 64, 56, 56)},
            lambda t: lambda: torch.relu(nn.batch_norm(t.x, t.m, t.v, t.w, t.b)),
            {**channels, "m": normal(64, seed=3), "v": uniform(64, low=0.5, high=2)},
        ),
        Case(
            "L2 normalize channels",
            "norms",
            "n = LpNormalization<axis=1, p=2>(x) y = Mul(n, w)",
            {"x": normal(1, 256, 38, 38)},
            lambda t: lambda: nn.normalize(t.x, dim=1) * t.w,
            {"w": normal(1, 256, 1, 1)},
        ),
    ]


def _group_norm(name: str, channels: int, side: int, after: str) -> Case:
    """As exporters write it for operator sets without GroupNormalization."""
    constants = {
        "a": integers(1, 32, -1), "d": integers(1, channels, side, side), "g": np.ones(32, "float32"),
        "z": np.zeros(32, "float32"), "w": normal(channels, 1, 1, seed=1), "b": normal(channels, 1, 1, seed=2),
    }  # fmt: skip
    nodes = "r = Reshape(x, a) i = InstanceNormalization(r, g, z) e = Reshape(i, d) m = Mul(e, w) "

    def peer(t: SimpleNamespace) -> Callable[[], torch.Tensor]:
        weight, bias = t.w.view(-1), t.b.view(-1)
        if after:
            return lambda: nn.silu(nn.group_norm(t.x, 32, weight, bias))
        return lambda: nn.group_norm(t.x, 32, weight, bias)

    last = f"n = Add(m, b){after}" if after else "y = Add(m, b)"
    return Case(name, "norms", nodes + last, {"x": normal(1, channels, side, side)}, peer, constants)


def _elementwise() -> list[Case]:
    def case(name: str, nodes: str, shape: tuple[int, ...], peer: Peer, **constants: Any) -> Case:
        return Case(name, "elementwise", nodes, {"x": normal(*shape)}, lambda t: lambda: peer(t), constants)

    half, root = scalar(0.5), scalar(np.sqrt(2.0))
    gelu = "d = Div(x, root) e = Erf(d) p = Add(e, one) m = Mul(x, p) y = Mul(m, half)"
    outer = {"x": normal(512, 1), "z": normal(1, 768)}
    masked = {"x": normal(8, 256, 256), "z": indices(2, 1, 256, 256).astype(bool)}
    residual = {"x": normal(8, 64, 28, 28), "z": normal(8, 64, 28, 28, seed=1)}
    return [
        case("gelu by erf", gelu, (128, 3072), lambda t: nn.gelu(t.x), one=scalar(1), half=half, root=root),
        case(
            "gelu by tanh", 'y = Gelu<approximate="tanh">(x)', (128, 3072),
            lambda t: nn.gelu(t.x, approximate="tanh"),
        ),
        case("silu", "s = Sigmoid(x) y = Mul(x, s)", (1, 32, 160, 160), lambda t: nn.silu(t.x)),
        case("hard swish", "y = HardSwish(x)", (1, 64, 56, 56), lambda t: nn.hardswish(t.x)),
        case("mish", "y = Mish(x)", (1, 64, 80, 80), lambda t: nn.mish(t.x)),
        case("tanh small", "y = Tanh(x)", (1, 1024), lambda t: torch.tanh(t.x)),
        case(
            "exp, log", "e = Exp(x) p = Add(e, one) y = Log(p)", (256, 1024),
            lambda t: torch.log(torch.exp(t.x) + 1), one=scalar(1),
        ),
        case("power", "a = Abs(x) y = Pow(a, e)", (256, 1024), lambda t: torch.pow(t.x.abs(), 1.7), e=scalar(1.7)),
        case(
            "sine, cosine", "s = Sin(x) c = Cos(x) y = Concat<axis=-1>(s, c)", (1024, 320),
            lambda t: torch.cat((t.x.sin(), t.x.cos()), -1),
        ),
        Case(
            "clip to bytes", "elementwise", "m = Mul(x, s) c = Clip(m, low, high) y = Cast<to=2>(c)",
            {"x": normal(1, 3, 512, 512)}, lambda t: lambda: (t.x * 255).clamp(0, 255).to(torch.uint8),
            {"s": scalar(255), "low": scalar(0), "high": scalar(255)}, {"y": "uint8"}, 0.005,
        ),
        Case(
            "bytes to image", "elementwise",
            "f = Cast<to=1>(x) s = Sub(f, m) d = Div(s, v) y = Transpose<perm=[0, 3, 1, 2]>(d)",
            {"x": indices(256, 1, 224, 224, 3).astype(np.uint8)},
            lambda t: lambda: ((t.x.to(t.m.dtype) - t.m) / t.v).permute(0, 3, 1, 2).contiguous(),
            {"m": np.array([123.7, 116.3, 103.5], "float32"), "v": np.array([58.4, 57.1, 57.4], "float32")},
        ),
        Case("outer sum", "elementwise", "a = Add(x, z) y = Relu(a)", outer, lambda t: lambda: torch.relu(t.x + t.z)),
        Case("residual", "elementwise", "a = Add(x, z) y = Relu(a)", residual, lambda t: lambda: torch.relu(t.x + t.z)),
        Case(
            "where mask", "elementwise", "y = Where(z, x, low)", masked,
            lambda t: lambda: torch.where(t.z, t.x, t.low), {"low": scalar(-1e9)},
        ),
        Case(
            "scale of channels", "elementwise", "s = Sigmoid(z) y = Mul(x, s)",
            {"x": normal(1, 256, 28, 28), "z": normal(1, 256, 1, 1)}, lambda t: lambda: t.x * torch.sigmoid(t.z),
        ),
        Case(
            "rotary", "elementwise",
            "a, b = Split<axis=-1, num_outputs=2>(x) n = Neg(b) r = Concat<axis=-1>(n, a) "
            "p = Mul(x, c) q = Mul(r, s) y = Add(p, q)",
            {"x": normal(1, 16, 256, 64), "c": normal(256, 64, seed=1), "s": normal(256, 64, seed=2)},
            lambda t: lambda: t.x * t.c + torch.cat((-t.x[..., 32:], t.x[..., :32]), -1) * t.s,
        ),
    ]  # fmt: skip


def _scans() -> list[Case]:
    def top(name: str, count: int, *shape: int) -> Case:
        return Case(
            name,
            "scans and sorting",
            "y, i = TopK<axis=-1>(x, k)",
            {"x": normal(*shape)},
            lambda t: lambda: tuple(torch.topk(t.x, count)),
            {"k": integers(count)},
            {"y": "float32", "i": "int64"},
        )

    def sums(name: str, axis: int, *shape: int) -> Case:
        constants = {"a": np.array(axis, np.int64)}
        return Case(
            name,
            "scans and sorting",
            "y = CumSum(x, a)",
            {"x": normal(*shape)},
            lambda t: lambda: t.x.cumsum(axis),
            constants,
        )

    return [
        sums("cumulative sum last", 1, 64, 4096),
        sums("cumulative sum first", 0, 1024, 256),
        top("top 5 of 1000", 5, 16, 1000),
        top("top 100 of 25200", 100, 1, 25200),
        top("top 50 of 50257", 50, 1, 50257),
        top("sort 4096", 4096, 4, 4096),
        _suppression(),
    ]


def _suppression() -> Case:
    """Boxes of one class, the best first, those that overlap a better one left out."""
    corners = uniform(1, 1000, 2, high=600)
    boxes = np.concatenate([corners, corners + uniform(1, 1000, 2, low=10, high=80, seed=1)], -1)
    limits = {"most": integers(100), "overlap": np.array([0.5], "float32"), "least": np.array([0.1], "float32")}

    def reference(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rest = [i for i in scores[0, 0].argsort(descending=True, stable=True).tolist() if scores[0, 0, i] > 0.1]
        kept: list[int] = []
        areas = (boxes[0, :, 2] - boxes[0, :, 0]) * (boxes[0, :, 3] - boxes[0, :, 1])
        while rest and len(kept) < 100:
            best, others = rest[0], torch.tensor(rest[1:], dtype=torch.int64)
            kept.append(best)
            low = torch.maximum(boxes[0, others, :2], boxes[0, best, :2])
            shared = (torch.minimum(boxes[0, others, 2:], boxes[0, best, 2:]) - low).clamp(min=0).prod(-1)
            rest = others[shared / (areas[others] + areas[best] - shared) <= 0.5].tolist()
        return torch.tensor([[0, 0, i] for i in kept])

    return Case(
        "suppression of boxes",
        "scans and sorting",
        "y = NonMaxSuppression(x, s, most, overlap, least)",
        {"x": boxes, "s": uniform(1, 1, 1000, seed=2)},
        lambda t: lambda: reference(t.x, t.s),
        limits,
        INT64,
        in_torch=False,
    )


def _gathers() -> list[Case]:
    table, data = normal(30522, 256), normal(64, 1024)
    places = indices(64, 2048, 1)
    some_rows = np.random.default_rng(0).permutation(1024)[:128, None]
    return [
        Case(
            "embedding", "gathers", "y = Gather(w, x)", {"x": indices(30522, 1, 128)},
            lambda t: lambda: nn.embedding(t.x, t.w), {"w": table},
        ),
        Case(
            "embedding short rows", "gathers", "y = Gather(w, x)", {"x": indices(1000, 4096)},
            lambda t: lambda: nn.embedding(t.x, t.w), {"w": normal(1000, 16)},
        ),
        Case(
            "gather columns", "gathers", "y = Gather<axis=1>(x, i)", {"x": data, "i": indices(1024, 512)},
            lambda t: lambda: t.x[:, t.i],
        ),
        Case(
            "gather elements", "gathers", "y = GatherElements<axis=1>(x, i)", {"x": data, "i": indices(1024, 64, 512)},
            lambda t: lambda: t.x.gather(1, t.i),
        ),
        Case(
            "gather points", "gathers", "y = GatherND(x, i)",
            {"x": normal(64, 64, 32), "i": np.concatenate([places, indices(64, 2048, 1, seed=1)], -1)},
            lambda t: lambda: t.x[t.i[:, 0], t.i[:, 1]],
        ),
        Case(
            "scatter rows", "gathers", "y = ScatterND(x, i, u)",
            {"x": normal(1024, 256), "i": some_rows, "u": normal(128, 256)},
            lambda t: lambda: t.x.index_copy(0, t.i[:, 0], t.u),
        ),
        Case(
            "scatter elements", "gathers", "y = ScatterElements<axis=1, reduction=\"add\">(x, i, u)",
            {"x": normal(64, 1024), "i": indices(1024, 64, 128), "u": normal(64, 128)},
            lambda t: lambda: t.x.scatter_add(1, t.i, t.u),
        ),
    ]  # fmt: skip


def _transposes() -> list[Case]:
    def case(order: tuple[int, ...], *shape: int) -> Case:
        name = f"transpose {''.join(map(str, order))} of {'×'.join(map(str, shape))}"
        return Case(
            name,
            "transposes",
            f"y = Transpose<perm={list(order)}>(x)",
            {"x": normal(*shape)},
            lambda t: lambda: t.x.permute(order).contiguous(),
        )

    windows = {"a": integers(1, 8, 7, 8, 7, 96), "b": integers(64, 49, 96)}
    shuffle = {"a": integers(1, 2, 116, 28, 28), "b": integers(1, 232, 28, 28)}
    return [
        case((1, 0), 1024, 1024),
        case((0, 2, 1), 16, 196, 384),
        case((1, 0, 2), 197, 16, 64),
        case((2, 1, 0), 96, 80, 64),
        case((1, 2, 0), 96, 80, 64),
        case((0, 2, 3, 1), 1, 64, 56, 56),
        case((0, 3, 1, 2), 1, 56, 56, 64),
        case((0, 3, 1, 2), 1, 224, 224, 3),
        case((0, 2, 3, 1), 1, 3, 224, 224),
        case((0, 2, 1, 3), 1, 197, 12, 64),
        case((0, 2, 3, 1), 1, 197, 12, 64),
        case((2, 0, 3, 1, 4), 1, 197, 3, 12, 64),
        Case(
            "window partition", "transposes",
            "r = Reshape(x, a) p = Transpose<perm=[0, 1, 3, 2, 4, 5]>(r) y = Reshape(p, b)",
            {"x": normal(1, 3136, 96)},
            lambda t: lambda: t.x.view(1, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(64, 49, 96), windows,
        ),
        Case(
            "channel shuffle", "transposes",
            "r = Reshape(x, a) p = Transpose<perm=[0, 2, 1, 3, 4]>(r) y = Reshape(p, b)",
            {"x": normal(1, 232, 28, 28)}, lambda t: lambda: nn.channel_shuffle(t.x, 2), shuffle,
        ),
        Case(
            "depth to space", "transposes", 'y = DepthToSpace<blocksize=2, mode="CRD">(x)',
            {"x": normal(1, 256, 64, 64)},
            lambda t: lambda: nn.pixel_shuffle(t.x, 2),
        ),
        Case(
            "space to depth", "transposes", "y = SpaceToDepth<blocksize=2>(x)", {"x": normal(1, 16, 128, 128)},
            lambda t: lambda: t.x.view(1, 16, 64, 2, 64, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 64, 64, 64),
        ),
    ]  # fmt: skip


def _parts() -> list[Case]:
    image = {"x": normal(1, 64, 56, 56)}
    two = {"x": normal(1, 128, 52, 52), "z": normal(1, 64, 52, 52)}
    last = {"x": normal(1000, 13), "z": normal(1000, 30)}
    three = {"a": "float32", "b": "float32", "c": "float32"}
    steps = {"s": integers(0, 1), "e": integers(512, 512), "a": integers(2, 3), "p": integers(2, 2)}
    back = {"s": integers(-1), "e": integers(-100000), "a": integers(3), "p": integers(-1)}
    roll = (
        "a = Slice(x, s, e, h) b = Slice(x, o, s, h) c = Concat<axis=1>(a, b) "
        "d = Slice(c, s, e, w) f = Slice(c, o, s, w) y = Concat<axis=2>(d, f)"
    )
    return [
        Case("concat channels", "parts", "y = Concat<axis=1>(x, z)", two, lambda t: lambda: torch.cat((t.x, t.z), 1)),
        Case("concat last", "parts", "y = Concat<axis=1>(x, z)", last, lambda t: lambda: torch.cat((t.x, t.z), 1)),
        Case(
            "split in three", "parts", "a, b, c = Split<axis=-1, num_outputs=3>(x)", {"x": normal(1, 197, 2304)},
            lambda t: lambda: [part.contiguous() for part in t.x.chunk(3, -1)], {}, three,
        ),
        Case(
            "pad zeros", "parts", "y = Pad(x, p)", image, lambda t: lambda: nn.pad(t.x, (1, 1, 1, 1)),
            {"p": integers(0, 0, 1, 1, 0, 0, 1, 1)},
        ),
        Case(
            "pad reflected", "parts", 'y = Pad<mode="reflect">(x, p)', image,
            lambda t: lambda: nn.pad(t.x, (3, 3, 3, 3), mode="reflect"), {"p": integers(0, 0, 3, 3, 0, 0, 3, 3)},
        ),
        Case(
            "slice every second", "parts", "y = Slice(x, s, e, a, p)", {"x": normal(1, 3, 512, 512)},
            lambda t: lambda: t.x[:, :, 0::2, 1::2].contiguous(), steps,
        ),
        Case("flip", "parts", "y = Slice(x, s, e, a, p)", image, lambda t: lambda: t.x.flip(3), back),
        Case(
            "roll", "parts", roll, {"x": normal(1, 56, 56, 96)}, lambda t: lambda: torch.roll(t.x, (-3, -3), (1, 2)),
            {"s": integers(3), "e": integers(56), "o": integers(0), "h": integers(1), "w": integers(2)},
        ),
        Case(
            "expand", "parts", "y = Expand(x, n)", {"x": normal(1, 8, 1, 256, 64)},
            lambda t: lambda: t.x.expand(1, 8, 4, 256, 64).contiguous(), {"n": integers(1, 8, 4, 256, 64)},
        ),
    ]  # fmt: skip


def _resizing() -> list[Case]:
    def case(
        name: str, shape: tuple[int, ...], size: tuple[int, int], settings: str, mode: str, aligned: bool | None
    ) -> Case:
        return Case(
            f"resize {name}",
            "resizing",
            f"y = Resize<{settings}>(x, , , n)",
            {"x": normal(*shape)},
            lambda t: lambda: nn.interpolate(t.x, size=size, mode=mode, align_corners=aligned),
            {"n": integers(*shape[:2], *size)},
        )

    half = 'coordinate_transformation_mode="half_pixel"'
    aligned = 'coordinate_transformation_mode="align_corners"'
    floor = 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
    cubic = f'mode="cubic", cubic_coeff_a=-0.75, {half}'
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 64), np.linspace(-1, 1, 64)), -1)[None].astype("float32")
    return [
        case("nearest 2", (1, 256, 26, 26), (52, 52), floor, "nearest", None),
        case("linear 2", (1, 64, 64, 64), (128, 128), f'mode="linear", {half}', "bilinear", False),
        case("linear to odd", (1, 21, 65, 65), (513, 513), f'mode="linear", {aligned}', "bilinear", True),
        case("linear of an image", (1, 3, 480, 640), (224, 224), f'mode="linear", {half}', "bilinear", False),
        case("cubic", (1, 3, 128, 128), (224, 224), cubic, "bicubic", False),
        Case(
            "grid sample", "resizing", 'y = GridSample<mode="linear", padding_mode="zeros", align_corners=0>(x, g)',
            {"x": normal(1, 32, 64, 64), "g": grid + normal(1, 64, 64, 2, scale=0.05)},
            lambda t: lambda: nn.grid_sample(t.x, t.g, align_corners=False),
        ),
    ]  # fmt: skip


CASES: list[Case] = list(
    chain(
        _pooling(), _reductions(), _softmax(), _norms(), _elementwise(), _scans(), _gathers(), _transposes(), _parts(),
        _resizing(), product_cases(), recurrent_cases(), attention_cases(),
    )
)  # fmt: skip
"""All of them, families together."""

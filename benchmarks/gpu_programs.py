"""The programs of `benchmarks.gpu`: as tensor expressions, in float64 for reference, and as PyTorch computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft import te


@dataclass(frozen=True)
class Problem:
    """One program, with what to compare it to and what it amounts to."""

    inputs: Sequence[Any]
    output: Any
    reference: Callable[..., Any]
    peers: Callable[..., dict[str, Callable[[], Any]]]
    operations: float = 0.0
    bytes: float = 0.0
    constants: Sequence[Any] = ()
    features: Sequence[str] = ()
    """What a user allows: "tf32"."""

    def rate(self, seconds: float, copy_seconds: float) -> str:
        """Operations or bytes for each second; of bytes, also the share of what a copy of 8192² floats reaches."""
        if self.operations:
            return f"{self.operations / seconds / 1e12:.1f} TFLOP/s"
        bandwidth = 2 * 4 * 8192**2 / copy_seconds
        return f"{self.bytes / seconds / 1e9:.0f} GB/s, {self.bytes / seconds / bandwidth:.0%} of copy"


@dataclass(frozen=True)
class Window:
    """A convolution of the paper's table 2: a square image, channels in and out, a square window, a stride."""

    name: str
    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int

    @property
    def out(self) -> int:
        """The side of the result."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1


CONVOLUTIONS = (
    Window("C1", 224, 3, 64, 7, 2), Window("C2", 56, 64, 64, 3, 1), Window("C3", 56, 64, 64, 1, 1),
    Window("C4", 56, 64, 128, 3, 2), Window("C5", 56, 64, 128, 1, 2), Window("C6", 28, 128, 128, 3, 1),
    Window("C7", 28, 128, 256, 3, 2), Window("C8", 28, 128, 256, 1, 2), Window("C9", 14, 256, 256, 3, 1),
    Window("C10", 14, 256, 512, 3, 2), Window("C11", 14, 256, 512, 1, 2), Window("C12", 7, 512, 512, 3, 1),
)  # fmt: skip
DEPTHWISE = tuple(
    Window(f"D{number}", size, channels, channels, 3, stride)
    for number, (size, channels, stride) in enumerate(
        [(112, 32, 1), (112, 64, 2), (56, 128, 1), (56, 128, 2), (28, 256, 1), (28, 256, 2), (14, 512, 1), (14, 512, 2),
         (7, 1024, 1)], 1,
    )
)  # fmt: skip


def gemm(m: int, n: int, k: int, dtype: str, turned: bool) -> Problem:
    """C = A B, or A Bᵀ; sums in float32."""
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((n, k) if turned else (k, n), dtype, name="B")
    r = te.reduce_axis((0, k), "r")

    def body(i: Any, j: Any) -> Any:
        right = b[j, r] if turned else b[r, j]
        return te.sum(a[i, r].astype("float32") * right.astype("float32"), axis=r)

    output = te.compute((m, n), body, name="C")
    if dtype != "float32":
        wide = output
        output = te.compute((m, n), lambda i, j: wide[i, j].astype(dtype), name="D")

    def product(x: Any, y: Any) -> Any:
        return x @ (y.T if turned else y)

    return Problem([a, b], output, product, lambda x, y: {"cuBLAS": lambda: product(x, y)}, operations=2.0 * m * n * k)


def scaled_product(m: int, n: int, k: int) -> Problem:
    """C = A Bᵀ of float8, with a scale of each operand, in bfloat16."""
    a, b = (te.placeholder((rows, k), "float8_e4m3fn", name=name) for rows, name in ((m, "A"), (n, "B")))
    scales = [te.placeholder((1,), "float32", name=name) for name in ("scale_a", "scale_b")]
    r = te.reduce_axis((0, k), "r")
    total = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype("float32") * b[j, r].astype("float32"), axis=r), name="C"
    )
    output = te.compute((m, n), lambda i, j: (total[i, j] * (scales[0][0] * scales[1][0])).astype("bfloat16"), name="D")

    def peers(x: Any, y: Any, p: Any, q: Any) -> dict[str, Callable[[], Any]]:
        import torch

        return {"scaled_mm": lambda: torch._scaled_mm(x, y.T, scale_a=p, scale_b=q, out_dtype=torch.bfloat16)}

    return Problem(
        [a, b, *scales], output, lambda x, y, p, q: x @ y.T * p * q, peers, operations=2.0 * m * n * k
    )  # fmt: skip


def bytes_product(m: int, n: int, k: int, turned: bool) -> Problem:
    """C = A B, or A Bᵀ, of int8, summed in int32."""
    a = te.placeholder((m, k), "int8", name="A")
    b = te.placeholder((n, k) if turned else (k, n), "int8", name="B")
    r = te.reduce_axis((0, k), "r")

    def body(i: Any, j: Any) -> Any:
        return te.sum(a[i, r].astype("int32") * (b[j, r] if turned else b[r, j]).astype("int32"), axis=r)

    def peers(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
        import torch

        return {"cuBLAS": lambda: torch._int_mm(x, y.T if turned else y)}

    output = te.compute((m, n), body, name="C")
    return Problem([a, b], output, lambda x, y: x @ (y.T if turned else y), peers, operations=2.0 * m * n * k)


def tf32_product(m: int, n: int, k: int) -> Problem:
    """C = A B of float32, its operands rounded to tf32."""
    plain = gemm(m, n, k, "float32", False)

    def peers(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
        import torch

        def run() -> Any:
            torch.backends.cuda.matmul.allow_tf32 = True
            made = x @ y
            torch.backends.cuda.matmul.allow_tf32 = False
            return made

        return {"cuBLAS tf32": run}

    return replace(plain, peers=peers, features=("tf32",))


def _padded(x: Any, window: Window, dtype: str) -> Any:
    pad, size = window.kernel // 2, window.size
    if not pad:
        return x
    return te.compute(
        (1, window.inputs, size + 2 * pad, size + 2 * pad),
        lambda n, c, i, j: te.if_then_else(
            te.all(i >= pad, i < size + pad, j >= pad, j < size + pad), x[n, c, i - pad, j - pad], te.const(0.0, dtype)
        ),
        name="P",
    )


def torch_convolution(window: Window, groups: int) -> Callable[[Any, Any], Any]:
    """PyTorch's call of it."""

    def run(x: Any, w: Any) -> Any:
        import torch

        return torch.conv2d(x, w, stride=window.stride, padding=window.kernel // 2, groups=groups)

    return run


def layouts(run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], dict[str, Callable[[], Any]]]:
    """A convolution in both layouts, with the algorithm that cuDNN finds best by measuring and with its first guess."""

    def peers(x: Any, w: Any) -> dict[str, Callable[[], Any]]:
        import torch

        def guessed(*given: Any) -> Any:
            with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):
                return run(*given)

        turned = [t.to(memory_format=torch.channels_last) for t in (x, w)]
        return {
            "cuDNN NCHW": lambda: run(x, w),
            "cuDNN NHWC": lambda: run(*turned),
            "NCHW guess": lambda: guessed(x, w),
            "NHWC guess": lambda: guessed(*turned),
        }

    return peers


def convolution(window: Window) -> Problem:
    """A convolution with constant weights, float32, batch 1."""
    x = te.placeholder((1, window.inputs, window.size, window.size), name="X")
    w = te.placeholder((window.outputs, window.inputs, window.kernel, window.kernel), name="W")
    padded = _padded(x, window, "float32")
    c, p, q = (te.reduce_axis((0, n), v) for n, v in ((window.inputs, "c"), (window.kernel, "p"), (window.kernel, "q")))

    def body(n: Any, f: Any, i: Any, j: Any) -> Any:
        at = i * window.stride + p, j * window.stride + q
        return te.sum(padded[(n, c, *at)] * w[f, c, p, q], axis=[c, p, q])

    output = te.compute((1, window.outputs, window.out, window.out), body, name="C")
    run = torch_convolution(window, 1)
    operations = 2.0 * window.out**2 * window.outputs * window.inputs * window.kernel**2
    return Problem([x, w], output, run, layouts(run), operations=operations, constants=[w])


UNET = tuple(
    Window(f"{channels} {kernel}×{kernel} {size}²", size, channels, channels, kernel, 1)
    for channels, size in ((320, 64), (640, 32), (1280, 16))
    for kernel in (3, 1)
)
"""Convolutions of a diffusion model's UNet, for a batch of 2."""


def narrow_convolution(window: Window, batch: int, groups: int = 1) -> Problem:
    """A convolution of float16 with constant weights, channels last, as it stands between kernels of a model.

    `groups` is 1, or as many as there are channels.
    """
    size, kernel, pad = window.size, window.kernel, window.kernel // 2
    inputs = window.inputs // groups
    x = te.placeholder((batch, size, size, window.inputs), "float16", name="X")
    w = te.placeholder((window.outputs, kernel, kernel, inputs), "float16", name="W")
    padded = x
    if pad:
        padded = te.compute(
            (batch, size + 2 * pad, size + 2 * pad, window.inputs),
            lambda n, i, j, c: te.if_then_else(
                te.all(i >= pad, i < size + pad, j >= pad, j < size + pad),
                x[n, i - pad, j - pad, c],
                te.const(0.0, "float16"),
            ),
            name="P",
        )
    p, q, c = (te.reduce_axis((0, n), v) for n, v in ((kernel, "p"), (kernel, "q"), (inputs, "c")))

    def body(n: Any, i: Any, j: Any, f: Any) -> Any:
        at = i * window.stride + p, j * window.stride + q
        image, weight = padded[(n, *at, f if groups > 1 else c)], w[f, p, q, 0 if groups > 1 else c]
        return te.sum(image.astype("float32") * weight.astype("float32"), axis=[p, q, *([c] if groups == 1 else [])])

    shape = (batch, window.out, window.out, window.outputs)
    total = te.compute(shape, body, name="C")
    output = te.compute(shape, lambda *at: total[at].astype("float16"), name="D")
    plain = torch_convolution(window, groups)

    def run(image: Any, weight: Any) -> Any:
        return plain(image.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def peers(image: Any, weight: Any) -> dict[str, Callable[[], Any]]:
        return layouts(plain)(*(t.permute(0, 3, 1, 2).contiguous() for t in (image, weight)))

    operations = 2.0 * batch * window.out**2 * window.outputs * inputs * kernel**2
    moved = 2.0 * batch * (size**2 * window.inputs + window.out**2 * window.outputs)
    counted = {"bytes": moved} if groups > 1 else {"operations": operations}
    return Problem([x, w], output, run, peers, constants=[w], **counted)


def depthwise(window: Window, dtype: str) -> Problem:
    """A depthwise convolution, batch 1; sums in float32."""
    x = te.placeholder((1, window.inputs, window.size, window.size), dtype, name="X")
    w = te.placeholder((window.inputs, 1, 3, 3), dtype, name="W")
    padded = _padded(x, window, dtype)
    p, q = te.reduce_axis((0, 3), "p"), te.reduce_axis((0, 3), "q")

    def body(n: Any, f: Any, i: Any, j: Any) -> Any:
        left = padded[n, f, i * window.stride + p, j * window.stride + q]
        return te.sum(left.astype("float32") * w[f, 0, p, q].astype("float32"), axis=[p, q])

    shape = (1, window.inputs, window.out, window.out)
    total = te.compute(shape, body, name="C")
    output = te.compute(shape, lambda *i: total[i].astype(dtype), name="R")
    run = torch_convolution(window, window.inputs)
    moved = (window.size**2 + window.out**2) * window.inputs * x.dtype.bytes
    return Problem([x, w], output, run, layouts(run), bytes=float(moved))


def memory_problems(n: int) -> Iterator[tuple[str, Problem]]:
    """Programs that move n × n floats."""
    import torch
    import torch.nn.functional as functional

    a = te.placeholder((n, n), name="A")
    k, q = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "q")
    twice, once = 8.0 * n * n, 4.0 * n * n

    def problem(inputs: Sequence[Any], output: Any, run: Callable[..., Any], moved: float) -> Problem:
        return Problem(inputs, output, run, lambda *t: {"torch": lambda: run(*t)}, bytes=moved)

    most = te.compute((n,), lambda i: te.max(a[i, k], axis=k), name="M")
    power = te.compute((n, n), lambda i, j: te.exp(a[i, j] - most[i]), name="E")
    total = te.compute((n,), lambda i: te.sum(power[i, q], axis=q), name="S")
    out = te.compute((n, n), lambda i, j: power[i, j] / total[i], name="C")
    yield "softmax", problem([a], out, lambda x: torch.softmax(x, -1), twice)
    yield "layer norm", problem(*_layer_norm(n), lambda x, g, b: functional.layer_norm(x, (n,), g, b), twice)
    gelu = te.compute((n, n), lambda i, j: a[i, j] * 0.5 * (1.0 + te.erf(a[i, j] * 0.7071067811865475)), name="C")
    yield "GELU", problem([a], gelu, functional.gelu, twice)
    rows = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="C")
    yield "sum of rows", problem([a], rows, lambda x: x.sum(1), once)
    columns = te.compute((n,), lambda j: te.sum(a[k, j], axis=k), name="C")
    yield "sum of columns", problem([a], columns, lambda x: x.sum(0), once)
    turned = te.compute((n, n), lambda i, j: a[j, i], name="C")
    yield "transposition", problem([a], turned, lambda x: x.T.contiguous(), twice)


def _layer_norm(n: int) -> tuple[list[Any], Any]:
    a = te.placeholder((n, n), name="A")
    gain, shift = te.placeholder((n,), name="G"), te.placeholder((n,), name="B")
    k, q = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "q")
    total = te.compute((n,), lambda i: te.sum(a[i, k], axis=k), name="T")

    def centred(i: Any, j: Any) -> Any:
        return a[i, j] - total[i] * (1.0 / n)

    spread = te.compute((n,), lambda i: te.sum(centred(i, q) * centred(i, q), axis=q), name="V")
    return [a, gain, shift], te.compute(
        (n, n), lambda i, j: centred(i, j) / te.sqrt(spread[i] * (1.0 / n) + 1e-5) * gain[j] + shift[j], name="C"
    )

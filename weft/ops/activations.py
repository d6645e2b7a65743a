"""Activation functions. Each is one formula, read twice (`formulas.py`).

float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.graph.ir import Type
from weft.graph.opspec import Infer, Use
from weft.ops.elementwise_support import elementwise, expect_broadcast, infer_broadcast, infer_same, signature_of
from weft.ops.formulas import ARRAYS, EXPRESSIONS, softplus

Formula = Callable[..., Any]


def activation(
    name: str,
    formula: Formula,
    types: str = "float",
    infer: Callable[[Infer], Sequence[Type]] = infer_same,
    traits: str = "transcendental",
) -> None:
    """Registers an activation from its formula of (functions, use, x, …)."""
    takes = signature_of(formula, 2, types, True)
    elementwise(
        name,
        lambda c, *x: formula(ARRAYS, c, *x),
        lambda c, *x: formula(EXPRESSIONS, c, *x),
        infer,
        takes=takes,
        traits=traits,
    )


def _celu(m: Any, c: Use, x: Any) -> Any:
    alpha = c.get("alpha", 1.0)
    return m.maximum(x, 0.0) + m.minimum(alpha * m.expm1(x / alpha), 0.0)


def _gelu(m: Any, c: Use, x: Any) -> Any:
    if c.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + m.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return x * m.normal_cdf(x)


def _selu(m: Any, c: Use, x: Any) -> Any:
    alpha, gamma = c.get("alpha", 1.67326319217681884765625), c.get("gamma", 1.05070102214813232421875)
    return gamma * m.select(x < 0, alpha * m.expm1(m.minimum(x, 0.0)), x)


def _zero(x: Any) -> Any:
    """0 of x's type, whatever x holds: an infinity or NaN times 0 is NaN."""
    return np.zeros_like(x) if isinstance(x, np.ndarray | np.generic) else te.const(0, x.dtype)


def _shrink(m: Any, c: Use, x: Any) -> Any:
    bias, threshold = c.get("bias", 0.0), c.get("lambd", 0.5)
    if not isinstance(x, np.ndarray | np.generic) and x.dtype.is_integer:
        x = x.astype("float64")  # the threshold and the bias are floats
    return m.select(x < -threshold, x + bias, m.select(x > threshold, x - bias, _zero(x)))


def _swish(m: Any, c: Use, x: Any) -> Any:
    return x * m.sigmoid(c.get("alpha", 1.0) * x)


activation("Celu", _celu)
activation("Elu", lambda m, c, x: m.select(x < 0, c.get("alpha", 1.0) * m.expm1(m.minimum(x, 0.0)), x))
activation("Gelu", _gelu)
activation("HardSigmoid", lambda m, c, x: m.minimum(m.maximum(c.get("alpha", 0.2) * x + c.get("beta", 0.5), 0.0), 1.0))
activation("HardSwish", lambda m, c, x: x * m.minimum(m.maximum(x * (1 / 6) + 0.5, 0.0), 1.0), traits="")
activation("LeakyRelu", lambda m, c, x: m.select(x < 0, c.get("alpha", 0.01) * x, x), traits="cheap")
activation("Mish", lambda m, c, x: x * m.tanh(softplus(m, x)))
activation("Relu", lambda m, c, x: m.maximum(x, 0), "float|signed", traits="cheap")
activation("Selu", _selu)
activation("Shrink", _shrink, "number", traits="")
activation("Sigmoid", lambda m, c, x: m.sigmoid(x))
activation("Softplus", lambda m, c, x: softplus(m, x))
activation("Softsign", lambda m, c, x: x / (1 + m.abs(x)))
activation("Swish", _swish)
activation("ThresholdedRelu", lambda m, c, x: m.select(x > c.get("alpha", 1.0), x, _zero(x)), traits="cheap")
activation("SwiGLU", lambda m, c, gate, value: _swish(m, c, gate) * value, infer=infer_broadcast)


def _infer_prelu(c: Infer) -> Sequence[Type]:
    expect_broadcast(c, 1, c.tensor(0).shape)
    return [c.tensor(0)]


activation("PRelu", lambda m, c, x, slope: m.select(x < 0, slope * x, x), "number", _infer_prelu, "cheap")

"""The activation functions that LSTM, GRU and RNN can be given by name, on arrays and in tensor expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array
from weft.graph.opspec import Use

ArrayFunction = Callable[[Array, float, float], Any]
TensorFunction = Callable[[Expr, Expr, Expr], Expr]

DEFAULTS = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, 0.0),
    "thresholdedrelu": (1.0, 0.0),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
}
TAKES_ALPHA = frozenset(DEFAULTS)
TAKES_BETA = frozenset(("affine", "scaledtanh", "hardsigmoid"))
USUAL = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "DynamicQuantizeLSTM": ("Sigmoid", "Tanh", "Tanh"),
    "QuantizedLSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}


def stable_sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), which does not overflow for large negative x."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))


def _zero(x: Expr) -> Expr:
    return te.const(0.0, x.dtype)


def _softplus(x: Expr) -> Expr:
    return te.maximum(x, _zero(x)) + te.log1p(te.exp(-te.abs(x)))


FUNCTIONS: dict[str, tuple[ArrayFunction, TensorFunction]] = {
    "relu": (lambda x, a, b: np.maximum(x, 0), lambda x, a, b: te.relu(x)),
    "tanh": (lambda x, a, b: np.tanh(x), lambda x, a, b: te.tanh(x)),
    "sigmoid": (lambda x, a, b: stable_sigmoid(x), lambda x, a, b: te.sigmoid(x)),
    "affine": (lambda x, a, b: a * x + b, lambda x, a, b: a * x + b),
    "leakyrelu": (
        lambda x, a, b: np.where(x >= 0, x, a * x),
        lambda x, a, b: te.if_then_else(x >= _zero(x), x, a * x),
    ),
    "thresholdedrelu": (
        lambda x, a, b: np.where(x >= a, x, 0),
        lambda x, a, b: te.if_then_else(x >= a, x, _zero(x)),
    ),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), lambda x, a, b: a * te.tanh(b * x)),
    "hardsigmoid": (
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda x, a, b: te.clip(a * x + b, _zero(x), te.const(1.0, x.dtype)),
    ),
    "elu": (
        lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
        lambda x, a, b: te.if_then_else(x >= _zero(x), x, a * te.expm1(x)),
    ),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), lambda x, a, b: x / (te.const(1.0, x.dtype) + te.abs(x))),
    "softplus": (lambda x, a, b: np.logaddexp(0, x), lambda x, a, b: _softplus(x)),
}


class Activation:
    """A function by its name, with its two numbers."""

    __slots__ = ("name", "alpha", "beta")

    def __init__(self, name: str, alpha: float, beta: float) -> None:
        self.name, self.alpha, self.beta = name, alpha, beta

    def array(self, x: Array) -> Any:
        """The function of an array."""
        return FUNCTIONS[self.name][0](x, self.alpha, self.beta)

    def tensor(self, x: Expr) -> Expr:
        """The function of an element."""
        return FUNCTIONS[self.name][1](x, te.const(self.alpha, x.dtype), te.const(self.beta, x.dtype))


def read_activations(use: Use, directions: int, each: int) -> list[list[Activation]]:
    """The activations of each direction. Numbers are handed out in order to the functions that take one."""
    names = [str(n) for n in use.get("activations") or USUAL[use.node.op] * directions]
    if len(names) != each * directions:
        raise use.error(f"activations names {len(names)} functions; {each * directions} are needed")
    alphas, betas = list(use.get("activation_alpha") or []), list(use.get("activation_beta") or [])
    made = []
    for name in (n.lower() for n in names):
        if name not in FUNCTIONS:
            raise use.error(f"unknown activation {name!r}; known are {', '.join(FUNCTIONS)}")
        alpha, beta = DEFAULTS.get(name, (0.0, 0.0))
        if name in TAKES_ALPHA and alphas:
            alpha = float(alphas.pop(0))
        if name in TAKES_BETA and betas:
            beta = float(betas.pop(0))
        made.append(Activation(name, alpha, beta))
    return [made[d * each : (d + 1) * each] for d in range(directions)]

"""The cells of LSTM and GRU and the activation functions that they can be given by name: formulas (`formulas.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.opspec import Use
from weft.ops.formulas import Functions, softplus

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


FUNCTIONS: dict[str, Callable[[Functions, Any, float, float], Any]] = {
    "relu": lambda m, x, a, b: m.maximum(x, 0.0),
    "tanh": lambda m, x, a, b: m.tanh(x),
    "sigmoid": lambda m, x, a, b: m.sigmoid(x),
    "affine": lambda m, x, a, b: a * x + b,
    "leakyrelu": lambda m, x, a, b: m.select(x >= 0, x, a * x),
    "thresholdedrelu": lambda m, x, a, b: m.select(x >= a, x, 0.0),
    "scaledtanh": lambda m, x, a, b: a * m.tanh(b * x),
    "hardsigmoid": lambda m, x, a, b: m.clip(a * x + b, 0.0, 1.0),
    "elu": lambda m, x, a, b: m.select(x >= 0, x, a * m.expm1(m.minimum(x, 0.0))),
    "softsign": lambda m, x, a, b: x / (1 + m.abs(x)),
    "softplus": lambda m, x, a, b: softplus(m, x),
}
"""Each of (functions, x, alpha, beta)."""


Apply = Callable[[int, Any], Any]
"""One of a direction's activations, by its number, of a gate."""


def lstm_memory(apply: Apply, gates: Sequence[Any], old: Any, peepholes: Sequence[Any] | None, couple: bool) -> Any:
    """The new memory of an LSTM, from its gates in, forget and new; the forget gate may be coupled to the first."""
    i, f, g = gates
    if peepholes is not None:
        i, f = i + peepholes[0] * old, f + peepholes[2] * old
    i = apply(0, i)
    f = 1 - i if couple else apply(0, f)
    return f * old + i * apply(1, g)


def lstm_hidden(apply: Apply, o: Any, memory: Any, peepholes: Sequence[Any] | None) -> Any:
    """The new hidden state of an LSTM, from its gate out."""
    return apply(0, o if peepholes is None else o + peepholes[1] * memory) * apply(2, memory)


def gru_hidden(apply: Apply, update: Any, new: Any, old: Any) -> Any:
    """The new hidden state of a GRU; the update gate is activated, the new state is not."""
    return (1 - update) * apply(1, new) + update * old


class Activation:
    """A function by its name, with its two numbers."""

    __slots__ = ("name", "alpha", "beta")

    def __init__(self, name: str, alpha: float, beta: float) -> None:
        self.name, self.alpha, self.beta = name, alpha, beta

    def __call__(self, m: Functions, x: Any) -> Any:
        """The function of an array, or of an element."""
        return FUNCTIONS[self.name](m, x, self.alpha, self.beta)


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

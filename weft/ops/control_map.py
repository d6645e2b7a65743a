"""A Scan whose steps do not depend on one another, as the operators of its body on all steps at once.

    Scan(state, rows; body: d = Sub(state, row), s = ReduceSumSquare(d, axes=[1]), returns state, s)
    ->  d = Sub(state, Unsqueeze(rows, [1])),  s = ReduceSumSquare(d, axes=[2])

So exporters of nearest neighbours, kernels and Gaussian processes write the distances of all pairs. A state that every
step hands on unchanged is a value from outside. Each value of the body that depends on a step gets one more dimension,
the first; bodies with operators that no rule here knows stay a Scan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.support import Replacement, Scope

ELEMENTWISE = frozenset(
    """Abs Add And Cast Ceil Div Equal Erf Exp Floor Greater GreaterOrEqual Identity Less LessOrEqual Log Max Min Mul
    Neg Not Or Pow Reciprocal Relu Sigmoid Sign Sqrt Sub Tanh Where""".split()
)
REDUCTIONS = frozenset(
    """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare""".split()
)
MOST_ELEMENTS = 1 << 27
"""A value of all steps that would be larger is left to be made step by step."""


class _Stop(Exception):
    """The body cannot be run on all steps at once."""


def expand_scan(node: Node, scope: Scope) -> Replacement:
    """The rule for Scan."""
    body, count = node.attributes.get("body"), int(node.attributes.get("num_scan_inputs", 0))
    if not isinstance(body, Graph) or not _is_plain(node, body, count):
        return None
    try:
        return _Map(node, body, scope, len(node.inputs) - count).run()
    except _Stop:
        return None


def _is_plain(node: Node, body: Graph, count: int) -> bool:
    """Whether all axes are the first, all directions forward, every operator is known, and states are handed on."""
    for key in ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"):
        if any(node.attributes.get(key) or []):
            return False
    states = len(node.inputs) - count
    if count < 1 or states < 0 or any(v is None for v in node.inputs):
        return False
    if any(one.domain or one.op not in ELEMENTWISE | REDUCTIONS for one in body.nodes):
        return False
    source = {one.outputs[0]: one.inputs[0] for one in body.nodes if one.op == "Identity"}

    def origin(value: Value | None) -> Value | None:
        while value is not None and value in source:
            value = source[value]
        return value

    return all(origin(after) is before for before, after in zip(body.inputs[:states], body.outputs[:states]))


class _Map:
    """One Scan on its way: `outer` has values that no step changes, `all_steps` those with the new first dimension."""

    def __init__(self, node: Node, body: Graph, scope: Scope, states: int) -> None:
        self.node, self.body, self.scope, self.states = node, body, scope, states
        given = [v for v in node.inputs if v is not None]
        self.outer: dict[Value, Value] = dict(zip(body.inputs[:states], given))
        self.all_steps: dict[Value, Value] = dict(zip(body.inputs[states:], given[states:]))
        lengths = {v.type.shape[0] if isinstance(v.type, TensorType) and v.type.shape else -1 for v in given[states:]}
        if len(lengths) > 1:
            raise _Stop
        for value, array in body.constants.items():
            self.outer[value] = scope.new_constant(array, value.name)

    def run(self) -> Replacement:
        """The nodes in the place of the Scan."""
        for one in self.body.nodes:
            self._one(one)
        made = [self._outside(v) for v in self.body.outputs[: self.states]]
        for value in self.body.outputs[self.states :]:
            if value not in self.all_steps:
                raise _Stop
            made.append(self.all_steps[value])
        node = self.node
        return [Node("Identity", [v], [o], {}, node.name, node.origin) for v, o in zip(made, node.outputs)]

    def _outside(self, value: Value) -> Value:
        """What a value is called that no step changes: one of the body, or one from around the Scan."""
        return self.outer.get(value, value)

    def _one(self, one: Node) -> None:
        if any(v is None for v in one.inputs):
            raise _Stop
        inputs = [v for v in one.inputs if v is not None]
        if not any(v in self.all_steps for v in inputs):
            outside = [self._outside(v) for v in inputs]
            self.outer[one.outputs[0]] = self._make(one.op, outside, one.attributes)
        elif one.op in ELEMENTWISE:
            self.all_steps[one.outputs[0]] = self._make(one.op, self._aligned(inputs), one.attributes)
        else:
            self.all_steps[one.outputs[0]] = self._reduced(one, inputs)

    def _make(self, op: str, inputs: Sequence[Value], attributes: Any) -> Value:
        made = self.scope.make(self.node, op, inputs, **attributes)
        if isinstance(made.type, TensorType) and made.type.is_static and math.prod(made.type.static) > MOST_ELEMENTS:
            raise _Stop
        return made

    def _rank(self, value: Value) -> int:
        """The rank that a value has in one step."""
        found = self.all_steps.get(value, self._outside(value))
        if not isinstance(found.type, TensorType) or found.type.shape is None:
            raise _Stop
        return len(found.type.shape) - (value in self.all_steps)

    def _aligned(self, inputs: Sequence[Value]) -> list[Value]:
        """The operands, with dimensions of one behind the steps where another operand has more."""
        rank = max(self._rank(v) for v in inputs)
        made = []
        for value in inputs:
            missing = rank - self._rank(value)
            if value not in self.all_steps:
                made.append(self._outside(value))
            elif missing:
                axes = self.scope.new_constant(np.arange(1, 1 + missing), "axes")
                made.append(self._make("Unsqueeze", [self.all_steps[value], axes], {}))
            else:
                made.append(self.all_steps[value])
        return made

    def _reduced(self, one: Node, inputs: Sequence[Value]) -> Value:
        value, rank = inputs[0], self._rank(inputs[0])
        axes: list[int] = []
        if len(inputs) > 1:
            known = self.scope.constant(self._outside(inputs[1]))
            if known is None or value not in self.all_steps:
                raise _Stop
            axes = [int(a) for a in known.reshape(-1)]
        if not axes:
            if one.attributes.get("noop_with_empty_axes", 0):
                return self.all_steps[value]
            axes = list(range(rank))
        if not axes:
            raise _Stop
        shifted = self.scope.new_constant(np.array([a % rank + 1 for a in axes], np.int64), "axes")
        return self._make(one.op, [self.all_steps[value], shifted], one.attributes)

"""A Scan whose body is the step of an LSTM becomes an LSTM, whose input products are one large product.

    %h, %c, %y = Scan(%h0, %c0, %x) { z = row @ w + h @ u + b;  i, f, g, o = parts of z
                                      c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c) }
    ->  %Y, %Yh, %Yc = LSTM(%x, w, u, b, %h0, %c0)

Frameworks that write recurrences as loops (JAX, and Keras on it) so get the kernels of those that have layers for them.
Weights and biases must be constants.
"""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.patterns import Anything, Op
from weft.graph.passes.support import Replacement, Scope, count_uses, rewrite, swap

_GATES = "iofg"
"""ONNX's order: input, output, forget, cell."""


def recurrent(graph: Graph) -> Graph:
    """The graph with such loops replaced; the same if there are none."""
    if not any(node.op == "Scan" for node in graph.nodes):
        return graph
    made, changed = rewrite(infer(graph), _rule)
    return infer(dead(made)) if changed else graph


def _rule(node: Node, scope: Scope) -> Replacement:
    body = node.attributes.get("body")
    if node.op != "Scan" or node.domain or not isinstance(body, Graph) or node.attributes.get("num_scan_inputs") != 1:
        return None
    if len(node.inputs) != 3 or len(body.inputs) != 3 or any(v is None for v in node.inputs):
        return None
    if any(node.attributes.get(f"scan_{end}_axes", [0]) != [0] for end in ("input", "output")):
        return None
    for hidden in (0, 1):
        step = _Step(body, hidden, scope)
        if step.matches():
            return _lstm(node, step, scope)
    return None


CELL = Anything()
PARTS = {gate: Anything() for gate in _GATES}
"""What the gates read: parts of the sums."""
NEW_CELL = Op(
    "Add", Op("Mul", Op("Sigmoid", PARTS["f"]), CELL), Op("Mul", Op("Sigmoid", PARTS["i"]), Op("Tanh", PARTS["g"]))
)
NEW_STATE = Op("Mul", Op("Sigmoid", PARTS["o"]), Op("Tanh", NEW_CELL))


class _Step:
    """The body of a loop, looked at as the step of an LSTM whose state is the input `hidden`, its cell the other."""

    def __init__(self, body: Graph, hidden: int, scope: Scope) -> None:
        self.body, self.hidden = body, hidden
        self.scope = Scope(body, scope.names, count_uses(body), scope)
        self.scope.producers = body.producers()
        self.state, self.cell, self.row = body.inputs[hidden], body.inputs[1 - hidden], body.inputs[2]
        self.width = (
            int(self.state.tensor.static[1]) if self.state.tensor.is_static and self.state.tensor.rank == 2 else 0
        )
        self.gates: dict[str, int] = {}
        """Which part of the sums each gate is."""
        self.sums: Value | None = None
        self.weights: list[Array] = []
        self.states: list[Array] = []
        self.biases: list[Array] = []

    def matches(self) -> bool:
        """Whether it is such a step; finds gates, weights and biases."""
        hidden, *rows = self.body.outputs[self.hidden], *self.body.outputs[2:]
        maker = self.scope.producer(hidden)
        found = None if maker is None or not self.width else NEW_STATE.find(maker, self.scope, is_closed=False)
        if found is None or found[CELL] is not self.cell or any(row is not hidden for row in rows):
            return False
        if self.body.outputs[1 - self.hidden] is not found[NEW_CELL]:
            return False
        if not all(self._part(gate, found[part]) for gate, part in PARTS.items()):
            return False
        return sorted(self.gates.values()) == [0, 1, 2, 3] and self._terms()

    def _part(self, name: str, value: Value) -> bool:
        """Notes which quarter of the sums a gate reads."""
        part = self.scope.producer(value, "Split", "Slice")
        source = part.inputs[0] if part is not None else None
        if part is None or source is None or self.sums not in (None, source):
            return False
        if source.tensor.rank != 2 or source.tensor.dims[-1] != 4 * self.width:
            return False
        if part.op == "Split":
            sizes = [output.tensor.dims[-1] for output in part.outputs]
            axis, place = int(part.attributes.get("axis", 0)), part.outputs.index(value)
        else:
            starts, axes = (
                self.scope.constant(one) for one in (part.inputs[1], part.inputs[3] if len(part.inputs) > 3 else None)
            )
            if starts is None or axes is None or starts.size != 1 or int(starts.item()) % self.width:
                return False
            sizes = [part.outputs[0].tensor.dims[-1]]
            axis, place = int(axes.item()), int(starts.item()) // self.width
        if axis not in (-1, 1) or any(size != self.width for size in sizes):
            return False
        self.sums = source
        self.gates[name] = place
        return True

    def _terms(self) -> bool:
        """Whether the sums are products of the row and of the state with constants, and biases."""
        return self._term(self.sums) and len(self.weights) == 1 and len(self.states) == 1

    def _term(self, value: Value | None) -> bool:
        array = self.scope.constant(value)
        if array is not None:
            self.biases.append(array)
            return bool(array.size in (1, 4 * self.width) and array.shape[-1:] in ((), (1,), (4 * self.width,)))
        node = self.scope.producer(value, "Add", "MatMul", "Gemm")
        if node is None or node.attributes.get("transA") or node.attributes.get("transB"):
            return False
        if node.op == "Add":
            return all(self._term(one) for one in node.inputs)
        weight = self.scope.constant(node.inputs[1])
        plain = node.op != "Gemm" or all(node.attributes.get(name, 1.0) == 1.0 for name in ("alpha", "beta"))
        if weight is None or weight.ndim != 2 or not plain:
            return False
        if node.inputs[0] is self.row:
            self.weights.append(weight)
        elif node.inputs[0] is self.state:
            self.states.append(weight)
        else:
            return False
        return len(node.inputs) < 3 or self._term(node.inputs[2])


def _lstm(node: Node, step: _Step, scope: Scope) -> Replacement:
    """The LSTM and what gives its results the shapes of the loop's."""
    width, kind = step.width, step.state.tensor.numpy
    columns = np.concatenate([np.arange(width) + width * step.gates[gate] for gate in _GATES])
    name = node.outputs[0].name

    def stored(array: Array, label: str) -> Value:
        return scope.new_constant(np.ascontiguousarray(array[None], kind), f"{name}_{label}")

    bias = sum(
        (np.broadcast_to(one.astype(np.float64).reshape(-1), 4 * width) for one in step.biases), np.zeros(4 * width)
    )
    weights = [
        stored(step.weights[0][:, columns].T, "input_weight"),
        stored(step.states[0][:, columns].T, "state_weight"),
        stored(np.concatenate([bias[columns], np.zeros(4 * width)]), "bias"),
    ]
    first = [node.inputs[step.hidden], node.inputs[1 - step.hidden]]
    lead = [_with_axis(node, value, scope) for value in first]
    back = node.attributes.get("scan_input_directions", [0]) == [1]
    if len(node.outputs) == 3 and (node.attributes.get("scan_output_directions", [0]) == [1]) != back:
        return None
    more = {"direction": "reverse"} if back else {}
    inputs = [node.inputs[2], *weights, None, *lead]
    rows, hidden, cell = scope.make_all(node, "LSTM", inputs, 3, hidden_size=width, **more)
    made: list[Node] = []
    wanted = {step.hidden: hidden, 1 - step.hidden: cell, 2: rows}
    for at, output in enumerate(node.outputs):
        if not isinstance(output.type, TensorType) or not output.type.is_static:
            return None
        shape = scope.new_constant(np.array(output.type.static, np.int64), f"{output.name}_shape")
        made += [one.replace(outputs=[output]) for one in swap(node, "Reshape", [wanted[at], shape])]
    return made


def _with_axis(node: Node, value: Value | None, scope: Scope) -> Value:
    """A first state as an LSTM takes it: for one direction."""
    array = scope.constant(value)
    if array is not None:
        return scope.new_constant(array[None], f"{node.outputs[0].name}_first")
    axes = scope.new_constant(np.array([0], np.int64), "axes")
    return scope.make(node, "Unsqueeze", [value, axes])

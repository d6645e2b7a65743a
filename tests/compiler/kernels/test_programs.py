"""Programs of groups: built once for layers that differ in their weights only."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401 — fills the table of operators
from weft.compiler.kernels import program
from weft.graph.ir import Node, TensorType, Value


def layer(fill: float, op: str = "MatMul", axis: int | None = None, scale: float = 1.0):
    """A product (or another node) and a scaling, and what they read."""
    x, w, s = Value("x", TensorType("float32", (4, 16))), Value("w", TensorType("float32", (16, 16))), Value("s")
    s.type = TensorType("float32", (1,))
    inner, y = Value("inner", TensorType("float32", (4, 16))), Value("y", TensorType("float32", (4, 16)))
    attributes = {} if axis is None else {"axis": axis}
    first = Node(op, [x, w] if axis is None else [x], [inner], attributes)
    constants = {w: np.full((16, 16), fill, np.float32), s: np.array([scale], np.float32)}
    return [first, Node("Mul", [inner, s], [y])], [y], constants


@pytest.mark.parametrize(
    ("second", "builds"),
    [
        (layer(2.0), 1),
        (layer(1.0, scale=3.0), 2),  # a literal of the program
        (layer(1.0, "Softmax", 1), 2),
    ],
)
def test_layers_share_a_program_but_for_their_weights(monkeypatch, second, builds):
    plain, count = program.build_program, []
    monkeypatch.setattr(program, "build_program", lambda *given: count.append(1) or plain(*given))
    known = program.Programs()
    made = [known.build(nodes, outputs, constants, {}, 1, ()) for nodes, outputs, constants in (layer(1.0), second)]
    assert len(count) == builds
    nodes, outputs, constants = second
    alone = plain(nodes, outputs, constants, "kernel", {}, 1, ())
    assert repr(made[1].schedule.func) == repr(alone.schedule.func)
    assert [v for v, _ in made[1].inputs] == [v for v, _ in alone.inputs] and made[1].outputs[0][0] is outputs[0]
    assert made[0].schedule is not made[1].schedule


def test_what_looks_at_weights_is_built_for_each():
    """A transposed convolution asks whether its weights are finite."""
    x, w, y = (
        Value(n, TensorType("float32", s)) for n, s in (("x", (1, 8, 5, 5)), ("w", (8, 8, 3, 3)), ("y", (1, 8, 7, 7)))
    )
    node, known = Node("ConvTranspose", [x, w], [y]), program.Programs()
    for fill in (1.0, np.inf):
        made = known.build([node], [y], {w: np.full((8, 8, 3, 3), fill, np.float32)}, {}, 1, ())
        assert made.own_weights and not known._built

"""Random small graphs, and what is checked of passes on them.

`graphs()` draws a graph of elementwise, matrix, reduction and movement operators on float32, with constants, shape
computations, values that nothing reads, and sometimes an If. Numbers stay small, so that results can be compared.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

import weft.ops  # noqa: F401  (fills the table of operators)
from tests.graph.verifier import verify_graph
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.opspec import Infer, find_operator
from weft.graph.text import constant_table, format_graph, parse_graph

UNARY = "Relu Neg Abs Tanh Sigmoid Erf Identity Softplus Floor Sqrt Not".split()
SIZES = (1, 2, 3, 4)


class Builder:
    """A graph under construction; every value gets its type at once."""

    def __init__(self):
        self.inputs, self.nodes, self.constants, self.values = [], [], {}, []
        self.count = 0

    def name(self, base):
        self.count += 1
        return f"{base}{self.count}"

    def input(self, shape, dtype="float32"):
        value = Value(self.name("x"), TensorType(dtype, shape))
        self.inputs.append(value)
        self.values.append(value)
        return value

    def constant(self, array):
        array = np.asarray(array)
        value = Value(self.name("c"), TensorType(str(array.dtype), array.shape))
        self.constants[value] = array
        return value

    def known(self, value):
        return self.constants.get(value)

    def node(self, op, *inputs, outputs=1, **attributes):
        made = [Value(self.name("v")) for _ in range(outputs)]
        node = Node(op, inputs, made, attributes)
        types = find_operator(op).infer(
            Infer(node, [None if v is None else v.type for v in inputs], [self.known(v) for v in inputs])
        )
        for value, type in zip(made, types):
            value.type = type
        self.nodes.append(node)
        self.values += [v for v in made if v.type.dtype == "float32"]
        return made[0] if outputs == 1 else made

    def graph(self, outputs, name="main"):
        return Graph(name, self.inputs, outputs, self.nodes, self.constants)


def _numbers(draw, shape):
    seed = draw(st.integers(0, 1000))
    special = draw(st.sampled_from([None, None, None, 0.0, 1.0, 2.0, 0.5]))
    if special is not None:
        return np.full(shape, special, np.float32)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def _unary(draw, b, x):
    op = draw(st.sampled_from(UNARY))
    if op == "Sqrt":
        return b.node("Sqrt", b.node("Abs", x))
    if op == "Not":
        flipped = b.node("Not", b.node("Not", b.node("Greater", x, b.constant(np.float32(0)))))
        return b.node("Where", flipped, x, b.constant(np.float32(0.25)))
    return b.node(op, x)


def _binary(draw, b, x):
    op = draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "Min"]))
    shape = x.tensor.static
    same = [v for v in b.values if v.tensor.static == shape]
    if draw(st.booleans()):
        other = draw(st.sampled_from(same))
    else:
        tail = draw(st.integers(0, len(shape)))
        other = b.constant(_numbers(draw, tuple(draw(st.sampled_from([d, 1])) for d in shape[len(shape) - tail :])))
    return b.node(op, *draw(st.permutations([x, other])))


def _divided(draw, b, x):
    return b.node("Div", x, b.constant(np.float32(draw(st.sampled_from([1.0, 2.0, 3.0, 4.0])))))


def _clip(draw, b, x):
    low, high = draw(st.sampled_from([(0, 6), (-1, 1), (0, None), (None, 0.5)]))
    given = [None if n is None else b.constant(np.float32(n)) for n in (low, high)]
    return b.node("Clip", x, *given)


def _matmul(draw, b, x):
    shape = x.tensor.static
    if len(shape) < 2:
        return _unary(draw, b, x)
    weight = b.constant(_numbers(draw, (shape[-1], draw(st.sampled_from(SIZES)))))
    made = b.node("MatMul", x, weight)
    return b.node("Add", made, b.constant(_numbers(draw, made.tensor.static[-1:]))) if draw(st.booleans()) else made


def _reduce(draw, b, x):
    if not x.tensor.static:
        return _unary(draw, b, x)
    op = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceMax"]))
    axis = draw(st.integers(-len(x.tensor.static), len(x.tensor.static) - 1))
    return b.node(op, x, b.constant(np.array([axis], np.int64)), keepdims=draw(st.sampled_from([0, 1])))


def _softmax(draw, b, x):
    if not x.tensor.static:
        return _unary(draw, b, x)
    return b.node("Softmax", x, axis=draw(st.integers(-len(x.tensor.static), len(x.tensor.static) - 1)))


def _transpose(draw, b, x):
    return b.node("Transpose", x, perm=list(draw(st.permutations(range(len(x.tensor.static))))))


def _reshape(draw, b, x):
    size = math.prod(x.tensor.static)
    parts = [d for d in (1, 2, 3, 4, 6) if size % d == 0]
    first = draw(st.sampled_from(parts))
    if draw(st.booleans()) or not x.tensor.static:
        return b.node("Reshape", x, b.constant(np.array([first, -1], np.int64)))
    # The way exporters write it: the first size taken from the tensor's own shape.
    head = b.node("Gather", b.node("Shape", x), b.constant(np.array(0, np.int64)), axis=0)
    head = b.node("Unsqueeze", head, b.constant(np.array([0], np.int64)))
    shape = b.node("Concat", head, b.constant(np.array([-1], np.int64)), axis=0)
    value, made = Value(b.name("v"), TensorType("float32", [x.tensor.static[0], size // x.tensor.static[0]])), None
    made = Node("Reshape", [x, shape], [value])
    b.nodes.append(made)
    b.values.append(value)
    return value


def _axis(draw, b, x):
    rank = len(x.tensor.static)
    if draw(st.booleans()) or 1 not in x.tensor.static:
        return b.node("Unsqueeze", x, b.constant(np.array([draw(st.integers(0, rank))], np.int64)))
    return b.node("Squeeze", x, b.constant(np.array([x.tensor.static.index(1)], np.int64)))


def _parts(draw, b, x):
    shape = x.tensor.static
    axes = [a for a, d in enumerate(shape) if d >= 2]
    if not axes:
        return _unary(draw, b, x)
    axis = draw(st.sampled_from(axes))
    if draw(st.booleans()):
        sizes = b.constant(np.array([1, shape[axis] - 1], np.int64))
        first, second = b.node("Split", x, sizes, outputs=2, axis=axis)
        return b.node("Concat", _unary(draw, b, first), second, axis=axis)
    bounds = [b.constant(np.array([n], np.int64)) for n in (draw(st.sampled_from([0, 1])), shape[axis], axis)]
    return b.node("Slice", x, *bounds)


def _cast(draw, b, x):
    from weft.graph.passes.infer import same_type

    wide = b.node("Cast", x, to=11)
    made = b.node("Cast", wide, to=1)
    assert same_type(made.type, x.type)
    return made


def _choice(draw, b, x):
    """An If whose branches read a value of the graph around them."""
    condition = b.constant(np.array(draw(st.booleans())))
    if draw(st.booleans()):
        condition = b.node("Greater", b.node("ReduceMax", x, None, keepdims=0), b.constant(np.float32(0)))
    branches = {}
    for key, op in (("then_branch", "Neg"), ("else_branch", "Tanh")):
        inner, out = Value(b.name("i"), x.type), Value(b.name("i"), x.type)
        nodes = [Node("Identity", [x], [inner]), Node(op, [inner], [out])]
        branches[key] = Graph(key, [], [out], nodes)
    return b.node("If", condition, **branches)


STEPS = [_unary, _unary, _binary, _binary, _divided, _clip, _matmul, _reduce, _softmax, _transpose, _reshape, _axis]
STEPS += [_parts, _cast]
if find_operator("If") is not None:
    STEPS.append(_choice)


@st.composite
def graphs(draw, most_steps=14):
    """A random graph whose types are all known."""
    b = Builder()
    for _ in range(draw(st.integers(1, 2))):
        b.input(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, most_steps))):
        x = draw(st.sampled_from(b.values[-6:]))
        if len(x.tensor.static) <= 4:
            draw(st.sampled_from(STEPS))(draw, b, x)
    made = [v for v in b.values if v not in b.inputs]
    candidates = made or b.values
    outputs = list(dict.fromkeys(draw(st.lists(st.sampled_from(candidates), min_size=1, max_size=3))))
    return b.graph(outputs)


def arrays_for(graph, seed=0):
    """Input arrays."""
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, v.tensor.static).astype(v.tensor.numpy) for v in graph.inputs]


def same_meaning(before, after, seed=0, exact=False):
    """Both graphs are well formed, take and give the same names, and give the same numbers."""
    verify_graph(after)
    assert [v.name for v in before.inputs] == [v.name for v in after.inputs]
    assert [v.name for v in before.outputs] == [v.name for v in after.outputs]
    given = arrays_for(before, seed)
    for wanted, got in zip(interpret_graph(before, given), interpret_graph(after, given)):
        assert wanted.dtype == got.dtype and wanted.shape == got.shape
        if exact:
            np.testing.assert_array_equal(wanted, got)
        else:
            scale = max(1.0, float(np.abs(wanted).max(initial=0)))
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * scale)


def check(step, before, wanted, exact=False, constants=None):
    """A pass on a graph given as text: what comes out is the wanted text and means the same."""
    graph = parse_graph(before, constants)
    text = format_graph(graph)
    done = step(graph)
    assert format_graph(graph) == text, "the pass changed the graph it was given"
    same_meaning(graph, done, exact=exact)
    assert format_graph(done).split("\n") == wanted.strip().split("\n"), f"\n{format_graph(done)}"


def unchanged(step, graph):
    """Runs a pass and makes sure that the graph it was given is as before."""
    text, table = format_graph(graph), constant_table(graph)
    done = step(graph)
    assert format_graph(graph) == text
    assert all(table[name] is array for name, array in constant_table(graph).items())
    return done
